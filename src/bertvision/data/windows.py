"""Windows: what the encoder reads.

All arrays are flat and ragged: token `t` of window `w` stands at `offsets[w] + t`; there are no pads. N tokens, W
windows, E examples.

    question and paragraph   the paragraph is cut into overlapping windows, each with the whole question in front
    a text                   cut into overlapping windows
    a pair of texts          the longer text is cut; the shorter stands whole in each window, up to half the room
    a pair read apart        two windows, rows 2i and 2i + 1, a text each, cut off at `max_seq_length`

All four are pairs of texts of which one is cut and the other kept; a single text is the second of a pair with an empty
first.

The stride has two meanings. `step`: windows begin that many tokens apart (Google's BERT, the older Hugging Face
processor). `overlap`: neighbours share that many tokens (fast tokenizers' `stride`, run_qa.py).
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import ConfigError


@dataclass(frozen=True)
class WindowConfig:
    """How paragraphs are cut into windows."""

    max_seq_length: int = 384
    """Most tokens of a window, question and special tokens included."""
    max_query_length: int = 64
    """Most tokens of a question; longer ones are cut."""
    doc_stride: int = 128
    """Tokens between neighbouring windows, in the meaning of --stride."""
    stride: Literal["step", "overlap"] = "step"
    """step: windows begin doc_stride tokens apart; overlap: neighbours share doc_stride tokens."""
    segments: bool = True
    """Tell the two texts apart by their segment ids, where the encoder has them; without: all are 0."""
    apart: bool = False
    """Read the two texts of a pair in a window each, cut at --max-seq-length, instead of together in one."""

    def __post_init__(self) -> None:
        if self.stride not in ("step", "overlap"):
            raise ConfigError(f"--stride must be step or overlap, not {self.stride!r}")
        least = {"max_seq_length": 1, "max_query_length": 1, "doc_stride": int(self.stride == "step")}
        for name, low in least.items():
            if (value := getattr(self, name)) < low:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least {low}, not {value}")


@dataclass(frozen=True)
class Windows:
    ids: NDArray[np.int32]
    """(N,) token ids, special tokens included."""
    types: NDArray[np.uint8]
    """(N,) segment ids; all 0 where the encoder has none."""
    chars: NDArray[np.int32]
    """(N, 2) first character in the paragraph and one past the last; (-1, -1) outside, and in texts with a label."""
    offsets: NDArray[np.int64]
    """(W + 1,) where each window begins, and where the last ends."""
    example: NDArray[np.int32]
    """(W,) index into the data's `examples`; windows of one example are neighbours, in document order."""
    context: NDArray[np.int32]
    """(W, 2) first token of the text that is cut into windows and one past the last, as positions in the window."""
    labels: NDArray[Any]
    """Spans: (W, 2) int32, start and end token, inclusive; (null, null) where the answer is not fully inside.
    Classes: (W, 1) int32 number of the class, -1 where it is not known. Scores: (W, 1) float32, NaN where not known."""
    null: NDArray[np.int32]
    """(W,) the position that means "no answer": the [CLS] token, usually 0."""
    best: NDArray[np.bool_]
    """(N,) of all windows this one shows the token with most context around it; False outside the context."""

    def __len__(self) -> int:
        return len(self.example)

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def example_starts(self) -> NDArray[np.int64]:
        """Index of the first window of each example that has one, for `np.ufunc.reduceat`."""
        return np.flatnonzero(np.diff(self.example, prepend=-1))

    def take(self, indices: Sequence[int] | NDArray[np.integer]) -> "Windows":
        """The windows at `indices`, in that order; `example` still counts in the same `SpanData`."""
        chosen = np.asarray(indices, dtype=np.int64)
        lengths = self.lengths[chosen]
        tokens = spread(self.offsets[:-1][chosen], lengths)
        flat = {name: getattr(self, name)[tokens] for name in ("ids", "types", "chars", "best")}
        by_window = {name: getattr(self, name)[chosen] for name in ("example", "context", "labels", "null")}
        return Windows(offsets=ragged_offsets(lengths), **flat, **by_window)


def ragged_offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def spread(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranges one after the other: begins [7, 0], lengths [2, 3] -> [7, 8, 0, 1, 2]."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(total)


def pack_windows(windows: Windows) -> bytes:
    """The arrays as one safetensors file, with a checksum each."""
    from safetensors.numpy import save

    arrays = {f.name: np.ascontiguousarray(getattr(windows, f.name)) for f in fields(Windows)}
    sums = {name: zlib.crc32(array.data) for name, array in arrays.items()}
    # One entry, because safetensors writes several in any order, and equal windows must be equal bytes.
    return save(arrays, metadata={"crc32": json.dumps(sums)})


def unpack_windows(blob: bytes) -> Windows | None:
    """The windows in such a file, or None where it was cut or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(blob)
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        sums = json.loads(header["__metadata__"]["crc32"])
        found = {f.name: arrays[f.name] for f in fields(Windows)}
        whole = all(sums[name] == zlib.crc32(array.data) for name, array in found.items())
    except (SafetensorError, ValueError, KeyError, TypeError):
        return None
    return Windows(**found) if whole else None
