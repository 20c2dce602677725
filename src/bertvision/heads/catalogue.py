"""The heads that ship, as data: every head of the papers, the controls, and heads beyond them.

A row says what to type, where the head comes from, and how sure that is:

    exact          the structure follows from public code or from the published count, and the count is met
    reconstructed  other structures would meet the count too, or no count was published
    ours           not in the papers: controls, and heads with a reason and a source of their own

`section` is the section of the papers' facts that a head comes from: 3.2 and 3.3 are BERTVision's twenty span models
in their order, 3.1 its layers, 4 its classification models, 6.1 Hulburd's context-aware CNN, 7 minBERT, 8 the
BERTVision repository. Only sizes are compared with the papers; docs/heads.md says what is not known.

`SETS` are names for several heads at once, by what their logits belong to: `bertvision fit --heads papers last_state`.
All heads of a set read one window an example. `each_layer` has one head for every hidden state.

This module imports no torch: `--help` and the checks of settings read it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from bertvision.errors import ConfigError, nearest

if TYPE_CHECKING:
    from bertvision.heads.base import Unit
    from bertvision.heads.spec import HeadSpec

__all__ = ["CATALOGUE", "EACH_LAYER", "SETS", "CatalogueRow", "Origin", "expand", "find_row", "head_names"]

Origin = Literal["exact", "reconstructed", "ours"]


@dataclass(frozen=True)
class CatalogueRow:
    head: str
    """What to type."""
    section: str = ""
    """Section and row of the papers' facts; empty for ours."""
    paper: str = ""
    """The paper's name for it."""
    published: float | None = None
    """Percent of the encoder's parameters, as printed."""
    origin: Origin = "ours"
    counted: Literal["trainable", "total"] = "trainable"
    """What the printed percentage counts; total includes the running statistics of batch norms."""
    unit: "Unit" = "token"


def _exact(head: str, section: str, paper: str, published: float | None = None) -> CatalogueRow:
    return CatalogueRow(head, section, paper, published, "exact")


def _cnn(head: str, row: int, paper: str, published: float) -> CatalogueRow:
    return CatalogueRow(head, f"3.3 row {row}", paper, published, "reconstructed", "total")


_PAPERS = (
    _cnn("cnn", 1, "1xN CNN", 0.099),
    _cnn("cnn:dilated", 2, "1xN CNN with dilation", 0.121),
    _cnn("cnn:dropout=0", 3, "1xN CNN without dropout", 0.099),
    _exact("learned_pooling", "3.2 row 4", "Learned Pooling", 0.001),
    _cnn("cnn:input=learned", 5, "Learned Pooling with 1xN CNN", 0.093),
    _cnn("cnn:input=average", 6, "Average Pooling with 1xN CNN", 0.093),
    _exact("adapter:size=64", "3.2 row 7", "Adapter 64 shared", 0.021),
    _exact("adapter:size=64,skip", "3.2 row 8", "Adapter 64 shared with skip", 0.021),
    _exact("adapter:size=64,unshared", "3.2 row 9", "Adapter 64 not shared", 0.491),
    _exact("adapter:size=64,unshared,skip", "3.2 row 10", "Adapter 64 not shared with skip", 0.491),
    _exact("adapter:size=386", "3.2 row 11", "Adapter 386 shared", 0.124),
    _exact("adapter:size=386,skip", "3.2 row 12", "Adapter 386 shared with skip", 0.124),
    _exact("adapter:size=386,unshared", "3.2 row 13", "Adapter 386 not shared", 2.957),
    _exact("adapter:size=386,unshared,skip", "3.2 row 14", "Adapter 386 not shared with skip", 2.958),
    _exact("pooled_adapter:size=386", "3.2 row 15", "Learned Pooling, Adapter 386 shared", 0.119),
    CatalogueRow(
        "twin_adapter:size=386", "3.2 row 16", "Adapter 386 shared skip Tenney Pooling", 0.242, "reconstructed"
    ),
    _cnn("cnn:input=learned,adapter=386", 17, "Learned Pooling, adapter, 1xN CNN", 0.207),
    _cnn("cnn:kernel=nxn,input=learned,adapter=386,skip=false", 18, "Learned Pooling, adapter, NxN CNN", 0.332),
    _cnn("inception", 19, "Learned Pooling, adapter, Inception", 1.994),
    _cnn("xception_mod", 20, "Learned Pooling, adapter, XceptionMod", 1.970),
)  # fmt: skip
"""The twenty span models of BERTVision in their order."""

