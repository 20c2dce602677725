"""Span logits of a whole data set: flat and ragged like `Windows`, no pads.

On disk: one safetensors file with `start` and `end` (N,) float32, and `pairs` (N, 2 + 2r) of heads that score
both together; the metadata names the windows they belong to (`windows`, a fingerprint) and whether they are
log-probabilities already (`log_probs`).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import atomic_file
from bertvision.data.windows import Windows
from bertvision.errors import ArtifactError
from bertvision.tasks.span.ragged import argmax

__all__ = ["SpanLogits", "joint_parts", "second_best"]


@dataclass(frozen=True)
class SpanLogits:
    start: NDArray[np.float32]
    """(N,) how much each token looks like the first of the answer."""
    end: NDArray[np.float32]
    """(N,) how much each token looks like the last of the answer."""
    log_probs: bool = False
    """The values are log-probabilities as they stand (an ensemble's): decoding takes no softmax again."""
    pairs: NDArray[np.float32] | None = None
    """(N, 2 + 2r) s, e, u and v of heads that score a start i and an end j together: s_i + e_j + u_i . v_j /
    sqrt(r). `start` and `end` are then the marginals: log of the sum over all ends (starts) of the pairs."""

    def check(self, windows: Windows) -> None:
        """Raise unless every token of `windows` has a finite start and end logit."""
        tokens = int(windows.offsets[-1])
        if self.start.shape != (tokens,) or self.end.shape != (tokens,):
            raise ArtifactError(
                f"the logits hold {self.start.size} start and {self.end.size} end values but the windows "
                f"have {tokens} tokens: make both from the same data, encoder and window settings"
            )
        bad = ~(np.isfinite(self.start) & np.isfinite(self.end))
        if self.pairs is not None:
            shape = self.pairs.shape
            if len(shape) != 2 or shape[0] != tokens or shape[1] < 4 or shape[1] % 2:
                raise ArtifactError(
                    f"the pair scores have the shape {shape}, not ({tokens}, 2 + 2r) as the windows' tokens ask for: "
                    "make both from the same data, encoder and window settings"
                )
            bad |= ~np.isfinite(self.pairs).all(axis=1)
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
        if self.pairs is not None:
            tensors["pairs"] = np.ascontiguousarray(self.pairs)
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
        if names not in (["end", "start"], ["end", "pairs", "start"]) or "windows" not in metadata:
            raise ArtifactError(f"{path} does not hold span logits: it was not written by bertvision")
        if metadata["windows"] != fingerprint:
            raise ArtifactError(
                f"{path} belongs to other windows ({metadata['windows'][:12]}, not {fingerprint[:12]}): "
                "the data, the encoder or the window settings changed, delete it and make it again"
            )
        log_probs = metadata.get("log_probs") == "true"
        return cls(values["start"], values["end"], log_probs, values.get("pairs"))


def joint_parts(
    pairs: NDArray[np.float32], first: NDArray[np.integer], last: NDArray[np.integer]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """(B, k) s of the tokens `first`, (B, m) e of `last`, (B, k, m) u_i . v_j / sqrt(r): the sum is the score.

    `first` (B, k) and `last` (B, m) count tokens of all windows; those behind the end give some number.
    """
    rank, most = (pairs.shape[1] - 2) // 2, len(pairs) - 1
    starts, ends = pairs[np.minimum(first, most)], pairs[np.minimum(last, most)]
    product = starts[..., 2 : 2 + rank] @ np.swapaxes(ends[..., 2 + rank :], 1, 2)
    product *= np.float32(rank**-0.5)
    product += 0  # no -0.0: decoding ranks it below 0.0
    return starts[..., 0], ends[..., 1], product


def second_best(windows: Windows, logits: SpanLogits) -> SpanLogits:
    """Logits with every window's top start and, separately, its top end pushed down to -1000.

    Decoding them gives the paper's second-best answer. Of a head that scores pairs these are the marginals: its
    pairs are left out.
    """
    start, end = logits.start.copy(), logits.end.copy()
    for values in (start, end):
        values[windows.offsets[:-1] + argmax(values, windows.offsets)] = -1000.0
    return SpanLogits(start, end, logits.log_probs)
