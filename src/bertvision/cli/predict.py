"""`bertvision predict FOLDER`: answers, labels and scores from the command line, a file or a stream."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from bertvision.data.texts import Columns
from bertvision.encoder.device import Precision
from bertvision.errors import ConfigError, nearest
from bertvision.model.config import Backend
from bertvision.options import OptionalFloat, OptionalInt, OptionalPath, OptionalText

if TYPE_CHECKING:
    from bertvision.data.examples import SpanData, TextData
    from bertvision.model.model import Model
    from bertvision.tasks.base import Task


@dataclass(frozen=True)
class DataColumns(Columns):
    """Names of the columns where --data is a table of texts; where none is given, the usual names are looked for."""

    # --text is the text to predict on here.
    prefix: ClassVar[str] = "--columns"


@dataclass(frozen=True)
class PredictArgs:
    """Answer questions (--question and --context) or give labels and scores of texts (--text, for pairs with --pair),
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
    """Of answers found in paragraphs, list so many of the best candidates too."""
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
    from bertvision.artifacts import check_output
    from bertvision.data.examples import TextData
    from bertvision.data.named_sets import check_rows
    from bertvision.model.inputs import load_inputs
    from bertvision.model.load import read
    from bertvision.model.stream import answer_stream

    _check(args)
    if args.out is not None:
        check_output(args.out)
    parts = read(args.folder)
    for name in args.tasks:
        if name not in parts.systems:
            raise ConfigError(f"--tasks names {name!r}: {nearest(name, list(parts.systems))}")
    tasks = {name: parts.systems[name].task for name in args.tasks or parts.systems}
    _check_tasks(args, tasks)
    data = None
    if args.data not in (None, "-"):
        data = load_inputs(args.data, tasks, columns=args.columns, max_examples=args.max_examples)
        if args.glue is not None and isinstance(data, TextData):
            check_rows(args.glue, data)
    model = parts.open(args.encoder, device=args.device, precision=args.precision, backend=args.backend)
    if args.threshold is not None:
        model.set_threshold(args.threshold)
    if args.data == "-":
        answer_stream(model, tasks=args.tasks, n_best=args.n_best)
    elif data is None:
        first, second = (args.text, args.pair) if args.text is not None else (args.question, args.context)
        assert first is not None
        found = model(first, second, tasks=args.tasks, n_best=args.n_best)
        _show(args, [("", first, second, found)], tasks)
    else:
        _show(args, _predict_all(args, data, model), tasks)


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
        raise ConfigError(f"--n-best must not be negative, not {args.n_best}: 0 lists the answer alone")
    if args.glue is not None and args.out is None:
        raise ConfigError("--glue needs --out, a folder for the submission file")


def _check_tasks(args: PredictArgs, tasks: "dict[str, Task]") -> None:
    """Refuse flags that these tasks have no use for."""
    spans = [name for name, task in tasks.items() if task.abstains]
    if args.threshold is not None and not spans:
        raise ConfigError("--threshold is for spans: labels and scores have none")
    if args.n_best and not spans:
        raise ConfigError("--n-best is for spans: labels and scores have no candidates")
    if args.text is not None and spans == list(tasks):
        raise ConfigError(f"{args.folder} answers questions: give --question and --context")
    if args.question is not None and not any(task.reads_questions for task in tasks.values()):
        raise ConfigError(
            f"{args.folder} gives labels or scores of texts: give --text, for pairs with --pair"
        )
    if args.glue is not None:
        _check_glue(args.glue, list(tasks.values()))


def _check_glue(name: str, tasks: "list[Task]") -> None:
    """Refuse a submission that several tasks, or one of another kind or with other classes, would have to fill."""
    from bertvision.data.named_sets import submission_task

    meant = submission_task(name)
    if len(tasks) > 1:
        raise ConfigError(f"--glue {name} is filled by one task: name it with --tasks")
    (task,) = tasks
    if task.kind != meant.kind:
        raise ConfigError(
            f"--glue {name} wants a {meant.kind} of each text, and this head gives a {task.kind}"
        )
    if set(task.classes) != set(meant.classes):
        raise ConfigError(
            f"--glue {name} wants the classes {', '.join(meant.classes)}, and this head gives "
            f"{', '.join(task.classes)}: name the task it was trained for, or leave out --glue"
        )


_Row = tuple[str, str, str | None, dict[str, Any]]
"""Id, first and second text, predictions by task."""


def _predict_all(args: PredictArgs, data: "SpanData | TextData", model: "Model") -> list[_Row]:
    from dataclasses import replace

    from bertvision.data.examples import TextData
    from bertvision.data.named_sets import write_submission

    answers = model.answer(data, tasks=args.tasks)
    found = {name: model.predictions(name, own, n_best=args.n_best) for name, own in answers.items()}
    for name, own in answers.items() if args.out is not None else ():
        assert args.out is not None
        folder = args.out / name if len(answers) > 1 else args.out
        task, tuning = model.systems[name].task, model.systems[name].tuning
        served = task.calibrated(own, tuning)
        task.write_answers(folder, served, tuning)
        if args.glue is not None:
            assert isinstance(data, TextData)
            kind: Any = task.kind
            like = replace(data, kind=kind, classes=task.classes)
            write_submission(args.glue, like, served.values.tolist(), folder)
    if isinstance(data, TextData):
        texts = [(example.id, example.first, example.second) for example in data.examples]
    else:
        texts = [(example.id, example.question, None) for example in data.examples]
    return [(*row, {name: own[i] for name, own in found.items()}) for i, row in enumerate(texts)]


def _show(args: PredictArgs, rows: list[_Row], tasks: "dict[str, Task]") -> None:
    """Print the predictions: of one task beside its text, of several by their names."""
    from bertvision import console
    from bertvision.tasks.predictions import to_json

    alone = len(tasks) == 1
    span = alone and all(task.abstains for task in tasks.values())
    if args.json:
        made = []
        for key, first, second, found in rows:
            row: dict[str, Any] = {"id": key, "question" if span else "text": first}
            if second is not None and not span:
                row["pair"] = second
            plain = {name: to_json(prediction) for name, prediction in found.items()}
            made.append(row | (next(iter(plain.values())) if alone else {"tasks": plain}))
        console.emit_json(made if args.data is not None else made[0])
        return
    for _, first, second, found in rows:
        console.emit(first if second is None or span else f"{first} | {second}")
        for name, prediction in found.items():
            console.emit(f"  {prediction.line()}" if alone else f"  {name}: {prediction.line()}")
            for rank, one in enumerate(getattr(prediction, "nbest", ()), start=1):
                console.emit(f"    {rank}. {one.text}  [{one.start}:{one.end}] p={one.probability:.3f}")
