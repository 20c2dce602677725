"""Span logits of a whole data set: flat and ragged like `Windows`, no pads.

On disk: one safetensors file with `start` and `end` (N,) float32; the metadata names the windows they
belong to (`windows`, a fingerprint) and whether they are log-probabilities already (`log_probs`).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import atomic_file
from bertvision.data.windows import Windows
from bertvision.errors import ArtifactError

__all__ = ["SpanLogits"]


@dataclass(frozen=True)
class SpanLogits:
    start: NDArray[np.float32]
    """(N,) how much each token looks like the first of the answer."""
    end: NDArray[np.float32]
    """(N,) how much each token looks like the last of the answer."""
    log_probs: bool = False
    """The values are log-probabilities as they stand (an ensemble's): decoding takes no softmax again."""

    def check(self, windows: Windows) -> None:
        """Raise unless every token of `windows` has a finite start and end logit."""
        tokens = int(windows.offsets[-1])
        if self.start.shape != (tokens,) or self.end.shape != (tokens,):
            raise ArtifactError(
                f"the logits hold {self.start.size} start and {self.end.size} end values but the windows "
                f"have {tokens} tokens: make both from the same data, encoder and window settings"
            )
        bad = ~(np.isfinite(self.start) & np.isfinite(self.end))
        if bad.any():
            window = int(np.searchsorted(windows.offsets, int(bad.argmax()), side="right")) - 1
            raise ArtifactError(
                f"{int(bad.sum())} logits are not finite, the first in window {window}: "
                "the head that made them diverged, fit it again with a lower learning rate"
            )

    def save(self, path: Path, fingerprint: str) -> None:
        """Write to `path` in one step, bound to the windows of this fingerprint."""
        from safetensors.numpy import save

        tensors = {"start": np.ascontiguousarray(self.start), "end": np.ascontiguousarray(self.end)}
        blob = save(tensors, metadata={"windows": fingerprint, "log_probs": str(self.log_probs).lower()})
        with atomic_file(path) as temporary:
            temporary.write_bytes(blob)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "SpanLogits":
        """Read `path`; logits of other windows than those of `fingerprint` are an `ArtifactError`."""
        from safetensors import SafetensorError, safe_open

        if not path.exists():
            raise ArtifactError(f"{path} is missing: is {path.parent} a folder that bertvision wrote?")
        try:
            with safe_open(path, framework="np") as handle:
                metadata = handle.metadata() or {}
                names = sorted(handle.keys())
                values = {name: handle.get_tensor(name) for name in names}
        except SafetensorError as error:
            raise ArtifactError(f"{path} is damaged ({error}): delete it and make it again") from error
        if names != ["end", "start"] or "windows" not in metadata:
            raise ArtifactError(f"{path} does not hold span logits: it was not written by bertvision")
        if metadata["windows"] != fingerprint:
            raise ArtifactError(
                f"{path} belongs to other windows ({metadata['windows'][:12]}, not {fingerprint[:12]}): "
                "the data, the encoder or the window settings changed, delete it and make it again"
            )
        return cls(values["start"], values["end"], metadata.get("log_probs") == "true")
