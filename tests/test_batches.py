"""Which windows share a batch, for one task and for several: closed counts, budgets, steps that know their epoch."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from tuning_helpers import WINDOWS

from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.states.plan import balanced_order, epoch_batches
from bertvision.train.config import FinetuneConfig, MixOrder, Sampling
from bertvision.train.job import Batching, Job, Split, TaskPlan, load_split, mix_epoch

CLASSES = np.repeat([0, 1, 2], [80, 15, 5])


def order_of(classes: list[int], seed: int = 0) -> list[int]:
    return balanced_order(np.array(classes, np.int64), np.random.default_rng(seed)).tolist()


# ---- balanced sampling


@pytest.mark.parametrize("sizes", [(7, 3), (1, 9), (5, 5), (90, 10), (1, 1), (4, 3, 2), (100, 1, 1), (13,)])
@pytest.mark.parametrize("seed", range(3))
def test_every_class_comes_equally_often(sizes: tuple[int, ...], seed: int) -> None:
    classes = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes)).tolist()
    order = order_of(classes, seed)
    assert order == order_of(classes, seed)
    assert len(order) == len(classes), "an epoch is as long as the data"
    counts = Counter(classes[i] for i in order)
    assert max(counts.values()) - min(counts[c] for c in range(len(sizes))) <= 1
    often = Counter(order)
    for one, size in enumerate(sizes):
        own = [often[i] for i in range(len(classes)) if classes[i] == one]
        # As even as whole numbers can be: nobody is a round ahead of somebody who waits.
        assert len(own) == size
        assert set(own) <= {counts[one] // size, -(-counts[one] // size)}


def test_of_nothing_comes_nothing() -> None:
    assert order_of([]) == []
    assert epoch_batches(np.zeros(0, np.int64), 4, seed=0, epoch=0, classes=np.zeros(0, np.int64)) == []
    assert epoch_batches(np.zeros(0, np.int64), 4, seed=0, epoch=0, tokens=100) == []


def test_classes_are_mixed_and_windows_that_wait_come_in_another_epoch() -> None:
    classes = np.array([0] * 60 + [1] * 20, np.int64)
    # Among the 80 of an epoch half are of the rare class, wherever one looks.
    share = np.mean([classes[order_of(classes.tolist(), seed)[:20]].mean() for seed in range(40)])
    assert share == pytest.approx(0.5, abs=0.05)
    seen: set[int] = set()
    for epoch in range(8):
        found = np.concatenate(epoch_batches(np.full(80, 10), 4, seed=3, epoch=epoch, classes=classes))
        assert np.bincount(classes[found]).tolist() == [40, 40]
        seen |= set(found.tolist())
    assert seen == set(range(80))


@pytest.mark.parametrize("budget", [1, 50, 200, 1000, 10**6])
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
    other = epoch_batches(lengths, 2, seed=1, epoch=5, classes=classes, tokens=budget)
    assert not all(np.array_equal(a, b) for a, b in zip(batches, other, strict=False))


# ---- steps and epochs


@pytest.fixture(scope="module")
def split(tiny_bert: Path, toy_squad: Path) -> Split:
    return load_split(str(toy_squad), Encoder.load(str(tiny_bert)), WINDOWS)


def batching(split: Split, *, sampling: Sampling = "natural", **values: Any) -> Batching:
    config = FinetuneConfig(**({"batch_size": 4, "epochs": 2.5} | values))
    return Batching([Job(split, sampling=sampling)], config)


@pytest.mark.parametrize(
    "values",
    [
        {}, {"batch_size": 1}, {"batch_size": 1000}, {"epochs": 0.3}, {"epochs": 1.0}, {"epochs": 3.0},
        {"batch_tokens": 150}, {"batch_tokens": 150, "sampling": "balanced"},
        {"sampling": "balanced", "epochs": 1.9}, {"batch_tokens": 1},
    ],
    ids=str,
)  # fmt: skip
def test_steps_and_epochs_agree_with_the_list_of_all_steps(values: dict[str, Any], split: Split) -> None:
    plan, epochs = batching(split, **values), values.get("epochs", 2.5)
    steps = [
        (epoch, number, windows.tolist())
        for epoch in range(math.ceil(epochs))
        for number, (_, windows) in enumerate(plan.batches(epoch))
    ]
    for step, (epoch, number, _) in enumerate(steps):
        assert plan.place(step) == (epoch, number)
        assert plan.epochs_done(step) == pytest.approx(epoch + number / len(plan.batches(epoch)))
        if step:
            assert plan.step_of(plan.epochs_done(step)) == step, "one is the opposite of the other"
    total = plan.step_of(epochs)
    whole = sum(len(plan.batches(e)) for e in range(int(epochs)))
    last = len(plan.batches(int(epochs))) if epochs % 1 else 0
    assert total == max(1, round(whole + (epochs % 1) * last))
    assert plan.epochs_done(len(steps)) == math.ceil(epochs)
    assert 1 <= total <= len(steps)
    for begin, end in ((0, total), (total // 2, total), (0, 1), (total, total)):
        found = [windows.tolist() for _, windows in plan.steps(begin, end)]
        assert found == [windows for _, _, windows in steps[begin:end]]


def test_balanced_epochs_have_as_many_windows_with_an_answer_as_without(split: Split) -> None:
    """An answer is what the labels point to, whatever the position that stands for none."""
    answered = split.windows.labels[:, 0] != split.windows.null
    assert abs(answered.sum() - (~answered).sum()) > 1, "else there is nothing to balance"
    for epoch in range(3):
        batches = batching(split, sampling="balanced").batches(epoch)
        found = np.concatenate([windows for _, windows in batches])
        assert len(found) == len(split.windows)
        assert abs(int(answered[found].sum()) - int((~answered[found]).sum())) <= 1


# ---- several tasks


def plan(units: int = 100, batch_size: int = 8, **settings: Any) -> TaskPlan:
    return TaskPlan(np.random.default_rng(units).integers(3, 60, units), batch_size, **settings)


def mixed(
    plans: list[TaskPlan], order: MixOrder = "mixed", **settings: Any
) -> list[tuple[int, NDArray[np.int64]]]:
    return mix_epoch(plans, order=order, **({"seed": 0, "epoch": 0} | settings))


def units_of(found: list[tuple[int, NDArray[np.int64]]], task: int = 0) -> NDArray[np.int64]:
    return np.concatenate([units for number, units in found if number == task])


@pytest.mark.parametrize("order", ["sequential", "mixed"])
def test_every_unit_of_every_task_is_read_once(order: MixOrder) -> None:
    plans = [plan(50), plan(7), plan(120, tokens=200)]
    for epoch in range(3):
        found = mixed(plans, order, epoch=epoch)
        for task, own in enumerate(plans):
            assert sorted(units_of(found, task)) == list(range(len(own.lengths)))


def test_sequential_is_task_after_task_and_mixed_is_not() -> None:
    plans = [plan(200), plan(160), plan(180)]
    tasks = [task for task, _ in mixed(plans, "sequential")]
    assert tasks == [0] * 25 + [1] * 20 + [2] * 23
    other = [task for task, _ in mixed(plans)]
    assert sorted(other) == tasks
    turns = sum(a != b for a, b in pairwise(other))
    assert turns > 25, "of 67 neighbours about two thirds belong to different tasks"
    twins = mixed([plan(), plan()], "sequential")
    assert units_of(twins, 0).tolist() != units_of(twins, 1).tolist(), "equal tasks, in the same order"


@pytest.mark.parametrize("order", get_args(MixOrder))
@pytest.mark.parametrize("sampling", get_args(Sampling))
def test_an_epoch_is_a_function_of_seed_and_epoch(order: MixOrder, sampling: Sampling) -> None:
    def epoch(seed: int, number: int) -> list[tuple[int, list[int]]]:
        plans = [plan(classes=CLASSES, sampling=sampling, subset=60), plan(30)]
        found = mixed(plans, order, temperature=2, seed=seed, epoch=number)
        return [(task, units.tolist()) for task, units in found]

    assert epoch(3, 5) == epoch(3, 5)
    assert epoch(3, 5) != epoch(3, 6)
    assert epoch(3, 5) != epoch(4, 5)


@pytest.mark.parametrize("tokens", [0, 150])
@pytest.mark.parametrize("sampling", ["natural", "balanced"])
def test_a_task_alone_has_the_batches_of_its_plan(sampling: Sampling, tokens: int) -> None:
    own = plan(classes=CLASSES, sampling=sampling, tokens=tokens)
    classes = CLASSES if sampling == "balanced" else None
    for epoch in (0, 4):
        plain = epoch_batches(own.lengths, 8, seed=7, epoch=epoch, tokens=tokens, classes=classes)
        found = mixed([own], "sequential", seed=7, epoch=epoch)
        assert [units.tolist() for _, units in found] == [units.tolist() for units in plain]


def test_batches_are_of_similar_length() -> None:
    own = plan(640)
    pads = sum(len(units) * own.lengths[units].max() for _, units in mixed([own, plan(9)]) if len(units) == 8)
    assert pads < 1.1 * own.lengths.sum(), "in any order it would be about 1.7 times as many"


def test_a_draw_has_numbers_of_its_own() -> None:
    """numpy drops trailing zeros: [seed, epoch, 0] is the stream [seed, epoch], in which batches are shuffled."""
    found = units_of(mixed([plan(50, 1, subset=20)], epoch=3, seed=5))
    shared = np.random.default_rng([5, 3]).permutation(50)[:20]
    assert set(found.tolist()) != set(shared.tolist())


def test_a_subset_is_drawn_anew_each_epoch() -> None:
    seen = [units_of(mixed([plan(10), plan(subset=30)], epoch=epoch), 1) for epoch in range(12)]
    assert all(len(set(units.tolist())) == len(units) == 30 for units in seen)
    assert len({tuple(sorted(units)) for units in seen}) == 12
    # 100 * 0.7 ** 12 = 1.4 units are expected never to be drawn.
    assert len(set(np.concatenate(seen).tolist())) > 90
    assert len(units_of(mixed([plan(20, subset=99)]))) == 20, "more than there are is all"


def test_weighted_draws_with_replacement_by_one_over_the_count() -> None:
    odd = np.array([-1, 7, 1000])[CLASSES]  # any numbers may be classes
    epochs = [mixed([plan(classes=odd, sampling="weighted")], epoch=epoch) for epoch in range(200)]
    drawn = np.concatenate([units_of(found) for found in epochs])
    times = np.bincount(drawn, minlength=100)
    expected = 200 * 100 / 3 / np.array([80, 15, 5])[CLASSES]  # each class a third of all draws
    # Poisson counts: the sum of squared deviations in units of the variance is about the number of units.
    assert ((times - expected) ** 2 / expected).sum() < 160
    np.testing.assert_allclose(np.bincount(CLASSES[drawn]) / len(drawn), 1 / 3, atol=0.015)
    assert len(set(drawn[:100].tolist())) < 90, "with replacement"


@pytest.mark.parametrize("subset", [0, 30, 31, 4])
def test_balanced_has_every_class_equally_often_in_a_subset_too(subset: int) -> None:
    for epoch in range(5):
        found = mixed([plan(classes=CLASSES, sampling="balanced", subset=subset)], epoch=epoch)
        counts = np.bincount(CLASSES[units_of(found)], minlength=3)
        assert counts.sum() == (subset or 100)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0, 1e-4, math.inf])
def test_tasks_come_in_proportion_to_a_root_of_their_size(temperature: float) -> None:
    plans = [plan(4000, subset=1600), plan(400), plan(100)]  # an epoch's size is what counts
    count = np.zeros(3)
    for epoch in range(20):
        found = mixed(plans, "temperature", temperature=temperature, epoch=epoch)
        assert len(found) == len(mixed(plans))
        count += np.bincount([task for task, _ in found], minlength=3)
    power = (np.array([1600, 400, 100]) / 1600) ** (1 / temperature)
    # 20 * 263 draws: three standard deviations of a share are at most 0.021.
    np.testing.assert_allclose(count / count.sum(), power / power.sum(), atol=0.025)


@pytest.mark.parametrize("small", [0, 1])
def test_a_task_that_runs_out_starts_again_in_another_order(small: int) -> None:
    plans = [plan(24), plan(1600)] if small == 0 else [plan(1600), plan(24)]
    found = mixed(plans, "temperature", temperature=math.inf)
    own = [units for task, units in found if task == small]
    assert len(own) > 80
    turns = [np.concatenate(own[i : i + 3]).tolist() for i in range(0, len(own) - 2, 3)]
    assert all(sorted(turn) == list(range(24)) for turn in turns)
    assert len({tuple(turn) for turn in turns}) == len(turns)
    large = units_of(found, 1 - small)
    assert len(set(large.tolist())) == len(large) < 1600, "the large task has not come to its end"


def test_a_task_without_examples_is_refused() -> None:
    with pytest.raises(ConfigError, match="no examples to train on"):
        plan(units=0)
