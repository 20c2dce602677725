"""`bertvision predict FOLDER`: answers, labels and scores from the command line, a file or a stream."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from bertvision.cli.flags import Result, refuse
from bertvision.config import part_of
from bertvision.data.texts import Columns
from bertvision.errors import ConfigError, nearest
from bertvision.model import ModelConfig
from bertvision.options import POSITIONAL, OptionalFloat, OptionalInt, OptionalPath, OptionalText, arg

if TYPE_CHECKING:
    from bertvision.data.examples import SpanData, TextData
    from bertvision.model.model import Model
    from bertvision.tasks.base import Task


@dataclass(frozen=True)
class DataColumns(Columns):
    """Names of the columns where --data is a table of texts; where none is given, the usual names are looked for."""

    # --text is the text to predict on here.
    prefix: ClassVar[str] = "--columns"


@dataclass(frozen=True, kw_only=True)
class PredictArgs(ModelConfig):
    """Answer questions (--question and --context) or give labels and scores of texts (--text, for pairs with --pair),
    one on the command line, all of a file (--data FILE), or a stream of JSON lines as they come (--data -). A folder of
    several tasks answers all of them in one pass."""

    folder: Annotated[Path, POSITIONAL, arg(metavar="FOLDER")]
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
    n_best: int = 0
    """Of answers found in paragraphs, list so many of the best candidates too."""
    max_examples: OptionalInt = None
    """Take only the first so many examples of --data."""
    columns: DataColumns = field(default_factory=DataColumns)


def predict(args: PredictArgs) -> Result | None:
    from bertvision.artifacts import check_output
    from bertvision.data.examples import TextData
    from bertvision.data.load import check_rows
    from bertvision.model.load import open_model, read
    from bertvision.model.stream import answer_stream, load_inputs

    _check(args)
    if args.out is not None:
        check_output(args.out)
    systems = read(args.folder)
    for name in args.tasks:
        if name not in systems:
            raise ConfigError(f"--tasks names {name!r}: {nearest(name, list(systems))}")
    tasks = {name: systems[name].task for name in args.tasks or systems}
    _check_tasks(args, tasks)
    data = None
    if args.data not in (None, "-"):
        data = load_inputs(args.data, tasks, columns=args.columns, max_examples=args.max_examples)
        if args.glue is not None and isinstance(data, TextData):
            check_rows(args.glue, data)
    model = open_model(systems, **vars(part_of(ModelConfig, args)))
    if args.threshold is not None:
        model.set_threshold(args.threshold)
    if args.data == "-":
        return answer_stream(model, tasks=args.tasks, n_best=args.n_best)
    if data is not None:
        rows = _predict_all(args, data, model)
    else:
        texts = [text for text in (args.text, args.pair, args.question, args.context) if text is not None]
        rows = [("", texts, model(*texts, tasks=args.tasks, n_best=args.n_best))]
    lone = len(tasks) == 1
    spans = lone and all(task.abstains for task in tasks.values())
    plain = [_plain(*row, lone=lone, spans=spans) for row in rows]
    return plain if data is not None else plain[0], lambda: _show(rows, lone=lone, spans=spans)


def _check(args: PredictArgs) -> None:
    """Refuse flags that do not go together."""
    from bertvision.tasks.base import check_n_best

    given = {name for name, value in vars(args).items() if value is not None}
    asks, stream = {"question", "context"} & given, args.data == "-"
    refuse(
        ("pair" in given and "text" not in given, "--pair goes with --text"),
        (
            len(asks) == 1 or bool(asks) + ("text" in given) + ("data" in given) != 1,
            "give --question together with --context, or --text, or --data",
        ),
        ("out" in given and "data" not in given, "--out goes with --data"),
        ("glue" in given and "data" not in given, "--glue goes with --data"),
        ("glue" in given and "out" not in given, "--glue needs --out, a folder for the submission file"),
        (stream and "out" in given, "--out is for a file: --data - writes its answers as they come"),
        (stream and "max_examples" in given, "--max-examples is for a file: --data - ends with its input"),
        *(
            (name in given and not getattr(args, name).strip(), f"--{name} is empty: write it")
            for name in ("question", "context", "text", "pair")
        ),
        (
            not math.isfinite(args.threshold or 0),
            f"--threshold must be a finite number, not {args.threshold}",
        ),
    )
    check_n_best(args.n_best)


def _check_tasks(args: PredictArgs, tasks: "dict[str, Task]") -> None:
    """Refuse flags that these tasks have no use for."""
    from bertvision.data.load import submission_task

    spans = [name for name, task in tasks.items() if task.abstains]
    asking = any(task.asks for task in tasks.values())
    refuse(
        (args.threshold is not None and not spans, "--threshold is for spans: labels and scores have none"),
        (args.n_best and not spans, "--n-best is for spans: labels and scores have no candidates"),
        (
            args.text is not None and spans == list(tasks),
            f"{args.folder} answers questions: give --question and --context",
        ),
        (
            args.question is not None and not asking,
            f"{args.folder} gives labels or scores of texts: give --text, for pairs with --pair",
        ),
    )
    if args.glue is None:
        return
    meant, (task, *others) = submission_task(args.glue), tasks.values()
    wanted, given = ", ".join(meant.classes), ", ".join(task.classes)
    refuse(
        (others, f"--glue {args.glue} is filled by one task: name it with --tasks"),
        (
            task.kind != meant.kind,
            f"--glue {args.glue} wants a {meant.kind} of each text, and this head gives a {task.kind}",
        ),
        (
            set(task.classes) != set(meant.classes),
            f"--glue {args.glue} wants the classes {wanted}, and this head gives {given}: name the task it was "
            "trained for, or leave out --glue",
        ),
    )


_Row = tuple[str, list[str], dict[str, Any]]
"""Id, texts, predictions by task."""


def _predict_all(args: PredictArgs, data: "SpanData | TextData", model: "Model") -> list[_Row]:
    from bertvision.data.examples import Example, TextData
    from bertvision.data.load import write_submission

    answers = model.answer(data, tasks=args.tasks)
    several, out = len(answers) > 1, args.out
    folders = {} if out is None else {name: out / name if several else out for name in answers}
    for name, folder in folders.items():
        task, tuning = model.systems[name].task, model.systems[name].tuning
        served = task.calibrated(answers[name], tuning)
        task.write_answers(folder, served, tuning)
        if args.glue is not None and isinstance(data, TextData):
            like: Any = {"kind": task.kind, "classes": task.classes}
            write_submission(args.glue, replace(data, **like), served.values.tolist(), folder)
    found = {name: model.predictions(name, own, n_best=args.n_best) for name, own in answers.items()}
    rows: list[_Row] = []
    for i, example in enumerate(data.examples):
        texts = [example.question] if isinstance(example, Example) else [example.first, example.second]
        own = {name: predictions[i] for name, predictions in found.items()}
        rows.append((example.id, [text for text in texts if text is not None], own))
    return rows


def _plain(key: str, texts: list[str], found: dict[str, Any], *, lone: bool, spans: bool) -> dict[str, Any]:
    """The predictions for --json: of one task beside its text, of several by their names."""
    from bertvision.tasks.base import to_json

    names = ("question",) if spans else ("text", "pair")
    plain = {name: to_json(prediction) for name, prediction in found.items()}
    own = next(iter(plain.values())) if lone else {"tasks": plain}
    return {"id": key} | dict(zip(names, texts, strict=False)) | own


def _show(rows: list[_Row], *, lone: bool, spans: bool) -> None:
    from bertvision import console

    for _, texts, found in rows:
        console.emit(texts[0] if spans else " | ".join(texts))
        for name, prediction in found.items():
            console.emit(f"  {prediction.line()}" if lone else f"  {name}: {prediction.line()}")
            for rank, one in enumerate(getattr(prediction, "nbest", ()), start=1):
                console.emit(f"    {rank}. {one.text}  [{one.start}:{one.end}] p={one.probability:.3f}")
