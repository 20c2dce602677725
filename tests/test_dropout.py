"""Dropout, a pure function of a key and a place."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bertvision.heads.layers import Dropout, set_noise


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
