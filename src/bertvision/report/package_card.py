"""The card of a package: README.md with the metadata block the Hub reads, for all of its heads.

The metadata is made by huggingface_hub's own classes (ModelCardData, EvalResult), which know its format. The text says
what goes in and comes out, how it is used, scores with their intervals, what it costs, how it was made, its limits and
whose licences count. As in card.py nothing fails for a missing key: what is not known is said to be missing.
No place on a disk is told: names of files lose their folders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.heads.costs import HeadCost
from bertvision.report import text_card, text_words, words
from bertvision.report.intervals import Intervals
from bertvision.report.making import file_name

__all__ = ["CardEncoder", "CardHead", "package_card"]

_EMBEDDED = "sentence-transformers/all-MiniLM-L6-v2"
_SPAN_METRICS = {
    "tuned_exact": ("exact_match", "EM"),
    "tuned_f1": ("f1", "F1"),
}
_TEXT_METRICS = {
    "accuracy": "accuracy",
    "f1": "f1",
    "mcc": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}
"""What the Hub calls them."""


@dataclass(frozen=True)
class CardHead:
    """What the card tells of one head."""

    name: str
    """Of its task."""
    kind: str
    config: Mapping[str, Any]
    """config.json; of an ensemble that of its first member."""
    metrics: Mapping[str, Any]
    price: HeadCost
    intervals: Intervals = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    """Of each split the name of its data, as far as it is known."""
    members: int = 1
    """Of an ensemble, how many heads it joins."""


@dataclass(frozen=True)
class CardEncoder:
    """What the card tells of the encoder."""

    name: str
    """Without folders."""
    public: bool
    """Whether the name is one that others know: `embedded`, or one of the Hub."""
    fingerprint: str
    parameters: int
    flops_per_token: int
    bundled: bool
    tuned: str = ""
    """The policy it was tuned with, where it is a delta."""

    @property
    def base_model(self) -> str | None:
        if not self.public:
            return None
        return _EMBEDDED if self.name == "embedded" else self.name


def package_card(
    title: str,
    heads: Sequence[CardHead],
    encoder: CardEncoder,
    *,
    commands: Sequence[str] = (),
    layers: Sequence[str] = (),
    onnx: str = "",
    license: str = "",
    datasets: Sequence[str] = (),
) -> str:
    """The text of README.md.

    Args:
        commands: How the heads and the package were made.
        layers: The tasks whose hidden states have readers.
        onnx: What the check of the exported graph found; empty without one.
        license: The Hub's name of the licence the weights are under; empty = none is set.
        datasets: Names on the Hub of the data it was trained on.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # Markdown; what users named goes through `inline`
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["inline"] = text_card.inline
    text = environment.get_template("package_card.md.j2").render(
        title=title,
        encoder=encoder,
        heads=[_told(head) for head in heads],
        spans=[head.name for head in heads if head.kind == "span"],
        kinds={head.kind for head in heads},
        scores=_scores(heads),
        costs=_costs(heads, encoder),
        encoder_parameters=words.compact(encoder.parameters),
        encoder_flops=words.compact(encoder.flops_per_token),
        commands=[text_card.inline(command) for command in commands],
        layers=layers,
        onnx=onnx,
        license=license,
        datasets=datasets,
    )
    return f"---\n{_front_matter(title, heads, encoder, license, datasets)}---\n\n{text}"


# ---- metadata


def _front_matter(
    title: str, heads: Sequence[CardHead], encoder: CardEncoder, license: str, datasets: Sequence[str]
) -> str:
    from huggingface_hub import ModelCardData

    results = [result for head in heads for result in _results(head)]
    tags = [_tag(head) for head in heads]
    made = ModelCardData(
        library_name="bertvision",
        pipeline_tag=tags[0],
        tags=list(dict.fromkeys(["bertvision", *tags, "frozen-encoder", "hidden-states"])),
        base_model=encoder.base_model,
        license=license or None,
        datasets=list(datasets) or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=title if results else None,
        eval_results=results or None,
    )
    return f"{made}\n"


