"""The zoo as data: every head of the papers by its row, the controls, and the heads beyond them.

A row says what to type, where it comes from, and how sure that is:

    exact          the structure follows from public code or from the published count, and the count is met
    reconstructed  the count is met by a structure that others could meet too, or no count was published
    ours           not in the papers: controls, and heads with a reason and a source of their own

`seed` is the section of the papers' facts that a head is from: 3.2 and 3.3 are BERTVision's twenty span models in
their order, 3.1 its layers, 4 its classification models, 6.1 Hulburd's context-aware CNN, 7 minBERT, 8 the
BERTVision repository. Only sizes are compared with the papers here; docs/heads.md says what is not known.

`SETS` are names for several span heads at once: `bertvision fit --heads papers last_state`. `LABEL_SETS` are those of
label and score tasks, under the same names where there are such heads; all of them read one window an example. The
set `each_layer` has as many heads as there are states: where nobody says how many, its first stands for all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bertvision.errors import ConfigError
from bertvision.heads import base
from bertvision.heads.base import Task, head_class, nearest
from bertvision.heads.layer_reader import reader_texts
from bertvision.heads.spec import HeadSpec, parse_head

__all__ = [
    "CATALOGUE",
    "EACH_LAYER",
    "LABEL_SETS",
    "SETS",
    "CatalogueRow",
    "Origin",
    "expand",
    "find_row",
    "for_windows",
    "head_names",
    "sets_of",
]

Origin = Literal["exact", "reconstructed", "ours"]


@dataclass(frozen=True)
class CatalogueRow:
    head: str
    """What to type."""
    task: Literal["span", "label"] = "span"
    seed: str = ""
    """Section and row of the papers' facts; empty for ours."""
    paper: str = ""
    """What the paper calls it."""
    origin: Origin = "ours"
    published: float | None = None
    """Percent of the encoder's parameters, as printed."""
    counted: Literal["trainable", "total"] = "trainable"
    """What the printed percentage counts; total has the running statistics of batch norms in it."""


def _cnn(head: str, row: int, paper: str, published: float) -> CatalogueRow:
    return CatalogueRow(head, "span", f"3.3 row {row}", paper, "reconstructed", published, "total")


def _exact(head: str, row: int, paper: str, published: float) -> CatalogueRow:
    return CatalogueRow(head, "span", f"3.2 row {row}", paper, "exact", published)


_PAPERS = (
    _cnn("cnn", 1, "1xN CNN", 0.099),
    _cnn("cnn:dilated", 2, "1xN CNN with dilation", 0.121),
    _cnn("cnn:dropout=0", 3, "1xN CNN without dropout", 0.099),
    _exact("learned_pooling", 4, "Learned Pooling", 0.001),
    _cnn("cnn:input=learned", 5, "Learned Pooling with 1xN CNN", 0.093),
    _cnn("cnn:input=average", 6, "Average Pooling with 1xN CNN", 0.093),
    _exact("adapter:size=64", 7, "Adapter 64 shared", 0.021),
    _exact("adapter:size=64,skip", 8, "Adapter 64 shared with skip", 0.021),
    _exact("adapter:size=64,unshared", 9, "Adapter 64 not shared", 0.491),
    _exact("adapter:size=64,unshared,skip", 10, "Adapter 64 not shared with skip", 0.491),
    _exact("adapter:size=386", 11, "Adapter 386 shared", 0.124),
    _exact("adapter:size=386,skip", 12, "Adapter 386 shared with skip", 0.124),
    _exact("adapter:size=386,unshared", 13, "Adapter 386 not shared", 2.957),
    _exact("adapter:size=386,unshared,skip", 14, "Adapter 386 not shared with skip", 2.958),
    _exact("pooled_adapter:size=386", 15, "Learned Pooling, Adapter 386 shared", 0.119),
    CatalogueRow(
        "twin_adapter:size=386", "span", "3.2 row 16", "Adapter 386 shared skip Tenney Pooling",
        "reconstructed", 0.242,
    ),
    _cnn("cnn:input=learned,adapter=386", 17, "Learned Pooling, adapter, 1xN CNN", 0.207),
    _cnn("cnn:kernel=nxn,input=learned,adapter=386,skip=false", 18, "Learned Pooling, adapter, NxN CNN", 0.332),
    _cnn("inception", 19, "Learned Pooling, adapter, Inception", 1.994),
    _cnn("xception_mod", 20, "Learned Pooling, adapter, XceptionMod", 1.970),
)  # fmt: skip
"""The twenty span models of BERTVision in their order."""

_FURTHER = (
    CatalogueRow("average_pooling", "span", "3.1 AP", "Average Pooling", "exact", 0.001),
    CatalogueRow("average_pooling:of=first-last", paper="first-last pooling (Ma et al.)"),
    CatalogueRow("layer_reader:layer=0"),
    CatalogueRow("adapter:size=384,gelu=erf", "span", "8 AP_SQuAD", "AP_SQuAD", "exact"),
    CatalogueRow("cacnn", "span", "6.1", "CACNN without a context vector", "exact"),
    CatalogueRow("cacnn:variant=ctx", "span", "6.1", "CACNN with a context vector", "reconstructed"),
)

_CONTROLS = tuple(
    CatalogueRow(head)
    for head in (
        "last_state",
        "last_state_mlp",
        "last_state_mlp:match=64",
        "last_state_mlp:activation=none",
    )
)

_BEYOND = tuple(
    CatalogueRow(head) for head in ("ladder", "recurrent", "layer_attention", "head2toe", "biaffine")
)

