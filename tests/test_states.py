"""Sources of states: the plan as a pure function, the same batches live, from memory and from a store, fits of them."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cases import extract, toy_store
from torch import Tensor
from toy import save_encoder

from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError, EncoderError
from bertvision.states.base import LiveStates, MemoryStates, StateBatch, States
from bertvision.states.config import Selection, StatesConfig
from bertvision.states.plan import (
    HEAD_RUN,
    cut_by_tokens,
    epoch_batches,
    group_calls,
    head_batches,
)
from bertvision.states.stored import StoredStates
from bertvision.train.job import Split

CALL = 700
LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=300).map(lambda x: np.array(x, np.int64))

# ---- the plan


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 40), st.integers(0, 9), st.integers(0, 3), st.integers(1, 9))
def test_every_window_once_an_epoch(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int, run: int
) -> None:
    for plan in (partial(epoch_batches, run=run), head_batches):
        batches, again = (plan(lengths, batch_size, seed=seed, epoch=epoch) for _ in range(2))
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        sizes = sorted(map(len, batches))
        assert sizes[1:] == [batch_size] * (len(batches) - 1)
        assert 1 <= sizes[0] <= batch_size
        assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))
        other = plan(lengths, batch_size, seed=seed + 10, epoch=epoch)
        later = plan(lengths, batch_size, seed=seed, epoch=epoch + 4)
        if len(lengths) > 50:
            orders = [np.concatenate(one).tolist() for one in (batches, other, later)]
            assert orders[0] != orders[1] != orders[2] != orders[0]


def test_batches_hold_windows_of_similar_length() -> None:
    """Pads: at most a tenth of what random batches would need."""
    lengths = np.random.default_rng(0).integers(20, 380, 4000)

    def pads(batches: list[np.ndarray]) -> int:
        return sum(int((lengths[b].max() - lengths[b]).sum()) for b in batches)

    shuffled = np.random.default_rng(1).permutation(len(lengths)).reshape(-1, 16)
    for plan in (epoch_batches, head_batches):
        assert pads(plan(lengths, 16, seed=0, epoch=0)) < 0.1 * pads(list(shuffled))


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 40), st.integers(1, 5000))
def test_calls_keep_order_and_budget(lengths: np.ndarray, batch_size: int, budget: int) -> None:
    batches = epoch_batches(lengths, batch_size, seed=1, epoch=2, run=HEAD_RUN)
    calls = group_calls(batches, lengths, budget)
    pieces: dict[int, list[int]] = {}
    for call in calls:
        for number, piece in call:
            pieces.setdefault(number, []).extend(piece.tolist())
    assert [pieces[number] for number in range(len(batches))] == [b.tolist() for b in batches]
    assert list(pieces) == list(range(len(batches))), "batches come in order"

    def fits(windows: np.ndarray) -> bool:
        """Inside the budget, and once an eighth of it is used not padded to more than 1.15 times its tokens."""
        cells = len(windows) * int(lengths[windows].max())
        small = int(lengths[windows[:-1]].sum()) < budget // 8
        return cells <= budget and (small or cells <= 1.15 * int(lengths[windows].sum()))

    walk = cut_by_tokens(lengths, budget)
    assert sorted(np.concatenate(walk).tolist()) == list(range(len(lengths)))
    assert all(len(call) * int(lengths[call].max()) <= budget or len(call) == 1 for call in walk)
    flat = [np.concatenate([piece for _, piece in call]) for call in calls]
    for windows in flat:
        assert fits(windows) or len(windows) == 1
    for windows, following in pairwise(flat):
        assert not fits(np.concatenate([windows, following[:1]])), "not greedy"


# ---- what every source does alike


def stored(root: Path, encoder: Encoder, train: Split, tokens: int = CALL, **options: Any) -> StoredStates:
    """States of a store that may be there already."""
    options = {"dtype": "fp32", "origin": train.origin} | options
    return StoredStates(encoder, toy_store(root, encoder, train.windows, **options), tokens_per_call=tokens)


@pytest.fixture(scope="module")
def roots(encoder: Encoder, train: Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished store."""
    root = tmp_path_factory.mktemp("finished")
    extract(toy_store(root, encoder, train.windows, origin=train.origin), encoder)
    return root


