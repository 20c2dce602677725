"""Several tasks in one epoch: what is read, how often, in which order; against counts and plain tuning's batches."""

import math
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from bertvision.errors import ConfigError
from bertvision.states.plan import epoch_batches
from bertvision.train.batching import TaskPlan, mix_epoch
from bertvision.train.config import MixOrder, Sampling

ORDERS: tuple[MixOrder, ...] = get_args(MixOrder)
RNG = np.random.default_rng(0)
CLASSES = np.repeat([0, 1, 2], [80, 15, 5])


def plan(units: int = 100, batch_size: int = 8, **settings: Any) -> TaskPlan:
    return TaskPlan(np.random.default_rng(units).integers(3, 60, units), batch_size, **settings)


def mixed(
    plans: list[TaskPlan], order: MixOrder = "mixed", **settings: Any
) -> list[tuple[int, NDArray[np.int64]]]:
    return mix_epoch(plans, order=order, **({"seed": 0, "epoch": 0} | settings))


def units_of(found: list[tuple[int, NDArray[np.int64]]], task: int) -> NDArray[np.int64]:
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


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sampling", get_args(Sampling))
def test_an_epoch_is_a_function_of_seed_and_epoch(order: MixOrder, sampling: Sampling) -> None:
    def epoch(seed: int, number: int) -> list[tuple[int, list[int]]]:
        plans = [plan(classes=CLASSES, sampling=sampling, subset=60), plan(30)]
        found = mix_epoch(plans, order=order, temperature=2, seed=seed, epoch=number)
        return [(task, units.tolist()) for task, units in found]

    assert epoch(3, 5) == epoch(3, 5)
    assert epoch(3, 5) != epoch(3, 6)
    assert epoch(3, 5) != epoch(4, 5)


@pytest.mark.parametrize("tokens", [0, 150])
@pytest.mark.parametrize("sampling", ["natural", "balanced"])
def test_a_task_alone_sees_the_batches_of_plain_tuning(sampling: Sampling, tokens: int) -> None:
    own = plan(classes=CLASSES, sampling=sampling, tokens=tokens)
    for epoch in (0, 4):
        plain = epoch_batches(
            own.lengths, 8, seed=7, epoch=epoch, tokens=tokens, classes=CLASSES if sampling == "balanced" else None
        )  # fmt: skip
        found = mixed([own], "sequential", seed=7, epoch=epoch)
        assert [units.tolist() for _, units in found] == [units.tolist() for units in plain]


def test_equal_tasks_are_not_read_in_the_same_order() -> None:
    found = mixed([plan(), plan()], "sequential")
    assert units_of(found, 0).tolist() != units_of(found, 1).tolist()


def test_batches_are_of_similar_length() -> None:
    own = plan(640)
    pads = sum(len(units) * own.lengths[units].max() for _, units in mixed([own, plan(9)]) if len(units) == 8)
    assert pads < 1.1 * own.lengths.sum(), "in any order it would be about 1.7 times as many"
    for _, units in mixed([plan(640, tokens=300)]):
        assert len(units) * own.lengths[units].max() <= 300


# ---- drawing


def test_a_draw_has_numbers_of_its_own() -> None:
    """numpy drops trailing zeros: [seed, epoch, 0] is the stream [seed, epoch], in which batches are shuffled."""
    found = units_of(mixed([plan(50, 1, subset=20)], epoch=3, seed=5), 0)
    shared = np.random.default_rng([5, 3]).permutation(50)[:20]
    assert set(found.tolist()) != set(shared.tolist())


def test_a_subset_is_drawn_anew_each_epoch() -> None:
    seen = [units_of(mixed([plan(10), plan(subset=30)], epoch=epoch), 1) for epoch in range(12)]
    assert all(len(set(units.tolist())) == len(units) == 30 for units in seen)
    assert len({tuple(sorted(units)) for units in seen}) == 12
    # 100 * 0.7 ** 12 = 1.4 units are expected never to be drawn.
    assert len(set(np.concatenate(seen).tolist())) > 90
    assert len(units_of(mixed([plan(20, subset=99)]), 0)) == 20, "more than there are is all"


