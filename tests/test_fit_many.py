"""Many heads in one fit: stacked or one by one, killed or not, the same heads come out.

Stacked heads are other sums of the same numbers, so they agree within float32's rounding and not bit by bit. Adam
makes large steps of gradients that are nothing but rounding (a bias that cancels in a softmax), so logits and
losses are compared and not the weights.
"""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_helpers import equal, fitted, groups_of, killed_after, run_of, state, without_dropout
from head_cases import TOKEN_SPECS

from bertvision.encoder.encoder import Encoder
from bertvision.heads import parse_head
from bertvision.heads.base import head_class
from bertvision.states.base import MemoryStates, States
from bertvision.tasks.span import SPAN
from bertvision.tasks.walk import head_logits
from bertvision.train.fit import FittedHead
from bertvision.train.job import Split

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
    heads = [
        "adapter:size=8,skip,seed=0",
        "adapter:size=8,skip,seed=1,dropout=0.2",
        "ladder:size=8",
        "ladder:size=8,seed=2",
    ]
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


def test_seconds_and_losses_of_a_stack_are_each_heads_own(states: MemoryStates, tmp_path: Path) -> None:
    kept = fitted(states, tmp_path, "adapter:size=4,seed=0", "adapter:size=4,seed=1", epochs=2)
    first, second = kept.values()
    assert first.seconds > 0
    assert first.seconds == pytest.approx(second.seconds)
    assert [r["epoch"] for r in first.history] == [1.0, 2.0]
    assert first.history != second.history
    assert dataclasses.asdict(first.config) == dataclasses.asdict(second.config) | {"seed": 0}


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
