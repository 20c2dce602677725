"""The model card of a saved head: README.md with the metadata block the Hub reads.

`card` takes what the artifact folder holds (config.json, metrics.json) and never fails for a missing key: a
card with a gap is better than a head without a card. Metrics come as {split: {"exact", "f1", "tuned_exact",
"tuned_f1"}}, as {split: {"zero": {...}, "tuned": {...}}} or as one flat set of scores; all in percent. What cards of
labels and scores say in their own way is in text_card.py.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision.report import text_card, words

__all__ = ["card"]

_EMBEDDED = "sentence-transformers/all-MiniLM-L6-v2"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_COLUMNS = {
    "exact": "EM",
    "f1": "F1",
    "HasAns_f1": "F1, answerable",
    "NoAns_exact": "EM, unanswerable",
    "total": "questions",
}
_THRESHOLDS = {"zero": "threshold 0", "tuned": "threshold tuned on dev"}


def card(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """The text of README.md for a head with this configuration and these scores."""
    import yaml

    tuning, metrics = metrics.get("tuning", {}), metrics.get("scores", {})
    front = yaml.safe_dump(_front_matter(config, metrics), sort_keys=False, allow_unicode=True, width=110)
    text = text_card.is_text(config)
    parts = [
        f"# {text_card.inline(_label(config))}",
        _what(config),
        text_card.text_use(config) if text else _USE,
        text_card.text_scores(metrics, tuning) if text else _scores_section(metrics),
        _training_section(config),
        text_card.text_limits(config) if text else _LIMITS,
        _LICENCE,
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


_USE = """## Use

```python
import bertvision as bv
model = bv.load("FOLDER")
model.predict(question, context)
```

`FOLDER` is the folder this card lies in. Loading fails when the encoder at hand is not the one the head was
fitted on: the fingerprint of its weights is compared, not its name."""

_LIMITS = """## Limits

The head copies a span of the text it is given, or says that there is none; it knows nothing beyond that text.
Scores hold for data like the data it was fitted on, at the thresholds named. A confident answer can still be
wrong, most of all for questions that nearly fit the text."""

_LICENCE = """## Licence

No licence is set for these weights. bertvision is Apache-2.0; the encoder and the training data have licences
of their own, and what they ask (attribution, share-alike) may extend to this head. Choose a licence that
respects both before you publish it."""


def _label(config: Mapping[str, Any]) -> str:
    head = config.get("head") or {}
    return str(config.get("label") or head.get("name") or "head")


def _base_model(config: Mapping[str, Any]) -> str | None:
    """The encoder's name if the Hub could know it; a folder on somebody's disk is nobody's base model."""
    name = str((config.get("encoder") or {}).get("name") or "")
    if name == "embedded" or "all-MiniLM-L6-v2" in name:
        return _EMBEDDED
    return (
        name if _HUB_NAME.fullmatch(name) and not name.startswith(".") and not Path(name).exists() else None
    )


