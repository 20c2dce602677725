"""An encoder cut in two below its top k layers, so that training the top does not pay for what lies below.

    lower = lower_encoder(encoder, k)      # an Encoder of one state: number c = L - 1 - k, frozen; can be kept
    top = Top(encoder.model, k)            # a module: that state -> the k + 1 states c .. L - 1, with gradients

Both halves run the model's own code. Each is a shell: a shallow copy of the model (and of the module that holds its
list of layers) with other entries in that list, so masks, position biases and rotary embeddings are made as ever.

    below   embeddings, layers 0 .. c - 1, and a stop in the place of layer c, which ends the forward pass
    above   the given state in the place of the embeddings, layers c .. L - 2, what follows them (a final norm)

What every layer uses (MPNet's position bias, DeBERTa's relative embeddings) belongs to the frozen half: the top has
it as buffers. `check_cut` proves on a few tokens that the halves give what the whole gives; layers that cannot be
separated (ALBERT's shared ones, DeBERTa's convolution beside the first) are refused there.
"""

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.encoder.batch import TokenBatch
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.shell import (
    Reached,
    Shell,
    Stop,
    Watched,
    as_buffers,
    evaluating,
    keep_as_buffers,
    run_on_state,
)
from bertvision.encoder.stack import final_norm_of, layer_list
from bertvision.errors import ConfigError, EncoderError
from bertvision.shapes import Bool, Float

if TYPE_CHECKING:
    from bertvision.encoder.digest import Digest

__all__ = ["LowerEncoder", "Top", "check_cut", "lower_encoder"]


def _check_depth(encoder_model: Any, k: int, name: str) -> int:
    """The number of the state at the cut, c = L - 1 - k."""
    layers = layer_list(encoder_model)
    if layers is None:
        raise EncoderError(
            f"{name} cannot be cut: its layers share their weights; use --policy full or houlsby-M instead"
        )
    if not 1 <= k <= len(layers):
        raise ConfigError(
            f"--policy cut-{k} trains {k} layers, but {name} has {len(layers)}: use cut-1 to cut-{len(layers)}"
        )
    return len(layers) - k


