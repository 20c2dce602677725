"""The stored feed: the batches of the live one, in the stored precision, whatever is there when it begins."""

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_helpers import WINDOWS, fitted, state
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cases import extract, fill, marks, toy_store
from torch import Tensor

from bertvision.encoder.encoder import Encoder
from bertvision.states.base import States
from bertvision.states.batch import StateBatch
from bertvision.states.codec import STORED
from bertvision.states.config import EVERYTHING, Selection
from bertvision.states.layout import SHARD_TOKENS, tokens_cut
from bertvision.states.live import LiveStates
from bertvision.states.memory import MemoryStates
from bertvision.states.plan import cut_by_tokens, head_batches
from bertvision.states.store import Store
from bertvision.states.stored import StoredStates
from bertvision.train.fit import FittedHead
from bertvision.train.splits import Split, load_split

DTYPES = ("fp32", "bf16", "fp16", "int8")
Heads = dict[str, FittedHead]
CALL = 300
"""Tokens of an encoder call."""


@pytest.fixture(scope="module")
def encoder(tiny_bert: Path) -> Encoder:
    return Encoder.load(str(tiny_bert))


@pytest.fixture(scope="module")
def train(encoder: Encoder, toy_squad: Path) -> Split:
    return load_split(str(toy_squad), encoder, WINDOWS)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


def stored(root: Path, encoder: Encoder, split: Split, **options: Any) -> StoredStates:
    """A feed of a store that may be there already."""
    return StoredStates(encoder, toy_store(root, encoder, split.windows, **options), tokens_per_call=CALL)


@pytest.fixture(scope="module", params=DTYPES)
def finished(request: pytest.FixtureRequest, roots: Path, encoder: Encoder, train: Split) -> StoredStates:
    store = toy_store(roots, encoder, train.windows, dtype=request.param)
    extract(store, encoder, tokens_per_call=CALL)
    return stored(roots, encoder, train, dtype=request.param)


def rounded(states: Tensor, dtype: str) -> Tensor:
    """(L, n, H) as a store of the dtype gives them back, computed here."""
    if dtype != "int8":
        return states.to(STORED[dtype]).float()
    scale = states.abs().amax(-1, keepdim=True) / 127
    return torch.nan_to_num(states / scale).round() * scale


def by_hand(store: Store, live: LiveStates) -> dict[int, Tensor]:
    """(L, n, H) of every window: shard after shard, call after call, rounded."""
    found = {}
    for shard in store.plan.shards:
        for call in cut_by_tokens(live.widths[shard], CALL):
            batch = live.read(shard[call])
            for row, window in enumerate(batch.windows.tolist()):
                found[window] = rounded(batch.states[:, row, batch.mask[row]], store.identity.dtype)
    return found


def same_plan(mine: StateBatch, other: StateBatch) -> bool:
    return (
        np.array_equal(mine.windows, other.windows)
        and torch.equal(mine.mask, other.mask)
        and torch.equal(mine.targets, other.targets)
        and torch.equal(mine.bounds, other.bounds)
        and mine.states.shape == other.states.shape
    )


def same(mine: StateBatch, other: StateBatch) -> bool:
    return same_plan(mine, other) and torch.equal(mine.states, other.states)


# ---- stored and live


@pytest.mark.parametrize("epoch", [0, 1])
def test_batches_are_those_of_the_live_feed(
    finished: StoredStates, encoder: Encoder, train: Split, epoch: int
) -> None:
    live = LiveStates(encoder, train.windows, tokens_per_call=CALL)
    right = by_hand(finished.store, live)
    step = {"fp32": 1e-5, "bf16": 2**-8, "fp16": 2**-11, "int8": 1 / 200}[finished.store.identity.dtype]
    assert finished.num_batches(6) == live.num_batches(6)
    pairs = zip(
        finished.epoch(epoch, batch_size=6, seed=3), live.epoch(epoch, batch_size=6, seed=3), strict=True
    )
    for mine, other in pairs:
        assert same_plan(mine, other)
        assert mine.states.dtype == torch.float32
        mask = mine.mask
        largest = other.states[:, mask].abs().amax(-1, keepdim=True)
        assert ((mine.states - other.states)[:, mask].abs() <= 1.01 * step * largest + 1e-5).all()
        assert not mine.states[:, ~mask].any(), "pads are zero"
        for row, window in enumerate(mine.windows.tolist()):
            assert torch.equal(mine.states[:, row, mask[row]], right[window]), "exactly what was rounded"
    walks = zip(finished.walk(), live.walk(), strict=True)
    assert all(same_plan(mine, other) for mine, other in walks)


