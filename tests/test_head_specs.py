"""Heads as text and as files: names and options, labels, mistakes, damaged folders, and heads of one's own."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from head_cases import TOKEN, batch_of, shaken
from torch import Tensor, nn

from bertvision.artifacts import write_tensors
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads import (
    Geometry,
    Head,
    StateBatch,
    cost,
    head_names,
    load_head,
    parse_head,
    register,
    save_head,
)
from bertvision.heads import base as heads_base
from bertvision.heads.catalogue import CATALOGUE
from bertvision.heads.spec import for_windows


@pytest.mark.parametrize(
    ("text", "name", "values", "train", "label"),
    [
        ("adapter", "adapter.v1", {"size": 386, "skip": False}, {}, "adapter-386"),
        ("adapter.v1:size=64", "adapter.v1", {"size": 64}, {}, "adapter-64"),
        (" adapter:size=64, skip ", "adapter.v1", {"size": 64, "skip": True}, {}, "adapter-64-skip"),
        ("adapter:skip=0", "adapter.v1", {"skip": False}, {}, "adapter-386"),
        ("adapter:gelu=erf,lr=3e-4", "adapter.v1", {"gelu": "erf"}, {"lr": 3e-4}, "adapter-386-gelu=erf-lr=0.0003"),
        ("learned_pooling:weight-decay=0.1,seed=3", "learned_pooling.v1", {}, {"weight_decay": 0.1, "seed": 3},
         "learned-pooling-weight_decay=0.1"),
        ("adapter:optimizer=sgd,schedule=linear,warmup=0.2,clip=0,patience=3", "adapter.v1", {},
         {"optimizer": "sgd", "schedule": "linear", "warmup": 0.2, "clip": 0.0, "patience": 3},
         "adapter-386-optimizer=sgd-schedule=linear-warmup=0.2-clip=0.0-patience=3"),
    ],
)  # fmt: skip
def test_specs_are_read(text: str, name: str, values: Any, train: dict[str, Any], label: str) -> None:
    spec = parse_head(text)
    assert (spec.name, spec.label) == (name, label)
    assert dataclasses.asdict(spec.config) | values == dataclasses.asdict(spec.config)
    assert {k: v for k, v in dataclasses.asdict(spec.train).items() if v is not None} == train


WRONG = {
    # names and syntax
    "adaptor": "did you mean adapter",
    "zzz": "known: .*learned_pooling",
    "adapter.v9": r"adapter\.v9",
    "": "no head ''",
    "adapter:sise=64": "did you mean size",
    "last_state:size=3": "no option 'size'",
    "adapter:size=64,size=32": "size twice",
    # kinds of values
    "adapter:size=many": "int, not 'many'",
    "adapter:size=6.5": "int",
    "adapter:size": "int",
    "adapter:skip=perhaps": "bool",
    "adapter:gelu=none": "tanh, erf",
    "adapter:lr=fast": "float",
    "adapter:optimizer=lion": "adamw, adam, sgd",
    "adapter:patience=soon": "int",
    "adapter:patience=-1": "patience",
    # values that do not go together, or lie outside a range of their own
    "adapter:size=10000000": "size of adapter must lie between 1 and 1,000,000",
    "ladder:size=6,heads=4": "multiple of heads",
    "layer_attention:size=6,heads=4": "multiple of heads",
    "head2toe:keep=0": "keep of head2toe",
    "head2toe:select_at=1.5": "select_at of head2toe",
    "minbert:vectors=3": "vectors of minbert",
    "cnn:adapter=8": "input=learned",
    "cacnn:n=3": "n of cacnn .* even",
    "cacnn:bank=3-x": "bank of cacnn",
    "cacnn:bank=": "bank of cacnn",
    "cacnn:bank=0-3": "bank of cacnn",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_head_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=WRONG[text]) as caught:
        parse_head(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name.removesuffix(".v1") for name in heads_base.registered()])
def test_every_range_is_enforced(name: str) -> None:
    for field in dataclasses.fields(parse_head(name).config):
        wrong = ["1", "-0.1", "nan"] if "rate" in field.metadata else []
        if (least := field.metadata.get("least")) is not None:
            wrong = [str(least - 1)]
        assert least is not None or field.type is not int or field.name == "vectors", (
            "every number has a range"
        )
        for value in wrong:
            with pytest.raises(ConfigError, match=f"{field.name} of {name} must"):
                parse_head(f"{name}:{field.name}={value}")


def test_different_heads_have_different_labels() -> None:
    texts = [row.head for row in CATALOGUE] + [
        "adapter:lr=0.01",
        "adapter:dropout=0.1",
    ]
    labels = [parse_head(text).label for text in texts]
    assert len(set(labels)) == len(labels)
    assert not any(character in label for label in labels for character in "/\\: ")


def test_a_head_with_weights_for_every_place_takes_the_length_of_the_windows() -> None:
    assert for_windows("ap_glue", 77) == "ap_glue:tokens=77"
    assert for_windows("ap_glue:size=4", 77) == "ap_glue:size=4,tokens=77"
    assert for_windows("ap_glue:tokens=5", 77) == "ap_glue:tokens=5"
    assert for_windows("cls_linear", 77) == "cls_linear"


# ---- files


def _change(key: str, **values: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (config[key] if key else config).update(values)
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def _cut(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-5])


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    "cut weights": (_cut("model.safetensors"), "damaged"),
    "cut config": (_cut("config.json"), "JSON"),
    "list": (lambda f: (f / "config.json").write_text("[1]"), "does not describe a bertvision head"),
    "an encoder's": (lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), "does not describe"),
    "newer": (_change("", schema=99, bertvision="9.0"), r"format 99 by bertvision 9\.0"),
    "unknown head": (_change("head", name="adaptor.v1"), r"adaptor.*adapter\.v1"),
    "bad setting": (_change("head", config={"size": 0}), "size"),
    "other geometry": (_change("geometry", hidden=13), r"down\.weight.*\[3, 12\].*\[3, 13\]"),
    "bad geometry": (_change("geometry", depth=1), "cannot build"),
    "lost tensor": (
        lambda f: write_tensors(f / "model.safetensors", {"a": torch.ones(1)}),
        "belong to different",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_is_one_sentence(case: str, tmp_path: Path) -> None:
    spoil, words = DAMAGE[case]
    save_head(shaken("adapter:size=3"), tmp_path, about={})
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert str(tmp_path) not in (tmp_path / "config.json").read_text(), "the folder can be moved"
    spoil(tmp_path)
    with pytest.raises(ArtifactError, match=words) as caught:
        load_head(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


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

        def forward(self, batch: StateBatch) -> Tensor:
            return self.last(self.first(batch.states[0]))

    return Wide


def test_a_users_head_is_a_head_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head_names()  # what ships is registered
    monkeypatch.setattr(heads_base, "_REGISTRY", dict(heads_base._REGISTRY))
    first, second = _own("wide.v1"), _own("wide.v2")
    assert "wide.v2" in head_names()
    spec = parse_head("wide:width=6,bias=false")
    assert type(spec.build(TOKEN, seed=0)) is second, "the newest version answers to the bare name"
    assert type(parse_head("wide.v1:width=6").build(TOKEN, seed=0)) is first
    texts = ("wide:width=6,bias=false", "wide:width=6", "wide.v1:width=6", "wide:width=7")
    assert len({parse_head(text).label for text in texts}) == 4
    assert cost(spec, TOKEN).parameters == 12 * 6 + 6 * 2 + 2
    assert cost(spec, TOKEN).flops_per_token == 2 * (12 * 6 + 6 * 2)
    head, batch = spec.build(TOKEN, seed=0), batch_of(TOKEN)
    save_head(head, tmp_path, about={})
    assert torch.equal(load_head(tmp_path)[0](batch), head(batch))
    with pytest.raises(ConfigError, match="needs a value for width"):
        parse_head("wide")
    with pytest.raises(ValueError, match="registered already"):
        _own("wide.v1")
