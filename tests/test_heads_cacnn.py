"""The context-aware CNN: its counts, its pooling, and the whole head against plain loops."""

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
from bertvision.heads.cacnn import pool_rows, slide
from bertvision.heads.layers import set_noise

BASE = Geometry(13, 768)
SMALL = Geometry(3, 5)

SMALL_SPECS = [
    "cacnn:n=2,rows=2",
    "cacnn",
    "cacnn:n=4,rows=3,kernel=2,pool=mean,mask_question,dropout=0",
    "cacnn:variant=ctx",
    "cacnn:variant=ctx,n=2,rows=4,kernel=4,reduce=sum,bank=2-3,mask_question",
    "cacnn:variant=ctx,n=2,rows=3,fill=tile,filters=2,maps=3",
]


def inputs(*, windows: int = 3, tokens: int = 11, hidden: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """States, mask and context: 2 tokens of question before the paragraph, pads behind all but the first window."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(3, windows, tokens, hidden, generator=generator)
    lengths = torch.tensor([max(1, tokens - 3 * b) for b in range(windows)])
    mask = torch.arange(tokens) < lengths[:, None]
    return states, mask, mask & (torch.arange(tokens) >= 2)


def shaken(text: str, geometry: Geometry = SMALL) -> Any:
    return shaken_head(text, geometry)


# ---- counts


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("cacnn", 11_802_630),
        ("cacnn:kernel=5,n=4,rows=9", 11_802_630),
        ("cacnn:kernel=3,n=2", 3 * 768 * 1536 + 2 * 1536 + 2 * 2),
        ("cacnn:variant=ctx", (3 + 5 + 7) * 768 * 256 + 768 + 5 * 40 + 40 + 2 * 5),
        (
            "cacnn:variant=ctx,fill=tile,filters=10,maps=7,bank=4,kernel=3,n=2",
            4 * 768 * 10 + 10 + 3 * 7 + 7 + 4,
        ),
    ],
)
def test_parameter_counts(text: str, count: int) -> None:
    assert cost(parse_head(text), BASE).parameters == count
    assert cost(parse_head(text), BASE).total == count


@pytest.mark.parametrize("hidden", [3, 4, 5, 16])
def test_the_context_vector_is_as_long_as_a_state(hidden: int) -> None:
    head: Any = parse_head("cacnn:variant=ctx").build(Geometry(2, hidden), seed=0)
    sizes = [conv.out_channels for conv in head.make.bank]
    assert sum(sizes) == hidden
    assert max(sizes) - min(sizes) <= 1


# ---- pooling along the tokens


def test_the_rows_of_a_full_window_are_those_of_the_study() -> None:
    x = torch.randn(2, 3, 384)
    mask = torch.ones(2, 384, dtype=torch.bool)
    maxima = torch.nn.functional.max_pool1d(x, 100, stride=50)
    means = torch.nn.functional.avg_pool1d(x, 100, stride=50)
    assert maxima.shape == (2, 3, 6)
    assert torch.equal(pool_rows(x, mask, 6, "max"), maxima)
    torch.testing.assert_close(pool_rows(x, mask, 6, "mean"), means)


@pytest.mark.parametrize("rows", [1, 2, 6, 7])
@pytest.mark.parametrize("pool", ["max", "mean"])
def test_every_length_gives_all_rows(rows: int, pool: Any) -> None:
    """Against the grid written with fractions, for every length from one token on, in one padded batch."""
    lengths = [1, 2, 3, 5, 8, 40, 99, 383, 384, 500]
    x = torch.randn(len(lengths), 2, 500)
    mask = torch.arange(500) < torch.tensor(lengths)[:, None]
    pooled = pool_rows(x, mask, rows, pool)
    for b, length in enumerate(lengths):
        for r in range(rows):
            first = math.floor(r * length * 350 / (384 * (rows + 1)) + 1e-9)
            past = math.ceil((r + 2) * length * 350 / (384 * (rows + 1)) - 1e-9)
            assert 0 <= first < past <= length
            part = x[b, :, first:past]
            expected = part.amax(-1) if pool == "max" else part.mean(-1)
            torch.testing.assert_close(pooled[b, :, r], expected)


# ---- the convolution of every window with its own filters


@pytest.mark.parametrize("rows", [1, 2, 5, 6])
@pytest.mark.parametrize(("windows", "tokens"), [(1, 1), (1, 9), (4, 3), (5, 9)])
def test_one_grouped_convolution_is_the_loop_over_windows(windows: int, tokens: int, rows: int) -> None:
    z, filters = torch.randn(windows, 4, tokens), torch.randn(windows, 2, 4, rows)
    expected = torch.zeros(windows, 2, tokens)
    for b in range(windows):
        for n in range(2):
            for t in range(tokens):
                for j in range(rows):
                    at = t + j - (rows - 1) // 2
                    if 0 <= at < tokens:
                        expected[b, n, t] += z[b, :, at] @ filters[b, n, :, j]
    torch.testing.assert_close(slide(z, filters), expected, rtol=1e-4, atol=1e-5)


# ---- the whole head, window by window and number by number


def convolved(z: Tensor, conv: Any) -> Tensor:
    """'same' convolution of (T, inputs) with a layer's weights, written as a loop -> (T, outputs)."""
    weight, T = conv.weight, z.shape[0]
    width, out = weight.shape[2], []
    for t in range(T):
        value = conv.bias.clone()
        for j in range(width):
            at = t + j - (width - 1) // 2
            if 0 <= at < T:
                value = value + weight[:, :, j] @ z[at]
        out.append(value)
    return torch.stack(out)


def simple_filters(head: Any, z: Tensor, n: int, rows: int) -> Tensor:
    """(rows, H, n) from a window without pads."""
    N, H = z.shape
    x = convolved(z, head.make.generate).clamp(min=0) + head.make.after_bias
    x = torch.stack([x[max(0, t - 3) : t + 5].amax(0) for t in range(N)])
    found = []
    for r in range(rows):
        part = x[math.floor(r * N * 350 / 384 / (rows + 1)) : math.ceil((r + 2) * N * 350 / 384 / (rows + 1))]
        found.append(part.amax(0) if head.config.pool == "max" else part.mean(0))
    return torch.stack(found).view(rows, n, H).transpose(1, 2)


def context_filters(head: Any, z: Tensor, n: int, rows: int) -> Tensor:
    H = z.shape[1]
    text = torch.cat([convolved(z, conv).clamp(min=0) for conv in head.make.bank], dim=1)
    context = text.amax(0) if head.config.reduce == "max" else text.sum(0)
    numbers = convolved(context[:, None], head.make.generate).T.flatten().tolist()  # map after map
    needed, i = [], 0
    while len(needed) < n * rows * H:
        needed.append(numbers[i % len(numbers)])
        i += 1
    return torch.tensor(needed).view(n, rows, H).permute(1, 2, 0)


def reference(head: Any, z: Tensor, context: Tensor) -> Tensor:
    """(N, 2) logits of the real tokens of one window."""
    simple = head.config.variant == "simple"
    n, rows = head.config.n or (4 if simple else 8), head.config.rows or (6 if simple else 5)
    filters = (simple_filters if simple else context_filters)(head, z, n, rows)
    target = z * context[:, None] if head.config.mask_question else z
    seen = torch.zeros(z.shape[0], n)
    for t in range(z.shape[0]):
        for j in range(rows):
            at = t + j - (rows - 1) // 2
            if 0 <= at < z.shape[0]:
                seen[t] += target[at] @ filters[j]
    start = seen[:, : n // 2] @ head.start.weight[0] + head.start.bias
    end = seen[:, n // 2 :] @ head.end.weight[0] + head.end.bias
    return torch.stack([start, end], dim=1)


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_the_head_is_its_formula(text: str) -> None:
    head = shaken(text)
    states, mask, context = inputs()
    with torch.no_grad():
        logits = head(states, mask, context=context)
        assert logits.shape == (3, 11, 2)
        for b in range(3):
            expected = reference(head, states[-1, b][mask[b]], context[b][mask[b]])
            torch.testing.assert_close(logits[b][mask[b]], expected, rtol=1e-3, atol=1e-3)


def test_tiles_of_the_right_length_are_the_numbers_as_they_come() -> None:
    plain, tiled = shaken("cacnn:variant=ctx"), shaken("cacnn:variant=ctx,fill=tile")
    states, mask, context = inputs()
    assert torch.equal(plain(states, mask, context=context), tiled(states, mask, context=context))


# ---- what every head keeps


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_pads_change_nothing(text: str) -> None:
    head = shaken(text)
    states, mask, context = inputs()
    noisy = torch.where(mask[None, :, :, None], states, torch.full_like(states, 1e3))
    plain, disturbed = head(states, mask, context=context), head(noisy, mask, context=context)
    assert torch.equal(plain[mask], disturbed[mask])
    assert disturbed.isfinite().all()


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_the_width_of_a_batch_changes_nothing(text: str) -> None:
    head = shaken(text)
    states, mask, context = inputs()
    more = torch.nn.functional.pad
    wide = head(more(states, (0, 0, 0, 6)), more(mask, (0, 6)), context=more(context, (0, 6)))
    torch.testing.assert_close(wide[:, :11][mask], head(states, mask, context=context)[mask])


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_every_parameter_is_trained(text: str) -> None:
    head = shaken(text)
    head.train()
    states, mask, context = inputs()
    head(states, mask, context=context)[mask].pow(2).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in head.parameters())
    assert all(bool(p.grad.isfinite().all()) for p in head.parameters())


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_saved_head_comes_back_bit_by_bit(text: str, tmp_path: Path) -> None:
    head = shaken(text)
    save_head(head, tmp_path, about={})
    loaded, _ = load_head(tmp_path)
    states, mask, context = inputs()
    assert loaded.config == head.config
    assert torch.equal(loaded(states, mask, context=context), head(states, mask, context=context))


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_the_smallest_batch(text: str) -> None:
    states, mask, context = inputs(windows=1, tokens=1)
    logits = shaken(text)(states, mask, context=context)
    assert logits.shape == (1, 1, 2)
    assert logits.isfinite().all()


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_half_precision_states(text: str) -> None:
    head = shaken(text)
    states, mask, context = inputs()
    whole = head(states, mask, context=context)
    with torch.autocast("cpu", torch.bfloat16):
        half = head(states.bfloat16(), mask, context=context)
    spread = whole.detach().abs().max().item()
    torch.testing.assert_close(half.float(), whole, rtol=0.1, atol=0.05 * spread)


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_stacked_heads_are_the_heads(text: str) -> None:
    """Three heads as one batched computation, dropout included, against each alone."""
    heads: list[Head] = [parse_head(text).build(SMALL, seed=seed).train() for seed in range(3)]
    assert all(head.stackable for head in heads)
    for i, head in enumerate(heads):
        set_noise(head, i)
    parameters, buffers = stack_module_state(heads)  # pyright: ignore[reportArgumentType]
    states, mask, context = inputs()

    def one(p: Any, b: Any) -> Tensor:
        return functional_call(heads[0], (p, b), (states, mask), {"context": context})

    stacked = torch.vmap(one)(parameters, buffers)
    alone = torch.stack([head(states, mask, context=context) for head in heads])
    torch.testing.assert_close(stacked, alone, rtol=1e-4, atol=1e-4)


def test_dropout_works_while_training_alone() -> None:
    head = shaken("cacnn:dropout=0.5")
    states, mask, context = inputs()
    plain = head(states, mask, context=context)
    head.train()
    set_noise(head, 1)
    first = head(states, mask, context=context)
    set_noise(head, 2)
    second = head(states, mask, context=context)
    assert not torch.allclose(first, plain)
    assert not torch.allclose(first, second)


def test_the_question_is_hidden_where_asked() -> None:
    """Tokens outside the paragraph still make filters, but no filter slides over them."""
    hidden, seen = shaken("cacnn:rows=1,mask_question"), shaken("cacnn:rows=1")
    states, mask, context = inputs()
    masked, plain = hidden(states, mask, context=context), seen(states, mask, context=context)
    only_bias = torch.stack([hidden.start.bias, hidden.end.bias], dim=1)[0]
    outside = mask & ~context
    torch.testing.assert_close(masked[outside], only_bias.expand_as(masked[outside]))
    torch.testing.assert_close(masked[context], plain[context])
    assert not torch.allclose(plain[outside], masked[outside])


def test_initial_weights() -> None:
    head: Any = parse_head("cacnn:kernel=1").build(Geometry(2, 64), seed=0)
    after = head.make.after_bias
    assert after.abs().max() <= 2
    assert after.std().item() == pytest.approx(0.8796, rel=0.15)
    assert head.start.bias.tolist() == pytest.approx([0.01])
    assert head.end.bias.tolist() == pytest.approx([0.01])
    limit = math.sqrt(6 / (64 + 256))
    assert 0.98 * limit < head.make.generate.weight.abs().max() <= limit
    assert head.make.generate.bias.eq(0).all()
    wide: Any = parse_head("cacnn:n=400,kernel=1").build(Geometry(2, 2), seed=0)
    for layer in (wide.start, wide.end):
        assert layer.weight.abs().max() <= 0.06
        assert layer.weight.std().item() == pytest.approx(0.8796 * 0.03, rel=0.2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cacnn:n=3", "n of cacnn must be even.* not 3"),
        ("cacnn:n=-2", "n of cacnn must be at least 0"),
        ("cacnn:rows=-1", "rows of cacnn must be at least 0"),
        ("cacnn:kernel=0", "kernel of cacnn must be at least 1"),
        ("cacnn:dropout=1", "dropout of cacnn must lie between 0 and 1"),
        ("cacnn:bank=3-x", "bank of cacnn must be widths such as 3-5-7, not '3-x'"),
        ("cacnn:bank=", "bank of cacnn must be widths"),
        ("cacnn:bank=0-3", "bank of cacnn must be widths"),
        ("cacnn:variant=both", "must be one of simple, ctx"),
        ("cacnn:fill=pad", "must be one of concat, tile"),
        ("cacnn:reduce=mean", "must be one of max, sum"),
    ],
)
def test_bad_options_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_head(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "geometry", "words"),
    [
        ("cacnn", Geometry(3, 5, outputs=3), "2 outputs a token, a start and an end, not 3"),
        ("cacnn", Geometry(3, 5, task="label"), "is a head for span tasks, not for label"),
        ("cacnn:variant=ctx,filters=4", Geometry(3, 5), r"makes 12 \* 40 numbers and its filters need 200"),
        ("cacnn:variant=ctx,maps=4", Geometry(3, 5), "set fill=tile"),
        ("cacnn:variant=ctx", Geometry(3, 2), "has 3 widths, too many for 2 features"),
    ],
)
def test_what_does_not_fit_the_encoder_is_one_sentence(text: str, geometry: Geometry, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_head(text).build(geometry, seed=0)
    assert "\n" not in str(caught.value)
