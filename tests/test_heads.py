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
from torch.func import functional_call, vmap

from bertvision.artifacts import write_tensors
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads import (
    Geometry,
    Head,
    adapter,
    cost,
    head_names,
    linear,
    load_head,
    parse_head,
    pooling,
    register,
    save_head,
)
from bertvision.heads.base import head_class
from bertvision.heads.layers import Dropout, set_noise
from bertvision.heads.spec import HeadSpec

LARGE = Geometry(states=25, hidden=1024)
"""BERT-large: the geometry of the published counts."""
BASE = Geometry(states=13, hidden=768)
SMALL = Geometry(states=5, hidden=12)
SMALL_SPECS = [
    "last_state",
    "last_state_mlp:match=3",
    "last_state_mlp:width=4,activation=none,dropout=0.3",
    "average_pooling",
    "average_pooling:of=first-last",
    "learned_pooling",
    "adapter:size=3",
    "adapter:size=3,skip",
    "adapter:size=3,skip,gelu=erf",
    "adapter:size=3,unshared",
    "adapter:size=3,unshared,skip,dropout=0.3",
    "pooled_adapter:size=3",
    "pooled_adapter:size=3,pooling=average,skip=false,gelu=erf",
    "twin_adapter:size=3",
    "twin_adapter:size=2,gelu=erf",
]


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
        ("average_pooling:of=first-last", 2_050),
        ("learned_pooling", 2_076),
        ("adapter:size=64", 68_802),
        ("adapter:size=64,skip", 70_850),
        ("adapter:size=64,unshared", 1_643_202),
        ("adapter:size=64,unshared,skip", 1_645_250),
        ("adapter", 414_952),
        ("adapter:skip", 417_000),
        ("adapter:unshared", 9_910_552),
        ("adapter:unshared,skip", 9_912_600),
        ("pooled_adapter", 398_498),
        ("pooled_adapter:skip=false", 396_450),
        ("twin_adapter", 811_400),
        ("adapter:size=384,gelu=erf", 412_802),
    ],
)
def test_published_parameter_counts(text: str, count: int) -> None:
    spec = parse_head(text)
    assert cost(spec, LARGE).parameters == cost(spec, LARGE).total == count
    assert spec.build(LARGE, seed=0).num_parameters == count


def test_published_parameter_count_on_the_base_encoder() -> None:
    assert cost(parse_head("adapter:size=384,gelu=erf"), BASE).parameters == 305_282


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        ("learned_pooling", 0.001),
        ("adapter:size=64", 0.021),
        ("adapter:size=64,skip", 0.021),
        ("adapter:size=64,unshared,skip", 0.491),
        ("adapter", 0.124),
        ("adapter:skip", 0.124),
        ("adapter:unshared", 2.957),
        ("adapter:unshared,skip", 2.958),
        ("pooled_adapter", 0.119),
        ("twin_adapter", 0.242),
    ],
)
def test_published_share_of_the_encoder(text: str, percent: float) -> None:
    assert round(cost(parse_head(text), LARGE).percent_of(335_143_938), 3) == percent


@pytest.mark.parametrize("geometry", [LARGE, BASE, Geometry(3, 9), Geometry(7, 384, outputs=5)], ids=str)
@pytest.mark.parametrize("match", [1, 64, 386])
def test_the_control_has_as_many_parameters_as_the_adapter(match: int, geometry: Geometry) -> None:
    """Within half of what one hidden number costs: its H weights, its bias and its C outputs."""
    target = cost(parse_head(f"adapter:size={match}"), geometry).parameters
    for activation in ("gelu", "none"):
        own = cost(parse_head(f"last_state_mlp:match={match},activation={activation}"), geometry).parameters
        assert abs(own - target) <= (geometry.hidden + 1 + geometry.outputs) / 2


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
        "average_pooling:of=first-last": 2 * H * C,
        "last_state_mlp:width=7": 2 * H * 7 + 2 * 7 * C,
        "adapter:size=64,unshared": 2 * L * H * 64 + 2 * L * 64 * C,
        "pooled_adapter:size=64": 2 * L * H + 2 * H * 64 + 2 * 64 * C + 2 * H * C,
        "twin_adapter:size=64": 2 * L * H * 64 + 2 * L * 64 * C + 2 * L * H + 2 * H * 64 + 2 * 64 * C,
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


def affine(vector: list[float], weight: Tensor, bias: Tensor) -> list[float]:
    pairs = zip(weight.tolist(), bias.tolist(), strict=True)
    return [sum(w * x for w, x in zip(row, vector, strict=True)) + b for row, b in pairs]


def dense(vector: list[float], layer: nn.Linear) -> list[float]:
    return affine(vector, layer.weight, layer.bias)