_LABEL = (
    CatalogueRow("tenney_small", "label", "4 tenney small", "tenney small", "exact", 0.001),
    CatalogueRow("adapter_pooler", "label", "4 adapter", "adapter pooler tenney", "exact", 0.119),
    CatalogueRow(
        "adapter_pooler:pooling=average", "label", "4 adapter avg", "adapter pooler avg", "exact", 0.119
    ),
    CatalogueRow("xception_abbr", "label", "4 abbr", "xception abbr", "exact", 0.079),
    CatalogueRow("xception_abbr:cls", "label", "4 abbr cls", "xception abbr cls", "exact", 0.080, "total"),
    CatalogueRow("xception", "label", "4 xception", "xception", "exact", 6.181, "total"),
    CatalogueRow("cls_linear", "label"),
    CatalogueRow("cls_mlp", "label"),
    CatalogueRow("ap_glue", "label", "8 AP_GLUE", "AP_GLUE", "exact"),
    CatalogueRow("minbert", "label", "7 one vector", "dense layers on one CLS", "reconstructed"),
    CatalogueRow("minbert:vectors=2", "label", "7 two vectors", "dense layers on two CLS", "reconstructed"),
    CatalogueRow("attention_pooler", "label"),
    CatalogueRow("attention_pooler:over=layers+tokens", "label"),
    CatalogueRow("mean_pooler", "label"),
    CatalogueRow("mean_pooler:last", "label"),
)

_SPAN = _PAPERS + _FURTHER + _CONTROLS + _BEYOND

CATALOGUE: tuple[CatalogueRow, ...] = _SPAN + _LABEL
"""Every head that ships, in the sizes of its paper: span heads first."""

EACH_LAYER = "each_layer"
"""A reader for every hidden state (heads/layer_reader.py)."""

SETS: dict[str, tuple[str, ...]] = {
    "all": tuple(row.head for row in _SPAN),
    "papers": tuple(row.head for row in _PAPERS),
    "pooling+adapters": (
        "average_pooling",
        *(row.head for row in _PAPERS if row.seed.startswith("3.2")),
    ),
    "controls": tuple(row.head for row in _CONTROLS),
    "beyond": tuple(row.head for row in _BEYOND),
    "default": ("last_state", "learned_pooling", "adapter:size=64", "adapter", "adapter:skip"),
    EACH_LAYER: tuple(reader_texts(1)),
}
"""Span heads that go by one name, for `fit --heads`."""

_APART = "minbert:vectors=2"
"""Reads two windows an example, so that it cannot stand beside the others in one fit."""

LABEL_SETS: dict[str, tuple[str, ...]] = {
    "all": tuple(row.head for row in _LABEL if row.head != _APART),
    "papers": tuple(row.head for row in _LABEL if row.seed and row.head != _APART),
    "controls": ("cls_linear", "cls_mlp", "mean_pooler:last"),
    "default": ("cls_linear", "tenney_small", "adapter_pooler", "attention_pooler", "mean_pooler", "ap_glue"),
    EACH_LAYER: tuple(reader_texts(1)),
}
"""Heads for labels and scores that go by one name."""


def sets_of(task: Task) -> dict[str, tuple[str, ...]]:
    """The sets of heads a task has."""
    return {"span": SETS, "label": LABEL_SETS, "score": LABEL_SETS}.get(task, {})


def head_names() -> list[str]:
    """Every registered head that a fit can train; `distances` has no weights."""
    return [name for name in base.head_names() if not _only_distances(name)]


def _only_distances(name: str) -> bool:
    return head_class(name).tasks == ("triplet",)


def expand(texts: Sequence[str], task: Task = "span", *, states: int = 0) -> Iterator[tuple[str, bool]]:
    """(head, whether a set named it) of everything in `texts`, the sets of `task` put in full.

    Whether a head that was named by itself suits the task is for the caller to ask (`check_task`). `states` is how many
    hidden states are read, for each_layer; 0 = not known yet, where one reader is enough to check the rest with.
    """
    sets = sets_of(task)
    if states and EACH_LAYER in sets:
        sets = sets | {EACH_LAYER: tuple(reader_texts(states))}
    for text in texts:
        if text.strip() in sets:
            yield from ((head, True) for head in sets[text.strip()])
            continue
        _check_name(text, task)
        yield text, False


def _check_name(text: str, task: Task) -> None:
    """Refuse what is no head that can be named for this task."""
    name, sets = text.partition(":")[0].strip(), sets_of(task)
    if name in sets:
        raise ConfigError(
            f"{name} is a set of heads and takes no options, not {text!r}: name its heads one by one"
        )
    registered = next((h for h in base.head_names() if name in (h, h.rsplit(".v", 1)[0])), None)
    if registered is None:
        if name in SETS:
            raise ConfigError(
                f"{name} is a set of span heads: for a {task} task use {', '.join(sets) or 'the name of a head'}"
            )
        bare = sorted(head.rsplit(".v", 1)[0] for head in head_names())
        raise ConfigError(f"there is no head {name!r}: {nearest(name, [*sets, *bare])}")
    if _only_distances(registered) and task != "triplet":
        raise ConfigError(
            f"{name} gives distances between texts and has nothing to fit: it is for triplet pre-training, "
            f"not for a {task} task"
        )


def for_windows(text: str, tokens: int) -> str:
    """The text of a head that is built for windows of a certain length (ap_glue), with this length unless it says its
    own; any other text as it is."""
    if not hasattr(parse_head(text).config, "tokens") or "tokens=" in text:
        return text
    return f"{text}{',' if ':' in text else ':'}tokens={tokens}"


def find_row(spec: HeadSpec) -> CatalogueRow | None:
    """The row of a head, however it was written; its training settings do not count."""
    for row in CATALOGUE:
        found = parse_head(row.head)
        if (found.name, found.config) == (spec.name, spec.config):
            return row
    return None
