"""What goes into which shard: pure functions of the windows, so that every process cuts alike.

Windows are put into an order that looks random and never changes (a hash of their number), cut into shards of
about `shard_tokens` tokens, and sorted by length inside a shard, which is the order they are encoded in. A shard
is therefore a random sample: a run that encodes shard after shard may train on them as they come.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["SHARD_TOKENS", "ShardPlan", "shuffled_order", "tokens_cut"]

SHARD_TOKENS = 32_768
"""Tokens of a shard: what a kill may lose, and enough for several large encoder calls."""


def shuffled_order(count: int) -> NDArray[np.int64]:
    """The numbers below `count` in an order that depends on `count` alone: sorted by SplitMix64's hash.

    Written out, because a random generator's order may change with a library's version.
    """
    with np.errstate(over="ignore"):
        hashed = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed ^= hashed >> np.uint64(31)
    return np.argsort(hashed, kind="stable")


def tokens_cut(lengths: NDArray[np.int64], shard_tokens: int) -> list[NDArray[np.int64]]:
    """The windows of each shard, in no particular order: at most `shard_tokens` tokens and one window more."""
    order = shuffled_order(len(lengths))
    ends = np.cumsum(lengths[order])
    number = (ends - lengths[order]) // shard_tokens  # where a window begins decides
    return np.split(order, np.flatnonzero(np.diff(number)) + 1) if len(order) else []


@dataclass(frozen=True)
class ShardPlan:
    """Shards over windows of `lengths` tokens, of which `kept` are stored."""

    lengths: NDArray[np.int64]
    """(W,) tokens the encoder reads."""
    kept: NDArray[np.int64]
    """(W,) tokens that are stored."""
    shard_tokens: int = SHARD_TOKENS

    @cached_property
    def shards(self) -> list[NDArray[np.int64]]:
        """Windows of each shard in the order they are stored in: the longest first."""
        cut = tokens_cut(self.lengths, self.shard_tokens)
        return [windows[np.argsort(-self.lengths[windows], kind="stable")] for windows in cut]

    def offsets(self, number: int) -> NDArray[np.int64]:
        """(w + 1,) where each window of a shard begins, in its stored tokens, and where the last ends."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.kept[self.shards[number]])])

    @cached_property
    def shard_of(self) -> NDArray[np.int32]:
        """(W,) the shard of each window."""
        found = np.empty(len(self.lengths), np.int32)
        for number, windows in enumerate(self.shards):
            found[windows] = number
        return found

    @cached_property
    def row_of(self) -> NDArray[np.int32]:
        """(W,) which window of its shard it is."""
        found = np.empty(len(self.lengths), np.int32)
        for windows in self.shards:
            found[windows] = np.arange(len(windows))
        return found
