"""Which windows share a batch: closed counts, budgets that are kept, and steps that know their epoch."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from plain_tuning import plan_of

from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.states.plan import balanced_order, epoch_batches
from bertvision.train.batching import Batching
from bertvision.train.config import FinetuneConfig
from bertvision.train.job import Job
from bertvision.train.splits import Split, load_split


def order_of(classes: list[int], seed: int = 0) -> list[int]:
    return balanced_order(np.array(classes, np.int64), np.random.default_rng(seed)).tolist()


# ---- balanced sampling


@pytest.mark.parametrize("sizes", [(7, 3), (1, 9), (5, 5), (90, 10), (1, 1), (4, 3, 2), (100, 1, 1), (2, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_every_class_comes_equally_often(sizes: tuple[int, ...], seed: int) -> None:
    classes = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes)).tolist()
    order = order_of(classes, seed)
    assert len(order) == len(classes), "an epoch is as long as the data"
    counts = Counter(classes[i] for i in order)
    assert sum(counts.values()) == len(classes)
    assert max(counts.values()) - min(counts[c] for c in range(len(sizes))) <= 1
    often = Counter(order)
    for one, size in enumerate(sizes):
        own = [often[i] for i in range(len(classes)) if classes[i] == one]
        # As even as whole numbers can be: nobody is a round ahead of somebody who waits.
        assert len(own) == size
        assert set(own) <= {counts[one] // size, -(-counts[one] // size)}


def test_one_class_alone_is_a_permutation() -> None:
    assert sorted(order_of([1] * 13)) == list(range(13))


def test_of_nothing_comes_nothing() -> None:
    assert order_of([]) == []
    assert epoch_batches(np.zeros(0, np.int64), 4, seed=0, epoch=0, classes=np.zeros(0, np.int64)) == []
    assert epoch_batches(np.zeros(0, np.int64), 4, seed=0, epoch=0, tokens=100) == []


def test_the_order_follows_from_the_seed_and_is_mixed() -> None:
    classes = [0] * 60 + [1] * 20
    assert order_of(classes, 1) == order_of(classes, 1)
    assert order_of(classes, 1) != order_of(classes, 2)
    # Among the 80 of an epoch half are of the rare class, wherever one looks.
    share = np.mean([np.mean([classes[i] for i in order_of(classes, seed)[:20]]) for seed in range(40)])
    assert share == pytest.approx(0.5, abs=0.05)


def test_windows_that_wait_come_in_another_epoch() -> None:
    classes = np.array([0] * 60 + [1] * 20, np.int64)
    lengths = np.full(80, 10, np.int64)
    seen: set[int] = set()
    for epoch in range(8):
        batches = epoch_batches(lengths, 4, seed=3, epoch=epoch, classes=classes)
        found = np.concatenate(batches)
        assert np.bincount(classes[found]).tolist() == [40, 40]
        seen |= set(found.tolist())
    assert seen == set(range(80))


# ---- budgets of tokens


@pytest.mark.parametrize("budget", [1, 50, 64, 200, 1000, 10**6])
@pytest.mark.parametrize("balanced", [False, True])
def test_batches_of_tokens_keep_their_budget(budget: int, balanced: bool) -> None:
    rng = np.random.default_rng(budget)
    lengths = rng.integers(3, 65, 500)
    classes = (rng.random(500) < 0.3).astype(np.int64) if balanced else None
    batches = epoch_batches(lengths, 2, seed=1, epoch=4, classes=classes, tokens=budget)
    found = np.concatenate(batches)
    assert len(found) == 500
    if not balanced:
        assert sorted(found.tolist()) == list(range(500)), "each window once"
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget
    # Only the last batch of a pool (of 64 x 2 windows) has room for more.
    full = sum(len(b) * lengths[b].max() + lengths[b].max() > budget for b in batches)
    assert full >= len(batches) - math.ceil(500 / 128)
    again = epoch_batches(lengths, 2, seed=1, epoch=4, classes=classes, tokens=budget)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))
    other = epoch_batches(lengths, 2, seed=1, epoch=5, classes=classes, tokens=budget)
    assert not all(np.array_equal(a, b) for a, b in zip(batches, other, strict=False))


# ---- steps and epochs


@pytest.fixture(scope="module")
def split(tiny_bert: Path, toy_squad: Path) -> Split:
    config = WindowConfig(max_seq_length=64, max_query_length=16, doc_stride=24)
    return load_split(str(toy_squad), Encoder.load(str(tiny_bert)), config)


def batching(split: Split, *, balanced: bool = False, **values: Any) -> Batching:
    job = Job(split, sampling="balanced" if balanced else "natural")
    return plan_of([job], FinetuneConfig(**({"batch_size": 4, "epochs": 2.5} | values)))


def windows_of(plan: Batching, epoch: int) -> list[NDArray[np.int64]]:
    return [windows for _, windows in plan.batches(epoch)]


def written_out(plan: Batching, epochs: int) -> list[tuple[int, int, NDArray[np.int64]]]:
    """(epoch, number in it, windows) of every step."""
    return [(e, i, b) for e in range(epochs) for i, b in enumerate(windows_of(plan, e))]


SETTINGS = [
    {}, {"batch_size": 1}, {"batch_size": 1000}, {"epochs": 0.3}, {"epochs": 1.0}, {"epochs": 3.0},
    {"batch_tokens": 150}, {"batch_tokens": 150, "balanced": True}, {"balanced": True, "epochs": 1.9},
    {"batch_tokens": 1},
]  # fmt: skip


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_steps_and_epochs_agree_with_the_list_of_all_steps(values: dict[str, Any], split: Split) -> None:
    plan = batching(split, **values)
    epochs = values.get("epochs", 2.5)
    steps = written_out(plan, math.ceil(epochs))
    for step, (epoch, number, _) in enumerate(steps):
        assert plan.place(step) == (epoch, number)
        assert plan.epochs_done(step) == pytest.approx(epoch + number / len(plan.batches(epoch)))
        if step:
            assert plan.step_of(plan.epochs_done(step)) == step, "one is the opposite of the other"
    total = plan.step_of(epochs)
    whole = sum(len(plan.batches(e)) for e in range(int(epochs)))
    last = len(plan.batches(int(epochs))) if epochs % 1 else 0
    assert total == max(1, round(whole + (epochs % 1) * last))
    assert 1 <= total <= len(steps)
    for begin, end in ((0, total), (total // 2, total), (0, 1), (total, total)):
        found = [windows.tolist() for _, windows in plan.steps(begin, end)]
        assert found == [windows.tolist() for _, _, windows in steps[begin:end]]


def test_an_epoch_is_the_data_and_epochs_differ(split: Split) -> None:
    for tokens in (0, 150):
        plan = batching(split, batch_tokens=tokens)
        first, second = (np.concatenate(windows_of(plan, e)) for e in (0, 1))
        assert sorted(first) == sorted(second) == list(range(len(split.windows)))
        assert not np.array_equal(first, second)


def test_balanced_epochs_have_as_many_windows_with_an_answer_as_without(split: Split) -> None:
    """An answer is what the labels point to, whatever the position that stands for none."""
    answered = np.array(
        [start != null for (start, _), null in zip(split.windows.labels, split.windows.null, strict=True)]
    )
    assert 0 < answered.mean() < 1
    assert abs(answered.sum() - (~answered).sum()) > 1, "else there is nothing to balance"
    for epoch in range(3):
        found = np.concatenate(windows_of(batching(split, balanced=True), epoch))
        assert len(found) == len(split.windows)
        assert abs(int(answered[found].sum()) - int((~answered[found]).sum())) <= 1


def test_fractions_never_fall_below_one_step_or_beyond_the_end(split: Split) -> None:
    plan = batching(split, batch_size=1000, epochs=1.0)
    assert [plan.step_of(f) for f in (1e-9, 0.1, 0.5, 1.0)] == [1, 1, 1, 1]
    plan = batching(split, epochs=2.0)
    per_epoch = math.ceil(len(split.windows) / 4)
    assert [plan.step_of(f) for f in (0.5, 1.0, 1.5, 2.0)] == [
        round(per_epoch / 2), per_epoch, round(1.5 * per_epoch), 2 * per_epoch
    ]  # fmt: skip
    assert plan.epochs_done(2 * per_epoch) == 2.0