def test_weighted_draws_with_replacement_by_one_over_the_count() -> None:
    drawn = np.concatenate(
        [
            units_of(mixed([plan(classes=CLASSES, sampling="weighted")], epoch=epoch), 0)
            for epoch in range(200)
        ]
    )
    times = np.bincount(drawn, minlength=100)
    expected = 200 * 100 / 3 / np.array([80, 15, 5])[CLASSES]  # each class a third of all draws
    # Poisson counts: the sum of squared deviations in units of the variance is about the number of units.
    assert ((times - expected) ** 2 / expected).sum() < 160
    shares = np.bincount(CLASSES[drawn]) / len(drawn)
    np.testing.assert_allclose(shares, 1 / 3, atol=0.015)
    once = units_of(mixed([plan(classes=CLASSES, sampling="weighted")]), 0)
    assert len(once) == 100
    assert len(set(once.tolist())) < 90, "with replacement"


@pytest.mark.parametrize("subset", [0, 30, 31, 4])
def test_balanced_has_every_class_equally_often_in_a_subset_too(subset: int) -> None:
    for epoch in range(5):
        found = mixed([plan(classes=CLASSES, sampling="balanced", subset=subset)], epoch=epoch)
        counts = np.bincount(CLASSES[units_of(found, 0)], minlength=3)
        assert counts.sum() == (subset or 100)
        assert counts.max() - counts.min() <= 1


def test_classes_may_be_any_numbers() -> None:
    odd = np.array([-1, 7, 1000])[CLASSES]
    drawn = units_of(mixed([plan(classes=odd, sampling="weighted")]), 0)
    same = units_of(mixed([plan(classes=CLASSES, sampling="weighted")]), 0)
    assert drawn.tolist() == same.tolist()


# ---- temperature


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0, math.inf])
def test_tasks_come_in_proportion_to_a_root_of_their_size(temperature: float) -> None:
    sizes = np.array([1600, 400, 100])
    plans = [plan(size) for size in sizes]
    count = np.zeros(3)
    for epoch in range(20):
        found = mixed(plans, "temperature", temperature=temperature, epoch=epoch)
        assert len(found) == len(mixed(plans))
        count += np.bincount([task for task, _ in found], minlength=3)
    power = sizes ** (1 / temperature)
    # 20 * 263 draws: three standard deviations of a share are at most 0.021.
    np.testing.assert_allclose(count / count.sum(), power / power.sum(), atol=0.025)


def test_the_size_of_a_subset_is_what_counts() -> None:
    plans = [plan(4000, subset=100), plan(100)]
    tasks = [task for epoch in range(40) for task, _ in mixed(plans, "temperature", epoch=epoch)]
    assert abs(np.mean(tasks) - 0.5) < 0.06


def test_a_task_that_runs_out_starts_again_in_another_order() -> None:
    plans = [plan(1600), plan(24)]
    found = mixed(plans, "temperature", temperature=math.inf)
    own = [units for task, units in found if task == 1]
    assert len(own) > 80
    turns = [np.concatenate(own[i : i + 3]).tolist() for i in range(0, len(own) - 2, 3)]
    assert all(sorted(turn) == list(range(24)) for turn in turns)
    assert len({tuple(turn) for turn in turns}) == len(turns)
    large = units_of(found, 0)
    assert len(set(large.tolist())) == len(large) < 1600, "the large task has not come to its end"


def test_a_very_low_temperature_is_the_largest_task_alone() -> None:
    found = mixed([plan(900), plan(1000)], "temperature", temperature=1e-4)
    assert {task for task, _ in found} == {1}


def test_a_task_without_examples_is_refused() -> None:
    with pytest.raises(ConfigError, match="no examples to train on"):
        plan(units=0)
