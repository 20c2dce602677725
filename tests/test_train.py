"""Training: closed forms, bit-equal independence of heads, snapshots where they belong, and honest ends."""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_helpers import WINDOWS, equal, state
from fit_helpers import fitted as fitted_once
from torch import Tensor, nn
from tuning_helpers import config_of, snapshot_weights

from bertvision.encoder.encoder import Encoder
from bertvision.errors import TrainingError
from bertvision.heads import Geometry, Head, StateBatch, cost, head_names, load_head, parse_head, register
from bertvision.heads.base import rows_at_once
from bertvision.states.base import MemoryStates, States
from bertvision.states.config import StatesConfig
from bertvision.states.plan import head_batches
from bertvision.tasks.base import DecodeConfig
from bertvision.tasks.span import SPAN
from bertvision.tasks.span_decode import decode
from bertvision.tasks.walk import head_logits
from bertvision.train.config import FitConfig, OptimConfig
from bertvision.train.finetune import tune
from bertvision.train.fit import FitRun, FittedHead, fit
from bertvision.train.job import Job, Split, logits_of
from bertvision.train.optim import apply_gradients, learning_rate, set_rate
from bertvision.train.run_folder import RunFolder, read_metrics
from bertvision.train.zoo import fit_zoo, zoo_members

# ---- optimiser


def test_the_learning_rate_is_a_closed_form() -> None:
    config = OptimConfig(lr=2.0, schedule="linear", warmup=0.2)
    rates = [learning_rate(config, step, 10) for step in range(10)]
    assert rates == pytest.approx([1.0, 2.0, *(2.0 * (10 - s) / 8 for s in range(2, 10))])
    constant = OptimConfig(lr=2.0, schedule="constant", warmup=0.3)
    rates = [learning_rate(constant, step, 10) for step in range(10)]
    assert rates == pytest.approx([2 / 3, 4 / 3, 2.0, *[2.0] * 7])
    for schedule in ("constant", "linear"):
        for warmup in (0.0, 0.1, 0.99):
            for total in (1, 2, 7):
                config = OptimConfig(lr=1.0, schedule=schedule, warmup=warmup)
                assert all(0 < learning_rate(config, step, total) <= 1 for step in range(total))


@pytest.mark.parametrize(("clip", "norm"), [(1.0, 1.0), (100.0, 10.0), (0.0, 10.0)])
def test_the_whole_gradient_is_clipped_as_one(clip: float, norm: float) -> None:
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    first.grad, second.grad = torch.tensor([6.0, 0.0]), torch.tensor([0.0, 8.0, 0.0])
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second]}], lr=99.0)
    set_rate(optimizer, 0.5)
    apply_gradients(optimizer, clip)
    step = torch.cat([first, second]) / -0.5
    assert step.norm().item() == pytest.approx(norm, rel=1e-4)
    assert torch.allclose(step / step.norm(), torch.tensor([0.6, 0, 0, 0.8, 0]), atol=1e-5)
    assert first.grad is None


# ---- fine-tuning


def finetuned(
    folder: Path, train: Split, source: Path, **values: Any
) -> tuple[list[Path], list[dict[str, Any]]]:
    """Fine-tune a freshly loaded encoder; returns its snapshots and metrics."""
    config = config_of(**values)
    stage, folders = tune(
        Encoder.load(str(source)), [Job.only(train, None, config)], folder=folder, config=config
    )
    return folders, read_metrics(stage.metrics)


def test_snapshots_stand_at_their_steps(tmp_path: Path, train: Split, tiny_bert: Path) -> None:
    """A snapshot on the way is bit by bit where a shorter run ends (the rate does not depend on the length)."""
    folders, metrics = finetuned(tmp_path / "a", train, tiny_bert, epochs=1.5, snapshots=(1.0, 0.5))
    assert [f.name for f in folders] == ["snapshot-0.5", "snapshot-1", "snapshot-1.5"]
    per_epoch = math.ceil(len(train.windows) / 8)
    assert metrics[-1]["step"] == round(1.5 * per_epoch)
    for fraction in (0.5, 1.0):
        shorter, steps = finetuned(tmp_path / str(fraction), train, tiny_bert, epochs=fraction)
        assert len(steps) == max(1, round(fraction * per_epoch))
        assert equal(
            snapshot_weights(shorter[0]), snapshot_weights(tmp_path / "a" / f"snapshot-{fraction:g}")
        )


