"""A fit in little memory: batches in parts, budgets, rows of an evaluation, states and gradients freed."""

import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_helpers import equal, fitted, groups_of, run_of, state, without_dropout
from head_cases import TOKEN, TOKEN_SPECS

from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, parse_head
from bertvision.heads.base import activation_bytes, rows_at_once
from bertvision.heads.layers import BatchNorm
from bertvision.heads.papers.cnn import ConvHead
from bertvision.states.base import LiveStates, MemoryStates
from bertvision.tasks.span import SPAN as SPAN_TASK
from bertvision.tasks.walk import head_logits
from bertvision.train.group import Group
from bertvision.train.job import Split


def has_batch_norm(text: str) -> bool:
    with torch.device("meta"):
        modules = parse_head(text).build(TOKEN, seed=0).modules()
    return any(isinstance(module, BatchNorm) for module in modules)


# ---- parts of a batch


# Of the two slow ones, which differ in an axis, one is enough.
@pytest.mark.parametrize(
    "text",
    ["head2toe:lasso=0.01"]
    + [text for text in TOKEN_SPECS if not has_batch_norm(text) and text != "inception:adapter=4"],
)
def test_a_batch_in_parts_is_the_batch(text: str, states: MemoryStates, tmp_path: Path) -> None:
    """Without dropout, whose noise follows from a number's place, and batch norm, which reads the part alone.

    Plain gradient descent, so that weights can be compared: rounding stays rounding.
    """
    head = without_dropout(text)
    built = parse_head(head).build(Geometry(3, 32), seed=0)
    longest = int(states.windows.lengths.max())
    window = max(1, activation_bytes(parse_head(head), built.geometry, tokens=-(-longest // 32) * 32))
    values: dict[str, Any] = {"optimizer": "sgd", "lr": 0.01, "batch_size": 12, "stack": "off"}
    whole = fitted(states, tmp_path / "a", head, **values)
    budget = 2.9 * window / 1e9
    cut: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        real = Group.parts

        def spy(self: Group, batch: Any) -> list[Any]:
            found = real(self, batch)
            assert np.array_equal(np.concatenate([part.windows for part in found]), batch.windows)
            cut.append(len(found))
            return found

        patch.setattr(Group, "parts", spy)
        parts = fitted(states, tmp_path / "b", head, activation_gb=budget, **values)
    if window > 1:
        assert max(cut) >= 3
    ((name, one),) = whole.items()
    assert one.history[0]["loss"] == pytest.approx(parts[name].history[0]["loss"], rel=1e-4)
    for key, value in state(parts[name]).items():
        torch.testing.assert_close(value, state(one)[key], rtol=1e-3, atol=1e-5)


def test_parts_hold_what_the_budget_allows(states: MemoryStates) -> None:
    run = run_of(states, "adapter:size=8")
    batch = next(iter(states.epoch(0, batch_size=8, seed=0)))
    head, tokens = run.fitted["adapter-8.seed0"].head, batch.mask.shape[1]
    for rows in (1, 2, 3, 5, 8, 9):
        rounded = -(-tokens // 32) * 32
        window = activation_bytes(head, head.geometry, tokens=rounded) * tokens / rounded
        budget = (rows + 0.5) * window / 1e9
        assert rows_at_once(head, tokens, budget) == rows
        run = run_of(states, "adapter:size=8", activation_gb=budget)
        (group,) = groups_of(run)
        sizes = [len(part.windows) for part in group.parts(batch)]
        assert sizes == [min(rows, 8 - begin) for begin in range(0, 8, rows)]
        for part, begin in zip(group.parts(batch), range(0, 8, rows), strict=True):
            assert torch.equal(part.states, batch.states[:, begin : begin + rows])
            assert torch.equal(part.targets, batch.targets[begin : begin + rows])
            assert torch.equal(part.context, batch.context[begin : begin + rows])


def test_a_head_that_cannot_keep_one_window_recomputes(states: MemoryStates, tmp_path: Path) -> None:
    """And recomputing changes no bit: it is only told so by the budget."""
    batch = next(iter(states.epoch(0, batch_size=4, seed=0)))
    for budget, again in ((1e-9, True), (4.0, False)):
        run = run_of(states, "cnn:input=average,dropout=0.2", activation_gb=budget)
        (group,) = groups_of(run)
        sizes = [len(part.windows) for part in group.parts(batch)]
        head = group.members[0].head
        assert isinstance(head, ConvHead)
        assert head.recompute is again
        assert sizes == ([1] * 4 if again else [4])
    one = fitted(states, tmp_path / "a", "cnn:input=average", batch_size=1, activation_gb=1e-9)
    kept = fitted(states, tmp_path / "b", "cnn:input=average", batch_size=1)
    ((name, first),) = one.items()
    assert equal(state(first), state(kept[name]))


# ---- evaluation


def test_evaluation_in_parts_is_evaluation(states: MemoryStates) -> None:
    texts = ("adapter:size=8", "cnn", "biaffine", "ladder")
    heads = {text: parse_head(text).build(Geometry(3, 32), seed=0) for text in texts}
    whole = head_logits(states, heads, SPAN_TASK)
    sizes: dict[str, list[int]] = {name: [] for name in heads}

    def spy(own: list[int]) -> Any:
        return lambda _, given: own.append(len(given[0].windows))

    for name, head in heads.items():
        head.register_forward_pre_hook(spy(sizes[name]))
    parts = head_logits(states, heads, SPAN_TASK, activation_gb=3e-4)
    for name, found in sizes.items():
        assert sum(found) == len(states.windows)
        wanted = []
        for batch in states.walk():
            rows = max(1, rows_at_once(heads[name], batch.mask.shape[1], 3e-4))
            wanted += [len(batch.windows[i : i + rows]) for i in range(0, len(batch.windows), rows)]
        assert found == wanted
        for key, values in parts[name].arrays.items():
            np.testing.assert_allclose(values, whole[name][key], rtol=1e-4, atol=1e-5)
    assert len(sizes["cnn"]) == len(states.windows), "not even one window: one at a time"
    assert "pairs" in parts["biaffine"].arrays


def test_evaluation_measures_what_training_keeps(states: MemoryStates) -> None:
    """It runs without gradients, under which a head keeps nothing: such a measure would be believed by the next fit."""
    sys.modules["bertvision.heads.base"]._window_bytes.cache_clear()
    head = parse_head("adapter:size=8").build(Geometry(3, 32), seed=0)
    head_logits(states, {"x": head}, SPAN_TASK)
    tokens = states.windows.lengths.max().item()
    found = rows_at_once(head, tokens, 1.0)
    sys.modules["bertvision.heads.base"]._window_bytes.cache_clear()
    assert found == rows_at_once(head, tokens, 1.0) < 1e6


# ---- heads, states and gradients


@pytest.mark.parametrize("together", [1, 2, 3, 5])
def test_a_stack_takes_as_many_heads_as_fit(together: int, states: MemoryStates) -> None:
    heads = [f"adapter:size=8,seed={seed}" for seed in range(5)]
    run = run_of(states, *heads)
    head = run.fitted["adapter-8.seed0"].head
    rows = rows_at_once(head, run.longest, 1.0)
    budget = (together + 0.5) * 8 / rows
    groups = groups_of(run_of(states, *heads, activation_gb=budget))
    assert [len(g.members) for g in groups] == [min(together, 5 - i) for i in range(0, 5, together)]
    assert [m.seed for group in groups for m in group.members] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["memory", "live"])
def test_states_are_freed_after_the_step(
    kind: str, encoder: Encoder, train: Split, states: MemoryStates
) -> None:
    source = states if kind == "memory" else LiveStates(encoder, train.windows, tokens_per_call=1)
    stacked = ("adapter:size=4,seed=0", "adapter:size=4,seed=1")
    run = run_of(source, *stacked, "cnn:input=average", "head2toe", "biaffine:size=4")
    batches: Any = run.batches()
    for _ in range(3):
        batch = next(batches)
        batch_states = weakref.ref(batch.states)
        run.train_batch(batch)
        del batch
        if kind == "live":  # it may hold a batch until it is asked for the next
            batches.close()
            batches = run.batches()
        assert batch_states() is None


def test_no_gradient_is_kept_between_steps(states: MemoryStates) -> None:
    run = run_of(states, "adapter:size=4,seed=0", "adapter:size=4,seed=1", "last_state")
    run.train_batch(next(run.batches()))
    assert all(p.grad is None for one in run.fitted.values() for p in one.head.parameters())
    assert all(p.grad is None for group in run.groups[run.order] for p in group.stacked.values())
    assert run.pending == []


def test_dropout_and_pair_scores_are_in_the_budget() -> None:
    geometry, tokens = Geometry(3, 32), 50
    plain, dropped = (parse_head(f"adapter:size=8{more}") for more in ("", ",dropout=0.5"))
    kept, more = (activation_bytes(head, geometry, tokens=tokens) for head in (plain, dropped))
    assert more - kept >= 16 * 3 * tokens * 8, "drawing needs 16 bytes for each of L * T * a numbers"
    short, long = (activation_bytes(parse_head("biaffine:size=8"), geometry, tokens=n) for n in (50, 100))
    assert long - short > 3 * 4 * (100**2 - 50**2), "scores, softmax and gradient of each pair of tokens"
