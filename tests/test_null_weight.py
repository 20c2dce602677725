"""--null-weight: what windows without an answer count in the loss of spans."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import bertvision
from fit_helpers import WINDOWS, fit_config
from numpy.typing import NDArray
from plain_tuning import (
    PlainTuning,
    fixture_lively,  # noqa: F401
    label_texts,
    score_texts,
    snapshot_weights,
    split_of,
    steps_of,
)
from torch import Tensor
from torch.nn import functional as F
from tuning_helpers import config_of, largest_difference, losses, tuned

from bertvision.artifacts import read_json
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError, OutputError
from bertvision.heads.base import read_head_config
from bertvision.states.base import MemoryStates
from bertvision.states.config import StatesConfig
from bertvision.tasks.span import SPAN, SpanTask
from bertvision.train.config import FitConfig
from bertvision.train.fit import FitRun, fit
from bertvision.train.job import Job
from bertvision.train.run_folder import RunFolder
from bertvision.train.splits import Split, load_split, null_weighted
from bertvision.train.zoo import fit_zoo, zoo_members


@pytest.fixture(scope="module", name="train")
def fixture_train(lively: Path, toy_squad: Path) -> Split:
    return load_split(str(toy_squad), Encoder.load(str(lively)), WINDOWS)


def counts(train: Split, weight: float) -> NDArray[np.float64]:
    """(W,) what each window counts: `weight` where it has no answer, then all divided by their mean."""
    pairs = train.windows.labels, train.windows.null
    raw = [weight if start == null else 1.0 for (start, _), null in zip(*pairs, strict=True)]
    return np.array(raw) / np.mean(raw)


# ---- the loss


def losses_of(task: SpanTask, logits: Tensor, mask: Tensor, targets: Tensor, bounds: Tensor) -> Tensor:
    batch: Any = SimpleNamespace(mask=mask, targets=targets, bounds=bounds)
    return task.loss(logits, batch)


@pytest.mark.parametrize("outputs", [2, 6])
def test_loss_of_each_window_is_that_of_a_plain_loop(outputs: int) -> None:
    """With the null token in front and, as in some encoders, at the end; vmapped over heads as it is stacked."""
    torch.manual_seed(0)
    length = [9, 7, 9, 5, 8]
    mask = torch.arange(9) < torch.tensor(length)[:, None]
    bounds = torch.tensor([[4, 8], [3, 6], [4, 9], [0, 3], [0, 6]])
    labels = torch.tensor([[4, 7], [0, 0], [8, 8], [4, 4], [5, 5]])
    without = [False, True, False, True, False]
    logits = torch.randn(3, 5, 9, outputs)
    task = SpanTask(weights=(0.5, 3.0))

    def weighted(one: Tensor) -> Tensor:
        return losses_of(task, one, mask, labels, bounds)

    found = torch.func.vmap(weighted)(logits)
    for head in range(3):
        plain = losses_of(SPAN, logits[head], mask, labels, bounds)
        for row in range(5):
            alone = losses_of(
                SPAN, logits[head, row : row + 1, : length[row]], mask[row : row + 1, : length[row]],
                labels[row : row + 1], bounds[row : row + 1],
            )  # fmt: skip
            assert float(plain[row]) == pytest.approx(float(alone), rel=1e-5)
            if outputs == 2:
                start, end = (
                    F.cross_entropy(logits[head, row, : length[row], i], labels[row, i]) for i in (0, 1)
                )
                assert float(alone) == pytest.approx(float(start + end) / 2, rel=1e-5)
            wanted = float(alone) * (3.0 if without[row] else 0.5)
            assert float(found[head, row]) == pytest.approx(wanted, rel=1e-5)


def test_mean_over_the_windows_stays_one(train: Split) -> None:
    """And dev, files and the plain task know nothing of it."""
    weighted = null_weighted(train, 2.5)
    assert isinstance(weighted.task, SpanTask)
    have, lack = weighted.task.weights
    assert lack == pytest.approx(2.5 * have)
    without = train.windows.labels[:, 0] == train.windows.null
    assert 0 < without.sum() < len(without)
    assert float(np.where(without, lack, have).mean()) == pytest.approx(1.0)
    assert weighted.task.config() == train.task.config()
    assert null_weighted(train, 1.0) is train


# ---- training

STEADY: dict[str, Any] = {"optimizer": "sgd", "lr": 0.02, "clip": 100.0, "weight_decay": 0.0}
"""Biases of a softmax have no gradient but rounding, which Adam would make as large as any other."""


class WeightedTuning(PlainTuning):
    """The plain one with a loss of every window by itself, times what it counts."""

    counted: NDArray[np.float64]

    def _optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.config.lr, momentum=0.9)

    def loss(self, number: int, units: NDArray[np.int64]) -> Tensor:
        every = [
            super(WeightedTuning, self).loss(number, np.array([unit])) * float(self.counted[unit])
            for unit in units
        ]
        return torch.stack(every).mean()


@pytest.mark.parametrize("values", [{}, {"accumulate": 3}])
def test_fine_tuning_is_that_of_plain_torch(
    tmp_path: Path, lively: Path, train: Split, values: dict[str, Any]
) -> None:
    values = values | STEADY
    config = config_of(null_weight=2.0, **values)
    plain = WeightedTuning(lively, [Job(train)], config)
    plain.counted = counts(train, 2.0)
    for _, rows in steps_of([Job(train)], config):
        plain.step(0, rows)
    stage = tuned(tmp_path / "own", train, lively, null_weight=2.0, **values)
    assert losses(stage) == pytest.approx(plain.losses, rel=5e-5, abs=2e-6)
    found, wanted = snapshot_weights(tmp_path / "own" / "snapshot-1"), plain.weights()
    assert largest_difference({n: found[n] for n in wanted}, wanted) < 2e-5
    assert read_head_config(tmp_path / "own" / "snapshot-1" / "head")["task"]["kind"] == "span"
    usual = tuned(tmp_path / "usual", train, lively, **values)
    assert losses(usual) != pytest.approx(losses(stage), rel=1e-3)


@pytest.mark.parametrize("stack", ["on", "off"])
def test_a_fit_is_that_of_plain_torch(tmp_path: Path, lively: Path, train: Split, stack: str) -> None:
    """Two seeds of the last state's output layer: softmax regression, written out."""
    encoder = Encoder.load(str(lively))
    states = MemoryStates(encoder, train.windows, tokens_per_call=2000)
    config = fit_config("last_state", seeds=(0, 1), null_weight=2.0, stack=stack, epochs=2, **STEADY)
    members, task = zoo_members(config), null_weighted(train, 2.0).task
    begun = {n: f.head.state_dict() for n, f in FitRun(states, members, config).fitted.items()}
    plain = {name: {k: v.clone().requires_grad_() for k, v in state.items()} for name, state in begun.items()}
    done = fit(states, members, config, RunFolder(tmp_path, {}), task=task)
    weights = counts(train, 2.0)
    for name, own in plain.items():
        optimizer = torch.optim.SGD(list(own.values()), lr=config.lr, momentum=0.9)
        for epoch in range(2):
            for batch in states.epoch(epoch, batch_size=8, seed=config.seed + done[name].seed):
                total = torch.zeros(())
                for row, window in enumerate(batch.windows):
                    real = batch.states[-1, row][batch.mask[row]].float()
                    logits = F.linear(real, own["project.weight"], own["project.bias"])
                    parts = [F.cross_entropy(logits[:, i], batch.targets[row, i].long()) for i in (0, 1)]
                    total = total + float(weights[window]) * (parts[0] + parts[1]) / 2
                (total / len(batch.windows)).backward()
                torch.nn.utils.clip_grad_norm_(list(own.values()), config.clip)
                optimizer.step()
                optimizer.zero_grad()
        assert (
            largest_difference(done[name].head.state_dict(), {k: v.detach() for k, v in own.items()}) < 2e-5
        )