def _splits(metrics: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """{split: {threshold name: scores}}, test first."""
    if "f1" in metrics:
        return {"evaluation": {"": metrics}}
    found = {}
    for split in sorted(metrics, key=lambda name: name != "test"):
        parts = metrics[split]
        if not isinstance(parts, Mapping):
            continue
        if "f1" in parts:  # one level: the plain keys are threshold 0, those called tuned_* the other
            tuned = {key.removeprefix("tuned_"): parts[key] for key in parts if key.startswith("tuned_")}
            parts = {"zero": parts, "tuned": tuned or None}
        named = {_THRESHOLDS[key]: parts[key] for key in _THRESHOLDS if isinstance(parts.get(key), Mapping)}
        if named:
            found[split] = named
    return found


def _front_matter(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    text = text_card.is_text(config)
    tag = text_card.pipeline_tag(config) if text else "question-answering"
    kind = tag if text else "extractive-qa"
    front: dict[str, Any] = {
        "library_name": "bertvision",
        "pipeline_tag": tag,
        "tags": ["bertvision", kind, "frozen-encoder", "hidden-states"],
    }
    base = _base_model(config)
    if base is not None:
        front["base_model"] = base
    if text:
        names, results = text_card.text_results(config, metrics, lambda split: _data_name(config, split))
    else:
        names, results = ["exact_match", "f1"], _span_results(config, metrics)
    if results:
        front["metrics"] = names
        front["model-index"] = [{"name": _label(config), "results": results}]
    return front


def _span_results(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    results = []
    for split, named in _splits(metrics).items():
        scores = []
        for threshold, part in named.items():
            for key, kind, title in (("exact", "exact_match", "EM"), ("f1", "f1", "F1")):
                value = words.finite(part.get(key))
                if value is not None:
                    name = f"{title}, {threshold}" if threshold else title
                    scores.append({"type": kind, "name": name, "value": round(value, 4)})
        if scores:
            dataset = {"name": _data_name(config, split), "type": "squad_v2-format", "split": split}
            results.append(
                {
                    "task": {"type": "question-answering", "name": "Question answering"},
                    "dataset": dataset,
                    "metrics": scores,
                }
            )
    return results


def _data_name(config: Mapping[str, Any], split: str) -> str:
    facts = (config.get("data") or {}).get(split)
    name = facts.get("name") if isinstance(facts, Mapping) else facts
    return Path(str(name)).name if name else split  # the file's name, not where it lay


def _what(config: Mapping[str, Any]) -> str:
    encoder = config.get("encoder") or {}
    name = _base_model(config) or Path(str(encoder.get("name") or "an encoder")).name
    size = words.finite(config.get("parameters"))
    text = text_card.is_text(config)
    said = f"A {text_card.pipeline_tag(config) if text else 'question-answering'} head"
    said += f" with {words.count(size)} parameters" if size else ""
    kind = str((config.get("head") or {}).get("name") or "")
    snapshot = "a fine-tuned snapshot of " if encoder.get("path") else ""
    said += f" that reads {_states(config, kind)} of {snapshot}{text_card.inline(name)}, which stays frozen."
    said += " " + (text_card.what_it_tells(config) if text else _ANSWERS)
    mark = encoder.get("fingerprint")
    lines = [("Head", kind), ("Encoder fingerprint", mark), ("bertvision", config.get("bertvision"))]
    listed = "\n".join(f"- {title}: `{text_card.inline(value)}`" for title, value in lines if value)
    return f"{said}\n\n{listed}" if listed else said


_ANSWERS = (
    "Given a question and a text it returns the span that answers the question, or says that the text "
    "holds no answer."
)

_PLACES = {
    "context": " at the paragraph's tokens and the one for no answer",
    "cls": " at the token for no answer",
}
_TEXT_PLACES = {
    "context": " at [CLS] and the tokens of the longer text",
    "cls": " at [CLS]",
}


def _states(config: Mapping[str, Any], kind: str) -> str:
    """What the head reads, in words; a config without "states" reads everything."""
    selection = config.get("states")
    selection = selection if isinstance(selection, Mapping) else {}
    numbers, last = selection.get("layers") or [], kind.startswith("last_state")
    if kind.startswith("layer_reader"):  # its option counts among those that are read
        layer = _reader_layer(config)
        numbers = numbers[layer:][:1] if numbers else [layer] if layer >= 0 else []
        last = True
    if not numbers:
        said = "the last hidden state" if last else "the hidden states of all layers"
    elif last or len(numbers) == 1:
        said = f"hidden state {text_card.inline(numbers[-1])} (0 is the embedding output)"
    else:
        said = (
            f"the hidden states {text_card.inline(', '.join(map(str, numbers)))} (0 is the embedding output)"
        )
    places = _TEXT_PLACES if text_card.is_text(config) else _PLACES
    return said + places.get(str(selection.get("positions")), "")


def _reader_layer(config: Mapping[str, Any]) -> int:
    """Which state a layer_reader reads; -1 is the last one."""
    head = config.get("head")
    options = head.get("config") if isinstance(head, Mapping) else None
    layer = options.get("layer") if isinstance(options, Mapping) else None
    return layer if isinstance(layer, int) else -1


def _scores_section(metrics: Mapping[str, Any]) -> str:
    rows = [
        (split, threshold, part)
        for split, named in _splits(metrics).items()
        for threshold, part in named.items()
    ]
    if not rows:
        return ""
    columns = [(key, title) for key, title in _COLUMNS.items() if any(key in part for _, _, part in rows)]
    titles = ["part", "threshold", *(title for _, title in columns)]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for split, threshold, part in rows:
        write = {key: words.count if key == "total" else words.score for key, _ in columns}
        cells = [
            text_card.inline(split),
            threshold or words.UNKNOWN,
            *(write[key](part.get(key)) for key, _ in columns),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    note = (
        "Percent, counted as the official SQuAD 2.0 script does. Thresholds are tuned on dev, never on test."
    )
    return "\n".join(["## Scores", "", *lines, "", note])


def _training_section(config: Mapping[str, Any]) -> str:
    lines = []
    head = config.get("head") or {}
    groups = (
        ("Head", head.get("config")),
        ("Fit", config.get("fit")),
        ("Fine-tuning", config.get("finetune")),
        ("Windows", config.get("windows")),
    )
    for title, settings in groups:
        if isinstance(settings, Mapping) and settings:
            said = ", ".join(
                f"{key} {_setting(value)}" for key, value in settings.items() if value is not None
            )
            lines.append(f"- {title}: {said}")
    return "\n".join(["## Training", "", *lines]) if lines else ""


def _setting(value: Any) -> str:
    if isinstance(value, list | tuple):
        return text_card.inline(" ".join(map(str, value)) or "none")
    return text_card.inline(value if isinstance(value, bool) else words.plain(value))
