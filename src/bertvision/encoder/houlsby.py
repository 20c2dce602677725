"""Houlsby adapters: two small residual networks in every layer of an encoder whose own code stays as it is.

        y = x + W2 GELU(W1 x + b1) + b2        W1 (M, H), W2 (H, M), GELU in its tanh form

x is the output of a sub-layer (attention, feed-forward) after its dense layer and dropout, before the residual sum
and the norm. Weights start as a truncated normal of sigma 1e-3 and biases at 0, so that a fresh adapter does next to
nothing; an adapter has 2HM + M + H parameters. Where layers share their weights (ALBERT) they share adapters too.

An adapter is a submodule, `houlsby`, of the module whose output it changes. So the names of the encoder's own
weights stay, and a forward hook, which finds the adapter through the module it is called for, does the rest: a deep
copy of the encoder uses its own adapters.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertvision.encoder.stack import layers_of
from bertvision.errors import EncoderError
from bertvision.shapes import Float

_SIGMA = 1e-3
_BERT = ("attention.output.dropout", "output.dropout")

PLACES: dict[str, tuple[str, str]] = {
    "bert": _BERT,
    "camembert": _BERT,
    "deberta": _BERT,
    "deberta-v2": _BERT,
    "electra": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "mpnet": ("attention.dropout", "output.dropout"),
    "distilbert": ("attention.out_lin", "ffn.dropout"),  # no dropout follows its attention's dense layer
    "albert": ("attention.output_dropout", "ffn_output"),  # nor ALBERT's feed-forward
    "modernbert": ("attn.out_drop", "mlp.Wo"),
}
"""By model type: the modules inside a layer whose outputs are those of attention and feed-forward."""


class Houlsby(nn.Module):
    """One adapter; near the identity when fresh."""

    def __init__(self, hidden: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        # Without their usual start, which would draw from the stream of random numbers that everybody shares.
        self.down: Any = nn.utils.skip_init(nn.Linear, hidden, size)
        self.up: Any = nn.utils.skip_init(nn.Linear, size, hidden)
        for linear in (self.down, self.up):
            nn.init.trunc_normal_(linear.weight, std=_SIGMA, a=-2 * _SIGMA, b=2 * _SIGMA, generator=generator)
            nn.init.zeros_(linear.bias)

    def forward(self, states: Float[Tensor, "B T H"]) -> Float[Tensor, "B T H"]:
        return states + self.up(F.gelu(self.down(states), approximate="tanh"))


def _adapted(module: nn.Module, _: Any, output: Float[Tensor, "B T H"]) -> Float[Tensor, "B T H"]:
    """Forward hook: pass what a module returns through the adapter that the same module holds."""
    adapter: Any = module.houlsby
    return adapter(output)


def adapters_of(model: nn.Module) -> dict[str, Houlsby]:
    """Every adapter by its name inside `model`."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Houlsby)}


def insert_adapters(model: Any, size: int, *, seed: int) -> None:
    """Put two adapters of `size` into every layer; equal seeds give equal adapters on every device."""
    hosts = hosts_of(model)
    generator = torch.Generator().manual_seed(seed)
    for host in hosts:
        host.add_module("houlsby", Houlsby(model.config.hidden_size, size, generator).train(model.training))
        host.register_forward_hook(_adapted)
    place = next(model.parameters())
    for adapter in adapters_of(model).values():
        adapter.to(place.device, place.dtype)


def hosts_of(model: Any) -> list[nn.Module]:
    """The modules that get an adapter, from the bottom up, each once; an unknown architecture is refused."""
    kind = model.config.model_type
    if kind not in PLACES:
        raise EncoderError(
            f"--policy houlsby does not know where the adapters of a {kind} encoder belong: it works with "
            f"{', '.join(sorted(PLACES))}; use lora-R for others"
        )
    layers = list({id(layer): layer for layer in layers_of(model)}.values())
    if kind == "albert":  # a layer of ALBERT is a group, mostly of one
        layers = [inner for group in layers for inner in getattr(group, "albert_layers")]  # noqa: B009
    return [layer.get_submodule(path) for layer in layers for path in PLACES[kind]]
