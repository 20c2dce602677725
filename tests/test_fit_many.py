"""Many heads in one fit: stacked or one by one, whole batches or parts of them, killed or not, the same heads come out.

Stacked heads are other sums of the same numbers, so they agree within float32's rounding and not bit by bit. Adam
makes large steps of gradients that are nothing but rounding (a bias that cancels in a softmax), so logits and
losses are compared and not the weights.
"""

import dataclasses
import logging
import math
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_every_head import SPAN, SPECS, geometry_of
from torch import Tensor

from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.feed import Feed, LiveFeed, MemoryFeed
from bertvision.heads import Geometry, Head, parse_head
from bertvision.heads.base import head_class, run_head
from bertvision.heads.conv import BatchNorm, ConvHead
from bertvision.heads.cost import activation_bytes
from bertvision.tasks.span.decode import DecodeConfig, decode
from bertvision.tasks.span.loss import span_loss
from bertvision.tasks.span.score import score
from bertvision.train import evaluate as evaluate_module
from bertvision.train import fit as fit_module
from bertvision.train import group as group_module
from bertvision.train.evaluate import span_logits
from bertvision.train.fit import FitConfig, FitRun, FittedHead, fit
from bertvision.train.group import Group, rows_at_once
from bertvision.train.optim import learning_rate
from bertvision.train.splits import Split, load_split
from bertvision.train.stage import Stage
from bertvision.train.zoo import zoo_members

WINDOWS = WindowConfig(max_seq_length=64, max_query_length=16, doc_stride=24)
SPAN_SPECS = [text for text in SPECS if geometry_of(text) is SPAN]
STACKABLE = [text for text in SPAN_SPECS if head_class(parse_head(text).name).stackable]
TRAINING = [
    "lr=3e-3,seed=0",
    "lr=1e-2,seed=1,weight_decay=0.1,schedule=linear,warmup=0.3",
    "optimizer=sgd,lr=0.03,seed=2,clip=0.5",
    "optimizer=adam,seed=0,weight_decay=0.01,clip=0",
]
"""Settings that heads of one stack may differ in."""


@pytest.fixture(scope="module")
def encoder(tiny_bert: Path) -> Encoder:
    return Encoder.load(str(tiny_bert))


@pytest.fixture(scope="module")
def train(encoder: Encoder, toy_squad: Path) -> Split:
    return load_split(str(toy_squad), encoder, WINDOWS)


@pytest.fixture(scope="module")
def feed(encoder: Encoder, train: Split) -> MemoryFeed:
    return MemoryFeed(encoder, train.windows, tokens_per_call=2000)


def with_options(text: str, options: str) -> str:
    return text + ("," if ":" in text else ":") + options


def without_dropout(text: str) -> str:
    """The spec with its own dropout, where it has one, set to zero."""
    name, _, options = text.partition(":")
    kept = [option for option in options.split(",") if option and not option.startswith("dropout=")]
    if hasattr(parse_head(text).config, "dropout"):
        kept.append("dropout=0")
    return f"{name}:{','.join(kept)}"


def has_batch_norm(text: str) -> bool:
    with torch.device("meta"):
        modules = parse_head(text).build(SPAN, seed=0).modules()
    return any(isinstance(module, BatchNorm) for module in modules)


def fit_config(*heads: str, **values: Any) -> FitConfig:
    return FitConfig(**({"heads": heads, "epochs": 1, "batch_size": 8, "lr": 3e-3, "stack": "on"} | values))


def fitted(
    feed: Feed, folder: Path, *heads: str, evaluate: Any = None, **values: Any
) -> dict[str, FittedHead]:
    config = fit_config(*heads, **values)
    return fit(feed, zoo_members(config), config, Stage(folder, {}), evaluate=evaluate)


def gradient(parameter: torch.nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


def run_of(feed: Feed, *heads: str, **values: Any) -> FitRun:
    config = fit_config(*heads, **values)
    return FitRun(feed, zoo_members(config), config)


def state(one: FittedHead) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in one.head.state_dict().items()}


def equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def check_close(feed: Feed, first: dict[str, FittedHead], second: dict[str, FittedHead]) -> None:
    """The same heads by name, losses and logits."""
    assert list(first) == list(second)
    logits = [span_logits(feed, {name: one.head for name, one in found.items()}) for found in (first, second)]
    for name in first:
        losses = [[record["loss"] for record in found[name].history] for found in (first, second)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3), name
        for side in ("start", "end"):
            # What all tokens have in common cancels in the softmax: the output bias is such a number.
            ours, theirs = (v - v.mean() for v in (getattr(found[name], side) for found in logits))
            assert np.abs(ours - theirs).max() < 5e-3 * np.abs(ours).max(), name


# ---- stacked or one by one


@pytest.mark.parametrize("text", STACKABLE)
def test_stacked_heads_are_the_heads_one_by_one(text: str, feed: MemoryFeed, tmp_path: Path) -> None:
    """Rates, seeds, decay, schedules, optimisers and dropout of their own, after several steps."""
    heads = [with_options(text, options) for options in TRAINING]
    if hasattr(parse_head(text).config, "dropout"):
        plain = without_dropout(text)
        noisy = plain.replace("dropout=0", "dropout=0.3")
        heads = [with_options(t, o) for t, o in zip((plain, noisy, noisy, plain), TRAINING, strict=True)]
    (group,) = groups_of(run_of(feed, *heads))
    assert len(group.members) == 4
    stacked = fitted(feed, tmp_path / "on", *heads)
    alone = fitted(feed, tmp_path / "off", *heads, stack="off")
    check_close(feed, stacked, alone)
    starts = {one.history[-1]["loss"] for one in stacked.values()}
    assert len(starts) == 4, "the members of the stack must differ, or nothing is shown"


def groups_of(run: FitRun) -> list[Group]:
    run.regroup()
    return run.groups


def test_stacked_in_half_precision(tiny_bert: Path, train: Split, tmp_path: Path) -> None:
    encoder = Encoder.load(str(tiny_bert), precision="bf16")
    feed = MemoryFeed(encoder, train.windows, tokens_per_call=2000)
    heads = [
        "adapter:size=8,skip,seed=0",
        "adapter:size=8,skip,seed=1,dropout=0.2",
        "ladder:size=8",
        "ladder:size=8,seed=2",
    ]
    stacked = fitted(feed, tmp_path / "on", *heads)
    alone = fitted(feed, tmp_path / "off", *heads, stack="off")
    for name in alone:
        assert stacked[name].history[0]["loss"] == pytest.approx(alone[name].history[0]["loss"], rel=0.03)


def test_a_stack_leaves_the_heads_modules_of_their_own(feed: MemoryFeed, tmp_path: Path) -> None:
    """Parameters are views into the stack while it is fitted: each is saved, loaded and updated alone."""
    run = run_of(feed, "adapter:size=4,seed=0", "adapter:size=4,seed=1")
    before = {name: state(one) for name, one in run.fitted.items()}
    (group,) = groups_of(run)
    assert all(equal(before[name], state(one)) for name, one in run.fitted.items())
    first, second = (member.head for member in group.members)
    with torch.no_grad():
        first.get_parameter("down.weight").fill_(3.0)
    assert bool(group.stacked["down.weight"][0].eq(3).all())
    assert not bool(group.stacked["down.weight"][1].eq(3).any())
    assert equal(before["adapter-4.seed1"], second.state_dict())


