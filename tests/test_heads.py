"""Heads against the papers: exact parameter counts, and plain references written from the formulas."""

import dataclasses
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bertvision.artifacts import write_tensors
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads import Geometry, Head, cost, head_names, load_head, parse_head, register, save_head
from bertvision.heads.spec import HeadSpec

LARGE = Geometry(states=25, hidden=1024)
"""BERT-large: the geometry of the published counts."""
SMALL = Geometry(states=5, hidden=12)
ALL = ["last_state", "average_pooling", "learned_pooling", "adapter:size=3", "adapter:size=3,skip",
       "adapter:size=3,skip,gelu=erf"]  # fmt: skip


def inputs(geometry: Geometry = SMALL, *, windows: int = 2, tokens: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(geometry.states, windows, tokens, geometry.hidden, generator=generator)
    mask = torch.ones(windows, tokens, dtype=torch.bool)
    mask[1, 2:] = False
    return states, mask


def shaken(text: str, geometry: Geometry = SMALL) -> Head:
    """A head with every parameter far from its initial value, so that none can be forgotten unseen."""
    head = parse_head(text).build(geometry, seed=0).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return head


# ---- the papers' numbers


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("last_state", 2_050),
        ("average_pooling", 2_050),
        ("learned_pooling", 2_076),
        ("adapter:size=64", 68_802),
        ("adapter:size=64,skip", 70_850),
        ("adapter", 414_952),
        ("adapter:skip", 417_000),
    ],
)
def test_published_parameter_counts(text: str, count: int) -> None:
    spec = parse_head(text)
    assert cost(spec, LARGE).parameters == count
    assert spec.build(LARGE, seed=0).num_parameters == count


def test_published_share_of_the_encoder() -> None:
    assert round(cost(parse_head("adapter"), LARGE).percent_of(335_143_938), 3) == 0.124
    assert round(cost(parse_head("adapter:size=64"), LARGE).percent_of(335_143_938), 3) == 0.021


@pytest.mark.parametrize("tokens", [1, 7, 386])
@pytest.mark.parametrize("geometry", [LARGE, Geometry(7, 384), Geometry(3, 32, outputs=5)], ids=str)
def test_flops_follow_a_closed_formula(geometry: Geometry, tokens: int) -> None:
    """Two operations a multiply-add; a matrix (m, k) times (k, n) has m * k * n of them."""
    L, H, C = geometry.states, geometry.hidden, geometry.outputs
    project_all, mix = 2 * L * H * C, 2 * L * C
    expected = {
        "last_state": 2 * H * C,
        "average_pooling": project_all + mix,
        "learned_pooling": project_all + mix,
        "adapter:size=64": 2 * L * H * 64 + 2 * L * 64 * C,
        "adapter:size=64,skip": 2 * L * H * 64 + 2 * L * 64 * C + 2 * H * C,
    }
    counted = {text: cost(parse_head(text), geometry, tokens=tokens).flops_per_token for text in expected}
    assert counted == expected


# ---- references from the formulas


def gelu(x: float, kind: str) -> float:
    if kind == "erf":
        return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def dense(vector: list[float], layer: nn.Linear) -> list[float]:
    rows, biases = layer.weight.tolist(), layer.bias.tolist()
    return [
        sum(w * x for w, x in zip(row, vector, strict=True)) + b for row, b in zip(rows, biases, strict=True)
    ]


def features(head: Any, token: list[list[float]]) -> list[float]:
    """The vector before the last layer, for one token; `token` is its state in every layer, (L, H)."""
    L, H = len(token), len(token[0])
    match head.name:
        case "last_state.v1":
            return token[-1]
        case "average_pooling.v1":
            return [sum(layer[h] for layer in token) / L for h in range(H)]
        case "learned_pooling.v1":
            scores = [math.exp(w) for w in head.mix.w.tolist()]
            share = [s / sum(scores) for s in scores]
            return [head.mix.gamma.item() * sum(share[i] * token[i][h] for i in range(L)) for h in range(H)]
        case "adapter.v1":
            reduced = [
                [gelu(x, head.config.gelu) for x in dense(layer, head.down)] for layer in token
            ]  # (L, a)
            flat = [reduced[i][f] for f in range(head.config.size) for i in range(L)]  # layer-minor
            return flat + (token[-1] if head.config.skip else [])
    raise AssertionError(f"write the reference of {head.name}")