def test_two_fractions_on_one_step_are_two_snapshots(tmp_path: Path, train: Split, tiny_bert: Path) -> None:
    folders, _ = finetuned(tmp_path, train, tiny_bert, batch_size=1000, snapshots=(0.1, 0.2), epochs=1.0)
    assert [f.name for f in folders] == ["snapshot-0.1", "snapshot-0.2", "snapshot-1"]
    assert equal(snapshot_weights(folders[0]), snapshot_weights(folders[1]))


def test_metrics_tell_step_epoch_loss_and_rate(tmp_path: Path, train: Split, tiny_bert: Path) -> None:
    values = {"epochs": 2.0, "log_every": 3, "schedule": "linear", "warmup": 0.25}
    _, metrics = finetuned(tmp_path, train, tiny_bert, **values)
    per_epoch = math.ceil(len(train.windows) / 8)
    total = 2 * per_epoch
    expected = [step for step in range(1, total + 1) if step % 3 == 0 or step == total]
    assert [record["step"] for record in metrics] == expected
    config = OptimConfig(lr=1e-3, schedule="linear", warmup=0.25)
    for record in metrics:
        assert record["epoch"] == record["step"] / per_epoch
        assert record["lr"] == learning_rate(config, record["step"] - 1, total)
        assert math.isfinite(record["loss"])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == metrics


def test_seeds_change_fine_tuning_and_nothing_else_does(
    tmp_path: Path, train: Split, tiny_bert: Path
) -> None:
    torch.manual_seed(123)  # what was drawn before does not matter
    first, _ = finetuned(tmp_path / "a", train, tiny_bert, seed=1)
    torch.manual_seed(321)
    again, _ = finetuned(tmp_path / "b", train, tiny_bert, seed=1)
    other, _ = finetuned(tmp_path / "c", train, tiny_bert, seed=2)
    assert equal(snapshot_weights(first[0]), snapshot_weights(again[0]))
    assert not equal(snapshot_weights(first[0]), snapshot_weights(other[0]))


# ---- fitting


@dataclass(frozen=True)
class NoisyConfig:
    rate: float = 0.5


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own head, registered for one test as `noisy`: with dropout, and a look at values."""
    from bertvision.heads import base

    head_names()  # what ships is registered
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))

    @register("noisy.v1", NoisyConfig)
    class Noisy(Head):
        def __init__(self, config: NoisyConfig, geometry: Geometry) -> None:
            super().__init__(config, geometry)
            self.drop, self.last = nn.Dropout(config.rate), nn.Linear(geometry.hidden, geometry.outputs)

        def forward(self, batch: StateBatch) -> Tensor:
            return self.last(self.drop(batch.states[-1])) * (1 + 1 / int(batch.mask.sum()))


def fitted(states: States, folder: Path, *heads: str, **values: Any) -> dict[str, FittedHead]:
    return fitted_once(states, folder, *heads, **({"epochs": 2, "stack": "auto"} | values))


@pytest.mark.usefixtures("noisy")
def test_heads_fitted_together_equal_each_fitted_alone(states: MemoryStates, tmp_path: Path) -> None:
    heads = ("noisy", "last_state:lr=1e-2", "adapter:size=8,skip", "learned_pooling:weight_decay=0.1")
    torch.manual_seed(0)
    together = fitted(states, tmp_path / "all", *heads, seeds=(0, 3))
    assert len(together) == 8
    for i, text in enumerate(heads):
        torch.manual_seed(i + 1)
        alone = fitted(states, tmp_path / str(i), text, seeds=(3,))
        ((name, one),) = alone.items()
        assert equal(state(one), state(together[name])), name
        assert one.history == together[name].history


@pytest.mark.usefixtures("noisy")
def test_a_head_that_looks_at_values_is_counted_and_reads_a_batch_whole() -> None:
    price = cost(parse_head("noisy"), Geometry(3, 32))
    assert (price.parameters, price.flops_per_token) == (66, None)
    assert rows_at_once(parse_head("noisy").build(Geometry(3, 32), seed=0), 64, 4.0) > 10**6


@pytest.mark.usefixtures("noisy")
def test_dropout_is_another_one_at_every_step(states: MemoryStates, tmp_path: Path) -> None:
    drawn: list[Tensor] = []
    config = FitConfig(heads=("noisy",), epochs=1, batch_size=8)
    members = zoo_members(config)
    real = torch.nn.functional.dropout

    def spy(x: Tensor, *args: Any, **options: Any) -> Tensor:
        result = real(x, *args, **options)
        drawn.append((result == 0).flatten()[:64])
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "dropout", spy)
        fit(states, members, config, RunFolder(tmp_path, {}))
    masks = {tuple(mask.tolist()) for mask in drawn[:-1]}
    assert len(masks) == states.num_batches(8)


def test_every_seed_reads_the_data_in_an_order_of_its_own(states: MemoryStates) -> None:
    config = FitConfig(heads=("last_state", "adapter:size=8"), seeds=(0, 3), seed=2, epochs=2, batch_size=8)
    run = FitRun(states, zoo_members(config), config)
    seen: dict[int, list[list[int]]] = {}
    for _ in range(config.epochs):
        for batch in run.batches():
            seen.setdefault(run.order, []).append(batch.windows.tolist())
            run.train_batch(batch)
            assert {member.seed for group in run.groups[run.order] for member in group.members} == {
                run.order - 2
            }
        assert run.done == (run.epoch + 1) * 2 * run.steps
        run.epoch, run.walk = run.epoch + 1, 0
    assert run.done == run.total
    for order, batches in seen.items():
        plan = [head_batches(states.windows.lengths, 8, seed=order, epoch=epoch) for epoch in range(2)]
        assert batches == [batch.tolist() for epoch in plan for batch in epoch]
    assert seen[2] != seen[5]


def test_a_head_broken_by_its_very_last_step_is_dropped_too(
    states: MemoryStates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One step an epoch and one epoch: no loss comes after the update that broke it."""
    with caplog.at_level(logging.WARNING):
        kept = fitted(states, tmp_path, "last_state", "adapter:size=8,lr=1e30", epochs=1, batch_size=1000)
    assert list(kept) == ["last-state.seed0"]
    assert "adapter-8-lr=1e+30.seed0 diverged" in caplog.text


