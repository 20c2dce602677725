"""Heads in one fit, and what each brings to it: stacked or one by one, killed or not, the same heads come out.

Stacked heads are other sums of the same numbers, so they agree within float32's rounding and not bit by bit. Adam
makes large steps of gradients that are nothing but rounding (a bias that cancels in a softmax), so logits and
losses are compared and not the weights.
"""

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_helpers import equal, fitted, groups_of, killed_after, run_of, state, without_dropout
from head_cases import TOKEN_SPECS
from torch import Tensor

from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, Head, parse_head
from bertvision.heads.base import head_class
from bertvision.states.base import LiveStates, MemoryStates, States
from bertvision.tasks.base import DecodeConfig
from bertvision.tasks.span import SPAN
from bertvision.tasks.span_decode import SIDES, decode, span_loss
from bertvision.tasks.squad import score
from bertvision.tasks.walk import head_logits
from bertvision.train.fit import FittedHead
from bertvision.train.job import Split
from bertvision.train.optim import learning_rate

STACKABLE = [text for text in TOKEN_SPECS if head_class(parse_head(text).name).stackable]
TRAINING = [
    "lr=3e-3,seed=0",
    "lr=1e-2,seed=1,weight_decay=0.1,schedule=linear,warmup=0.3",
    "optimizer=sgd,lr=0.03,seed=2,clip=0.5",
    "optimizer=adam,seed=0,weight_decay=0.01,clip=0",
]
"""Settings that heads of one stack may differ in."""


def with_options(text: str, options: str) -> str:
    return text + ("," if ":" in text else ":") + options


def check_close(states: States, first: dict[str, FittedHead], second: dict[str, FittedHead]) -> None:
    """The same heads by name, losses and logits."""
    assert list(first) == list(second)
    logits = [
        head_logits(states, {name: one.head for name, one in found.items()}, SPAN)
        for found in (first, second)
    ]
    for name in first:
        losses = [[record["loss"] for record in found[name].history] for found in (first, second)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3), name
        for side in ("start", "end"):
            # What all tokens have in common cancels in the softmax: the output bias is such a number.
            ours, theirs = (v - v.mean() for v in (found[name][side] for found in logits))
            assert np.abs(ours - theirs).max() < 5e-3 * np.abs(ours).max(), name


# ---- stacked or one by one


@pytest.mark.parametrize("text", STACKABLE)
def test_stacked_heads_are_the_heads_one_by_one(text: str, states: MemoryStates, tmp_path: Path) -> None:
    """Rates, seeds, decay, schedules, optimisers and dropout of their own, after several steps."""
    heads = [with_options(text, options) for options in TRAINING]
    if hasattr(parse_head(text).config, "dropout"):
        plain = without_dropout(text)
        noisy = plain.replace("dropout=0", "dropout=0.3")
        heads = [with_options(t, o) for t, o in zip((plain, noisy, noisy, plain), TRAINING, strict=True)]
    (group,) = groups_of(run_of(states, *heads))
    assert len(group.members) == 4
    stacked = fitted(states, tmp_path / "on", *heads)
    alone = fitted(states, tmp_path / "off", *heads, stack="off")
    check_close(states, stacked, alone)
    starts = {one.history[-1]["loss"] for one in stacked.values()}
    assert len(starts) == 4, "the members of the stack must differ, or nothing is shown"


def test_stacked_in_half_precision(tiny_bert: Path, train: Split, tmp_path: Path) -> None:
    encoder = Encoder.load(str(tiny_bert), precision="bf16")
    states = MemoryStates(encoder, train.windows, tokens_per_call=2000)
    heads = [f"adapter:size=8,skip,seed={more}" for more in ("0", "1,dropout=0.2")]
    heads += ["ladder:size=8", "ladder:size=8,seed=2"]
    stacked = fitted(states, tmp_path / "on", *heads)
    alone = fitted(states, tmp_path / "off", *heads, stack="off")
    for name in alone:
        assert stacked[name].history[0]["loss"] == pytest.approx(alone[name].history[0]["loss"], rel=0.03)


def test_a_stack_leaves_the_heads_modules_of_their_own(states: MemoryStates, tmp_path: Path) -> None:
    """Parameters are views into the stack while it is fitted: each is saved, loaded and updated alone."""
    run = run_of(states, "adapter:size=4,seed=0", "adapter:size=4,seed=1")
    before = {name: state(one) for name, one in run.fitted.items()}
    (group,) = groups_of(run)
    assert all(equal(before[name], state(one)) for name, one in run.fitted.items())
    first, second = (member.head for member in group.members)
    with torch.no_grad():
        first.get_parameter("down.weight").fill_(3.0)
    assert bool(group.stacked["down.weight"][0].eq(3).all())
    assert not bool(group.stacked["down.weight"][1].eq(3).any())
    assert equal(before["adapter-4.seed1"], second.state_dict())