def test_the_epoch_that_writes_gives_what_later_ones_read(
    tmp_path: Path, finished: StoredStates, encoder: Encoder, train: Split
) -> None:
    states = stored(tmp_path, encoder, train, dtype=finished.store.identity.dtype)
    assert states.store.missing()
    for epoch in (0, 0, 1):
        pairs = zip(
            states.epoch(epoch, batch_size=6, seed=1),
            finished.epoch(epoch, batch_size=6, seed=1),
            strict=True,
        )
        assert all(same(mine, other) for mine, other in pairs)
        assert states.store.info is not None, "finished with the first epoch"


def test_a_first_epoch_encodes_only_what_it_needs_so_far(
    tmp_path: Path, encoder: Encoder, train: Split
) -> None:
    states = stored(tmp_path, encoder, train, shard_tokens=60)
    batches = states.epoch(0, batch_size=2, seed=0)
    seen = [next(batches)]
    there = states.store.finished()
    assert 0 < len(there) <= 2 * 3 < states.store.num_shards, "three batches of two windows"
    seen += list(batches)
    assert sorted(np.concatenate([batch.windows for batch in seen]).tolist()) == list(
        range(len(train.windows))
    )


@pytest.mark.parametrize("start", [0, 1, 4, 7])
def test_a_resumed_epoch_is_the_tail_of_a_whole_one(
    tmp_path: Path, encoder: Encoder, train: Split, start: int
) -> None:
    """Bit by bit, and also where the store is empty when it goes on."""
    whole = list(stored(tmp_path / "whole", encoder, train).epoch(0, batch_size=4, seed=5))
    assert len(whole) > 7
    tail = list(stored(tmp_path / "tail", encoder, train).epoch(0, batch_size=4, seed=5, start=start))
    assert len(tail) == len(whole) - start
    assert all(same(mine, other) for mine, other in zip(tail, whole[start:], strict=True))
    states = stored(tmp_path / "whole", encoder, train)
    assert list(states.epoch(0, batch_size=4, seed=5, start=len(whole))) == []


def test_memory_that_is_used_again_holds_the_same_numbers(finished: StoredStates) -> None:
    kept = list(finished.epoch(1, batch_size=5, seed=0))
    copies = [batch.states.clone() for batch in kept]
    places = set()
    for batch, right in zip(finished.epoch(1, batch_size=5, seed=0, reuse=True), kept, strict=True):
        assert same(batch, right)
        places.add(batch.states.data_ptr())
    assert len(places) < len(kept), "it is used again"
    list(finished.walk(reuse=True))
    # Whoever does not promise to let go may keep every batch.
    assert len({batch.states.data_ptr() for batch in kept}) == len(kept)
    assert all(torch.equal(batch.states, copy) for batch, copy in zip(kept, copies, strict=True))


