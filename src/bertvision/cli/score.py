"""`bertvision score DATA PREDICTIONS`: official SQuAD 2.0 metrics of anybody's predictions file."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertvision.cli.flags import JsonFlag
from bertvision.errors import DataError
from bertvision.options import POSITIONAL, OptionalPath, arg

if TYPE_CHECKING:
    from bertvision.data.examples import SpanData


@dataclass(frozen=True, kw_only=True)
class Score(JsonFlag):
    """Score a predictions file with the official SQuAD 2.0 metrics."""

    data: Annotated[str, POSITIONAL, arg(metavar="DATA")]
    """The questions and their answers: a SQuAD JSON file, or anything else that can be read as span data."""
    predictions: Annotated[Path, POSITIONAL, arg(metavar="PREDICTIONS")]
    """JSON object from question id to answer text, "" for no answer."""
    na_prob: OptionalPath = None
    """JSON object from question id to a number that grows with no answer (probabilities or null odds); adds
    the best thresholds and the average precisions."""
    na_prob_thresh: float = 1.0
    """Answers whose number in --na-prob exceeds this count as no answer."""
    allow_missing: bool = False
    """Score the questions that have a prediction, and leave aside predictions for unknown questions."""


ARGS = Score


def main(args: Score) -> None:
    from bertvision import console
    from bertvision.data.load import load_span_data
    from bertvision.tasks.squad import score

    data = load_span_data(args.data)
    predictions = read_predictions(args.predictions)
    if not args.allow_missing:
        _refuse_other_questions(data, predictions, args.predictions)
    result = score(
        data,
        predictions,
        na_probs=read_na_probs(args.na_prob) if args.na_prob else None,
        na_prob_thresh=args.na_prob_thresh,
        allow_missing=args.allow_missing,
    )
    if args.json:
        console.emit_json(result)
        return
    rows = [
        {"metric": key, "value": f"{value}" if isinstance(value, int) else f"{value:.4f}"}
        for key, value in result.items()
    ]
    console.table(rows, title=f"{args.predictions.name} on {Path(args.data).name}")


def read_predictions(path: Path) -> dict[str, str]:
    """Question id to answer text, from a JSON file."""
    content = _read_object(path)
    for key, value in content.items():
        if not isinstance(value, str):
            raise DataError(
                f'{path}: the prediction for {key!r} is not a string but {_kind(value)}; use "" for no answer'
            )
    return content


def read_na_probs(path: Path) -> dict[str, float]:
    """Question id to a number, from a JSON file."""
    content = _read_object(path)
    for key, value in content.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise DataError(f"{path}: the value of {key!r} is {_kind(value)}; it must be a number")
    return {key: float(value) for key, value in content.items()}


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", type(None): "null", bool: "true or false", str: "a string"}
    return names.get(type(value), str(value))


def _read_object(path: Path) -> dict[str, Any]:
    from bertvision.data.checks import parse_json, read_text

    content = parse_json(read_text(path), path)
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold a JSON object from question id to value, not {_kind(content)}")
    return content


def _refuse_other_questions(data: "SpanData", predictions: dict[str, str], path: Path) -> None:
    known = {example.id: None for example in data.examples}
    hint = "is it for other data? (--allow-missing scores what both files know)"
    if missing := [key for key in known if key not in predictions]:
        count = f"{len(missing)} of the {len(data)} questions of {data.name}"
        raise DataError(f"{path} lacks {count}, first {missing[0]!r}: {hint}")
    if unknown := [key for key in predictions if key not in known]:
        count = f"{len(unknown)} ids that {data.name} does not know"
        raise DataError(f"{path} has {count}, first {unknown[0]!r}: {hint}")
