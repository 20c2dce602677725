"""Feeds: the plan as a pure function, live and stored states alike, and epochs that go on in the middle."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.squad import read_squad
from bertvision.data.windows import WindowConfig, Windows, make_windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError, EncoderError
from bertvision.states.base import States
from bertvision.states.batch import StateBatch
from bertvision.states.choose import stored_bytes
from bertvision.states.config import StatesConfig
from bertvision.states.live import LiveStates
from bertvision.states.memory import MemoryStates
from bertvision.states.plan import HEAD_RUN, cut_by_tokens, epoch_batches, group_calls

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=300).map(
    lambda values: np.array(values, np.int64)
)


@pytest.fixture(scope="module")
def encoder(tiny_bert: Path) -> Encoder:
    return Encoder.load(str(tiny_bert))


@pytest.fixture(scope="module")
def windows(encoder: Encoder, toy_squad: Path) -> Windows:
    config = WindowConfig(max_seq_length=48, max_query_length=16, doc_stride=16)
    return make_windows(read_squad(toy_squad), encoder.tokenizer, config)


# ---- the plan


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 40), st.integers(0, 9), st.integers(0, 3), st.integers(1, 9))
def test_every_window_once_an_epoch(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int, run: int
) -> None:
    batches = epoch_batches(lengths, batch_size, seed=seed, epoch=epoch, run=run)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert len(batches) == -(-len(lengths) // batch_size)
    assert max(map(len, batches)) <= batch_size
    again = epoch_batches(lengths, batch_size, seed=seed, epoch=epoch, run=run)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


def test_seed_and_epoch_decide_the_order() -> None:
    lengths = np.random.default_rng(0).integers(10, 300, 500)

    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(epoch_batches(lengths, 8, seed=seed, epoch=epoch)).tolist()

    orders = [order(0, 0), order(0, 1), order(1, 0), order(1, 1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_batches_hold_windows_of_similar_length() -> None:
    """Pads: at most a tenth of what random batches would need."""
    lengths = np.random.default_rng(0).integers(20, 380, 4000)

    def pads(batches: list[np.ndarray]) -> int:
        return sum(int((lengths[b].max() - lengths[b]).sum()) for b in batches)

    shuffled = np.random.default_rng(1).permutation(len(lengths)).reshape(-1, 16)
    assert pads(epoch_batches(lengths, 16, seed=0, epoch=0)) < 0.1 * pads(list(shuffled))


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

    flat = [np.concatenate([piece for _, piece in call]) for call in calls]
    for windows in flat:
        assert fits(windows) or len(windows) == 1
    for windows, following in pairwise(flat):
        assert not fits(np.concatenate([windows, following[:1]])), "not greedy"


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 5000))
def test_a_walk_visits_all_within_its_budget(lengths: np.ndarray, budget: int) -> None:
    calls = cut_by_tokens(lengths, budget)
    assert sorted(np.concatenate(calls).tolist()) == list(range(len(lengths)))
    for call in calls:
        assert len(call) * int(lengths[call].max()) <= budget or len(call) == 1


# ---- feeds


def sources(encoder: Encoder, windows: Windows) -> list[States]:
    return [kind(encoder, windows, tokens_per_call=700) for kind in (LiveStates, MemoryStates)]


def same(first: StateBatch, second: StateBatch) -> bool:
    return (
        torch.equal(first.states[:, first.mask], second.states[:, second.mask])
        and torch.equal(first.mask, second.mask)
        and torch.equal(first.targets, second.targets)
        and np.array_equal(first.windows, second.windows)
    )


def test_live_and_memory_hand_out_the_same(encoder: Encoder, windows: Windows) -> None:
    live, memory = sources(encoder, windows)
    for first, second in (
        (live.epoch(1, batch_size=4, seed=3), memory.epoch(1, batch_size=4, seed=3)),
        (live.walk(), memory.walk()),
    ):
        count = 0
        for a, b in zip(first, second, strict=True):
            count += len(a.windows)
            assert np.array_equal(a.windows, b.windows)
            assert torch.equal(a.mask, b.mask)
            assert torch.equal(a.targets, b.targets)
            assert a.states.shape == b.states.shape == (3, *a.mask.shape, 32)
            assert a.states.dtype == b.states.dtype == torch.float32
            # Half precision keeps eleven bits; a call pads differently in a walk, which moves the last of 24.
            real, kept = a.states[:, a.mask], b.states[:, b.mask]
            assert torch.allclose(real, kept, rtol=2**-11, atol=1e-5)
        assert count == len(windows)


def test_labels_and_masks_are_the_windows_own(encoder: Encoder, windows: Windows) -> None:
    for states in sources(encoder, windows):
        for batch in states.epoch(0, batch_size=5, seed=0):
            assert batch.targets.tolist() == windows.labels[batch.windows].tolist()
            assert batch.mask.sum(1).tolist() == windows.lengths[batch.windows].tolist()
            assert batch.mask.shape[1] == windows.lengths[batch.windows].max(), "padded beyond the longest"


def test_states_do_not_depend_on_the_call_they_came_in(encoder: Encoder, windows: Windows) -> None:
    """The states of one window, whatever stands beside it in the encoder's call."""
    small = LiveStates(encoder, windows, tokens_per_call=1)
    large = LiveStates(encoder, windows, tokens_per_call=10**6)
    pairs = zip(small.epoch(0, batch_size=4, seed=0), large.epoch(0, batch_size=4, seed=0), strict=True)
    for a, b in pairs:
        assert torch.allclose(a.states[:, a.mask], b.states[:, b.mask], atol=1e-5)