def test_a_diverging_member_is_dropped_and_the_rest_goes_on(
    feed: MemoryFeed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calm = ["adapter:size=8,seed=0", "adapter:size=8,seed=1,lr=1e-2", "adapter:size=8,seed=2,optimizer=sgd"]
    broken = "adapter:size=8,lr=1e30,seed=3"
    without = fitted(feed, tmp_path / "a", *calm, clip=0.0, epochs=2)
    (group,) = groups_of(run_of(feed, calm[0], broken, *calm[1:], clip=0.0))
    assert len(group.members) == 4, "all in one stack"
    with caplog.at_level(logging.WARNING):
        beside = fitted(feed, tmp_path / "b", calm[0], broken, *calm[1:], clip=0.0, epochs=2)
    assert [record.getMessage() for record in caplog.records if "diverged" in record.getMessage()] == [
        message for message in caplog.messages if "head adapter-8-lr=1e+30.seed3 diverged" in message
    ]
    assert "adapter-8-lr=1e+30.seed3 diverged (loss" in caplog.text
    check_close(feed, without, beside)


def test_early_stopping_of_one_member_leaves_the_others(feed: MemoryFeed, tmp_path: Path) -> None:
    """Patience is each head's own; the scores are written, so that only it decides."""
    heads = ["adapter:size=8,seed=0,patience=1", "adapter:size=8,seed=1,patience=3", "adapter:size=8,seed=2"]
    seen: list[set[str]] = []
    ends: dict[str, dict[str, Tensor]] = {}

    def evaluate(given: Mapping[str, Head]) -> dict[str, float]:
        seen.append(set(given))
        for name, head in given.items():
            ends[name] = {k: v.clone() for k, v in head.state_dict().items()}
        return {name: -float(len(seen)) for name in given}  # worse from epoch to epoch

    kept = fitted(feed, tmp_path / "on", *heads, epochs=6, evaluate=evaluate)
    one, three, never = (
        f"adapter-8{label}.seed{i}" for i, label in enumerate(("-patience=1", "-patience=3", ""))
    )
    assert seen == [{one, three, never}] * 2 + [{three, never}] * 2 + [{never}] * 2
    assert [kept[name].status for name in (one, three, never)] == ["stopped", "stopped", "fitting"]
    assert [len(kept[name].history) for name in (one, three, never)] == [2, 4, 6]
    assert all(equal(state(kept[name]), ends[name]) for name in kept), "a stopped head moved on"
    alone = fitted(feed, tmp_path / "off", heads[2], epochs=6)
    check_close(feed, {never: kept[never]}, alone)


# ---- parts of a batch


# Of the two slow ones, which differ in an axis, one is enough.
@pytest.mark.parametrize(
    "text", [text for text in SPAN_SPECS if not has_batch_norm(text) and text != "inception:adapter=4"]
)
def test_a_batch_in_parts_is_the_batch(text: str, feed: MemoryFeed, tmp_path: Path) -> None:
    """Without dropout, whose noise follows from a number's place, and batch norm, which reads the part alone.

    Plain gradient descent, so that weights can be compared: rounding stays rounding.
    """
    head = without_dropout(text)
    built = parse_head(head).build(Geometry(3, 32), seed=0)
    longest = int(feed.windows.lengths.max())
    window = max(1, activation_bytes(parse_head(head), built.geometry, tokens=-(-longest // 32) * 32))
    values: dict[str, Any] = {"optimizer": "sgd", "lr": 0.01, "batch_size": 12, "stack": "off"}
    whole = fitted(feed, tmp_path / "a", head, **values)
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
        parts = fitted(feed, tmp_path / "b", head, activation_gb=budget, **values)
    if window > 1:
        assert max(cut) >= 3
    ((name, one),) = whole.items()
    assert one.history[0]["loss"] == pytest.approx(parts[name].history[0]["loss"], rel=1e-4)
    for key, value in state(parts[name]).items():
        torch.testing.assert_close(value, state(one)[key], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "text", ["adapter:size=8", "head2toe:lasso=0.01", "biaffine:size=4,rank=2", "cacnn:n=2,dropout=0"]
)
def test_gradients_of_parts_add_up(text: str, feed: MemoryFeed) -> None:
    batch = next(iter(feed.epoch(0, batch_size=8, seed=0)))
    found = []
    for budget in (4.0, 1e-9):
        run = run_of(feed, text, activation_gb=budget)
        (group,) = groups_of(run)
        group.prepare(0, 1)
        losses = group._backward(batch, 0)
        found.append((losses, [gradient(p) for p in group.members[0].head.parameters()]))
    assert len(group.parts(batch)) == 8
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-6)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * float(one.abs().max()) + 1e-6)


def test_parts_hold_what_the_budget_allows(feed: MemoryFeed) -> None:
    run = run_of(feed, "adapter:size=8")
    batch = next(iter(feed.epoch(0, batch_size=8, seed=0)))
    head, tokens = run.fitted["adapter-8.seed0"].head, batch.mask.shape[1]
    for rows in (1, 2, 3, 5, 8, 9):
        window = (
            activation_bytes(head, head.geometry, tokens=-(-tokens // 32) * 32)
            * tokens
            / (-(-tokens // 32) * 32)
        )
        budget = (rows + 0.5) * window / 1e9
        assert rows_at_once(head, tokens, budget) == rows
        run = run_of(feed, "adapter:size=8", activation_gb=budget)
        (group,) = groups_of(run)
        sizes = [len(part.windows) for part in group.parts(batch)]
        assert sizes == [min(rows, 8 - begin) for begin in range(0, 8, rows)]
        for part, begin in zip(group.parts(batch), range(0, 8, rows), strict=True):
            assert torch.equal(part.states, batch.states[:, begin : begin + rows])
            assert torch.equal(part.labels, batch.labels[begin : begin + rows])
            assert torch.equal(part.context, batch.context[begin : begin + rows])


def test_a_head_that_cannot_keep_one_window_recomputes(feed: MemoryFeed, tmp_path: Path) -> None:
    """And recomputing changes no bit: it is only told so by the budget."""
    batch = next(iter(feed.epoch(0, batch_size=4, seed=0)))
    for budget, again in ((1e-9, True), (4.0, False)):
        run = run_of(feed, "cnn:input=average,dropout=0.2", activation_gb=budget)
        (group,) = groups_of(run)
        sizes = [len(part.windows) for part in group.parts(batch)]
        head = group.members[0].head
        assert isinstance(head, ConvHead)
        assert head.checkpoint is again
        assert sizes == ([1] * 4 if again else [4])
    one = fitted(feed, tmp_path / "a", "cnn:input=average", batch_size=1, activation_gb=1e-9)
    kept = fitted(feed, tmp_path / "b", "cnn:input=average", batch_size=1)
    ((name, first),) = one.items()
    assert equal(state(first), state(kept[name]))


def test_evaluation_in_parts_is_evaluation(feed: MemoryFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = {
        text: parse_head(text).build(Geometry(3, 32), seed=0)
        for text in ("adapter:size=8", "cnn", "biaffine", "ladder")
    }
    sizes: dict[str, list[int]] = {name: [] for name in heads}
    real = run_head

    def spy(head: Any, batch: Any) -> Tensor:
        sizes[next(name for name, own in heads.items() if own is head)].append(len(batch.windows))
        return real(head, batch)

    monkeypatch.setattr(evaluate_module, "run_head", spy)
    whole = span_logits(feed, heads)
    counts = {name: len(found) for name, found in sizes.items()}
    for found in sizes.values():
        assert sum(found) == len(feed.windows)
        found.clear()
    parts = span_logits(feed, heads, activation_gb=3e-4)
    for name, found in sizes.items():
        assert sum(found) == len(feed.windows)
        rows = [rows_at_once(heads[name], batch.mask.shape[1], 3e-4) for batch in feed.walk()]
        assert max(found) <= max(1, *rows)
        assert (len(found) > counts[name]) == any(
            r < len(b.windows) for r, b in zip(rows, feed.walk(), strict=True)
        )
        np.testing.assert_allclose(parts[name].start, whole[name].start, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(parts[name].end, whole[name].end, rtol=1e-4, atol=1e-5)
    assert len(sizes["cnn"]) == len(feed.windows), "not even one window: one at a time"
    first, second = parts["biaffine"].pairs, whole["biaffine"].pairs
    assert first is not None
    assert second is not None
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def test_evaluation_measures_what_training_keeps(feed: MemoryFeed) -> None:
    """It runs without gradients, under which a head keeps nothing: such a measure would be believed by the next fit."""
    group_module._window_bytes.cache_clear()
    head = parse_head("adapter:size=8").build(Geometry(3, 32), seed=0)
    span_logits(feed, {"x": head})
    tokens = feed.windows.lengths.max().item()
    found = rows_at_once(head, tokens, 1.0)
    group_module._window_bytes.cache_clear()
    assert found == rows_at_once(head, tokens, 1.0) < 1e6


# ---- killed and started again


class Killed(BaseException):
    """Not an error that anyone could catch by its kind."""


def killed_after(
    feed: Feed, folder: Path, steps: int, *heads: str, evaluate: Any = None, **values: Any
) -> None:
    """Fit with a checkpoint after every batch and die before batch `steps` is trained on."""
    with pytest.MonkeyPatch.context() as patch:
        real, done = FitRun.train_batch, []

        def train_batch(self: FitRun, batch: Any) -> None:
            if len(done) == steps:
                raise Killed
            done.append(1)
            real(self, batch)

        patch.setattr(fit_module.FitRun, "train_batch", train_batch)
        with pytest.raises(Killed):
            fitted(feed, folder, *heads, evaluate=evaluate, checkpoint_seconds=0.0, **values)


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


@pytest.mark.parametrize("steps", [1, 4, 6, 9])
def test_a_killed_fit_of_stacks_ends_with_the_same_bits(steps: int, feed: MemoryFeed, tmp_path: Path) -> None:
    """Stacks, optimisers of all kinds, batch norm, a member that broke and one that stopped, around the kill."""

    def evaluate(heads: Mapping[str, Head]) -> dict[str, float]:
        return dict.fromkeys(heads, 1.0)  # never better than after the first epoch

    values: dict[str, Any] = {"epochs": 3, "batch_size": 9, "evaluate": evaluate}
    whole = fitted(feed, tmp_path / "whole", *RESUMED, **values)
    assert feed.num_batches(9) * 3 > 9
    killed_after(feed, tmp_path / "killed", steps, *RESUMED, **values)
    resumed = fitted(feed, tmp_path / "killed", *RESUMED, **values)
    assert list(whole) == list(resumed)
    assert not any("1e+30" in name for name in whole)
    assert [one.status for one in whole.values()] == [one.status for one in resumed.values()]
    assert "stopped" in {one.status for one in whole.values()}
    for name, one in whole.items():
        assert equal(state(one), state(resumed[name])), name
        assert one.history == resumed[name].history


# ---- settings of single heads


def test_a_heads_own_settings_reach_its_optimiser(feed: MemoryFeed) -> None:
    heads = [
        "adapter:size=4,optimizer=sgd,lr=0.5,clip=0.25,weight_decay=0.125",
        "adapter:size=4,optimizer=adam,schedule=linear,warmup=0.5,patience=7",
        "adapter:size=4",
    ]
    run = run_of(feed, *heads, lr=0.01, weight_decay=0.5, patience=2, schedule="constant", clip=2.0)
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


def test_each_head_of_a_stack_is_clipped_by_itself(feed: MemoryFeed) -> None:
    """SGD at rate 1 from zero momentum: the step is the clipped gradient."""
    heads = [f"adapter:size=4,optimizer=sgd,lr=1,clip={clip}" for clip in ("1e-3", "1e-2", "0")]
    run = run_of(feed, *heads)
    before = {name: state(one) for name, one in run.fitted.items()}
    run.train_batch(next(run.batches()))
    lengths = []
    for name, one in run.fitted.items():
        moved = [value - before[name][key] for key, value in one.head.state_dict().items()]
        lengths.append(torch.cat([m.flatten() for m in moved]).norm().item())
    assert lengths[:2] == pytest.approx([1e-3, 1e-2], rel=1e-2)
    assert lengths[2] > 0.02, "clip=0 does not clip"


@pytest.mark.parametrize("text", SPAN_SPECS)
def test_biases_and_norms_are_never_decayed(text: str, feed: MemoryFeed) -> None:
    """A bias may have two axes, one of them the layers."""
    run = run_of(feed, text, weight_decay=0.3)
    (one,) = run.fitted.values()
    decay = {id(p): g["weight_decay"] for g in one.optimizer.param_groups for p in g["params"]}
    assert decay.keys() == {id(p) for p in one.head.parameters()}
    for name, parameter in one.head.named_parameters():
        matrix = parameter.ndim >= 2 and "bias" not in name
        assert decay[id(parameter)] == (0.3 if matrix else 0.0), name


def test_the_bias_of_an_unshared_adapter_has_two_axes(feed: MemoryFeed) -> None:
    run = run_of(feed, "adapter:size=4,unshared,optimizer=adamw,lr=0.1,weight_decay=0.5")
    (one,) = run.fitted.values()
    with torch.no_grad():
        one.head.get_parameter("down.bias").fill_(2.0)
    assert one.head.get_parameter("down.bias").shape == (3, 4)
    weight = one.head.get_parameter("down.weight").detach().clone()
    for parameter in one.head.parameters():
        parameter.grad = torch.zeros_like(parameter)
    one.optimizer.step()
    assert bool(one.head.get_parameter("down.bias").eq(2.0).all())
    torch.testing.assert_close(one.head.get_parameter("down.weight").detach(), weight * 0.95)


# ---- what a head does by itself


def test_heads_are_told_how_much_is_done(
    feed: MemoryFeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(Head, "at", lambda self, progress: told.append(progress))
    fitted(feed, tmp_path, "last_state", epochs=2, stack="off")
    steps = 2 * feed.num_batches(8)
    assert told == [i / steps for i in range(steps)]


@pytest.mark.parametrize("keep", [0.05, 0.4])
def test_head2toe_selects_in_a_real_fit(keep: float, feed: MemoryFeed, tmp_path: Path) -> None:
    text = f"head2toe:keep={keep},select_at=0.5"
    kept = fitted(feed, tmp_path / "whole", text, epochs=4)
    ((_, one),) = kept.items()
    head: Any = one.head
    wanted = round(keep * 3 * 32)
    assert int(head.mask.sum()) == wanted
    assert int(head.weight.any(1).sum()) == wanted, "the other weights are zero at the end"
    assert bool(head.selected)
    steps = feed.num_batches(8)
    early = fitted(feed, tmp_path / "half", f"{text},seed=0", epochs=4, lr=3e-3)
    assert equal(state(one), state(next(iter(early.values()))))
    # Killed in the epoch before the selection, at it, and in the one after it.
    for stop in (2 * steps - 1, 2 * steps, 2 * steps + 1):
        folder = tmp_path / str(stop)
        killed_after(feed, folder, stop, text, epochs=4)
        (again,) = fitted(feed, folder, text, epochs=4).values()
        assert equal(state(one), state(again)), stop


def test_a_penalty_is_part_of_the_loss(feed: MemoryFeed) -> None:
    batch = next(iter(feed.epoch(0, batch_size=8, seed=0)))
    for lasso in (0.0, 0.7):
        run = run_of(feed, f"head2toe:lasso={lasso}")
        (group,) = groups_of(run)
        (member,) = group.members
        torch.nn.init.normal_(member.head.get_parameter("weight"), generator=torch.Generator().manual_seed(0))
        group.prepare(0, 10)
        with torch.no_grad():
            expected = span_loss(member.head(batch.states, batch.mask), batch.mask, batch.labels)
            expected = expected + lasso * member.head.get_parameter("weight").square().sum(1).sqrt().sum()
        assert group.run(batch, 0).item() == pytest.approx(expected.item(), rel=1e-5)


def test_heads_with_a_penalty_are_not_stacked(feed: MemoryFeed) -> None:
    groups = groups_of(run_of(feed, "head2toe:seed=0", "head2toe:seed=1", "head2toe:lasso=0"))
    assert [len(group.members) for group in groups] == [1, 1, 1]


# ---- spans scored jointly, and the paragraph


def test_biaffine_from_fit_to_answers(feed: MemoryFeed, train: Split, tmp_path: Path) -> None:
    heads = (
        "biaffine:size=16,rank=4,seed=0,init_std=0.1",
        "biaffine:size=16,rank=4,seed=1,init_std=0.1",
        "last_state",
    )
    kept = fitted(feed, tmp_path, *heads, epochs=40, lr=1e-2)
    begin = {name: one.spec.build(one.head.geometry, seed=9) for name, one in kept.items()}
    exact: dict[str, list[float]] = {}
    answer = DecodeConfig(
        null_score_diff_threshold=1e3
    )  # the random encoder tells nobody which question was asked
    for found in (begin, {name: one.head for name, one in kept.items()}):
        for name, logits in span_logits(feed, found).items():
            logits.check(train.windows)
            assert (logits.pairs is not None) == name.startswith("biaffine")
            answers = decode(train.windows, logits, train.data, answer).predictions()
            exact.setdefault(name, []).append(float(score(train.data, answers)["exact"]))
    for name, (before, after) in exact.items():
        if name.startswith("biaffine"):
            assert before < 10
            assert after > 25, "the person or the town of every paragraph, a third of all questions"
            assert kept[name].history[-1]["loss"] < 0.25 * kept[name].history[0]["loss"]


def test_the_paragraph_is_marked_as_the_windows_say(encoder: Encoder, train: Split, feed: MemoryFeed) -> None:
    live = LiveFeed(encoder, train.windows, tokens_per_call=300)
    for source in (live, feed):
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
    feed: MemoryFeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States outside it decide the filters alone: with question masked, its logits there are the bias."""
    head = parse_head("cacnn:n=2,rows=1,kernel=1,mask_question").build(Geometry(3, 32), seed=0).eval()
    batch = next(iter(feed.walk()))
    with torch.no_grad():
        logits = run_head(head, batch)
        outside = head(batch.states * 0, batch.mask, context=batch.context)[0, 0]
    assert bool(logits[batch.mask & ~batch.context].eq(outside).all())
    assert not bool(logits[batch.context].eq(outside).all(-1).any())
    kept = fitted(feed, tmp_path, "cacnn:mask_question,seed=0", "cacnn:mask_question,seed=1")
    assert all(math.isfinite(one.history[-1]["loss"]) for one in kept.values())


# ---- memory


def test_groups_stand_in_the_order_of_their_first_heads(feed: MemoryFeed) -> None:
    heads = ["adapter:size=8", "last_state", "adapter:size=8,lr=1e-2", "cnn:input=average", "adapter:size=8,skip",
             "last_state:seed=4", "adapter:size=8,dropout=0.1", "cnn:input=average,lr=1e-2"]  # fmt: skip
    names = [[member.name for member in group.members] for group in groups_of(run_of(feed, *heads))]
    assert names == [
        ["adapter-8.seed0", "adapter-8-lr=0.01.seed0", "adapter-8-dropout=0.1.seed0"],
        ["last-state.seed0", "last-state.seed4"],
        ["cnn-input=average.seed0"],
        ["adapter-8-skip.seed0"],
        ["cnn-input=average-lr=0.01.seed0"],
    ]
    alone = [[m.name for m in group.members] for group in groups_of(run_of(feed, *heads, stack="off"))]
    assert alone == [[name] for name in run_of(feed, *heads).fitted]
    assert [len(g.members) for g in groups_of(run_of(feed, *heads, stack="auto"))] == [1] * 8, (
        "a CPU stacks nothing"
    )


@pytest.mark.parametrize("together", [1, 2, 3, 5])
def test_a_stack_takes_as_many_heads_as_fit(together: int, feed: MemoryFeed) -> None:
    heads = [f"adapter:size=8,seed={seed}" for seed in range(5)]
    run = run_of(feed, *heads)
    head = run.fitted["adapter-8.seed0"].head
    rows = rows_at_once(head, run.longest, 1.0)
    budget = (together + 0.5) * 8 / rows
    groups = groups_of(run_of(feed, *heads, activation_gb=budget))
    assert [len(g.members) for g in groups] == [min(together, 5 - i) for i in range(0, 5, together)]
    assert [m.seed for group in groups for m in group.members] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["memory", "live"])
def test_states_are_freed_after_the_step(kind: str, encoder: Encoder, train: Split, feed: MemoryFeed) -> None:
    source = feed if kind == "memory" else LiveFeed(encoder, train.windows, tokens_per_call=1)
    run = run_of(
        source,
        "adapter:size=4,seed=0",
        "adapter:size=4,seed=1",
        "cnn:input=average",
        "head2toe",
        "biaffine:size=4",
    )
    batches: Any = run.batches()
    for _ in range(3):
        batch = next(batches)
        states = weakref.ref(batch.states)
        run.train_batch(batch)
        del batch
        if kind == "live":  # it may hold a batch until it is asked for the next
            batches.close()
            batches = run.batches()
        assert states() is None


def test_no_gradient_is_kept_between_steps(feed: MemoryFeed) -> None:
    run = run_of(feed, "adapter:size=4,seed=0", "adapter:size=4,seed=1", "last_state")
    run.train_batch(next(run.batches()))
    assert all(p.grad is None for one in run.fitted.values() for p in one.head.parameters())
    assert all(p.grad is None for group in run.groups for p in group.stacked.values())
    assert run.pending == []


def test_seconds_and_losses_of_a_stack_are_each_heads_own(feed: MemoryFeed, tmp_path: Path) -> None:
    kept = fitted(feed, tmp_path, "adapter:size=4,seed=0", "adapter:size=4,seed=1", epochs=2)
    first, second = kept.values()
    assert first.seconds > 0
    assert first.seconds == pytest.approx(second.seconds)
    assert [r["epoch"] for r in first.history] == [1.0, 2.0]
    assert first.history != second.history
    assert dataclasses.asdict(first.config) == dataclasses.asdict(second.config) | {"seed": 0}