def mean(token: list[list[float]]) -> list[float]:
    return [sum(layer[h] for layer in token) / len(token) for h in range(len(token[0]))]


def mixed(head: Any, token: list[list[float]]) -> list[float]:
    """gamma * softmax(w) over the layers."""
    scores = [math.exp(w) for w in head.mix.w.tolist()]
    share = [head.mix.gamma.item() * s / sum(scores) for s in scores]
    return [sum(a * layer[h] for a, layer in zip(share, token, strict=True)) for h in range(len(token[0]))]


def flat(head: Any, token: list[list[float]]) -> list[float]:
    """Every layer reduced, feature-major and layer-minor."""
    weight, bias = head.down.weight, head.down.bias
    own = [(weight[i], bias[i]) if weight.ndim == 3 else (weight, bias) for i in range(len(token))]
    reduced = [
        [gelu(x, head.config.gelu) for x in affine(x, w, b)] for x, (w, b) in zip(token, own, strict=True)
    ]
    return [reduced[i][f] for f in range(head.config.size) for i in range(len(token))]


def features(head: Any, token: list[list[float]]) -> list[float]:
    """The vector before the last layer, for one token; `token` is its state in every layer, (L, H)."""
    config, last = head.config, token[-1]
    match head.name:
        case "last_state.v1":
            return last
        case "last_state_mlp.v1":
            hidden = dense(last, head.down)
            return hidden if config.activation == "none" else [gelu(x, "tanh") for x in hidden]
        case "average_pooling.v1":
            return mean([token[0], last] if config.of == "first-last" else token)
        case "learned_pooling.v1":
            return mixed(head, token)
        case "adapter.v1":
            return flat(head, token) + (last if config.skip else [])
        case "pooled_adapter.v1":
            pooled = mean(token) if config.pooling == "average" else mixed(head, token)
            return [gelu(x, config.gelu) for x in dense(pooled, head.down)] + (last if config.skip else [])
        case "twin_adapter.v1":
            own = [gelu(x, config.gelu) for x in dense(mixed(head, token), head.pooled_down)]
            return flat(head, token) + own
    raise AssertionError(f"write the reference of {head.name}")


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_head_is_its_formula(text: str) -> None:
    head: Any = shaken(text)
    states, mask = inputs()
    logits = head(states, mask)
    assert logits.shape == (2, 4, 2)
    for b in range(2):
        for t in range(4):
            expected = dense(features(head, states[:, b, t].tolist()), head.project)
            assert logits[b, t].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_every_head_of_these_files_has_a_reference() -> None:
    here = {module.__name__ for module in (adapter, linear, pooling)}
    assert {parse_head(text).name for text in SMALL_SPECS} == {
        name for name in head_names() if head_class(name).__module__ in here
    }


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_pads_do_not_reach_real_tokens(text: str) -> None:
    head = shaken(text)
    states, mask = inputs()
    noisy = torch.where(mask[None, :, :, None], states, torch.full_like(states, 1e3))
    assert torch.equal(head(states, mask)[mask], head(noisy, mask)[mask])


@pytest.mark.parametrize("text", SMALL_SPECS)
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


def test_layers_of_an_unshared_adapter_begin_apart() -> None:
    head: Any = parse_head("adapter:size=8,unshared").build(LARGE, seed=0)
    rows = head.down.weight.flatten(1)
    assert rows.shape == (25, 8 * 1024)
    assert rows.std(1).tolist() == pytest.approx([0.8796e-3] * 25, rel=0.05)
    near = torch.corrcoef(rows) - torch.eye(25)
    assert near.abs().max() < 0.06


def test_pooling_begins_as_the_paper_says() -> None:
    built: list[Any] = [parse_head("learned_pooling").build(LARGE, seed=seed) for seed in range(80)]
    mixes = torch.stack([head.mix.w.detach() for head in built])
    assert mixes.std().item() == pytest.approx(0.05, rel=0.06)
    head: Any = parse_head("learned_pooling").build(LARGE, seed=0)
    assert head.mix.gamma.tolist() == [1.0]
    assert sum(head.layer_weights()) == pytest.approx(1)
    assert head.layer_weights() == pytest.approx(head.mix.w.softmax(0).tolist())


@pytest.mark.parametrize(
    "text", ["last_state", "adapter", "learned_pooling", "pooled_adapter", "twin_adapter", "last_state_mlp"]
)
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


# ---- dropout, a pure function of a key and a place