@pytest.mark.parametrize(
    "selection",
    [Selection((0, 2)), Selection((-1,), "cls"), Selection((), "context"), Selection((2, 1), "context")],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_parts_are_parts_of_the_whole(
    tmp_path: Path, encoder: Encoder, train: Split, selection: Selection, dtype: str
) -> None:
    states = stored(tmp_path, encoder, train, selection=selection, dtype=dtype)
    whole = stored(tmp_path, encoder, train, dtype=dtype)
    live = LiveStates(encoder, train.windows, tokens_per_call=CALL, selection=selection)
    assert (states.layers, states.num_states) == (live.layers, live.num_states)
    assert states.kept.equals(live.kept)
    layers = list(selection.numbers(encoder.num_states))
    kept = np.split(np.ones(train.windows.num_tokens, bool), train.windows.offsets[1:-1])
    if selection.positions != "all":
        from bertvision.data.kept import kept_tokens

        kept = np.split(kept_tokens(train.windows, selection.positions), train.windows.offsets[1:-1])
    for _ in range(2):  # while it is written, and from the disk
        triples = zip(*(one.epoch(0, batch_size=6, seed=2) for one in (states, whole, live)), strict=True)
        for mine, everything, other in triples:
            assert same_plan(mine, other)
            for row, window in enumerate(mine.windows.tolist()):
                cut = everything.states[layers, row, : len(kept[window])][:, kept[window]]
                assert torch.equal(mine.states[:, row, mine.mask[row]], cut)


# ---- parity of fits


def heads_from(states: States, folder: Path) -> Heads:
    return fitted(states, folder, "learned_pooling", "adapter:size=8,skip", epochs=3, seed=4)


def weights(heads: Heads) -> Tensor:
    return torch.cat([tensor.flatten().float() for one in heads.values() for tensor in state(one).values()])


def distance(mine: Heads, other: Heads, batch: StateBatch) -> float:
    """The largest difference of any probability they give to the same states.

    Not of any weight: some do not matter, such as one added to all scores, and what moves those is rounding alone.
    """
    assert mine.keys() == other.keys()

    def probabilities(one: FittedHead) -> Tensor:
        with torch.no_grad():
            logits = one.head.eval()(batch.states, batch.mask)  # (B, T, 2)
        return logits.masked_fill(~batch.mask[..., None], -1e9).softmax(1)

    return max(float((probabilities(mine[name]) - probabilities(other[name])).abs().max()) for name in mine)


@pytest.fixture(scope="module")
def live(encoder: Encoder, train: Split) -> LiveStates:
    return LiveStates(encoder, train.windows, tokens_per_call=CALL)


@pytest.fixture(scope="module")
def live_heads(live: LiveStates, tmp_path_factory: pytest.TempPathFactory) -> Heads:
    return heads_from(live, tmp_path_factory.mktemp("live"))


def test_heads_fitted_from_a_store_are_those_fitted_live(
    tmp_path: Path, finished: StoredStates, live: LiveStates, live_heads: Heads
) -> None:
    bound = {"fp32": 1e-5, "fp16": 1e-4, "bf16": 1e-3, "int8": 2e-3}[finished.store.identity.dtype]
    heads = heads_from(finished, tmp_path / "finished")
    assert distance(heads, live_heads, next(live.walk())) < bound
    if finished.store.identity.dtype == "fp32":
        assert float((weights(heads) - weights(live_heads)).abs().quantile(0.99)) < 1e-5


def test_heads_fitted_while_the_store_is_written_are_the_same_bits(
    tmp_path: Path, finished: StoredStates, encoder: Encoder, train: Split
) -> None:
    fresh = stored(tmp_path / "states", encoder, train, dtype=finished.store.identity.dtype)
    assert fresh.store.missing()
    written = heads_from(fresh, tmp_path / "fresh")
    assert torch.equal(weights(written), weights(heads_from(finished, tmp_path / "finished")))


def test_a_wrong_store_would_be_noticed(
    tmp_path: Path, encoder: Encoder, train: Split, live: LiveStates, live_heads: Heads
) -> None:
    """The bounds above mean something: windows with their tokens in reverse give other heads."""
    store = toy_store(tmp_path / "states", encoder, train.windows)
    right = by_hand(store, live)
    fill(store, [right[window].flip(1).transpose(0, 1) for window in range(len(train.windows))])
    states = stored(tmp_path / "states", encoder, train)
    wrong = heads_from(states, tmp_path / "wrong")
    assert distance(wrong, live_heads, next(live.walk())) > 0.02, "ten times as far as int8 may be"


# ---- threads and times


def reading_threads() -> int:
    return sum(thread.name.startswith("read states") for thread in threading.enumerate())


def test_a_feed_that_is_left_in_the_middle(finished: StoredStates) -> None:
    right = list(finished.epoch(1, batch_size=4, seed=0))
    for leave in (lambda batches: batches.close(), _fail_inside):
        batches = finished.epoch(1, batch_size=4, seed=0, reuse=True)
        next(batches)
        assert reading_threads() > 0
        leave(batches)
        assert reading_threads() == 0
    pairs = zip(finished.epoch(1, batch_size=4, seed=0, reuse=True), right, strict=True)
    assert all(same(mine, other) for mine, other in pairs)
    assert reading_threads() == 0


def _fail_inside(batches: Iterator[StateBatch]) -> None:
    """A consumer that raises: nobody holds the generator any more."""

    def consume() -> None:
        for _ in batches:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    batches.close()  # pyright: ignore[reportAttributeAccessIssue]


def test_two_epochs_of_one_feed_at_once(finished: StoredStates) -> None:
    """Evaluation may walk while an epoch is under way."""
    right = [batch.states for batch in finished.epoch(1, batch_size=4, seed=0)]
    walk = [batch.states for batch in finished.walk()]
    first, second = finished.epoch(1, batch_size=4, seed=0, reuse=True), finished.walk(reuse=True)
    for i in range(max(len(right), len(walk))):
        mine, other = next(first, None), next(second, None)
        assert mine is None or torch.equal(mine.states, right[i])
        assert other is None or torch.equal(other.states, walk[i])


def test_times_say_where_they_went(tmp_path: Path, encoder: Encoder, train: Split) -> None:
    states = stored(tmp_path, encoder, train)
    assert (states.times.encode, states.times.read, states.times.wait) == (0, 0, 0)
    list(states.epoch(0, batch_size=4, seed=0))
    first = states.times
    assert min(first.encode, first.read, first.wait) > 0
    list(states.epoch(1, batch_size=4, seed=0))
    second = states.times
    assert second.encode == first.encode, "the encoder rests"
    assert second.read > first.read
    again = stored(tmp_path, encoder, train)
    list(again.epoch(0, batch_size=4, seed=0))
    assert again.times.encode == 0


def test_a_finished_store_is_only_read(
    roots: Path, finished: StoredStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the encoder was asked")

    monkeypatch.setattr(Encoder, "layer_states", refuse)
    before = marks(finished.store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as torch's about memory that must not be written to
        assert sum(len(batch.windows) for batch in finished.epoch(0, batch_size=4, seed=0)) == len(
            finished.windows
        )
        assert sum(len(batch.windows) for batch in finished.walk()) == len(finished.windows)
    assert marks(finished.store) == before


def test_a_store_in_memory_serves_a_run(encoder: Encoder, train: Split, tmp_path: Path) -> None:
    address = f"memory://{tmp_path.name}/states"
    remote = StoredStates(
        encoder, toy_store(address, encoder, train.windows, dtype="int8"), tokens_per_call=CALL
    )
    local = stored(tmp_path, encoder, train, dtype="int8")
    for epoch in (0, 1):
        pairs = zip(*(states.epoch(epoch, batch_size=4, seed=0) for states in (remote, local)), strict=True)
        assert all(same(mine, other) for mine, other in pairs)
    # A flipped bit there is mended too.
    store = remote.store
    blob = bytearray(store.folder.read("shard-00001.safetensors"))
    blob[len(blob) // 2] ^= 4
    with store.folder.write("shard-00001.safetensors") as file:
        file.write(bytes(blob))
    again = StoredStates(
        encoder, toy_store(address, encoder, train.windows, dtype="int8"), tokens_per_call=CALL
    )
    pairs = zip(*(states.epoch(1, batch_size=4, seed=0) for states in (again, local)), strict=True)
    assert all(same(mine, other) for mine, other in pairs)
    assert store.folder.read("shard-00001.safetensors") == Path(local.store.path(1)).read_bytes()


# ---- the plan of a first epoch


LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=300).map(
    lambda values: np.array(values, np.int64)
)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 40), st.integers(0, 9), st.integers(0, 2))
def test_every_window_once_an_epoch(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> None:
    batches = head_batches(lengths, batch_size, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    sizes = sorted(map(len, batches))
    assert sizes[1:] == [batch_size] * (len(batches) - 1)
    assert 1 <= sizes[0] <= batch_size
    again = head_batches(lengths, batch_size, seed=seed, epoch=epoch)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


def test_a_first_epoch_goes_through_the_shards() -> None:
    """So that a store in the making can serve it: at every moment few shards are needed that were not before."""
    lengths = np.random.default_rng(0).integers(40, 385, 20_000)
    shards = tokens_cut(lengths, SHARD_TOKENS)
    shard_of = np.empty(len(lengths), np.int64)
    for number, windows in enumerate(shards):
        shard_of[windows] = number
    batch_size, orders = 16, []
    for seed in range(3):
        seen: set[int] = set()
        batches = head_batches(lengths, batch_size, seed=seed, epoch=0)
        for done, batch in enumerate(batches, 1):
            seen |= set(shard_of[batch].tolist())
            read = int(lengths[np.concatenate(batches[:done])].sum()) if done % 64 == 0 else None
            if read is not None:  # a whole pool
                assert len(seen) <= read / SHARD_TOKENS + 2
        pools = [np.unique(shard_of[np.concatenate(batches[i : i + 64])]) for i in range(0, len(batches), 64)]
        per_pool = 64 * batch_size * lengths.mean() / SHARD_TOKENS
        assert max(map(len, pools)) <= per_pool * 1.2 + 2
        orders.append(np.concatenate(batches).tolist())
    assert len({tuple(order) for order in orders}) == 3, "each seed has its order"
    # Windows of similar length share a batch all the same.
    pads = sum(int((lengths[b].max() - lengths[b]).sum()) for b in head_batches(lengths, 16, seed=0, epoch=0))
    assert pads < 0.05 * lengths.sum()


def test_all_feeds_have_the_same_batches(finished: StoredStates, encoder: Encoder, train: Split) -> None:
    sources: list[States] = [
        finished,
        LiveStates(encoder, train.windows, tokens_per_call=CALL, selection=EVERYTHING),
        MemoryStates(encoder, train.windows, tokens_per_call=CALL),
    ]
    for epoch in (0, 1):
        orders = [
            [batch.windows.tolist() for batch in states.epoch(epoch, batch_size=4, seed=7)]
            for states in sources
        ]
        assert orders[0] == orders[1] == orders[2]
