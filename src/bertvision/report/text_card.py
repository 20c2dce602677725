"""What the card of a label or score head says in its own way: what it tells, its metrics, how it is used, its limits.

`config["task"]` is the task as the head's folder keeps it (tasks/text/task.py), `config["reframe"]` the prompt and the
template its texts are put into. Metrics are those of `write_text_results`: {split: {metric: value}, "metric": the one
the task is judged by, "temperature": {...}}, between 0 and 1. As in card.py nothing here fails for a missing key.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from bertvision.report import text_words, words

__all__ = [
    "inline",
    "is_text",
    "pipeline_tag",
    "text_limits",
    "text_results",
    "text_scores",
    "text_use",
    "what_it_tells",
]

_TYPES = {
    "accuracy": "accuracy",
    "f1": "f1",
    "mcc": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "mse": "mse",
    "mae": "mae",
}
"""What the Hub calls the metrics it knows."""
_MERGES = {
    "mean": "the mean of their {what} counts",
    "min": "the least {what} counts",
    "max": "the greatest {what} counts",
    "any_null": "one of them that says {positive} decides",
}


def inline(value: Any) -> str:
    """Text that stays on its line and out of the markup."""
    return re.sub(r"[<>|`\r\n]+", " ", str(value)).strip()


def is_text(config: Mapping[str, Any]) -> bool:
    """Whether the head is of a label or score task."""
    return isinstance(config.get("task"), Mapping) and config["task"].get("kind") != "span"


def _task(config: Mapping[str, Any]) -> Mapping[str, Any]:
    task = config.get("task")
    return task if isinstance(task, Mapping) else {}


def _reframe(config: Mapping[str, Any]) -> Mapping[str, Any]:
    asked = config.get("reframe")
    return asked if isinstance(asked, Mapping) else {}


def _pairs(config: Mapping[str, Any]) -> bool | None:
    """Whether it reads two texts; None where the folder does not say."""
    task = _task(config)
    if task.get("asks") or task.get("group") == 2 or "{second}" in str(_reframe(config).get("context")):
        return True
    return task.get("pairs")


def pipeline_tag(config: Mapping[str, Any]) -> str:
    """The Hub's name of the task; it has none for scores of single texts but that of labels."""
    similar = _task(config).get("kind") == "score" and _pairs(config)
    return "sentence-similarity" if similar else "text-classification"


def what_it_tells(config: Mapping[str, Any]) -> str:
    """What goes in and what comes out, the prompt and how long texts are read."""
    task, pairs = _task(config), _pairs(config)
    given = "a question and a text" if task.get("asks") else "a pair of texts" if pairs else "a text"
    given += " or a pair of texts" if pairs is None else ""
    classes = [inline(name) for name in task.get("classes") or []]
    if task.get("kind") == "score":
        parts = [f"Given {given} it returns a score."]
        shift, scale = words.finite(task.get("shift")), words.finite(task.get("scale"))
        if shift is not None and scale is not None:
            parts.append(f"Training scores had a mean of {shift:.3g} and a spread of {scale:.3g}.")
    elif task.get("asks"):
        parts = [f"Given {given} it tells whether the text answers the question."]
    else:
        parts = [f"Given {given} it returns one of {len(classes)} classes and the probability of each."]
    if classes:
        parts.append(f"Classes: {', '.join(classes)}.")
    asked = _reframe(config)
    if asked.get("prompt"):
        parts.append(f'Every example is asked about with the prompt "{inline(asked["prompt"])}".')
    if asked.get("context"):
        parts.append(f'Texts are put into "{inline(asked["context"])}".')
    merge = _MERGES.get(str(task.get("merge")))
    if merge and task.get("group") != 2:
        positive = classes[-1] if classes else "so"
        number = words.finite(task.get("positive"))
        if number is not None and 0 <= int(number) < len(classes):
            positive = classes[int(number)]
        what = "scores" if task.get("kind") == "score" else "probabilities"
        if task.get("merge") in ("min", "max"):
            what = "score" if what == "scores" else f"probability of {positive}"
        told = merge.format(what=what, positive=positive)
        parts.append(f"Of a text that is longer than a window several are read, and {told}.")
    return " ".join(parts)


def text_use(config: Mapping[str, Any]) -> str:
    """The section that shows how it is called."""
    pairs = _pairs(config)
    call = "model.predict(text)"
    if _task(config).get("asks"):
        call = "model.predict(question, context)"
    elif pairs:
        call = "model.predict(first, second)"
    elif pairs is None:
        call += "  # of a pair: model.predict(first, second)"
    result = "found.score" if _task(config).get("kind") == "score" else "found.label, found.probabilities"
    asked = "The prompt is put in by itself. " if _reframe(config) else ""
    return f"""## Use

```python
import bertvision as bv
model = bv.load("FOLDER")
found = {call}
{result}
```

`FOLDER` is the folder this card lies in. {asked}Loading fails when the encoder at hand is not the one the head was
fitted on: the fingerprint of its weights is compared, not its name."""


def text_limits(config: Mapping[str, Any]) -> str:
    """What the head does not know."""
    if _task(config).get("kind") == "score":
        said = """The head gives a score on the scale of its training data, whatever the texts are about; nothing keeps
it inside that scale."""
    else:
        said = """The head always chooses one of its classes, also for texts that belong to none of them. A confident
label can still be wrong."""
    return f"## Limits\n\n{said}\nMetrics hold for data like the data it was fitted on."


def _splits(metrics: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """{split: metrics}, test first; without those that hold no number."""
    known = {
        name: part
        for name, part in metrics.items()
        if isinstance(part, Mapping)
        and any(words.finite(part.get(key)) is not None for key in text_words.TITLES)
    }
    return dict(sorted(known.items(), key=lambda item: item[0] != "test"))


def text_scores(metrics: Mapping[str, Any], tuning: Mapping[str, Any]) -> str:
    """The table of all metrics of the task."""
    splits = _splits(metrics)
    if not splits:
        return ""
    keys = [key for key in text_words.TITLES if any(key in part for part in splits.values())]
    titles = ["part", *(text_words.TITLES[key] for key in keys)]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for split, part in splits.items():
        lines.append(
            "| " + " | ".join([inline(split), *(text_words.number(part.get(k)) for k in keys)]) + " |"
        )
    notes = []
    value = words.finite(tuning.get("temperature"))
    if value is not None:
        notes.append(
            f"Metrics are at temperature 1; served probabilities are at {value:.3g}, which was fitted on dev."
        )
    return "\n".join(["## Scores", "", *lines, *(["", " ".join(notes)] if notes else [])])


def text_results(
    config: Mapping[str, Any], metrics: Mapping[str, Any], data_name: Callable[[str], str]
) -> tuple[list[str], list[dict[str, Any]]]:
    """The metrics the Hub knows, and its list of results."""
    tag, found, results = pipeline_tag(config), [], []
    for split, part in _splits(metrics).items():
        scores = [
            {"type": kind, "name": text_words.TITLES[key], "value": round(value, 4)}
            for key, kind in _TYPES.items()
            if (value := words.finite(part.get(key))) is not None
        ]
        if scores:
            found += [score["type"] for score in scores]
            results.append(
                {
                    "task": {"type": tag, "name": tag.replace("-", " ").capitalize()},
                    "dataset": {"name": data_name(split), "type": "texts", "split": split},
                    "metrics": scores,
                }
            )
    return list(dict.fromkeys(found)), results
