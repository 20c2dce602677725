"""Adapters inside encoders: where they stand, that they start near the identity, and that copies have their own."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_cases import gradient_states, some_batch
from torch import Tensor, nn
from toy import ARCHITECTURES

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.freeze import adapters_of, layers_of
from bertvision.encoder.policy import parse_policy
from bertvision.errors import EncoderError

Toy = Callable[[str], Path]
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def adapted(folder: Path, *, size: int = 4, loud: bool = False) -> Encoder:
    """A toy encoder with adapters; `loud` ones are far from the identity."""
    encoder = Encoder.load(str(folder), device="cpu")
    encoder.tune(parse_policy(f"houlsby-{size}"), seed=3)
    if loud:
        generator = torch.Generator().manual_seed(5)
        for adapter in adapters_of(encoder.model).values():
            for parameter in adapter.parameters():
                parameter.data.normal_(0, 0.7, generator=generator)
        encoder.changed()
    return encoder


def by_hand(adapter: Any, x: Tensor) -> Tensor:
    """The formula in float64, written out: GELU's tanh form is 0.5 u (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3)))."""
    w1, b1, w2, b2 = (p.detach().double() for p in adapter.parameters())
    u = x.double() @ w1.T + b1
    gelu = 0.5 * u * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (u + 0.044715 * u**3)))
    return (x.double() + gelu @ w2.T + b2).to(x.dtype)


# ---- the start


@every_architecture
def test_fresh_adapters_are_near_the_identity(architecture: str, toy_encoder: Toy) -> None:
    plain, encoder = Encoder.load(str(toy_encoder(architecture))), adapted(toy_encoder(architecture))
    batch = some_batch(encoder)
    before, after = plain.states(batch), encoder.states(batch)
    assert torch.allclose(before, after, atol=1e-4)
    assert not torch.equal(before[1:], after[1:]), "they are in use all the same"
    modules = {id(layer) for layer in layers_of(encoder.model)}
    assert len(adapters_of(encoder.model)) == 2 * len(modules)
    assert (len(modules) == 1) == (architecture == "albert"), "shared layers share adapters"
    own = set(plain.model.state_dict())
    assert own == {name for name in encoder.model.state_dict() if "houlsby" not in name}


def test_the_start_is_a_truncated_normal(tiny_bert: Path) -> None:
    weights, biases = [], []
    for adapter in adapters_of(adapted(tiny_bert, size=600).model).values():
        weights += [adapter.down.weight, adapter.up.weight]
        biases += [adapter.down.bias, adapter.up.bias]
        assert sum(p.numel() for p in adapter.parameters()) == 2 * 32 * 600 + 600 + 32
    drawn = torch.cat([weight.flatten() for weight in weights])
    assert drawn.abs().max() <= 2e-3
    # A normal cut at two sigmas keeps 0.8796 of its sigma.
    assert drawn.std().item() == pytest.approx(0.8796e-3, rel=0.01)
    assert drawn.mean().item() == pytest.approx(0, abs=1e-5)
    assert len({round(weight.flatten()[0].item(), 9) for weight in weights}) == 8, "each its own numbers"
    assert not torch.cat(biases).any()


# ---- the place


def plain_norm(x: Tensor) -> Tensor:
    """What the norms of a fresh toy encoder do: their weights are 1, their biases 0."""
    return nn.functional.layer_norm(x, x.shape[-1:], eps=1e-12)