@pytest.mark.parametrize("text", ALL)
def test_a_head_is_its_formula(text: str) -> None:
    head: Any = shaken(text)
    states, mask = inputs()
    logits = head(states, mask)
    assert logits.shape == (2, 4, 2)
    for b in range(2):
        for t in range(4):
            expected = dense(features(head, states[:, b, t].tolist()), head.project)
            assert logits[b, t].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_every_shipped_head_has_a_reference() -> None:
    assert {parse_head(text).name for text in ALL} == set(head_names())


@pytest.mark.parametrize("text", ALL)
def test_pads_do_not_reach_real_tokens(text: str) -> None:
    head = shaken(text)
    states, mask = inputs()
    noisy = torch.where(mask[None, :, :, None], states, torch.full_like(states, 1e3))
    assert torch.equal(head(states, mask)[mask], head(noisy, mask)[mask])


@pytest.mark.parametrize("text", ALL)
def test_every_parameter_is_trained(text: str) -> None:
    head = shaken(text)
    head(*inputs()).pow(2).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in head.parameters())


# ---- initial weights


def test_the_adapter_begins_as_keras_truncated_normal() -> None:
    """Cut at two sigma: what is left of a normal has 0.8796 of its spread."""
    head: Any = parse_head("adapter").build(LARGE, seed=0)
    weight = head.down.weight
    assert weight.abs().max() <= 2e-3
    assert weight.abs().max() > 1.99e-3
    assert weight.std().item() == pytest.approx(0.8796e-3, rel=0.01)
    assert weight.mean().item() == pytest.approx(0, abs=1e-5)
    assert head.down.bias.eq(0).all()


def test_pooling_begins_as_the_paper_says() -> None:
    built: list[Any] = [parse_head("learned_pooling").build(LARGE, seed=seed) for seed in range(80)]
    mixes = torch.stack([head.mix.w.detach() for head in built])
    assert mixes.std().item() == pytest.approx(0.05, rel=0.06)
    head: Any = parse_head("learned_pooling").build(LARGE, seed=0)
    assert head.mix.gamma.tolist() == [1.0]
    assert sum(head.layer_weights()) == pytest.approx(1)
    assert head.layer_weights() == pytest.approx(head.mix.w.softmax(0).tolist())


@pytest.mark.parametrize("text", ["last_state", "adapter", "learned_pooling"])
def test_the_output_layer_is_glorot_uniform(text: str) -> None:
    head: Any = parse_head(text).build(LARGE, seed=0)
    limit = math.sqrt(6 / (head.project.in_features + 2))
    weight = head.project.weight
    assert 0.99 * limit < weight.abs().max() <= limit
    assert weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.05)
    assert head.project.bias.eq(0).all()


def test_weights_come_from_the_seed_alone() -> None:
    spec = parse_head("adapter:size=4")
    torch.manual_seed(1)
    first, outside = spec.build(SMALL, seed=7).state_dict(), torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(outside, torch.rand(3)), "the stream outside was disturbed"
    second, other = spec.build(SMALL, seed=7).state_dict(), spec.build(SMALL, seed=8).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["down.weight"], other["down.weight"])


# ---- on disk


