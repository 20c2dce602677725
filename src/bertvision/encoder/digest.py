"""What lies below a cut, in a few numbers a token: all lower states projected to their principal components.

    digest = make_digest(encoder, windows, k, size)             # c = L - 1 - k states lie below the cut
    numbers = digest.project(states[:c])                        # (B, T, p)

For a token with the lower states x_0 .. x_(c-1):

    z_l      = (x_l - mean_l) / r_l                 r_l the root mean square of what is left of layer l
    number_i = v_i . concat(z_0 .. z_(c-1)) / s_i   v_i the i-th principal component, s_i its standard deviation

so that every number has mean 0 and variance 1 on the sample, as states kept in half precision or int8 want it, and no
layer counts more for being large. r, v and s are one tensor, `components`; a component that the sample does not have
(a tiny encoder) is zero. Kept as tensors:

    mean        (c, H)
    components  (c, p, H)
"""

import contextlib
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bertvision.artifacts import read_tensors, write_tensors
from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.cut import LowerEncoder, check_cut
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError
from bertvision.shapes import Float

__all__ = ["MOST_NUMBERS", "Digest", "check_size", "make_digest", "project_states"]

MOST_NUMBERS = 64
"""Numbers a token may have: more would cost as much to keep as the states themselves."""
_SAMPLE = 8192
"""Tokens the components are found on."""
_ENCODED = 4 * _SAMPLE
"""Tokens that are encoded for them: neighbours are alike, so not all tokens of a window are taken."""
_CALL = 16
"""Windows of one encoder call."""
_OVERSAMPLED, _ITERATIONS = 16, 6
"""Directions beyond the wanted ones, and passes, of the randomised decomposition."""


def check_size(size: int) -> None:
    if not 1 <= size <= MOST_NUMBERS:
        raise ConfigError(f"--digest must be from 1 to {MOST_NUMBERS} numbers a token, not {size}")


def project_states(
    states: Sequence[Float[Tensor, "B T H"]] | Float[Tensor, "c B T H"],
    mean: Float[Tensor, "c H"],
    components: Float[Tensor, "c p H"],
) -> Float[Tensor, "B T p"]:
    """The numbers, in float32 whatever the states are in; layer by layer, so no wide tensor is written."""
    kind = mean.device.type
    precise = contextlib.nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
    with precise:
        layers = zip(states, mean.float(), components.float(), strict=True)
        return torch.stack([F.linear(state.float() - centre, part) for state, centre, part in layers]).sum(0)


@dataclass(frozen=True, eq=False)
class Digest:
    """The projection of the c states below a cut to p numbers."""

    mean: Float[Tensor, "c H"]
    components: Float[Tensor, "c p H"]

    @property
    def cut(self) -> int:
        """c: the number of the state at the cut, and of states below it."""
        return self.components.shape[0]

    @property
    def size(self) -> int:
        return self.components.shape[1]

    @property
    def hidden(self) -> int:
        return self.components.shape[2]

    def project(
        self, states: Sequence[Float[Tensor, "B T H"]] | Float[Tensor, "c B T H"]
    ) -> Float[Tensor, "B T p"]:
        return project_states(states, self.mean, self.components)

    def to(self, device: torch.device) -> "Digest":
        return Digest(self.mean.to(device), self.components.to(device))

    @property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (self.mean, self.components):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """One safetensors file."""
        write_tensors(path, {"mean": self.mean, "components": self.components})

    @classmethod
    def load(cls, path: Path) -> "Digest":
        tensors, _ = read_tensors(path)
        shapes = {name: tensor.ndim for name, tensor in tensors.items()}
        if shapes != {"mean": 2, "components": 3}:
            raise ArtifactError(f"{path} does not hold a digest: delete its folder and make it again")
        return cls(tensors["mean"], tensors["components"])


def _evenly(count: int, most: int) -> NDArray[np.int64]:
    """At most `most` of the numbers 0 .. count - 1, the same distance apart."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def _sample(lower: LowerEncoder, windows: Windows) -> Float[Tensor, "n c H"]:
    """The lower states of some tokens from everywhere in the data, in float32 on the CPU."""
    mean_length = max(1.0, windows.num_tokens / len(windows))
    chosen = _evenly(len(windows), math.ceil(_ENCODED / mean_length))
    total = int(windows.lengths[chosen].sum())
    kept = np.zeros(total, np.bool_)
    kept[_evenly(total, _SAMPLE)] = True
    sample = torch.empty(int(kept.sum()), lower.cut, lower.hidden)
    read = filled = 0
    for begin in range(0, len(chosen), _CALL):
        indices = chosen[begin : begin + _CALL]
        batch = collate(windows, indices, pad_id=lower.pad_id, device=lower.device)
        tokens = int(windows.lengths[indices].sum())
        wanted = torch.from_numpy(kept[read : read + tokens]).to(lower.device)
        rows = torch.stack([state[batch.mask][wanted] for state in lower.layer_states(batch)[:-1]], dim=1)
        sample[filled : filled + len(rows)] = rows.float().cpu()
        read, filled = read + tokens, filled + len(rows)
    return sample


def make_digest(encoder: Encoder, windows: Windows, k: int, size: int, *, seed: int = 0) -> Digest:
    """Find the components on tokens drawn evenly from the windows; only the layers below the cut run."""
    check_size(size)
    if k == encoder.num_states - 1:
        raise ConfigError(
            f"--digest has nothing to tell with --policy cut-{k}: no state of {encoder.name} lies below that cut; "
            "leave --digest out, or train fewer layers"
        )
    check_cut(encoder, k)
    return components_of(_sample(LowerEncoder(encoder, k, every=True), windows), size, seed)


@torch.no_grad()
def components_of(sample: Float[Tensor, "n c H"], size: int, seed: int) -> Digest:
    """Principal components of a sample of tokens, which is changed. No matrix of (c H)^2 numbers is made."""
    n, c, H = sample.shape
    mean = sample.mean(0)  # (c, H)
    sample -= mean
    rms = sample.square().mean((0, 2)).sqrt().clamp(min=1e-6)  # (c,)
    sample /= rms[:, None]
    wanted = min(size + _OVERSAMPLED, n, c * H)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _, spread, directions = torch.svd_lowrank(sample.view(n, c * H), q=wanted, niter=_ITERATIONS)
    found = min(size, int((spread > 1e-5 * spread[0]).sum()))
    directions = directions[:, :found].T  # (p, c H)
    # A component and its opposite say the same; which of them comes out should not be left to rounding.
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    scaled = directions * largest.sign() / (spread[:found, None] / math.sqrt(n))
    components = torch.zeros(c, size, H)
    components[:, :found] = scaled.view(found, c, H).transpose(0, 1) / rms[:, None, None]
    return Digest(mean, components)
