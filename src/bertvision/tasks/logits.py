"""Logits of a whole dataset: named arrays with a row for every token, or for every example's windows.

On disk they are one safetensors file; its metadata holds the fingerprint of the windows they belong to (`windows`) and
whether the values are log-probabilities already (`log_probs`).

Shapes: N tokens of all windows, W windows, R = W / group rows, B windows of a batch, T tokens (padded), C outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import atomic_file
from bertvision.data.windows import Windows
from bertvision.errors import ArtifactError
from bertvision.shapes import Bool, Float

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Logits:
    arrays: Mapping[str, NDArray[np.float32]]  # a row for each token (N, ...) or example's windows (R, ...)
    log_probs: bool = False  # log-probabilities as they stand (an ensemble's): no softmax is taken again

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self.arrays[name]

    @cached_property
    def finite(self) -> bool:
        return all(bool(np.isfinite(values).all()) for values in self.arrays.values())

    def check(self, names: tuple[str, ...], offsets: NDArray[np.int64]) -> None:
        """Raise unless the arrays `names` are there, and all are finite and have the rows `offsets[w] : offsets[w + 1]`
        for each window w."""
        if missing := [name for name in names if name not in self.arrays]:
            raise ArtifactError(f"the logits hold no {missing[0]}: they were made by a head of another task")
        rows = int(offsets[-1])
        for name, values in self.arrays.items():
            if len(values) != rows:
                raise ArtifactError(
                    f"the logits hold {len(values)} rows of {name} but the windows ask for {rows}: "
                    "make both from the same data, encoder and window settings"
                )
        if not self.finite:
            bad = [~np.isfinite(values).reshape(rows, -1).all(axis=1) for values in self.arrays.values()]
            window = int(np.searchsorted(offsets, int(np.any(bad, axis=0).argmax()), side="right")) - 1
            raise ArtifactError(
                f"the logits are not finite, the first in window {window}: the head that made them diverged, fit it "
                "again with a lower learning rate"
            )

    def save(self, path: Path, fingerprint: str) -> None:
        from safetensors.numpy import save

        tensors = {name: np.ascontiguousarray(values, np.float32) for name, values in self.arrays.items()}
        blob = save(tensors, metadata={"windows": fingerprint, "log_probs": str(self.log_probs).lower()})
        with atomic_file(path) as temporary:
            temporary.write_bytes(blob)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "Logits":
        from safetensors import SafetensorError, safe_open

        if not path.exists():
            raise ArtifactError(f"{path} is missing: is {path.parent} a folder that bertvision wrote?")
        try:
            with safe_open(path, framework="np") as handle:
                metadata = handle.metadata() or {}
                arrays = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise ArtifactError(f"{path} is damaged ({error}): delete it and make it again") from error
        if metadata.get("windows") != fingerprint:
            raise ArtifactError(
                f"{path} belongs to other windows than {fingerprint[:12]}: the data, the encoder or the window "
                "settings changed, delete it and make it again"
            )
        return cls(arrays, metadata.get("log_probs") == "true")


def softmax(values: NDArray[np.floating]) -> NDArray[np.float64]:
    shifted = np.exp(values.astype(np.float64) - values.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class Seen:
    """Which windows and tokens the outputs for a batch belong to."""

    whole: Windows  # all windows, of which the batch holds some
    windows: NDArray[np.int64]  # (B,) numbers of the windows
    mask: "Bool[Tensor, 'B T']"  # True on the tokens that were read

    @cached_property
    def tokens(self) -> NDArray[np.int64]:
        """(n,) places of the tokens under `mask` in the whole windows; computed once for all heads of a batch."""
        from bertvision.encoder.batch import padded_positions

        flat, real = padded_positions(self.whole.offsets, self.windows)
        return flat[real]


class Collector:
    """Puts the outputs of a head, a batch at a time, into logits of all windows: a row for every token, of outputs
    (B, T, C), or for the `group` windows of an example, of outputs (B / group, C)."""

    def __init__(self, windows: Windows, group: int | None) -> None:
        self.group = group  # None: a row for every token
        self.values = np.zeros((len(windows) // group if group else windows.num_tokens, 0), np.float32)

    def add(self, seen: Seen, output: "Float[Tensor, '...']") -> None:
        output = output.float()
        rows = seen.tokens if self.group is None else seen.windows[:: self.group] // self.group
        values = (output[seen.mask] if self.group is None else output).cpu().numpy()
        if self.values.shape[1] != values.shape[1]:
            self.values = np.zeros((len(self.values), values.shape[1]), np.float32)
        self.values[rows] = values

    def logits(self) -> Logits:
        return Logits({"values": self.values})