_FURTHER = (
    _exact("average_pooling", "3.1 AP", "Average Pooling", 0.001),
    CatalogueRow("average_pooling:of=first-last", paper="first-last pooling (Ma et al.)"),
    CatalogueRow("layer_reader:layer=0"),
    _exact("adapter:size=384,gelu=erf", "8 AP_SQuAD", "AP_SQuAD"),
    _exact("cacnn", "6.1", "CACNN without a context vector"),
    CatalogueRow("cacnn:variant=ctx", "6.1", "CACNN with a context vector", None, "reconstructed"),
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

_TOKEN = _PAPERS + _FURTHER + _CONTROLS + _BEYOND

_WINDOW = tuple(
    replace(row, unit="window")
    for row in (
        _exact("tenney_small", "4 tenney small", "tenney small", 0.001),
        _exact("adapter_pooler", "4 adapter", "adapter pooler tenney", 0.119),
        _exact("adapter_pooler:pooling=average", "4 adapter avg", "adapter pooler avg", 0.119),
        _exact("xception_abbr", "4 abbr", "xception abbr", 0.079),
        CatalogueRow("xception_abbr:cls", "4 abbr cls", "xception abbr cls", 0.080, "exact", "total"),
        CatalogueRow("xception", "4 xception", "xception", 6.181, "exact", "total"),
        CatalogueRow("cls_linear"),
        CatalogueRow("cls_mlp"),
        _exact("ap_glue", "8 AP_GLUE", "AP_GLUE"),
        CatalogueRow("minbert", "7 one vector", "dense layers on one CLS", None, "reconstructed"),
        CatalogueRow("minbert:vectors=2", "7 two vectors", "dense layers on two CLS", None, "reconstructed"),
        CatalogueRow("attention_pooler"),
        CatalogueRow("attention_pooler:over=layers+tokens"),
        CatalogueRow("mean_pooler"),
        CatalogueRow("mean_pooler:last"),
    )
)

CATALOGUE: tuple[CatalogueRow, ...] = _TOKEN + _WINDOW
"""Every head that ships, in the sizes of its paper: token heads first."""

EACH_LAYER = "each_layer"
"""A reader for every hidden state (heads/layer_reader.py)."""


def _readers(states: int) -> tuple[str, ...]:
    return tuple(f"layer_reader:layer={k}" for k in range(states))


_ALONE = tuple(row for row in _WINDOW if row.head != "minbert:vectors=2")
"""Without the one that reads two windows an example, which cannot share a fit with the others."""

SETS: dict["Unit", dict[str, tuple[str, ...]]] = {
    "token": {
        "all": tuple(row.head for row in _TOKEN),
        "papers": tuple(row.head for row in _PAPERS),
        "pooling+adapters": (
            "average_pooling",
            *(row.head for row in _PAPERS if row.section.startswith("3.2")),
        ),
        "controls": tuple(row.head for row in _CONTROLS),
        "beyond": tuple(row.head for row in _BEYOND),
        "default": ("last_state", "learned_pooling", "adapter:size=64", "adapter", "adapter:skip"),
        EACH_LAYER: _readers(1),
    },
    "window": {
        "all": tuple(row.head for row in _ALONE),
        "papers": tuple(row.head for row in _ALONE if row.section),
        "controls": ("cls_linear", "cls_mlp", "mean_pooler:last"),
        "default": (
            "cls_linear",
            "tenney_small",
            "adapter_pooler",
            "attention_pooler",
            "mean_pooler",
            "ap_glue",
        ),
        EACH_LAYER: _readers(1),
    },
}
"""Heads that go by one name, for `fit --heads`."""


def head_names() -> list[str]:
    """Versioned names of all heads that can be fitted."""
    from bertvision.heads.base import head_class, registered

    return [name for name in registered() if head_class(name).units]


def expand(texts: Sequence[str], unit: "Unit" = "token", *, states: int = 0) -> Iterator[tuple[str, bool]]:
    """(head, whether a set named it) of everything in `texts`, with the sets of `unit` written out.

    Whether a head that was named by itself suits the unit is not checked here (`check_unit`). `states` is the number of
    hidden states that are read, for each_layer; 0 = not known yet, where one reader stands for all.
    """
    sets = SETS[unit] | ({EACH_LAYER: _readers(states)} if states else {})
    for text in map(str.strip, texts):
        if text in sets:
            yield from ((head, True) for head in sets[text])
        else:
            _check_name(text, sets)
            yield text, False


def _check_name(text: str, sets: dict[str, tuple[str, ...]]) -> None:
    """Refuse what is not a head that can be fitted."""
    from bertvision.heads.base import head_class, registered

    name = text.partition(":")[0].strip()
    if name in sets:
        raise ConfigError(
            f"{name} is a set of heads and takes no options, not {text!r}: name its heads one by one"
        )
    bare = {known.rsplit(".v", 1)[0] for known in head_names()}
    if not any(name in (known, known.rsplit(".v", 1)[0]) for known in registered()):
        if any(name in others for others in SETS.values()):
            raise ConfigError(
                f"{name} is a set of heads for another kind of task: use {', '.join(sets)} or the name of a head"
            )
        raise ConfigError(f"there is no head {name!r}: {nearest(name, [*sets, *sorted(bare)])}")
    if not head_class(name).units:
        raise ConfigError(
            f"{name} gives distances between texts and has nothing to fit: it is for triplet pre-training"
        )


def find_row(spec: "HeadSpec") -> CatalogueRow | None:
    """The row of a head, however it was written; its training settings do not count."""
    from bertvision.heads.spec import parse_head

    for row in CATALOGUE:
        found = parse_head(row.head)
        if (found.name, found.config) == (spec.name, spec.config):
            return row
    return None