def dropped(
    rate: float, *key: int, shape: tuple[int, ...] = (400, 250), dtype: Any = torch.float32
) -> Tensor:
    """What dropout makes of ones."""
    layer = Dropout(rate).train()
    set_noise(layer, *key)
    return layer(torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("key", [(0, 0), (0, 1), (7, 123_456)])
def test_dropout_drops_its_part_and_keeps_the_mean(rate: float, key: tuple[int, int]) -> None:
    """100,000 numbers: five standard deviations of their mean are allowed."""
    found = dropped(rate, *key)
    spread = math.sqrt(rate * (1 - rate) / found.numel())
    assert found.eq(0).float().mean().item() == pytest.approx(rate, abs=5 * spread)
    assert found.mean().item() == pytest.approx(1, abs=5 * spread / (1 - rate))
    assert found[found != 0].unique().tolist() == pytest.approx([1 / (1 - rate)])


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropped_numbers_know_nothing_of_their_neighbours(rate: float) -> None:
    """Neighbours in a row, rows, and powers of two: correlations of 100,000 numbers within five deviations of 0."""
    kept = dropped(rate, 3, 4).flatten()
    for lag in (1, 2, 3, 4, 7, 8, 16, 64, 250, 256, 1024, 4096):
        pair = torch.stack([kept[lag:], kept[:-lag]])
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 5 / math.sqrt(pair.shape[1]), lag
    rows = dropped(rate, 3, 4).ne(0).float()
    for axis, count in ((0, 400), (1, 250)):
        spread = rows.mean(axis).std().item()
        assert spread == pytest.approx(math.sqrt(rate * (1 - rate) / count), rel=0.2)


def test_keys_of_neighbouring_steps_seeds_and_layers_are_unrelated() -> None:
    """Steps and seeds that differ by one, exchanged, or by a power of two; and the layers of one head."""
    keys = (
        [(0, step) for step in range(9)]
        + [(seed, 0) for seed in range(1, 5)]
        + [(0, 64), (1, 2), (2, 1), (10, 11)]
    )
    layers = nn.ModuleList(Dropout(0.5) for _ in range(4)).train()
    set_noise(layers, 0, 0)
    ones = torch.ones(20_000)
    found = [dropped(0.5, *key, shape=(20_000,)) for key in keys] + [layer(ones) for layer in layers[1:]]
    off = torch.corrcoef(torch.stack(found)) - torch.eye(len(found))
    assert off.abs().max() < 6 / math.sqrt(20_000)
    assert torch.equal(layers[0](ones), found[0]), "the first layer of a head has the key of its step"


def test_dropout_under_vmap_is_each_head_alone() -> None:
    """With a key and a rate for each, a rate of zero among them."""
    rates, keys = [0.0, 0.1, 0.5], [11, 12, 13]
    x = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    base = Dropout(0.5).train()
    buffers = {"rate": torch.tensor(rates), "key": torch.tensor(keys)}

    def one(own: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(base, own, (x,))

    together, shared = vmap(one)(buffers, x), vmap(one, in_dims=(0, None))(buffers, x[0])
    for i, (rate, key) in enumerate(zip(rates, keys, strict=True)):
        alone = Dropout(rate).train()
        alone.key.fill_(key)
        assert torch.equal(together[i], alone(x[i]))
        assert torch.equal(shared[i], alone(x[0]))


def test_dropout_in_any_precision_drops_the_same() -> None:
    whole = dropped(0.3, 1, 2)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        other = dropped(0.3, 1, 2, dtype=dtype)
        assert other.dtype == dtype
        assert torch.equal(other.eq(0), whole.eq(0))
    double = Dropout(0.3).double().train()
    set_noise(double, 1, 2)
    assert torch.equal(double(torch.ones(400, 250)).eq(0), whole.eq(0)), "a head made double drops the same"
    assert dropped(0.3, 1, 2, dtype=torch.float64).max().item() == pytest.approx(1 / 0.7, rel=1e-6)


def test_no_dropout_is_no_operation() -> None:
    x = torch.randn(3, 4)
    assert Dropout(0.0).train()(x) is x
    assert Dropout(0.5).eval()(x) is x


def test_dropout_passes_the_gradient_of_what_it_kept() -> None:
    layer = Dropout(0.4).train()
    set_noise(layer, 1)
    x = torch.randn(50, generator=torch.Generator().manual_seed(0), requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, layer(torch.ones(50)))


# ---- on disk


@pytest.mark.parametrize("text", SMALL_SPECS)
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
    "other geometry": (lambda f: _json(f, lambda c: c["geometry"].update(hidden=13)), "asks for"),
    "bad geometry": (lambda f: _json(f, lambda c: c["geometry"].update(depth=1)), "cannot build"),
    "lost tensor": (lambda f: write_tensors(f / "model.safetensors", {"a": torch.ones(1)}), "asks for"),
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