@pytest.mark.parametrize("text", ALL)
def test_a_saved_head_comes_back_bit_by_bit(text: str, tmp_path: Path) -> None:
    head = shaken(text)
    save_head(head, tmp_path, about={"label": "mine"})
    loaded, config = load_head(tmp_path)
    assert loaded.config == head.config
    assert loaded.geometry == head.geometry
    assert not loaded.training
    assert config["label"] == "mine"
    assert config["parameters"] == head.num_parameters
    assert torch.equal(loaded(*inputs()), head(*inputs()))
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def _json(folder: Path, change: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


DAMAGE = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    "cut weights": (lambda f: _cut(f / "model.safetensors"), "is damaged"),
    "cut config": (lambda f: _cut(f / "config.json"), "is not valid JSON"),
    "list": (lambda f: (f / "config.json").write_text("[1]"), "does not describe a bertvision head"),
    "an encoder's": (lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), "does not describe"),
    "newer": (
        lambda f: _json(f, lambda c: c.update(schema=99, bertvision="9.0")),
        r"format 99 by bertvision 9\.0",
    ),
    "unknown head": (
        lambda f: _json(f, lambda c: c["head"].update(name="adaptor.v1")),
        r"adaptor.*adapter\.v1",
    ),
    "bad setting": (
        lambda f: _json(f, lambda c: c["head"]["config"].update(size=0)),
        "size must be at least 1",
    ),
    "other geometry": (lambda f: _json(f, lambda c: c["geometry"].update(hidden=13)), "holds weights"),
    "bad geometry": (lambda f: _json(f, lambda c: c["geometry"].update(depth=1)), "cannot build"),
    "lost tensor": (lambda f: write_tensors(f / "model.safetensors", {"a": torch.ones(1)}), "holds weights"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_head_is_one_sentence(case: str, tmp_path: Path) -> None:
    spoil, words = DAMAGE[case]
    save_head(shaken("adapter:size=3"), tmp_path, about={})
    spoil(tmp_path)
    with pytest.raises(ArtifactError, match=words) as caught:
        load_head(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_is_written_twice_over(tmp_path: Path) -> None:
    """The folder can be copied anywhere: nothing in it names a place."""
    head = shaken("adapter:size=3")
    save_head(head, tmp_path / "a", about={})
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert torch.equal(load_head(tmp_path / "b")[0](*inputs()), head(*inputs()))


# ---- as the user writes them


@pytest.mark.parametrize(
    ("text", "name", "values", "train", "label"),
    [
        ("adapter", "adapter.v1", {"size": 386, "skip": False}, {}, "adapter-386"),
        ("adapter.v1:size=64", "adapter.v1", {"size": 64}, {}, "adapter-64"),
        (" adapter:size=64, skip ", "adapter.v1", {"size": 64, "skip": True}, {}, "adapter-64-skip"),
        ("adapter:skip=true", "adapter.v1", {"skip": True}, {}, "adapter-386-skip"),
        ("adapter:skip=0", "adapter.v1", {"skip": False}, {}, "adapter-386"),
        ("adapter:gelu=erf,lr=3e-4", "adapter.v1", {"gelu": "none"}, {"lr": 3e-4}, "adapter-386-gelu=erf-lr=0.0003"),
        ("learned_pooling:weight-decay=0.1,seed=3", "learned_pooling.v1", {}, {"weight_decay": 0.1, "seed": 3},
         "learned-pooling-weight_decay=0.1"),
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
        ("zzz", "known: adapter.v1, average_pooling.v1"),
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
             "last_state", "average_pooling", "learned_pooling"]  # fmt: skip
    labels = [parse_head(text).label for text in texts]
    assert len(set(labels)) == len(labels)
    assert not any(character in label for label in labels for character in "/\\: ")


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


def test_a_spec_builds_what_it_says() -> None:
    spec = parse_head("adapter:size=5,skip")
    assert isinstance(spec, HeadSpec)
    head: Any = spec.build(SMALL, seed=0)
    assert head.down.weight.shape == (5, 12)
    assert head.project.weight.shape == (2, 5 * 5 + 12)
