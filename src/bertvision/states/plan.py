"""Which windows go together, in batches, encoder calls and shards: pure functions of lengths, seed and epoch.

A killed run starts again at batch k and sees the same batches. Windows of similar length share a batch, because pads
cost as much as tokens.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

SHARD_TOKENS = 32_768
"""Tokens of a stored shard: what a kill may lose, and enough for several large encoder calls."""
_POOL = 64
"""Batches whose windows are sorted among themselves: enough to find neighbours, few enough to stay shuffled."""
HEAD_RUN = 8
"""Neighbouring head batches kept together, the same for every source: live and stored training see equal batches."""
_WASTE = 1.15
"""How many times its real tokens a call may have, pads included."""


def epoch_batches(
    lengths: NDArray[np.int64],
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    run: int = 1,
    classes: NDArray[np.int64] | None = None,
    tokens: int = 0,
) -> list[NDArray[np.int64]]:
    """Shuffled training batches of one epoch, each of windows of similar length.

    `run` neighbouring batches of similar length stay together, so that one encoder call can serve them all. With
    `classes` (W,) the classes come equally often (see `balanced_order`). With `tokens` a batch has as many windows as
    fit into so many padded tokens, and `batch_size` only says how large the pools are that it is cut from.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths)) if classes is None else balanced_order(classes, rng)
    return _shuffled([b for pool in _pools(lengths, order, batch_size, tokens) for b in pool], run, rng)


def balanced_order(classes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """(W,) as many windows as there are, in random order, every class equally often.

    A rare class goes round several times before any of its windows comes once more; of a frequent one some windows
    wait for another epoch.
    """
    present = np.unique(classes)
    order = []
    for i, one in enumerate(present):
        members = np.flatnonzero(classes == one)
        count = len(classes) // len(present) + (i < len(classes) % len(present))
        rounds = [rng.permutation(members) for _ in range(-(-count // len(members)))]
        order.append(np.concatenate([np.zeros(0, np.int64), *rounds])[:count])
    return rng.permutation(np.concatenate([np.zeros(0, np.int64), *order]))


def head_batches(
    lengths: NDArray[np.int64], batch_size: int, *, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """Batches that heads are fitted on, the same for every source.

    The first epoch goes through the store's shards, in an order of its seed: a store that is being written can serve
    it shard after shard. As shards are random samples of the windows, so are its batches.
    """
    if epoch > 0:
        return epoch_batches(lengths, batch_size, seed=seed, epoch=epoch, run=HEAD_RUN)
    rng = np.random.default_rng([seed, epoch])
    shards = tokens_cut(lengths, SHARD_TOKENS)
    order = np.concatenate([np.zeros(0, np.int64), *(shards[i] for i in rng.permutation(len(shards)))])
    pools = _pools(lengths, order, batch_size)
    return [batch for pool in pools for batch in _shuffled(pool, HEAD_RUN, rng)]


def _pools(
    lengths: NDArray[np.int64], order: NDArray[np.int64], batch_size: int, tokens: int = 0
) -> Iterator[list[NDArray[np.int64]]]:
    for begin in range(0, len(order), _POOL * batch_size):
        pool = order[begin : begin + _POOL * batch_size]
        if tokens:
            yield [pool[call] for call in cut_by_tokens(lengths[pool], tokens)]
        else:
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            yield [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]


def _shuffled(
    batches: list[NDArray[np.int64]], run: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    runs = [batches[i : i + run] for i in range(0, len(batches), run)]
    return [batch for i in rng.permutation(len(runs)) for batch in runs[i]]


def cut_by_tokens(lengths: NDArray[np.int64], token_budget: int) -> list[NDArray[np.int64]]:
    """All windows once, longest first, in calls of at most `token_budget` padded tokens (but at least one window)."""
    order = np.argsort(-lengths, kind="stable")
    calls, begin = [], 0
    while begin < len(order):
        size = max(1, int(token_budget // max(lengths[order[begin]], 1)))
        calls.append(order[begin : begin + size])
        begin += size
    return calls


def group_rows(units: NDArray[np.int64], group: int) -> NDArray[np.int64]:
    """The windows of units of `group` neighbours each, unit after unit."""
    return units if group == 1 else (units[:, None] * group + np.arange(group)).reshape(-1)


def group_calls(
    batches: Sequence[NDArray[np.int64]], lengths: NDArray[np.int64], token_budget: int
) -> list[list[tuple[int, NDArray[np.int64]]]]:
    """The windows of the head batches, in their order, cut into encoder calls of at most `token_budget` padded tokens.

    A call is a list of (number of the batch, its windows in this call): a batch may begin in one call and end in
    the next, so that calls are full whatever the batch size is. Where lengths jump a new call begins, because
    the shorter windows would be padded to the longer.
    """
    order = np.concatenate(batches) if batches else np.zeros(0, np.int64)
    numbers = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    cuts, first, longest, real = [0], 0, 0, 0
    for i, length in enumerate(lengths[order].tolist()):
        cells = (i - first + 1) * max(longest, length)
        wasteful = real >= token_budget // 8 and cells > _WASTE * (real + length)
        if i > first and (cells > token_budget or wasteful):
            cuts.append(i)
            first, longest, real = i, 0, 0
        longest, real = max(longest, length), real + length
    calls = []
    for begin, end in pairwise([*cuts, len(order)]):
        own = numbers[begin:end]
        calls.append([(int(n), order[begin:end][own == n]) for n in np.unique(own)])
    return calls


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
    """The windows of each shard, a random sample of all: at most `shard_tokens` tokens and one window more."""
    order = shuffled_order(len(lengths))
    ends = np.cumsum(lengths[order])
    number = (ends - lengths[order]) // shard_tokens  # where a window begins decides
    return np.split(order, np.flatnonzero(np.diff(number)) + 1) if len(order) else []