@every_architecture
def test_adapters_stand_between_sub_layer_and_residual_sum(architecture: str, toy_encoder: Toy) -> None:
    """Called twice a layer, attention's first; and what a norm is given next is residual plus adapter's output.

    The residual is the layer's input for the first adapter. For the second it is the first sum, through the norm
    where the architecture normalises after the sum.
    """
    encoder = adapted(toy_encoder(architecture), loud=True)
    adapters = list(adapters_of(encoder.model).values())
    calls: list[tuple[Tensor, Tensor]] = []
    given: list[Tensor] = []
    for adapter in adapters:
        adapter.register_forward_hook(lambda _, args, output: calls.append((args[0].clone(), output.clone())))
    for module in encoder.model.modules():
        if "LayerNorm" in type(module).__name__:
            module.register_forward_pre_hook(lambda _, args: given.append(args[0].clone()))
    states = encoder.states(some_batch(encoder))
    assert len(calls) == 2 * (encoder.num_states - 1)
    residual = states[0]
    for i, (x, y) in enumerate(calls):
        assert torch.allclose(by_hand(adapters[i % len(adapters)], x), y, atol=1e-4)
        norm_first = architecture == "modernbert"
        if i % 2 == 0 and not norm_first:
            residual = states[i // 2]
        same = [torch.allclose(one, residual + y, atol=1e-4) for one in given if one.shape == y.shape]
        without = [torch.allclose(one, residual + x, atol=1e-4) for one in given if one.shape == y.shape]
        assert any(same), f"no norm is given the sum with adapter {i}"
        assert not any(without)
        residual = residual + y if norm_first else plain_norm(residual + y)


@every_architecture
def test_dropout_comes_before_the_adapter_where_there_is_one(architecture: str, toy_encoder: Toy) -> None:
    """In training an adapter is given exact zeros, which only dropout makes.

    The dropouts of ALBERT and ModernBERT are off by default, and DistilBERT has none behind its attention.
    """
    encoder = adapted(toy_encoder(architecture))
    given: list[Tensor] = []
    for adapter in adapters_of(encoder.model).values():
        adapter.register_forward_hook(lambda _, args, __: given.append(args[0]))
    encoder.model.train()
    torch.manual_seed(0)
    gradient_states(encoder, some_batch(encoder))
    dropped = [bool((x == 0).any()) for x in given]
    attention, feed_forward = {
        "distilbert": (False, True), "albert": (False, False), "modernbert": (False, False),
    }.get(architecture, (True, True))  # fmt: skip
    assert dropped == [attention, feed_forward] * 2


@every_architecture
def test_adapters_learn_and_a_copy_has_its_own(architecture: str, toy_encoder: Toy) -> None:
    plain = Encoder.load(str(toy_encoder(architecture)))
    encoder = adapted(toy_encoder(architecture), loud=True)
    batch = some_batch(encoder)
    before, after = plain.states(batch), encoder.states(batch)
    assert torch.equal(before[0], after[0]), "embeddings stand below all adapters"
    assert all((one - other).abs().mean() > 0.05 for one, other in zip(before[1:], after[1:], strict=True))
    gradient_states(encoder, batch).pow(3).sum().backward()
    for name, adapter in adapters_of(encoder.model).items():
        for part, parameter in adapter.named_parameters():
            assert parameter.grad is not None
            assert parameter.grad.abs().max() > 0, f"{name}.{part}"

    half, silent = copy.deepcopy(encoder.model).to(torch.bfloat16), copy.deepcopy(encoder.model)
    for adapter in adapters_of(silent).values():
        adapter.up.weight.data.zero_()
        adapter.up.bias.data.zero_()
    assert torch.equal(encoder.states(batch), after), "the copy's adapters are not the original's"
    encoder.model = silent
    assert torch.allclose(encoder.states(batch), before, atol=1e-6), "without W2 and b2 it is the identity"
    if architecture == "bert":  # what frozen use on a GPU does: cast once, then run
        encoder.model = half
        assert (encoder.states(batch).float() - after).abs().mean() < 0.05 < (before - after).abs().mean()


# ---- gradient checkpointing


@every_architecture
@pytest.mark.parametrize("text", ["full", "houlsby-4", "cut-1", "lora-2"])
def test_recomputed_layers_give_the_same_states_and_gradients(
    architecture: str, text: str, toy_encoder: Toy
) -> None:
    def gradients(again: bool) -> tuple[Tensor, dict[str, Tensor]]:
        encoder = Encoder.load(str(toy_encoder(architecture)), device="cpu")
        encoder.tune(parse_policy(text), seed=0)
        encoder.model.train()
        if again:
            encoder.checkpoint_gradients()
        torch.manual_seed(7)  # dropout
        states = gradient_states(encoder, some_batch(encoder))
        states.pow(3).sum().backward()
        named = encoder.model.named_parameters()
        return states.detach(), {name: p.grad for name, p in named if p.grad is not None}

    if architecture in ("albert", "mpnet"):
        if (architecture, text) != ("albert", "cut-1"):  # has no cut
            with pytest.raises(EncoderError, match=rf"\({architecture}\) cannot .*leave out --checkpointing"):
                gradients(again=True)
        return
    (states, plain), (again, recomputed) = gradients(again=False), gradients(again=True)
    assert torch.equal(states, again)
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        assert torch.allclose(gradient, recomputed[name], atol=1e-4, rtol=1e-4), name


def test_checkpointing_lets_no_gradient_below_the_cut(tiny_bert: Path) -> None:
    encoder = Encoder.load(str(tiny_bert), device="cpu")
    encoder.tune(parse_policy("cut-1"), seed=0)
    encoder.model.train()
    encoder.checkpoint_gradients()
    seen: list[bool] = []
    encoder.model.encoder.layer[1].register_forward_pre_hook(
        lambda _, args: seen.append(args[0].requires_grad)
    )
    assert gradient_states(encoder, some_batch(encoder)).requires_grad
    assert seen == [False]
