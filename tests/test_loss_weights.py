"""--null-weight and --text.balance: what windows without an answer, and those of each class, count in the loss."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_helpers import WINDOWS, fit_config
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from tuning_helpers import (
    PlainTuning,
    config_of,
    label_texts,
    largest_difference,
    losses,
    score_texts,
    snapshot_weights,
    split_of,
    steps_of,
    tuned,
)

from bertvision.data.examples import TextData, TextExample
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads.base import read_head_config
from bertvision.states.base import MemoryStates
from bertvision.states.config import StatesConfig
from bertvision.tasks.base import TextConfig
from bertvision.tasks.label_score import LabelTask
from bertvision.tasks.span import SpanTask
from bertvision.train.config import FitConfig
from bertvision.train.fit import FitRun, fit
from bertvision.train.job import Job, Split, load_split, null_weighted, window_split
from bertvision.train.run_folder import RunFolder
from bertvision.train.zoo import fit_zoo, zoo_members


@pytest.fixture(scope="module", name="train")
def fixture_train(lively: Path, toy_squad: Path) -> Split:
    return load_split(str(toy_squad), Encoder.load(str(lively)), WINDOWS)


def counts(train: Split, weight: float) -> NDArray[np.float64]:
    """(W,) what each window counts: `weight` where it has no answer, then all divided by their mean."""
    pairs = train.windows.labels, train.windows.null
    raw = [weight if start == null else 1.0 for (start, _), null in zip(*pairs, strict=True)]
    return np.array(raw) / np.mean(raw)


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
    for config in (fit_config("last_state", null_weight=2.0), config_of(null_weight=2.0)):
        assert config.identity["null_weight"] == 2.0, "the keys of stages keep it"


STEADY: dict[str, Any] = {"optimizer": "sgd", "lr": 0.02, "clip": 100.0, "weight_decay": 0.0}
"""Biases of a softmax have no gradient but rounding, which Adam would make as large as any other."""


class WeightedTuning(PlainTuning):
    """The plain one with a loss of every window by itself, times what it counts."""

    counted: NDArray[np.float64]

    def _optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.config.lr, momentum=0.9)

    def loss(self, number: int, units: NDArray[np.int64]) -> Tensor:
        alone = [super(WeightedTuning, self).loss(number, np.array([unit])) for unit in units]
        return (torch.stack(alone) * torch.from_numpy(self.counted[units]).float()).mean()


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
        wanted = {k: v.detach() for k, v in own.items()}
        assert largest_difference(done[name].head.state_dict(), wanted) < 2e-5


def test_other_tasks_refuse_it_before_anything_is_written(tmp_path: Path, lively: Path) -> None:
    encoder = Encoder.load(str(lively))
    config, about = FitConfig(heads=("cls_linear",), null_weight=2.0), {"name": "toy"}
    for data in (label_texts(6), score_texts(6)):
        split, out = split_of(data, lively), tmp_path / "out"
        with pytest.raises(ConfigError, match="--null-weight is for spans, not for a"):
            Job.only(split, None, config_of(null_weight=2.0))
        with pytest.raises(ConfigError, match="--null-weight is for spans, not for a"):
            fit_zoo(encoder, split, folder=out, config=config, encoder_about=about, states=StatesConfig())
    assert not (tmp_path / "out").exists()


def test_all_windows_of_a_class_weigh_the_same_together(tiny_bert: Path) -> None:
    encoder, how = Encoder.load(str(tiny_bert)), TextConfig(balance=True)

    def split(labels: list[int], kind: Any = "label", **more: Any) -> Split:
        examples = [TextExample(str(i), f"text number {i}", label=label) for i, label in enumerate(labels)]
        data = TextData(examples, kind, ("a", "b", "c") if kind == "label" else (), "toy")
        return window_split(data, encoder, WindowConfig(max_seq_length=32), keep=False, text=how, **more)

    task = split([0] * 6 + [1] * 2 + [2]).task
    assert isinstance(task, LabelTask)
    assert [count * weight for count, weight in zip((6, 2, 1), task.weights, strict=True)] == [3.0, 3.0, 3.0]
    assert split([0, 1], task=task).task == task, "dev counts as train does"
    with pytest.raises(ConfigError, match=r"--text\.balance is for classes"):
        split([1, 2], "score")
