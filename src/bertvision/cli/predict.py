"""`bertvision predict FOLDER`: answers, labels and scores from the command line, a file or a stream."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from bertvision.cli.flags import OptionalFloat, OptionalInt, OptionalPath, OptionalText
from bertvision.data.columns import Columns
from bertvision.encoder.device import Precision
from bertvision.errors import ConfigError, nearest
from bertvision.model.config import Backend

if TYPE_CHECKING:
    from bertvision.data.examples import SpanData
    from bertvision.data.texts import TextData
    from bertvision.model.model import Bundle
    from bertvision.model.trained import Trained

__all__ = ["ARGS", "PredictArgs", "main"]


@dataclass(frozen=True)
class DataColumns(Columns):
    """Names of the columns where --data is a table of texts; where none is given, the usual names are looked for."""

    # --text is the text to predict on here.
    prefix: ClassVar[str] = "--columns"


@dataclass(frozen=True)
class PredictArgs:
    """Answer questions (--question and --context) or tell labels and scores of texts (--text, for pairs with --pair),
    one on the command line, all of a file (--data FILE), or a stream of JSON lines as they come (--data -). A folder of
    several tasks answers all of them in one pass."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """What fit, finetune, multitask, ensemble, run or export wrote; a run means its best head."""
    question: OptionalText = None
    """The question to answer; goes with --context."""
    context: OptionalText = None
    """The text to find the answer in."""
    text: OptionalText = None
    """The text whose label or score is wanted."""
    pair: OptionalText = None
    """The other text of a pair; goes with --text."""
    data: OptionalText = None
    """Questions from a SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT] or demo:test; texts from glue:TASK:FILE,
    cs224n:SET:FILE, .csv, .tsv, .jsonl or hub:NAME[:SPLIT]. Answers and labels may be missing in it. A dash reads
    JSON lines from the standard input, {"question", "context"} or {"text", "pair"}, and writes one for each."""
    tasks: tuple[str, ...] = ()
    """Of a folder of several tasks, those that are to answer; none = all."""
    out: OptionalPath = None
    """With --data: write predictions.json here, of spans nbest_predictions.json and null_odds.json, of labels
    probabilities.json; of several tasks in a folder each."""
    glue: OptionalText = None
    """With --data and --out: write the submission file of this GLUE task (RTE, MNLI-mm, ...) into --out."""
    threshold: OptionalFloat = None
    """No answer is given where its score exceeds the best candidate's by more than this; stored with the head."""
    encoder: OptionalText = None
    """Where the encoder lies now, if it moved."""
    n_best: int = 0
    """Of answers found in paragraphs, tell so many of the best candidates too."""
    max_examples: OptionalInt = None
    """Take only the first so many examples of --data."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    backend: Backend = "torch"
    """What computes: torch, or the ONNX graph of a package (export --onnx), which runs on the CPU."""
    columns: DataColumns = field(default_factory=DataColumns)
    json: bool = False
    """Print the result as JSON."""


ARGS = PredictArgs


def main(args: PredictArgs) -> None:
    import dataclasses

    from bertvision.artifacts import check_output
    from bertvision.data.glue import check_rows
    from bertvision.data.texts import TextData
    from bertvision.model.load import load_bundle, read_systems
    from bertvision.model.stream import answer_stream

    _check(args)
    if args.out is not None:
        check_output(args.out)
    systems = _asked(read_systems(args.folder), args.tasks)
    spans = [name for name, system in systems.items() if system.task.abstains]
    if args.threshold is not None and not spans:
        raise ConfigError("--threshold is for spans: labels and scores have none")
    if args.n_best and not spans:
        raise ConfigError("--n-best is for spans: labels and scores have no candidates")
    if args.glue is not None:
        _check_glue(args.glue, systems)
    if args.text is not None and spans == list(systems):
        raise ConfigError(f"{args.folder} answers questions: give --question and --context")
    if args.question is not None and not any(s.task.reads_questions for s in systems.values()):
        raise ConfigError(
            f"{args.folder} gives labels or scores of texts: give --text, for pairs with --pair"
        )
    data = _load(args, systems) if args.data not in (None, "-") else None
    if args.glue is not None and isinstance(data, TextData):
        check_rows(args.glue, data)
    bundle = load_bundle(
        args.folder,
        encoder=args.encoder,
        device=args.device,
        precision=args.precision,
        backend=args.backend,
    )
    if args.threshold is not None:
        for name in spans:
            bundle.tunings[name] = dataclasses.replace(bundle.tunings[name], threshold=args.threshold)
    if args.data == "-":
        answer_stream(bundle, tasks=args.tasks, n_best=args.n_best)
    elif data is None:
        first, second = (args.text, args.pair) if args.text is not None else (args.question, args.context)
        assert first is not None
        found = bundle.predict(first, second, tasks=args.tasks, n_best=args.n_best)
        _tell(args, [("", first, second, found)], systems)
    else:
        _tell(args, _predict_all(args, data, bundle), systems)


def _check(args: PredictArgs) -> None:
    """Refuse flags that do not go together."""
    ways = [
        args.question is not None or args.context is not None,
        args.text is not None,
        args.data is not None,
    ]
    if args.pair is not None and args.text is None:
        raise ConfigError("--pair goes with --text")
    if sum(ways) != 1 or (args.question is None) != (args.context is None):
        raise ConfigError("give --question together with --context, or --text, or --data")
    if args.data is None and (args.out is not None or args.glue is not None):
        raise ConfigError(f"--{'out' if args.out is not None else 'glue'} goes with --data")
    for flag, given in (("out", args.out), ("glue", args.glue), ("max-examples", args.max_examples)):
        if args.data == "-" and given is not None:
            raise ConfigError(f"--{flag} is for a file: --data - writes its answers as they come")
    texts = {"question": args.question, "context": args.context, "text": args.text, "pair": args.pair}
    for flag, given in texts.items():
        if given is not None and not given.strip():
            raise ConfigError(f"--{flag} is empty: write it")
    if args.threshold is not None and not math.isfinite(args.threshold):
        raise ConfigError(f"--threshold must be a finite number, not {args.threshold}")
    if args.n_best < 0:
        raise ConfigError(f"--n-best must not be negative, not {args.n_best}: 0 tells the answer alone")
    if args.glue is not None and args.out is None:
        raise ConfigError("--glue needs --out, a folder for the submission file")


def _asked(systems: "dict[str, Trained]", tasks: tuple[str, ...]) -> "dict[str, Trained]":

    for name in tasks:
        if name not in systems:
            raise ConfigError(f"--tasks names {name!r}: {nearest(name, list(systems))}")
    return {name: systems[name] for name in dict.fromkeys(tasks)} if tasks else systems


def _check_glue(name: str, systems: "dict[str, Trained]") -> None:
    """Refuse a submission that several tasks, or one of another kind or with other classes, would have to fill."""
    from bertvision.data.glue import submission_task

    meant = submission_task(name)
    if len(systems) > 1:
        raise ConfigError(f"--glue {name} is filled by one task: name it with --tasks")
    (task,) = (system.task for system in systems.values())
    if task.kind != meant.kind:
        raise ConfigError(
            f"--glue {name} wants a {meant.kind} of each text, and this head gives a {task.kind}"
        )
    if set(task.classes) != set(meant.classes):
        raise ConfigError(
            f"--glue {name} wants the classes {', '.join(meant.classes)}, and this head gives "
            f"{', '.join(task.classes)}: name the task it was trained for, or leave out --glue"
        )


def _load(args: PredictArgs, systems: "dict[str, Trained]") -> "SpanData | TextData":
    """The data, read as the tasks read it; its labels do not matter."""
    from dataclasses import replace

    from bertvision.data.load import load_data, load_span_data
    from bertvision.data.texts import TextData

    assert args.data is not None
    questions = {system.task.reads_questions for system in systems.values()}
    if len(questions) > 1:
        names = ", ".join(name for name, system in systems.items() if system.task.reads_questions)
        raise ConfigError(
            f"of these tasks {names} read questions and the others texts: name those that --data suits with --tasks"
        )
    if questions == {True}:
        source = args.data.removeprefix("answerable:")
        return load_span_data(source, max_examples=args.max_examples, answers_required=False)
    known = args.data.startswith(("glue:", "cs224n:"))
    data = load_data(
        args.data,
        columns=args.columns,
        task="auto"
        if known
        else "label",  # not auto: a table with questions and contexts may be one of pairs
        max_examples=args.max_examples,
        answers_required=False,
    )
    if not isinstance(data, TextData) or data.spans is not None:
        raise ConfigError(
            f"--data {args.data} holds questions, and this folder gives labels or scores of texts"
        )
    return replace(data, examples=[replace(example, label=None) for example in data.examples])


_Row = tuple[str, str, str | None, dict[str, Any]]
"""Id, first and second text, predictions by task."""


def _predict_all(args: PredictArgs, data: "SpanData | TextData", bundle: "Bundle") -> list[_Row]:
    from dataclasses import replace

    from bertvision.data.examples import SpanData
    from bertvision.data.glue import write_submission

    found = bundle.answer(data, tasks=args.tasks)
    told: dict[str, list[Any]] = {}
    for name, answers in found.items():
        folder = args.out / name if args.out is not None and len(found) > 1 else args.out
        told[name] = list(bundle.predictions(name, answers, n_best=args.n_best))
        if folder is None:
            continue
        task, tuning = bundle.systems[name].task, bundle.tunings[name]
        served = task.calibrated(answers, tuning)
        task.write_answers(folder, served, tuning)
        if args.glue is not None:
            assert not isinstance(data, SpanData)
            kind: Any = task.kind
            like = replace(data, kind=kind, classes=task.classes)
            write_submission(args.glue, like, served.values.tolist(), folder)
    if isinstance(data, SpanData):
        texts = [(e.id, e.question, None) for e in data.examples]
    else:
        texts = [(e.id, e.first, e.second) for e in data.examples]
    return [(*row, {name: told[name][i] for name in found}) for i, row in enumerate(texts)]


def _tell(args: PredictArgs, rows: list[_Row], systems: "dict[str, Trained]") -> None:
    """Print the predictions: of one task beside its text, of several by their names."""
    from bertvision import console
    from bertvision.tasks.predictions import to_json

    alone = len(systems) == 1
    span = alone and all(system.task.abstains for system in systems.values())
    if args.json:
        made = []
        for key, first, second, found in rows:
            row: dict[str, Any] = {"id": key, "question" if span else "text": first}
            if second is not None and not span:
                row["pair"] = second
            told = {name: to_json(prediction) for name, prediction in found.items()}
            made.append(row | (next(iter(told.values())) if alone else {"tasks": told}))
        console.emit_json(made if args.data is not None else made[0])
        return
    for _, first, second, found in rows:
        console.emit(first if second is None or span else f"{first} | {second}")
        for name, prediction in found.items():
            console.emit(f"  {prediction.line()}" if alone else f"  {name}: {prediction.line()}")
            for rank, one in enumerate(getattr(prediction, "nbest", ()), start=1):
                console.emit(f"    {rank}. {one.text}  [{one.start}:{one.end}] p={one.probability:.3f}")