@pytest.fixture(params=["live", "memory", "stored", "written"])
def source(
    request: pytest.FixtureRequest, roots: Path, encoder: Encoder, train: Split, tmp_path: Path
) -> States:
    """Each source; `written` is a store that is made while it is read."""
    if request.param in ("stored", "written"):
        return stored(roots if request.param == "stored" else tmp_path, encoder, train)
    kind = {"live": LiveStates, "memory": MemoryStates}[request.param]
    return kind(encoder, train.windows, tokens_per_call=CALL)


@pytest.fixture(scope="module")
def alone(encoder: Encoder, train: Split) -> dict[int, Tensor]:
    """The states (L, n, H) of every window, each encoded by itself."""
    live = LiveStates(encoder, train.windows)
    return {w: live.read(np.array([w])).states[:, 0] for w in range(len(train.windows))}


def kept(batches: Iterator[StateBatch]) -> list[StateBatch]:
    """Batches that outlive the next one."""
    return [replace(batch, states=batch.states.clone()) for batch in batches]


def same(a: StateBatch, b: StateBatch) -> bool:
    return (
        torch.equal(a.states[:, a.mask], b.states[:, b.mask])
        and torch.equal(a.mask, b.mask)
        and torch.equal(a.targets, b.targets)
        and torch.equal(a.bounds, b.bounds)
        and np.array_equal(a.windows, b.windows)
    )


def test_batches_hold_what_each_window_alone_gives(
    source: States, alone: dict[int, Tensor], train: Split
) -> None:
    windows, tolerance = train.windows, 2**-11 if isinstance(source, MemoryStates) else 1e-6
    plans = [head_batches(windows.lengths, 5, seed=3, epoch=epoch) for epoch in (0, 1)]
    walk = cut_by_tokens(windows.lengths, CALL)
    passes = [*(source.epoch(epoch, batch_size=5, seed=3) for epoch in (0, 1)), source.walk()]
    for plan, batches in zip([*plans, walk], passes, strict=True):
        for indices, batch in zip(plan, batches, strict=True):
            assert batch.windows.tolist() == indices.tolist()
            assert batch.states.shape == (3, len(indices), int(windows.lengths[indices].max()), 32)
            assert batch.states.dtype == torch.float32
            assert batch.targets.tolist() == windows.labels[indices].tolist()
            assert batch.bounds.tolist() == windows.context[indices].tolist()
            assert batch.mask.sum(1).tolist() == windows.lengths[indices].tolist()
            assert batch.cls is None
            if isinstance(source, StoredStates):
                assert not batch.states[:, ~batch.mask].any(), "pads are zero"
            for row, w in enumerate(indices.tolist()):
                found = batch.states[:, row, batch.mask[row]]
                assert torch.allclose(found, alone[w], rtol=tolerance, atol=1e-5)
                part = batch.rows(slice(row, row + 1))
                assert torch.equal(part.first, batch.states[:, row : row + 1, 0])


@pytest.mark.parametrize("start", [1, 7])
def test_a_resumed_epoch_is_the_tail_of_a_whole_one(
    source: States, start: int, encoder: Encoder, train: Split, tmp_path: Path
) -> None:
    """Bit by bit, and also where the store is empty when it goes on."""
    whole = kept(source.epoch(0, batch_size=4, seed=5))
    if isinstance(source, StoredStates) and source.times.encode:
        source = stored(tmp_path / "tail", encoder, train)
    tail = kept(source.epoch(0, batch_size=4, seed=5, start=start))
    assert len(tail) == len(whole) - start == source.num_batches(4) - start
    assert all(same(mine, other) for mine, other in zip(tail, whole[start:], strict=True))
    assert list(source.epoch(0, batch_size=4, seed=5, start=len(whole))) == []