class Top(nn.Module):
    """The top k layers of a model, from the state below them; its parameters are those of the model itself.

    Make it where the model is: what all layers share is held as buffers, and moves with the top alone.
    """

    def __init__(self, model: Any, k: int) -> None:
        super().__init__()
        cut = _check_depth(model, k, type(model).__name__)
        layers = layer_list(model)
        assert layers is not None
        self.seen: list[Tensor] = []
        shell = Shell(model, [Watched(layer, self.seen) for layer in layers[cut:]])
        shell.give_states()
        for part, name, module in [*shell.outside()]:
            if module is not final_norm_of(model):
                part._modules[name] = as_buffers(module)
        for part in shell.skeleton:
            keep_as_buffers(part)
        self.shell = shell.model

    def forward(
        self, state: Float[Tensor, "B T H"], mask: Bool[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B T H"], ...]:
        """The given state and the k states above it."""
        self.seen.clear()
        last = run_on_state(self.shell, state, mask)
        states = (state, *self.seen[1:], last)
        self.seen.clear()
        return states


class LowerEncoder(Encoder):
    """The layers below the cut as an encoder of one state, with a digest's numbers behind each token's H.

    It shares the weights of the encoder it was made from, which is being trained: they stay where they are, and only
    modules below the cut change their mode. `every` hands out all states up to the cut instead.
    """

    _parks = False

    def __init__(
        self, encoder: Encoder, k: int, digest: "Digest | None" = None, *, every: bool = False
    ) -> None:
        self.cut = _check_depth(encoder.model, k, encoder.name)
        self.k = k
        self.every = every
        self.digest = None if digest is None else digest.to(encoder.device)
        if digest is not None and (digest.cut, digest.hidden) != (self.cut, encoder.hidden):
            raise ConfigError(
                f"the digest is of {digest.cut} states of {digest.hidden} numbers, but {self.cut} states of "
                f"{encoder.hidden} lie below --policy cut-{k}: make another"
            )
        super().__init__(
            self._shell(encoder.model),
            encoder.tokenizer,
            name=encoder.name,
            device=encoder.device,
            precision=encoder.precision,
        )

    def _shell(self, model: Any) -> Any:
        layers = layer_list(model)
        assert layers is not None
        seen: list[Tensor] = []
        lower = list(layers[: self.cut])
        if self.digest is not None or self.every:  # else nobody should hold on to the states on the way
            lower = [Watched(layer, seen) for layer in lower]
        shell = Shell(model, [*lower, Stop(layers[self.cut], seen)])
        for part, name, module in [*shell.outside()]:
            if module is final_norm_of(model):  # it is trained, and must not be in the fingerprint
                part._modules[name] = nn.Identity()
        return shell.model

    @property
    def num_states(self) -> int:
        return self.cut + 1 if self.every else 1

    @property
    def hidden(self) -> int:
        return self.model.config.hidden_size + (0 if self.digest is None else self.digest.size)

    @property
    def _which(self) -> str:
        return (
            f"cut {self.cut} {self.k} {self.every} {'' if self.digest is None else self.digest.fingerprint}"
        )

    @property
    def fingerprint(self) -> str:
        """Hash of the weights below the cut, the tokenizer, the cut and the digest."""
        return hashlib.blake2b(f"{super().fingerprint} {self._which}".encode(), digest_size=16).hexdigest()

    @property
    def configuration(self) -> str:
        return hashlib.blake2b(f"{super().configuration} {self._which}".encode(), digest_size=16).hexdigest()

    def _forward(self, model: Any, batch: TokenBatch) -> tuple[Float[Tensor, "B T hidden"], ...]:
        try:
            super()._forward(model, batch)
        except Reached as reached:
            states = reached.states
        else:
            raise AssertionError("the forward pass went past the cut")
        if self.every:
            return states
        if self.digest is None:
            return states[-1:]
        numbers = self.digest.project(states[:-1]).to(states[-1].dtype)  # (B, T, p)
        return (torch.cat([states[-1], numbers], dim=-1),)

    def parts(
        self, states: Float[Tensor, "1 B T hidden"]
    ) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "B T p"] | None]:
        """What a source hands out, as the state at the cut and the digest's numbers."""
        if self.digest is None:
            return states[0], None
        state, numbers = states[0].split([self.model.config.hidden_size, self.digest.size], dim=-1)
        return state, numbers


def lower_encoder(encoder: Encoder, k: int, digest: "Digest | None" = None) -> LowerEncoder:
    """The encoder below its top k layers; refused where cutting it there would change what it computes."""
    check_cut(encoder, k)
    return LowerEncoder(encoder, k, digest)


@torch.no_grad()
def check_cut(encoder: Encoder, k: int) -> None:
    """Compare the halves with the whole on two windows, one of them padded."""
    cut = _check_depth(encoder.model, k, encoder.name)
    place = next(encoder.model.parameters()).device  # a frozen encoder may be parked on the CPU
    ids = (torch.arange(12, device=place).view(2, 6) + 5) % encoder.model.config.vocab_size
    mask = torch.ones(2, 6, dtype=torch.bool, device=place)
    mask[1, 4:] = False
    ids[~mask] = encoder.pad_id
    batch = TokenBatch(ids, mask, torch.zeros_like(ids), np.arange(2))
    with evaluating(encoder.model):
        whole = encoder._forward(encoder.model, batch)[cut:]
        try:
            below = LowerEncoder(encoder, k)
            state = below._forward(below.model.to(place), batch)[0]
            halves = Top(encoder.model, k)(state, mask)
        except (
            TypeError,
            ValueError,
            AttributeError,
            LookupError,
            NameError,
            RuntimeError,
            StopIteration,
        ) as error:
            raise _uncut(encoder, k, "its code needs the whole of it") from error
    same = len(whole) == len(halves) and all(
        torch.allclose(one[mask], other[mask], rtol=1e-4, atol=1e-4 * float(one[mask].abs().max()))
        for one, other in zip(whole, halves, strict=True)
    )
    if not same:
        raise _uncut(encoder, k, "the layers above would compute something else without those below")


def _uncut(encoder: Encoder, k: int, why: str) -> EncoderError:
    return EncoderError(
        f"{encoder.name} cannot be cut below its top {k} layers ({why}): use --policy top-{k} instead"
    )
