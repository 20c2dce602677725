"""What single heads bring to a fit: settings of their own, penalties, selections, spans scored jointly."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fit_helpers import equal, fitted, groups_of, killed_after, run_of, state
from head_cases import TOKEN_SPECS
from torch import Tensor

from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, Head, parse_head
from bertvision.states.base import LiveStates, MemoryStates
from bertvision.tasks.base import DecodeConfig
from bertvision.tasks.span import SPAN
from bertvision.tasks.span_answers import score
from bertvision.tasks.span_decode import SIDES, decode, span_loss
from bertvision.tasks.walk import head_logits
from bertvision.train.optim import learning_rate
from bertvision.train.splits import Split

# ---- settings of single heads


def test_a_heads_own_settings_reach_its_optimiser(states: MemoryStates) -> None:
    heads = [
        "adapter:size=4,optimizer=sgd,lr=0.5,clip=0.25,weight_decay=0.125",
        "adapter:size=4,optimizer=adam,schedule=linear,warmup=0.5,patience=7",
        "adapter:size=4",
    ]
    run = run_of(states, *heads, lr=0.01, weight_decay=0.5, patience=2, schedule="constant", clip=2.0)
    sgd, adam, plain = run.fitted.values()
    assert [type(one.optimizer) for one in (sgd, adam, plain)] == [
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
    ]
    assert [one.config.clip for one in (sgd, adam, plain)] == [0.25, 2.0, 2.0]
    assert [run.config.patience_of(one.spec) for one in (sgd, adam, plain)] == [2, 7, 2]
    decays = [{group["weight_decay"] for group in one.optimizer.param_groups} for one in (sgd, adam, plain)]
    assert decays == [{0.125, 0.0}, {0.5, 0.0}, {0.5, 0.0}]
    (group,) = groups_of(run)
    for step in (0, 3, 7, 9):
        group.prepare(step, 10)
        rates = [{g["lr"] for g in one.optimizer.param_groups} for one in (sgd, adam, plain)]
        ramp = 0.01 * (step + 1) / 5 if step < 5 else 0.01 * (10 - step) / 5
        assert rates == [{0.5}, {ramp}, {0.01}]
        assert rates[1] == {learning_rate(adam.config, step, 10)}


def test_each_head_of_a_stack_is_clipped_by_itself(states: MemoryStates) -> None:
    """SGD at rate 1 from zero momentum: the step is the clipped gradient."""
    heads = [f"adapter:size=4,optimizer=sgd,lr=1,clip={clip}" for clip in ("1e-3", "1e-2", "0")]
    run = run_of(states, *heads)
    before = {name: state(one) for name, one in run.fitted.items()}
    run.train_batch(next(run.batches()))
    lengths = []
    for name, one in run.fitted.items():
        moved = [value - before[name][key] for key, value in one.head.state_dict().items()]
        lengths.append(torch.cat([m.flatten() for m in moved]).norm().item())
    assert lengths[:2] == pytest.approx([1e-3, 1e-2], rel=1e-2)
    assert lengths[2] > 0.02, "clip=0 does not clip"


@pytest.mark.parametrize("text", TOKEN_SPECS)
def test_biases_and_norms_are_never_decayed(text: str, states: MemoryStates) -> None:
    """A bias may have two axes, one of them the layers."""
    run = run_of(states, text, weight_decay=0.3)
    (one,) = run.fitted.values()
    decay = {id(p): g["weight_decay"] for g in one.optimizer.param_groups for p in g["params"]}
    assert decay.keys() == {id(p) for p in one.head.parameters()}
    for name, parameter in one.head.named_parameters():
        matrix = parameter.ndim >= 2 and "bias" not in name
        assert decay[id(parameter)] == (0.3 if matrix else 0.0), name


# ---- what a head does by itself


def test_a_penalty_is_asked_once_a_step_with_the_progress(
    states: MemoryStates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def penalty(self: Head, progress: float) -> Tensor:
        asked.append(progress)
        return torch.zeros(())

    monkeypatch.setattr(Head, "penalty", penalty)
    fitted(states, tmp_path, "last_state", epochs=2, activation_gb=1e-9)
    steps = 2 * states.num_batches(8)
    assert [p for i, p in enumerate(asked) if p or not i or asked[i - 1]][-steps:] == [
        i / steps for i in range(steps)
    ]


@pytest.mark.parametrize("keep", [0.05, 0.4])
def test_head2toe_selects_in_a_real_fit(keep: float, states: MemoryStates, tmp_path: Path) -> None:
    text = f"head2toe:keep={keep},select_at=0.5"
    kept = fitted(states, tmp_path / "whole", text, epochs=4)
    ((_, one),) = kept.items()
    head: Any = one.head
    wanted = round(keep * 3 * 32)
    assert int(head.mask.sum()) == wanted
    assert int(head.kept().any(1).sum()) == wanted
    assert bool(head.selected)
    steps = states.num_batches(8)
    early = fitted(states, tmp_path / "half", f"{text},seed=0", epochs=4, lr=3e-3)
    assert equal(state(one), state(next(iter(early.values()))))
    # Killed in the epoch before the selection, at it, and in the one after it.
    for stop in (2 * steps - 1, 2 * steps, 2 * steps + 1):
        folder = tmp_path / str(stop)
        killed_after(states, folder, stop, text, epochs=4)
        (again,) = fitted(states, folder, text, epochs=4).values()
        assert equal(state(one), state(again)), stop


def test_a_penalty_is_part_of_the_loss(states: MemoryStates) -> None:
    batch = next(iter(states.epoch(0, batch_size=8, seed=0)))
    for lasso in (0.0, 0.7):
        run = run_of(states, f"head2toe:lasso={lasso}")
        (group,) = groups_of(run)
        (member,) = group.members
        torch.nn.init.normal_(member.head.get_parameter("weight"), generator=torch.Generator().manual_seed(0))
        group.prepare(0, 10)
        with torch.no_grad():
            expected = span_loss(member.head(batch), batch.mask, batch.targets).mean()
            expected = expected + lasso * member.head.get_parameter("weight").square().sum(1).sqrt().sum()
        assert group.run(batch, 0).item() == pytest.approx(expected.item(), rel=1e-5)


def test_heads_with_a_penalty_are_not_stacked(states: MemoryStates) -> None:
    groups = groups_of(run_of(states, "head2toe:seed=0", "head2toe:seed=1", "head2toe:lasso=0"))
    assert [len(group.members) for group in groups] == [1, 1, 1]


# ---- spans scored jointly, and the paragraph


def test_biaffine_from_fit_to_answers(states: MemoryStates, train: Split, tmp_path: Path) -> None:
    heads = (
        "biaffine:size=16,rank=4,seed=0",
        "biaffine:size=16,rank=4,seed=1",
        "last_state",
    )
    kept = fitted(states, tmp_path, *heads, epochs=40, lr=1e-2)
    begin = {name: one.spec.build(one.head.geometry, seed=9) for name, one in kept.items()}
    exact: dict[str, list[float]] = {}
    answer = DecodeConfig(
        null_score_diff_threshold=1e3
    )  # the random encoder tells nobody which question was asked
    for found in (begin, {name: one.head for name, one in kept.items()}):
        for name, logits in head_logits(states, found, SPAN).items():
            logits.check(SIDES, train.windows.offsets)
            assert ("pairs" in logits.arrays) == name.startswith("biaffine")
            answers = decode(train.windows, logits, train.data, answer).predictions()
            exact.setdefault(name, []).append(float(score(train.data, answers)["exact"]))
    for name, (before, after) in exact.items():
        if name.startswith("biaffine"):
            assert before < 10
            assert after > 25, "the person or the town of every paragraph, a third of all questions"
            assert kept[name].history[-1]["loss"] < 0.25 * kept[name].history[0]["loss"]


def test_the_paragraph_is_marked_as_the_windows_say(
    encoder: Encoder, train: Split, states: MemoryStates
) -> None:
    live = LiveStates(encoder, train.windows, tokens_per_call=300)
    for source in (live, states):
        for batches in (source.epoch(1, batch_size=5, seed=2), source.walk()):
            for batch in batches:
                for part in (batch, batch.rows(slice(1, 3))):
                    for row, window in zip(part.context, part.windows, strict=True):
                        first, past = train.windows.context[window].tolist()
                        expected = [first <= t < past for t in range(part.mask.shape[1])]
                        assert row.tolist() == expected
                        assert 0 < first < past < int(train.windows.lengths[window])
                assert not bool((batch.context & ~batch.mask).any())


def test_cacnn_is_given_the_paragraph(
    states: MemoryStates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States outside it decide the filters alone: with question masked, its logits there are the bias."""
    head = parse_head("cacnn:n=2,rows=1,kernel=1,mask_question").build(Geometry(3, 32), seed=0).eval()
    batch = next(iter(states.walk()))
    with torch.no_grad():
        logits = head(batch)
        outside = head(replace(batch, states=batch.states * 0))[0, 0]
    assert bool(logits[batch.mask & ~batch.context].eq(outside).all())
    assert not bool(logits[batch.context].eq(outside).all(-1).any())
    kept = fitted(states, tmp_path, "cacnn:mask_question,seed=0", "cacnn:mask_question,seed=1")
    assert all(math.isfinite(one.history[-1]["loss"]) for one in kept.values())