@pytest.mark.parametrize("start", [1, 4, 6, 7])
def test_a_resumed_epoch_is_the_tail_of_a_whole_one(encoder: Encoder, windows: Windows, start: int) -> None:
    """Bit by bit: also where the first batch of the rest shared its encoder call with one before it."""
    for states in sources(encoder, windows):
        whole = list(states.epoch(2, batch_size=4, seed=5))
        assert len(whole) == states.num_batches(4) > 7
        tail = list(states.epoch(2, batch_size=4, seed=5, start=start))
        assert len(tail) == len(whole) - start
        assert all(same(a, b) for a, b in zip(tail, whole[start:], strict=True))
        assert list(states.epoch(2, batch_size=4, seed=5, start=len(whole))) == []


def test_the_memory_feed_holds_no_pads(encoder: Encoder, windows: Windows) -> None:
    states = MemoryStates(encoder, windows, tokens_per_call=700)
    layers, tokens, hidden = 3, int(windows.offsets[-1]), 32
    assert states.store.shape == (layers, tokens, hidden)
    assert states.store.numel() * states.store.element_size() == 2 * layers * tokens * hidden
    assert stored_bytes(layers, hidden, tokens, "fp16") == 2 * layers * tokens * hidden


def test_the_memory_feed_reads_what_a_plain_loop_encodes(encoder: Encoder, windows: Windows) -> None:
    """Every window alone through the encoder, rounded to half precision."""
    from bertvision.encoder.batch import collate

    states = MemoryStates(encoder, windows, tokens_per_call=700)
    for i in range(0, len(windows), 5):
        alone = encoder.states(collate(windows, np.array([i]), pad_id=0, device=encoder.device))[:, 0]
        kept = states.store[:, windows.offsets[i] : windows.offsets[i + 1]].float()
        assert torch.allclose(kept, alone, rtol=2**-10, atol=2e-5)


def test_states_beyond_half_precision_are_refused(tiny_bert: Path, windows: Windows) -> None:
    encoder = Encoder.load(str(tiny_bert))
    with torch.no_grad():
        encoder.model.encoder.layer[-1].output.LayerNorm.weight.fill_(1e6)
    with pytest.raises(EncoderError, match=r"beyond half precision: use --states\.source live"):
        MemoryStates(encoder, windows, tokens_per_call=700)


def test_stored_states_fit_the_heads_in_either_precision(tiny_bert: Path, windows: Windows) -> None:
    """Heads are float32: without autocast they cannot take half precision, on whatever device."""
    from bertvision.heads import Geometry, parse_head

    head = parse_head("adapter:size=4,skip").build(Geometry(3, 32), seed=0)
    for precision in ("fp32", "bf16"):
        encoder = Encoder.load(str(tiny_bert), precision=precision)
        states = MemoryStates(encoder, windows, tokens_per_call=700)
        batch = next(iter(states.walk()))
        assert batch.states.dtype == (torch.float32 if precision == "fp32" else torch.float16)
        with encoder.autocast():
            assert head(batch.states, batch.mask).isfinite().all()


@pytest.mark.parametrize("values", [{"tokens_per_call": -1}, {"memory_gb": -1.0}])
def test_impossible_settings_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values)).replace("_", "-")):
        StatesConfig(**values)  # pyright: ignore[reportArgumentType]
