"""Heads as the user writes them: names and options in a string, labels, mistakes, and heads of one's own."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from test_heads import SMALL, inputs
from torch import Tensor, nn

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, Head, cost, head_names, load_head, parse_head, register, save_head
from bertvision.heads.spec import HeadSpec


@pytest.mark.parametrize(
    ("text", "name", "values", "train", "label"),
    [
        ("adapter", "adapter.v1", {"size": 386, "skip": False}, {}, "adapter-386"),
        ("adapter.v1:size=64", "adapter.v1", {"size": 64}, {}, "adapter-64"),
        (" adapter:size=64, skip ", "adapter.v1", {"size": 64, "skip": True}, {}, "adapter-64-skip"),
        ("adapter:skip=true", "adapter.v1", {"skip": True}, {}, "adapter-386-skip"),
        ("adapter:skip=0", "adapter.v1", {"skip": False}, {}, "adapter-386"),
        ("adapter:gelu=erf,lr=3e-4", "adapter.v1", {"gelu": "erf"}, {"lr": 3e-4}, "adapter-386-gelu=erf-lr=0.0003"),
        ("learned_pooling:weight-decay=0.1,seed=3", "learned_pooling.v1", {}, {"weight_decay": 0.1, "seed": 3},
         "learned-pooling-weight_decay=0.1"),
        ("adapter:optimizer=sgd,schedule=linear,warmup=0.2,clip=0,patience=3", "adapter.v1", {},
         {"optimizer": "sgd", "schedule": "linear", "warmup": 0.2, "clip": 0.0, "patience": 3},
         "adapter-386-optimizer=sgd-schedule=linear-warmup=0.2-clip=0.0-patience=3"),
    ],
)  # fmt: skip
def test_specs_are_read(
    text: str, name: str, values: dict[str, Any], train: dict[str, Any], label: str
) -> None:
    spec = parse_head(text)
    assert spec.name == name
    assert dataclasses.asdict(spec.config) | values == dataclasses.asdict(spec.config)
    assert {k: v for k, v in dataclasses.asdict(spec.train).items() if v is not None} == train
    assert spec.label == label


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adaptor", "did you mean adapter"),
        ("zzz", "known: adapter.v1, .*learned_pooling.v1"),
        ("adapter.v9", "no head 'adapter.v9'"),
        ("", "no head ''"),
        ("adapter:sise=64", "no option 'sise': did you mean size"),
        ("adapter:size=many", "size of head .* must be a int, not 'many'"),
        ("adapter:size=6.5", "must be a int"),
        ("adapter:size", "must be a int"),
        ("adapter:size=0", "size must be at least 1"),
        ("adapter:init_std=0", "init_std must lie between 0 and 1"),
        ("adapter:skip=perhaps", "must be a bool"),
        ("adapter:gelu=none", "must be one of tanh, erf"),
        ("adapter:size=64,size=32", "sets size twice"),
        ("adapter:lr=fast", "lr of head .* must be a float"),
        ("adapter:optimizer=lion", "optimizer of head .* must be one of adamw, adam, sgd, not 'lion'"),
        ("adapter:schedule=cosine", "must be one of constant, linear"),
        ("adapter:patience=soon", "patience of head .* must be a int"),
        ("adapter:dropout=1", "dropout of adapter must lie between 0 and 1"),
        ("last_state_mlp:match=0", "match of last_state_mlp must be at least 1"),
        ("last_state_mlp:width=-1", "width of last_state_mlp must be at least 0"),
        ("last_state_mlp:dropout=-0.1", "dropout of last_state_mlp"),
        ("last_state_mlp:activation=relu", "must be one of gelu, none"),
        ("pooled_adapter:pooling=max", "must be one of learned, average"),
        ("pooled_adapter:size=0", "size must be at least 1"),
        ("twin_adapter:init_std=1", "init_std must lie between 0 and 1"),
        ("average_pooling:of=last", "must be one of all, first-last"),
        ("last_state:size=3", "no option 'size'"),
    ],
)
def test_bad_specs_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_head(text)
    assert "\n" not in str(caught.value)


def test_different_heads_have_different_labels() -> None:
    texts = ["adapter", "adapter:size=64", "adapter:skip", "adapter:gelu=erf", "adapter:init_std=0.01",
             "adapter:size=64,skip", "adapter:lr=0.01", "adapter:weight_decay=0.01", "adapter:skip,lr=0.01",
             "adapter:unshared", "adapter:dropout=0.1", "adapter:optimizer=sgd", "last_state", "last_state_mlp",
             "last_state_mlp:activation=none", "average_pooling", "average_pooling:of=first-last",
             "learned_pooling", "pooled_adapter", "twin_adapter"]  # fmt: skip
    labels = [parse_head(text).label for text in texts]
    assert len(set(labels)) == len(labels)
    assert not any(character in label for label in labels for character in "/\\: ")


def test_a_spec_builds_what_it_says() -> None:
    spec = parse_head("adapter:size=5,skip")
    assert isinstance(spec, HeadSpec)
    head: Any = spec.build(SMALL, seed=0)
    assert head.down.weight.shape == (5, 12)
    assert head.project.weight.shape == (2, 5 * 5 + 12)


# ---- a user's own


@dataclass(frozen=True)
class WideConfig:
    width: int
    bias: bool = True


def _own(name: str) -> type[Head]:
    @register(name, WideConfig)
    class Wide(Head):
        """states[0] -> Linear(width) -> Linear(C)."""

        def __init__(self, config: WideConfig, geometry: Geometry) -> None:
            super().__init__(config, geometry)
            self.first = nn.Linear(geometry.hidden, config.width, bias=config.bias)
            self.last = nn.Linear(config.width, geometry.outputs)

        def forward(self, states: Tensor, mask: Tensor) -> Tensor:
            return self.last(self.first(states[0]))

    return Wide


def test_a_users_head_is_a_head_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertvision.heads import base

    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    first, second = _own("wide.v1"), _own("wide.v2")
    assert "wide.v2" in head_names()
    spec = parse_head("wide:width=6,bias=false")
    assert spec.name == "wide.v2", "the newest version answers to the bare name"
    assert type(spec.build(SMALL, seed=0)) is second
    assert type(parse_head("wide.v1:width=6").build(SMALL, seed=0)) is first
    labels = {
        parse_head(t).label
        for t in ("wide:width=6,bias=false", "wide:width=6", "wide.v1:width=6", "wide:width=7")
    }
    assert len(labels) == 4
    assert cost(spec, SMALL).parameters == 12 * 6 + 6 * 2 + 2
    assert cost(spec, SMALL).flops_per_token == 2 * (12 * 6 + 6 * 2)
    head = spec.build(SMALL, seed=0)
    save_head(head, tmp_path, about={})
    assert torch.equal(load_head(tmp_path)[0](*inputs()), head(*inputs()))
    with pytest.raises(ConfigError, match="needs a value for width"):
        parse_head("wide")
    with pytest.raises(ValueError, match="registered already"):
        _own("wide.v1")