# ---- settings


def test_the_key_and_the_head_keep_it(tmp_path: Path, lively: Path, train: Split) -> None:
    encoder = Encoder.load(str(lively))
    about: dict[str, Any] = {"encoder_about": {"name": "toy"}, "states": StatesConfig(source="memory")}
    fit_zoo(encoder, train, folder=tmp_path / "2", config=fit_config("last_state", null_weight=2.0), **about)
    assert read_head_config(tmp_path / "2" / "last-state.seed0")["fit"]["null_weight"] == 2.0
    other = fit_config("last_state", null_weight=3.0)
    with pytest.raises(OutputError, match=r"fit\.null_weight"):
        fit_zoo(encoder, train, folder=tmp_path / "2", config=other, **about)


def test_flag_reaches_every_verb(tmp_path: Path, lively: Path, toy_squad: Path) -> None:
    given = ("--train", toy_squad, "--max-seq-length", "64", "--device", "cpu")
    for verb, more in (("finetune", ("--encoder", lively)), ("fit", (lively, "--heads", "last_state"))):
        done = bertvision(verb, *given, *more, "--null-weight", "2", "--out", tmp_path / verb)
        assert done.code == 0, done.err
    tuned_key = read_json(tmp_path / "finetune" / "stage.json")["key"]
    assert tuned_key["finetune"]["null_weight"] == 2.0
    fitted_key = next((tmp_path / "fit").rglob("stage.json"))
    assert read_json(fitted_key)["key"]["fit"]["null_weight"] == 2.0
    flags = ("--finetune.null-weight", "2", "--fit.null-weight", "3", "--fit.heads", "last_state")
    done = bertvision(
        "run", "--encoder", lively, *given, "--dev", toy_squad, *flags, "--out", tmp_path / "run"
    )
    assert done.code == 0, done.err
    told = "\n".join(file.read_text() for file in (tmp_path / "run").rglob("stage.json"))
    assert '"null_weight": 2.0' in told
    assert '"null_weight": 3.0' in told


def test_other_tasks_refuse_it_before_anything_is_written(tmp_path: Path, lively: Path) -> None:
    encoder = Encoder.load(str(lively))
    for data in (label_texts(6), score_texts(6)):
        split = split_of(data, lively)
        with pytest.raises(ConfigError, match="--null-weight is for spans, not for a"):
            Job.only(split, None, config_of(null_weight=2.0))
        with pytest.raises(ConfigError, match="--null-weight is for spans, not for a"):
            fit_zoo(
                encoder, split, folder=tmp_path / "out", config=FitConfig(heads=("cls_linear",), null_weight=2.0),
                encoder_about={"name": "toy"}, states=StatesConfig(),
            )  # fmt: skip
    assert not (tmp_path / "out").exists()