def test_a_head_with_broken_dev_logits_does_not_end_the_fit(
    encoder: Encoder, train: Split, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = FitConfig(
        heads=("last_state", "adapter:size=8,lr=1e30"), epochs=2, batch_size=1000, keep="best", clip=0.0
    )
    with caplog.at_level(logging.WARNING):
        stage = fit_zoo(
            encoder, train, folder=tmp_path, config=config, dev=train,
            encoder_about={"name": encoder.name}, states=StatesConfig(),
        )  # fmt: skip
    assert list(stage.results["heads"]) == ["last-state.seed0"]
    assert stage.results["dropped"] == ["adapter-8-lr=1e+30.seed0"]
    assert not (tmp_path / "adapter-8-lr=1e+30.seed0").exists()
    assert "dev logits after epoch 1 are not finite" in caplog.text


def test_when_all_heads_diverge_the_fit_says_so(states: MemoryStates, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="every head diverged: lower --lr"):
        fitted(states, tmp_path, "adapter:size=8", "adapter:size=4", lr=1e30, clip=0.0)


@pytest.mark.parametrize("stack", ["on", "off"])
def test_early_stopping_and_the_best_epoch_follow_the_scores(
    stack: str, states: MemoryStates, tmp_path: Path
) -> None:
    """Written scores: one head improves to the end, one stops two epochs after its best, and one, computed with the
    first where heads are stacked, has a patience of its own."""
    rising, hasty, falling = "adapter-8.seed0", "adapter-8-patience=1.seed1", "last-state.seed0"
    heads = ("adapter:size=8", "adapter:size=8,seed=1,patience=1", "last_state")
    written = {
        rising: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        falling: [1.0, 3.0, 2.0, 3.0, 9.0, 9.0],
        hasty: [2.0, 1.0],
    }
    seen: list[dict[str, dict[str, Tensor]]] = []

    def evaluate(heads: Mapping[str, Head]) -> dict[str, float]:
        epoch = len(seen)
        seen.append({n: {k: v.clone() for k, v in h.state_dict().items()} for n, h in heads.items()})
        return {name: written[name][epoch] for name in heads}

    values: dict[str, Any] = {"epochs": 6, "patience": 2, "evaluate": evaluate, "stack": stack}
    kept = fitted(states, tmp_path / "a", *heads, keep="best", **values)
    assert [set(epoch) for epoch in seen] == [{*written}] * 2 + [{rising, falling}] * 2 + [{rising}] * 2
    assert [one.status for one in kept.values()] == ["fitting", "stopped", "stopped"]
    assert [(one.best_epoch, one.best_score) for one in kept.values()] == [(6, 6.0), (1, 2.0), (2, 3.0)]
    for name, one in kept.items():
        assert [record["score"] for record in one.history] == written[name][: len(one.history)]
        assert equal(state(one), seen[one.best_epoch - 1][name])

    seen.clear()
    last = fitted(states, tmp_path / "b", *heads, keep="last", **values)
    assert all(equal(state(one), seen[len(one.history) - 1][name]) for name, one in last.items())


def test_the_best_epoch_is_the_best_when_scored_again(
    encoder: Encoder, train: Split, states: MemoryStates, tmp_path: Path
) -> None:
    """Scores of the fit's history against fits of 1, 2, ... epochs that are scored from outside."""
    options: dict[str, Any] = {"batch_size": 4, "lr": 3e-2}
    decoding = DecodeConfig(null_score_diff_threshold=1e3)  # always an answer, so that scores differ
    config = FitConfig(heads=("adapter:size=8",), epochs=8, keep="best", **options)
    stage = fit_zoo(
        encoder, train, folder=tmp_path / "best", config=config, dev=train,
        encoder_about={"name": encoder.name}, states=StatesConfig(source="memory", tokens_per_call=2000),
        decoding=decoding,
    )  # fmt: skip
    (info,) = stage.results["heads"].values()
    scores, ends = [], []
    for epochs in range(1, 9):
        (one,) = fitted(states, tmp_path / str(epochs), "adapter:size=8", epochs=epochs, **options).values()
        logits = head_logits(states, {"x": one.head}, SPAN)["x"]
        answers = decode(train.windows, logits, train.data, decoding)
        scores.append(SPAN.score(answers)["tuned_f1"])
        ends.append(state(one))
    assert len(set(scores)) > 1, "scores must be able to disagree"
    assert [record["score"] for record in info["history"]] == scores
    assert info["best_epoch"] == int(np.argmax(scores)) + 1
    head, _ = load_head(tmp_path / "best" / "adapter-8.seed0")
    assert equal(head.state_dict(), ends[int(np.argmax(scores))])


# ---- zoos


def test_a_head_finds_a_local_encoder_from_anywhere(
    tiny_bert: Path, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_bert.parent)
    config, about = FitConfig(heads=("last_state",)), {"name": tiny_bert.name}
    encoder = Encoder.load(tiny_bert.name)
    fit_zoo(encoder, train, folder=tmp_path, config=config, encoder_about=about, states=StatesConfig())
    _, config = load_head(tmp_path / "last-state.seed0")
    assert (tmp_path / "last-state.seed0" / config["encoder"]["path"]).resolve() == tiny_bert.resolve()


def test_logits_are_kept_for_their_data_and_made_anew_for_other(
    encoder: Encoder, train: Split, states: MemoryStates, tmp_path: Path
) -> None:
    opened: list[str] = []

    def open_states() -> MemoryStates:
        opened.append("x")
        return states

    heads = {tmp_path / "h": next(iter(fitted(states, tmp_path / "fit", "last_state").values())).head}
    first = logits_of(heads, train, "dev", open_states)[tmp_path / "h"]
    again = logits_of(heads, train, "dev", open_states)[tmp_path / "h"]
    assert len(opened) == 1
    assert np.array_equal(first["start"], again["start"])
    other = Split(train.data, train.windows, "another fingerprint", WINDOWS)
    logits_of(heads, other, "dev", open_states)
    assert len(opened) == 2, "logits of other data were used, or refused"
    file = tmp_path / "h" / "dev" / "logits.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    assert np.array_equal(
        logits_of(heads, other, "dev", open_states)[tmp_path / "h"]["start"], first["start"]
    )
    assert len(opened) == 3


def test_fit_from_python(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    import bertvision as bv

    folders = bv.fit(
        str(toy_squad), out=tmp_path, encoder=str(tiny_bert), heads=["last_state", "adapter:size=4"],
        dev=str(toy_squad), epochs=2, max_seq_length=64,
    )  # fmt: skip
    assert [f.name for f in folders] == ["last-state.seed0", "adapter-4.seed0"]
    assert all(bv.load(folder).predict("Who built the mill?", "Ada Holt built it.") for folder in folders)
