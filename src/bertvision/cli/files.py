"""The verbs that read files and compute nothing with torch: score, report, recipes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from bertvision.cli.flags import Result
from bertvision.errors import DataError
from bertvision.options import POSITIONAL, OptionalPath, arg

# ---- score


@dataclass(frozen=True, kw_only=True)
class Score:
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


def score(args: Score) -> Result:
    from bertvision import console
    from bertvision.data.load import load_span_data
    from bertvision.tasks.span_answers import score

    data = load_span_data(args.data)
    predictions = _read_object(args.predictions, str, 'a string; use "" for no answer')
    if not args.allow_missing:
        asked = dict.fromkeys(example.id for example in data.examples)
        missing, unknown = (
            [key for key in asked if key not in predictions],
            [*predictions.keys() - asked.keys()],
        )
        for keys, what in (
            (missing, f"lacks {len(missing)} of the"),
            (unknown, f"has {len(unknown)} more than the"),
        ):
            if keys:
                raise DataError(
                    f"{args.predictions} {what} {len(data)} questions of {data.name}, first {keys[0]!r}: is it for "
                    "other data? (--allow-missing scores what both files know)"
                )
    odds = _read_object(args.na_prob, (int, float), "a number") if args.na_prob else None
    thresh = args.na_prob_thresh
    result = score(data, predictions, na_probs=odds, na_prob_thresh=thresh, allow_missing=args.allow_missing)
    rows = [
        {"metric": key, "value": f"{value}" if isinstance(value, int) else f"{value:.4f}"}
        for key, value in result.items()
    ]
    return result, lambda: console.table(rows, title=f"{args.predictions.name} on {Path(args.data).name}")


def _read_object(path: Path, kind: type | tuple[type, ...], wanted: str) -> dict[str, Any]:
    """Question id to a value of this kind, from a JSON file."""
    from bertvision.data.tables import read_json

    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold a JSON object from question id to value")
    for key, value in content.items():
        if (
            isinstance(value, bool) or not isinstance(value, kind) or value != value
        ):  # NaN differs from itself
            raise DataError(f"{path}: the value of {key!r} must be {wanted}")
    return content


# ---- report


@dataclass(frozen=True)
class Report:
    """Write the HTML report of a run or a sweep again, one file with everything in it."""

    run_dir: Annotated[Path, POSITIONAL, arg(metavar="RUN")]
    """Folder that `bertvision run` or `sweep` wrote (it holds results.json)."""
    out: OptionalPath = None
    """File to write; report.html in the run's folder by default."""


def report(args: Report) -> Result:
    from bertvision import console
    from bertvision.report.page import headline, write_page
    from bertvision.report.results import read_results

    results = read_results(args.run_dir)
    folder = args.run_dir if args.run_dir.is_dir() else args.run_dir.parent
    path = args.out or folder / "report.html"
    write_page(results, path)
    found = {"report": str(path), "headline": headline(results)}
    return found, lambda: console.emit(f"{found['headline']}\n{path}")


# ---- recipes


@dataclass(frozen=True)
class Recipes:
    """List the shipped recipes; with a NAME, print that one (redirect it to a file to change it)."""

    name: Annotated[str, POSITIONAL, arg(metavar="[NAME]")] = ""
    """Recipe to print."""


def recipes(args: Recipes) -> Result:
    from bertvision import console
    from bertvision.config import read_yaml, recipe_path, recipes

    if args.name:
        path = recipe_path(args.name)
        return read_yaml(path), lambda: console.emit(path.read_text(encoding="utf-8").rstrip())
    rows = []
    for name, path in recipes().items():
        command, about, *_ = path.read_text(encoding="utf-8").replace("# ", "").splitlines()
        rows.append({"name": name, "command": command, "about": about})
    return rows, lambda: console.table(rows)