def _tag(head: CardHead) -> str:
    return "question-answering" if head.kind == "span" else text_card.pipeline_tag(head.config)


def _results(head: CardHead) -> "list[Any]":
    """What the Hub shows beside the model: every score of every split, its interval among the metric's arguments."""
    from huggingface_hub import EvalResult

    found = []
    for split, key, value, ends in _numbers(head):
        kind, name = (
            _SPAN_METRICS[key] if head.kind == "span" else (_TEXT_METRICS[key], text_words.TITLES[key])
        )
        data = file_name(head.data.get(split, "")) or split
        found.append(
            EvalResult(
                task_type=_tag(head),
                # Heads of several tasks may have splits of equal names: the Hub tells them apart by the type.
                dataset_type=f"{head.name}-{data}",
                dataset_name=data,
                dataset_split=split,
                metric_type=kind,
                metric_name=f"{name} of {head.name}",
                metric_value=round(value, 4),
                metric_args=None if ends is None else {"interval_95": [round(end, 4) for end in ends]},
            )
        )
    return found


def _numbers(head: CardHead) -> list[tuple[str, str, float, tuple[float, float] | None]]:
    """(split, key, value, interval) of every score that metrics.json holds, test first."""
    known = _SPAN_METRICS if head.kind == "span" else _TEXT_METRICS
    rows = []
    scores = head.metrics.get("scores", {})
    for split in sorted(scores, key=lambda name: name != "test"):
        part = scores[split]
        for key in known:
            if (value := words.finite(part.get(key))) is not None:
                rows.append((split, key, value, head.intervals.get(split, {}).get(key)))
    return rows


# ---- text


def _told(head: CardHead) -> dict[str, Any]:
    config = head.config
    if head.kind == "span":
        what = (
            "Given a question and a text it returns the span that answers the question, or says that the text holds "
            "no answer."
        )
    else:
        what = text_card.what_it_tells(config)
    kind = (config.get("head") or {}).get("name") or ""
    label = str(config.get("label") or kind)
    if head.members > 1:
        label = f"{head.members} heads joined, the first of them {label}"
    settings = {
        **(config.get("fit") or {}),
        **{"windows of": (config.get("windows") or {}).get("max_seq_length")},
    }
    said = ", ".join(f"{key} {words.plain(value)}" for key, value in settings.items() if value is not None)
    data = ", ".join(f"{split} {text_card.inline(file_name(name))}" for split, name in head.data.items())
    asks = bool((config.get("task") or {}).get("asks")) if head.kind != "span" else True
    pairs = asks or (head.kind != "span" and text_card.pipeline_tag(config) == "sentence-similarity")
    pairs = pairs or (head.kind != "span" and bool((config.get("task") or {}).get("pairs")))
    return {
        "name": head.name,
        "label": text_card.inline(label),
        "kind": text_card.inline(kind),
        "what": what,
        "made": text_card.inline(said),
        "data": data,
        "call": '"question", "context"' if asks else '"first", "second"' if pairs else '"text"',
    }


def _scores(heads: Sequence[CardHead]) -> list[dict[str, str]]:
    rows = []
    for head in heads:
        for split, key, value, ends in _numbers(head):
            span = head.kind == "span"
            write = words.score if span else text_words.number
            rows.append(
                {
                    "task": head.name,
                    "split": text_card.inline(file_name(split)),
                    "metric": f"{_SPAN_METRICS[key][1]}, percent" if span else text_words.TITLES[key],
                    "value": write(value),
                    "interval": f"{write(ends[0])} … {write(ends[1])}" if ends else "missing",
                }
            )
    return rows


def _costs(heads: Sequence[CardHead], encoder: CardEncoder) -> list[dict[str, str]]:
    return [
        {
            "task": head.name,
            "parameters": words.count(head.price.parameters),
            "share": words.percent(head.price.percent_of(encoder.parameters)),
            "flops": words.compact(head.price.flops_per_token),
        }
        for head in heads
    ]