@pytest.mark.parametrize("stack", ["on", "off"])
def test_a_diverging_head_is_dropped_by_name_and_the_rest_goes_on(
    stack: str, states: MemoryStates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calm = ["adapter:size=8,seed=0", "adapter:size=8,seed=1,lr=1e-2", "adapter:size=8,seed=2,optimizer=sgd"]
    heads = [calm[0], "adapter:size=8,lr=1e30,seed=3", *calm[1:]]
    assert len(groups_of(run_of(states, *heads, clip=0.0, stack=stack))) == (1 if stack == "on" else 4)
    without = fitted(states, tmp_path / "a", *calm, clip=0.0, epochs=2, stack=stack)
    with caplog.at_level(logging.WARNING):
        beside = fitted(states, tmp_path / "b", *heads, clip=0.0, epochs=2, stack=stack)
    (said,) = (message for message in caplog.messages if "diverged" in message)
    assert "head adapter-8-lr=1e+30.seed3 diverged (loss" in said
    check_close(states, without, beside)
    if stack == "off":
        assert all(equal(state(beside[name]), state(without[name])) for name in without)


def test_groups_stand_in_the_order_of_their_first_heads(states: MemoryStates) -> None:
    heads = ["adapter:size=8", "last_state", "adapter:size=8,lr=1e-2", "cnn:input=average", "adapter:size=8,skip",
             "last_state:seed=4", "adapter:size=8,dropout=0.1", "cnn:input=average,lr=1e-2"]  # fmt: skip
    names = [[member.name for member in group.members] for group in groups_of(run_of(states, *heads))]
    assert names == [
        ["adapter-8.seed0", "adapter-8-lr=0.01.seed0", "adapter-8-dropout=0.1.seed0"],
        ["last-state.seed0", "last-state.seed4"],
        ["cnn-input=average.seed0"],
        ["adapter-8-skip.seed0"],
        ["cnn-input=average-lr=0.01.seed0"],
    ]
    alone = [[m.name for m in group.members] for group in groups_of(run_of(states, *heads, stack="off"))]
    assert alone == [[name] for name in run_of(states, *heads).fitted]
    assert [len(g.members) for g in groups_of(run_of(states, *heads, stack="auto"))] == [1] * 8, (
        "a CPU stacks nothing"
    )


# ---- killed and started again


RESUMED = [
    "adapter:size=4,seed=0",
    "adapter:size=4,seed=1,dropout=0.3,optimizer=sgd,lr=0.03",
    "adapter:size=4,seed=2,optimizer=adam,schedule=linear,warmup=0.3",
    "adapter:size=4,seed=3,lr=1e30,clip=0",
    "ladder:size=4,heads=2,seed=0",
    "ladder:size=4,heads=2,seed=1,patience=1",
    "cnn:input=average",
    "head2toe:keep=0.1",
]


KILLS: dict[str, tuple[list[str], dict[str, Any]]] = {
    # Optimisers of all kinds, batch norm, a member that broke, and one that stopped after its first epoch.
    "stacks": (RESUMED, {"epochs": 3, "batch_size": 9, "evaluate": lambda heads: dict.fromkeys(heads, 1.0)}),
    "seeds": (["adapter:size=8", "last_state"], {"epochs": 2, "seeds": (0, 3)}),
}


@pytest.mark.parametrize("steps", [1, 4, 6, 9])
@pytest.mark.parametrize("kind", KILLS)
def test_a_killed_fit_ends_with_the_same_bits(
    kind: str, steps: int, states: MemoryStates, tmp_path: Path
) -> None:
    heads, values = KILLS[kind]
    whole = fitted(states, tmp_path / "whole", *heads, **values)
    assert states.num_batches(9) * 3 > 9
    killed_after(states, tmp_path / "killed", steps, *heads, **values)
    resumed = fitted(states, tmp_path / "killed", *heads, **values)
    assert list(whole) == list(resumed)
    assert not any("1e+30" in name for name in whole)
    assert [one.status for one in whole.values()] == [one.status for one in resumed.values()]
    assert ("stopped" in {one.status for one in whole.values()}) == (kind == "stacks")
    for name, one in whole.items():
        assert equal(state(one), state(resumed[name])), name
        assert one.history == resumed[name].history


# ---- what a single head brings

# ---- settings of single heads


def test_a_heads_own_settings_reach_its_optimiser(states: MemoryStates) -> None:
    heads = [
        "adapter:size=4,optimizer=sgd,lr=0.5,clip=0.25,weight_decay=0.125",
        "adapter:size=4,optimizer=adam,schedule=linear,warmup=0.5,patience=7",
        "adapter:size=4",
    ]
    run = run_of(states, *heads, lr=0.01, weight_decay=0.5, patience=2, schedule="constant", clip=2.0)
    sgd, adam, plain = run.fitted.values()
    kinds = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]
    assert [type(one.optimizer) for one in (sgd, adam, plain)] == kinds
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
    heads = ("biaffine:size=16,rank=4,seed=0", "biaffine:size=16,rank=4,seed=1", "last_state")
    kept = fitted(states, tmp_path, *heads, epochs=40, lr=1e-2)
    begin = {name: one.spec.build(one.head.geometry, seed=9) for name, one in kept.items()}
    exact: dict[str, list[float]] = {}
    # The random encoder tells nobody which question was asked.
    answer = DecodeConfig(null_score_diff_threshold=1e3)
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
