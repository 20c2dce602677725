"""Logits of a whole data set, a row an example's window (or a row of windows that belong side by side).

On disk: one safetensors file with `values` (R, C) float32; the metadata names the windows they belong to (`windows`,
a fingerprint). R = W / group rows, C outputs of a head.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import atomic_file
from bertvision.errors import ArtifactError

__all__ = ["TextLogits"]


@dataclass(frozen=True)
class TextLogits:
    values: NDArray[np.float32]
    """(R, C) one logit a class, one of the second class (bce), or one standardised score (mse)."""

    def check(self, rows: int) -> None:
        """Raise unless there are so many rows and all of them are finite."""
        if self.values.ndim != 2 or len(self.values) != rows:
            raise ArtifactError(
                f"the logits have the shape {self.values.shape} but the windows ask for {rows} rows: "
                "make both from the same data, encoder and window settings"
            )
        bad = ~np.isfinite(self.values).all(axis=1)
        if bad.any():
            raise ArtifactError(
                f"the logits of {int(bad.sum())} windows are not finite, the first in window {int(bad.argmax())}: "
                "the head that made them diverged, fit it again with a lower learning rate"
            )

    def save(self, path: Path, fingerprint: str) -> None:
        """Write to `path` in one step, bound to the windows of this fingerprint."""
        from safetensors.numpy import save

        values = np.ascontiguousarray(self.values, dtype=np.float32)
        blob = save({"values": values}, metadata={"windows": fingerprint})
        with atomic_file(path) as temporary:
            temporary.write_bytes(blob)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "TextLogits":
        """Read `path`; logits of other windows than those of `fingerprint` are an `ArtifactError`."""
        from safetensors import SafetensorError, safe_open

        if not path.exists():
            raise ArtifactError(f"{path} is missing: is {path.parent} a folder that bertvision wrote?")
        try:
            with safe_open(path, framework="np") as handle:
                metadata = handle.metadata() or {}
                found = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise ArtifactError(f"{path} is damaged ({error}): delete it and make it again") from error
        if list(found) != ["values"] or "windows" not in metadata:
            raise ArtifactError(
                f"{path} does not hold the logits of labels or scores: it was not written by bertvision"
            )
        if metadata["windows"] != fingerprint:
            raise ArtifactError(
                f"{path} belongs to other windows ({metadata['windows'][:12]}, not {fingerprint[:12]}): "
                "the data, the encoder or the window settings changed, delete it and make it again"
            )
        return cls(found["values"])
