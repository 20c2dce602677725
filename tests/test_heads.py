"""Heads against the papers: exact parameter counts, and plain references written from the formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bertvision.heads import Geometry, Head, adapter, cost, head_names, linear, parse_head, pooling
from bertvision.heads.base import head_class

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
