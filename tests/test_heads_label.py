"""Label heads: published counts, plain references written from the formulas, and what every head must keep."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from test_heads import shaken as shaken_head
from torch import Tensor
from torch.func import functional_call, stack_module_state

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, Head, cost, load_head, parse_head, save_head
from bertvision.heads import channels as channels_module
from bertvision.heads.base import run_head
from bertvision.heads.channels import channels, cls_vector, num_channels
from bertvision.heads.layers import set_noise

LARGE = Geometry(25, 1024, 2, task="label", pooled=True)
BASE = Geometry(13, 768, 2, task="label", pooled=True)
SMALL = Geometry(4, 6, 3, task="label", pooled=True)
BARE = Geometry(4, 6, 3, task="label", pooled=False)

SMALL_SPECS = [
    "tenney_small",
    "tenney_small:order=last",
    "adapter_pooler:size=3",
    "adapter_pooler:size=3,pooling=average,order=last,gelu=erf",
    "cls_linear",
    "cls_mlp:match=3,dropout=0.2",
    "cls_mlp:width=2",
    "ap_glue:size=2,tokens=5",
    "ap_glue:size=3,tokens=9,gelu=tanh",
    "minbert:blocks=2,width=5",
    "minbert:blocks=1,vectors=2",
    "attention_pooler:size=3",
    "attention_pooler:size=3,queries=2,over=layers+tokens",
    "mean_pooler",
    "mean_pooler:last",
]


def inputs(geometry: Geometry = SMALL, *, windows: int = 4, tokens: int = 5) -> tuple[Tensor, Tensor, Any]:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(geometry.states, windows, tokens, geometry.hidden, generator=generator)
    pooled = torch.randn(windows, geometry.hidden, generator=generator).tanh()
    mask = torch.ones(windows, tokens, dtype=torch.bool)
    mask[-1, (tokens + 1) // 2 :] = False
    return states, mask, pooled if geometry.pooled else None


def call(head: Any, states: Tensor, mask: Tensor, pooled: Tensor | None) -> Tensor:
    return head(states, mask, **({"pooled": pooled} if "pooled" in head.extras else {}))


def shaken(text: str, geometry: Geometry = SMALL) -> Any:
    return shaken_head(text, geometry)


# ---- the papers' numbers


@pytest.mark.parametrize(
    ("text", "geometry", "count"),
    [
        ("tenney_small", LARGE, 2_077),
        ("adapter_pooler", LARGE, 398_499),
        ("adapter_pooler:pooling=average", LARGE, 398_472),
        ("cls_linear", LARGE, 2_050),
        ("ap_glue:size=8,tokens=250", BASE, 58_154),
        ("ap_glue", BASE, 58_154),
        ("ap_glue:size=16,tokens=128", BASE, 65_554),
        ("ap_glue:size=32,tokens=128", BASE, 131_106),
    ],
)
def test_published_parameter_counts(text: str, geometry: Geometry, count: int) -> None:
    assert cost(parse_head(text), geometry).parameters == count
    assert cost(parse_head(text), geometry).total == count


@pytest.mark.parametrize(
    ("text", "outputs", "count"),
    [
        ("minbert", 5, 2_372_357),
        ("minbert", 1, 2_369_281),
        ("minbert:vectors=2", 1, 2_959_105),
        ("minbert:blocks=5", 5, 2_964_485),
        ("minbert:blocks=5", 1, 2_961_409),
        ("minbert:blocks=5,vectors=2", 1, 3_551_233),
    ],
)
def test_counts_of_the_minbert_heads(text: str, outputs: int, count: int) -> None:
    for pooled in (True, False):
        assert cost(parse_head(text), Geometry(13, 768, outputs, "score", pooled)).parameters == count


@pytest.mark.parametrize("queries", [1, 3])
def test_the_attention_pooler_is_small(queries: int) -> None:
    L, H, C, a = 13, 768, 2, 64
    common = H * a + a + queries * a + queries * H * C + C
    text = f"attention_pooler:queries={queries}"
    assert cost(parse_head(text), BASE).parameters == common + L + 1
    assert cost(parse_head(f"{text},over=layers+tokens"), BASE).parameters == common + L * queries


@pytest.mark.parametrize(
    "geometry", [LARGE, BASE, Geometry(7, 128, 5, "label"), Geometry(3, 9, 1, "score", True)]
)
@pytest.mark.parametrize("match", [1, 64, 386])
def test_the_control_comes_as_near_to_the_adapter_as_a_width_can(match: int, geometry: Geometry) -> None:
    target = cost(parse_head(f"adapter_pooler:size={match}"), geometry).parameters
    own: Any = parse_head(f"cls_mlp:match={match}").build(geometry, seed=0)

    def off(width: int) -> int:
        return abs(cost(parse_head(f"cls_mlp:width={width}"), geometry).parameters - target)

    assert abs(own.num_parameters - target) == off(own.width)
    assert off(own.width) <= min(off(max(1, own.width - 1)), off(own.width + 1))


# ---- channels


def test_channels_stand_as_the_code_or_as_the_appendix_has_them() -> None:
    states, _, pooled = inputs()
    first, last = channels(states, pooled, "first"), channels(states, pooled, "last")
    assert first.shape == last.shape == (5, 4, 6)
    assert torch.equal(first[0], pooled)
    assert torch.equal(last[-1], pooled)
    for i in range(4):
        assert torch.equal(first[i + 1], states[i, :, 0])
        assert torch.equal(last[i], states[i, :, 0])
    assert torch.equal(channels(states, None, "first"), states[:, :, 0])
    assert torch.equal(cls_vector(states, None), states[3, :, 0])
    assert torch.equal(cls_vector(states, pooled), pooled)
    assert channels(states.bfloat16(), pooled, "first").dtype == torch.bfloat16


def test_a_missing_pooler_is_said_once_and_not_while_counting(caplog: pytest.LogCaptureFixture) -> None:
    channels_module._say_no_pooler.cache_clear()
    caplog.set_level(logging.INFO, "bertvision")
    assert num_channels(SMALL) == 5
    assert cost(parse_head("tenney_small"), BARE).parameters == 4 + 1 + 6 * 3 + 3
    assert caplog.messages == []
    for text in ("tenney_small", "adapter_pooler:size=3", "tenney_small"):
        parse_head(text).build(BARE, seed=0)
    (message,) = caplog.messages
    assert "no pooler" in message
    assert "4 channels" in message


# ---- references from the formulas, in plain Python

Vector = list[float]


def gelu(x: float, kind: str) -> float:
    if kind == "erf":
        return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def dense(vector: Vector, layer: Any) -> Vector:
    rows, biases = layer.weight.tolist(), layer.bias.tolist()
    return [sum(w * x for w, x in zip(r, vector, strict=True)) + b for r, b in zip(rows, biases, strict=True)]


def softmax(scores: Vector) -> Vector:
    powers = [math.exp(s) for s in scores]
    return [p / sum(powers) for p in powers]


def weighted(shares: Vector, vectors: list[Vector]) -> Vector:
    return [sum(s * v[h] for s, v in zip(shares, vectors, strict=True)) for h in range(len(vectors[0]))]


def mixed(head: Any, vectors: list[Vector]) -> Vector:
    if getattr(head.config, "pooling", "learned") == "average":
        return weighted([1 / len(vectors)] * len(vectors), vectors)
    return [head.mix.gamma.item() * x for x in weighted(softmax(head.mix.w.tolist()), vectors)]


def reference(head: Any, window: list[list[Vector]], real: int, pooled: Vector | None) -> Vector:
    """Logits of one window: `window` is (L, T, H), its first `real` tokens are no pads."""
    cls = [layer[0] for layer in window]
    config, one = head.config, cls[-1] if pooled is None else pooled
    match head.name:
        case "tenney_small.v1" | "adapter_pooler.v1":
            if pooled is not None:
                cls = [pooled, *cls] if config.order == "first" else [*cls, pooled]
            vector = mixed(head, cls)
            if head.name == "adapter_pooler.v1":
                vector = [gelu(x, config.gelu) for x in dense(vector, head.down)] + cls[-1]
            return dense(vector, head.project)
        case "cls_linear.v1":
            return dense(one, head.project)
        case "cls_mlp.v1":
            return dense([gelu(x, "tanh") for x in dense(cls[-1], head.down)], head.project)
        case "ap_glue.v1":
            nothing = [0.0] * config.size
            reduced = [
                [[gelu(x, config.gelu) for x in dense(token, head.down)] for token in layer[:real]]
                + [nothing] * (config.tokens - real)
                for layer in window
            ]  # (L, tokens, a)
            flat = [reduced[i][t][f] for t in range(config.tokens) for f in range(config.size)
                    for i in range(len(window))]  # fmt: skip
            return dense(flat, head.project)
        case "minbert.v1":
            return stacked(head, one)
        case "mean_pooler.v1":
            means = [weighted([1 / real] * real, layer[:real]) for layer in window]
            return dense(means[-1] if config.last else mixed(head, means), head.project)
        case "attention_pooler.v1":
            if config.over == "tokens":
                layers = [[mixed(head, [layer[t] for layer in window]) for t in range(real)]]
            else:
                layers = [layer[:real] for layer in window]
            out: Vector = []
            for q, query in enumerate(head.query.tolist()):
                scores: Vector = []
                for i, layer in enumerate(layers):
                    add = head.layer_score_bias[i, q].item() if config.over == "layers+tokens" else 0.0
                    for token in layer:
                        key = [math.tanh(x) for x in dense(token, head.key)]
                        scores.append(sum(a * b for a, b in zip(query, key, strict=True)) + add)
                out += weighted(softmax(scores), [token for layer in layers for token in layer])
            return dense(out, head.project)
    raise AssertionError(f"write the reference of {head.name}")


def stacked(head: Any, vector: Vector) -> Vector:
    for i in range(head.config.blocks):
        vector = dense(vector, head.blocks[4 * i])
        norm = head.blocks[4 * i + 1]
        mean = sum(vector) / len(vector)
        spread = math.sqrt(sum((x - mean) ** 2 for x in vector) / len(vector) + 1e-5)
        scaled = [(x - mean) / spread for x in vector]
        pairs = zip(scaled, norm.weight.tolist(), norm.bias.tolist(), strict=True)
        vector = [max(0.0, x * w + b) for x, w, b in pairs]
    return dense(vector, head.project)


@pytest.mark.parametrize("geometry", [SMALL, BARE], ids=["pooler", "no pooler"])
@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_head_is_its_formula(text: str, geometry: Geometry) -> None:
    head = shaken(text, geometry)
    states, mask, pooled = inputs(geometry)
    logits = call(head, states, mask, pooled)
    if head.windows == 2:
        vectors = (states[-1, :, 0] if pooled is None else pooled).tolist()
        expected = [stacked(head, vectors[2 * i] + vectors[2 * i + 1]) for i in range(2)]
    else:
        expected = [
            reference(head, states[:, b].tolist(), int(mask[b].sum()), None if pooled is None else pooled[b].tolist())
            for b in range(4)
        ]  # fmt: skip
    assert logits.shape == (4 // head.windows, 3)
    torch.testing.assert_close(logits, torch.tensor(expected), rtol=1e-4, atol=1e-4)


# ---- what the attention pooler and AP_GLUE promise


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("over", ["tokens", "layers+tokens"])
def test_the_attention_pooler_begins_as_the_mean_over_real_tokens(over: str, queries: int) -> None:
    head: Any = parse_head(f"attention_pooler:size=3,over={over},queries={queries}").build(SMALL, seed=0)
    states, mask, _ = inputs()
    layers = 1 if over == "tokens" else 4
    shares = head.shares(states[:layers], mask)
    assert torch.equal(shares.ne(0), mask[None, :, None].expand_as(shares)), "pads count for nothing"
    even = (1 / (layers * mask.sum(1)))[None, :, None, None].expand_as(shares) * mask[:, None]
    torch.testing.assert_close(shares, even, rtol=1e-6, atol=0)
    state = head.mix(states) if over == "tokens" else states.mean(0)
    mean = torch.stack([state[b][mask[b]].mean(0) for b in range(4)])
    torch.testing.assert_close(head(states, mask), head.project(mean.repeat(1, queries)))


def test_a_query_of_zero_over_layers_is_a_learned_mix_of_means() -> None:
    """The score of a layer alone gives what learned pooling gives: it is contained."""
    head = shaken("attention_pooler:over=layers+tokens")
    torch.nn.init.zeros_(head.query)
    states, mask, _ = inputs()
    share = head.layer_score_bias[:, 0].softmax(0)
    mean = torch.stack([states[:, b, mask[b]].mean(1) for b in range(4)], dim=1)  # (L, B, H)
    expected = head.project((share[:, None, None] * mean).sum(0))
    torch.testing.assert_close(head(states, mask), expected)


def test_ap_glue_pads_short_windows_and_refuses_long_ones() -> None:
    head = shaken("ap_glue:size=2,tokens=5")
    states, mask, _ = inputs(tokens=3)
    full = torch.cat([states, torch.full((4, 4, 2, 6), 7.0)], dim=2)
    wide = torch.cat([mask, torch.zeros(4, 2, dtype=torch.bool)], dim=1)
    torch.testing.assert_close(head(states, mask), head(full, wide))
    with pytest.raises(
        ConfigError, match="at most 5 tokens and met one of 6: give the head tokens=6"
    ) as caught:
        head(*inputs(tokens=6)[:2])
    assert "\n" not in str(caught.value)


def test_pairs_are_neighbours_in_a_batch() -> None:
    head = shaken("minbert:blocks=1,vectors=2")
    assert head.windows == 2
    assert shaken("minbert:blocks=1").windows == 1
    states, mask, pooled = inputs()
    logits = call(head, states, mask, pooled)
    alone = call(head, states[:, 2:], mask[2:], pooled[2:])
    torch.testing.assert_close(logits[1:], alone)
    turned = call(head, states, mask, pooled[[1, 0, 2, 3]])
    assert not torch.allclose(turned[0], logits[0])
    torch.testing.assert_close(turned[1], logits[1])


# ---- what every head keeps


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_pads_change_nothing(text: str) -> None:
    head = shaken(text)
    states, mask, pooled = inputs()
    noisy = torch.where(mask[None, :, :, None], states, torch.full_like(states, 1e3))
    assert not torch.equal(noisy, states)
    assert torch.equal(call(head, states, mask, pooled), call(head, noisy, mask, pooled))


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_every_parameter_is_trained(text: str) -> None:
    head = shaken(text)
    head.train()
    call(head, *inputs()).pow(2).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in head.parameters())


@pytest.mark.parametrize("text", ["attention_pooler:size=3", "attention_pooler:size=3,over=layers+tokens"])
def test_a_query_leaves_zero(text: str) -> None:
    head: Any = parse_head(text).build(SMALL, seed=0)
    call(head, *inputs()).pow(2).sum().backward()
    assert head.query.grad.abs().min() > 0


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_saved_head_comes_back_bit_by_bit(text: str, tmp_path: Path) -> None:
    head = shaken(text)
    save_head(head, tmp_path, about={})
    loaded, _ = load_head(tmp_path)
    assert loaded.config == head.config
    assert loaded.layer_weights() == head.layer_weights()
    assert torch.equal(call(loaded, *inputs()), call(head, *inputs()))


@pytest.mark.parametrize("text", SMALL_SPECS)
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_smallest_batch(text: str, outputs: int) -> None:
    head = shaken(text, Geometry(1, 6, outputs, "score", True))
    states, pooled = torch.randn(1, head.windows, 1, 6), torch.randn(head.windows, 6)
    logits = call(head, states, torch.ones(head.windows, 1, dtype=torch.bool), pooled)
    assert logits.shape == (1, outputs)
    assert logits.isfinite().all()


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_half_precision_states(text: str) -> None:
    head = shaken(text)
    states, mask, pooled = inputs()
    whole = call(head, states, mask, pooled)
    with torch.autocast("cpu", torch.bfloat16):
        half = call(head, states.bfloat16(), mask, pooled.bfloat16())
    torch.testing.assert_close(half.float(), whole, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_stacked_heads_are_the_heads(text: str) -> None:
    """Three heads as one batched computation, dropout included, against each alone."""
    heads: list[Head] = [parse_head(text).build(SMALL, seed=seed).train() for seed in range(3)]
    assert all(head.stackable for head in heads)
    for i, head in enumerate(heads):
        set_noise(head, i)
    parameters, buffers = stack_module_state(heads)  # pyright: ignore[reportArgumentType]
    given = inputs()

    def one(p: Any, b: Any) -> Tensor:
        return functional_call(heads[0], (p, b), (given[0], given[1]),
                               {"pooled": given[2]} if "pooled" in heads[0].extras else {})  # fmt: skip

    stacked_logits = torch.vmap(one)(parameters, buffers)
    alone = torch.stack([call(head, *given) for head in heads])
    torch.testing.assert_close(stacked_logits, alone)


@pytest.mark.parametrize("text", ["tenney_small", "adapter_pooler:size=3", "attention_pooler", "mean_pooler"])
def test_layer_weights_are_shares(text: str) -> None:
    head = shaken(text)
    assert head.layer_weights() == pytest.approx(head.mix.w.softmax(0).tolist())
    assert len(head.layer_weights()) == (4 if text in ("attention_pooler", "mean_pooler") else 5)


def test_heads_without_a_mix_have_no_layer_weights() -> None:
    for text in (
        "adapter_pooler:pooling=average",
        "attention_pooler:over=layers+tokens",
        "cls_linear",
        "mean_pooler:last",
    ):
        assert shaken(text).layer_weights() is None


def test_extras_come_from_the_batch() -> None:
    class Batch:
        states, mask, pooled = inputs()

    for text in SMALL_SPECS:
        head = shaken(text)
        assert torch.equal(run_head(head, Batch()), call(head, *inputs()))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenney_small:order=middle", "order of head .* must be one of first, last"),
        ("adapter_pooler:size=0", "size must be at least 1, not 0"),
        ("adapter_pooler:init_std=2", "init_std must lie between 0 and 1"),
        ("adapter_pooler:pooling=max", "must be one of learned, average"),
        ("cls_mlp:match=0", "match of cls_mlp must be at least 1, not 0"),
        ("cls_mlp:width=-1", "width of cls_mlp must be at least 0"),
        ("cls_mlp:dropout=1", "dropout of cls_mlp must lie between 0 and 1"),
        ("ap_glue:tokens=0", "tokens of ap_glue must be at least 1"),
        ("ap_glue:size=0", "size must be at least 1"),
        ("minbert:blocks=-1", "blocks of minbert must be at least 0"),
        ("minbert:width=-2", "width of minbert must be at least 0"),
        ("minbert:dropout=-0.1", "dropout of minbert must lie"),
        ("minbert:vectors=3", "vectors of minbert must be 1 or 2, not 3"),
        ("attention_pooler:size=0", "size of attention_pooler must be at least 1"),
        ("attention_pooler:queries=0", "queries of attention_pooler must be at least 1"),
        ("attention_pooler:over=words", "must be one of tokens, layers"),
    ],
)
def test_bad_options_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_head(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_label_heads_do_not_take_spans(text: str) -> None:
    with pytest.raises(ConfigError, match="is a head for label and score tasks, not for span"):
        parse_head(text).build(Geometry(4, 6), seed=0)