def test_memory_is_used_again(source: States) -> None:
    """In two passes at once: evaluation may walk while an epoch is under way."""
    right = [kept(source.epoch(1, batch_size=4, seed=0)), kept(source.walk())]
    left: Any = source.epoch(1, batch_size=4, seed=0)
    next(left)
    left.close()
    again = source.epoch(1, batch_size=4, seed=0), source.walk()
    for i in range(max(map(len, right))):
        for batches, wanted in zip(again, right, strict=True):
            batch = next(batches, None)
            assert batch is None or same(batch, wanted[i])
    places = [batch.states.data_ptr() for batch in source.epoch(1, batch_size=2, seed=0)]
    assert len(set(places)) < len(places)


# ---- the classification token


@pytest.mark.parametrize("positions", ["all", "cls"])
def test_the_classification_token_need_not_be_the_first(
    positions: Any, alone: dict[int, Tensor], encoder: Encoder, train: Split, tmp_path: Path
) -> None:
    """Of tokenizers that put it last, or nowhere in particular; BERT's own has it first, which says nothing."""
    null = (train.windows.context[:, 0] - 1).astype(np.int32)  # inside the window, before the paragraph
    moved = replace(train.windows, null=null)
    selection = Selection(positions=positions)
    store = toy_store(tmp_path, encoder, moved, selection=selection)
    for states in (
        LiveStates(encoder, moved, selection=selection),
        MemoryStates(encoder, moved, selection=selection),
        StoredStates(encoder, store),
    ):
        for batch in states.epoch(1, batch_size=4, seed=0):
            assert (batch.cls is None) == (positions != "all")  # what is kept begins with it
            for row, w in enumerate(batch.windows.tolist()):
                expected = alone[w][:, null[w]]
                assert torch.allclose(batch.first[:, row], expected, rtol=2**-10, atol=1e-4)
                assert torch.equal(batch.rows(slice(row, None)).first[:, 0], batch.first[:, row])


@pytest.mark.parametrize("architecture", ["bert", "mpnet"])
def test_the_pooler_reads_the_classification_token(architecture: str, train: Split, tmp_path: Path) -> None:
    save_encoder(tmp_path / "encoder", architecture, initializer_range=0.3)
    encoder = Encoder.load(str(tmp_path / "encoder"))
    last = (train.windows.lengths - 1).astype(np.int32)
    batch: Any = LiveStates(encoder, replace(train.windows, null=last)).read(np.array([3, 9, 5]))
    expected = encoder.model.pooler(batch.states[-1, torch.arange(3), batch.mask.sum(1) - 1][:, None])
    assert torch.allclose(batch.pooled, expected, atol=1e-6)
    assert not torch.allclose(batch.pooled, encoder.model.pooler(batch.states[-1]), atol=1e-2)


# ---- memory


def test_what_cannot_be_kept_is_refused(train: Split, tiny_bert: Path) -> None:
    values: Any
    for values in ({"memory_gb": -1}, {"cache_gb": float("nan")}, {"tokens_per_call": -1}):
        with pytest.raises(ConfigError, match="must not be negative"):
            StatesConfig(**values)
    other = Encoder.load(str(tiny_bert))
    with torch.no_grad():
        other.model.embeddings.LayerNorm.weight.fill_(1e6)
    other.changed()
    with pytest.raises(EncoderError, match=r"--states\.source live"):
        MemoryStates(other, train.windows)


# ---- a store


def test_a_first_epoch_encodes_only_what_it_needs(tmp_path: Path, encoder: Encoder, train: Split) -> None:
    states = stored(tmp_path, encoder, train, shard_tokens=60)
    batches = states.epoch(0, batch_size=2, seed=0)
    seen = [next(batches)]
    there = states.store.num_shards - len(states.store.missing())
    assert 0 < there <= 2 * 3 < states.store.num_shards, "three batches of two windows"
    seen += list(batches)
    assert sorted(np.concatenate([b.windows for b in seen]).tolist()) == list(range(len(train.windows)))


def test_reading_leaves_later_threads_their_cores(roots: Path, encoder: Encoder, train: Split) -> None:
    """Torch keeps the number of threads for those that begin later."""
    before, found = torch.get_num_threads(), list[int]()
    next(iter(stored(roots, encoder, train).walk()))
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert (found, torch.get_num_threads()) == ([before], before)
