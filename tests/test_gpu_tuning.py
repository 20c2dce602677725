"""Fine-tuning on a GPU: replayed steps against plain ones, and every policy through them.

python -m pytest -m gpu tests/test_gpu_tuning.py
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import save_encoder, squad_json

from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.feed import FeedConfig
from bertvision.train import tuning as tuning_module
from bertvision.train.finetune import FinetuneConfig, tune
from bertvision.train.log import read_metrics
from bertvision.train.scoring import logits_of
from bertvision.train.splits import Split, load_split
from bertvision.train.stage import Stage
from bertvision.train.steps import GraphSteps, Steps
from bertvision.train.trained import load_encoder, logits_of_trained, read_trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

WINDOWS = WindowConfig(max_seq_length=64, max_query_length=16, doc_stride=24)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two encoders of four layers, one without dropout, and the toy questions."""
    folder = tmp_path_factory.mktemp("gpu")
    save_encoder(
        folder / "plain", num_hidden_layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    save_encoder(folder / "noisy", num_hidden_layers=4)
    (folder / "toy.json").write_text(json.dumps(squad_json()), encoding="utf-8")
    return folder


def tuned(
    home: Path,
    out: Path,
    *,
    encoder: str = "plain",
    precision: Any = "fp32",
    dev: bool = False,
    **values: Any,
) -> tuple[Stage, list[Path], Split]:
    made = Encoder.load(str(home / encoder), device="cuda", precision=precision)
    train = load_split(str(home / "toy.json"), made, WINDOWS)
    settings: dict[str, Any] = {
        "batch_size": 8,
        "lr": 1e-3,
        "schedule": "constant",
        "warmup": 0.0,
        "log_every": 1,
    }
    chosen: dict[str, Any] = settings | {"epochs": 4.0} | values
    config = FinetuneConfig(**chosen)
    feed = FeedConfig(source="memory")
    stage, folders = tune(made, train, folder=out, config=config, dev=train if dev else None, feed=feed)
    return stage, folders, train


def losses(stage: Stage) -> list[float]:
    return [r["loss"] for r in read_metrics(stage.metrics) if "loss" in r]


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Take steps one kernel at a time, as a CPU does."""

    def switch() -> None:
        monkeypatch.setattr(tuning_module, "GraphSteps", Steps)

    return switch


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[GraphSteps]:
    """The steps of every run of a test."""
    made: list[GraphSteps] = []

    class Kept(GraphSteps):
        def __init__(self, *values: Any) -> None:
            super().__init__(*values)
            made.append(self)

    monkeypatch.setattr(tuning_module, "GraphSteps", Kept)
    return made


@pytest.mark.parametrize("policy", ["full", "top-1", "cut-2", "houlsby-8", "bitfit"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_steps_are_plain_steps(
    home: Path, tmp_path: Path, plainly: Any, replayed: list[GraphSteps], policy: str, precision: Any
) -> None:
    captured, _, _ = tuned(home, tmp_path / "a", policy=policy, precision=precision)
    (steps,) = replayed
    assert steps._possible
    assert steps._parts, "no gradients were captured"
    assert steps._update is not None, "no update was captured"
    plainly()
    plain, _, _ = tuned(home, tmp_path / "b", policy=policy, precision=precision)
    tolerance = 1e-3 if precision == "fp32" else 0.05
    assert losses(captured) == pytest.approx(losses(plain), rel=tolerance)
    assert losses(captured)[-1] < 0.99 * losses(captured)[0]


def test_a_capture_that_fails_leaves_no_gradients_behind(
    home: Path, tmp_path: Path, replayed: list[GraphSteps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the backward pass, as when memory is wanting: the run goes on as if nothing had been tried."""
    plain, _, _ = tuned(home, tmp_path / "a", precision="bf16", epochs=2.0)
    real = GraphSteps._gradients

    def failing(self: GraphSteps, *values: Any) -> Any:
        loss = real(self, *values)
        if torch.cuda.is_current_stream_capturing():
            for _, copied in self._pairs:
                copied.grad = torch.full_like(copied, 7.0)
            raise RuntimeError("no memory for this shape")
        return loss

    monkeypatch.setattr(GraphSteps, "_gradients", failing)
    again, _, _ = tuned(home, tmp_path / "b", precision="bf16", epochs=2.0)
    assert not replayed[-1]._possible
    assert not replayed[-1]._parts
    assert losses(again) == pytest.approx(losses(plain), rel=0.05)


def test_parts_of_a_batch_are_captured_too(home: Path, tmp_path: Path) -> None:
    one, _, _ = tuned(home, tmp_path / "a")
    three, _, _ = tuned(home, tmp_path / "b", accumulate=3)
    assert losses(one) == pytest.approx(losses(three), rel=1e-3)


@pytest.mark.parametrize("head", ["adapter:size=8", "learned_pooling"])
@pytest.mark.parametrize("policy", ["full", "cut-2"])
def test_heads_over_all_layers_train_with_the_encoder(
    home: Path, tmp_path: Path, plainly: Any, policy: str, head: str
) -> None:
    captured, folders, train = tuned(
        home, tmp_path / "a", policy=policy, head=head, precision="bf16", dev=True
    )
    plainly()
    plain, _, _ = tuned(home, tmp_path / "b", policy=policy, head=head, precision="bf16", dev=True)
    assert losses(captured) == pytest.approx(losses(plain), rel=0.05)
    again = logits_of_trained([read_trained(folders[-1])], train.data, device="cuda")[0][1]
    kept = logits_of({folders[-1] / "head": read_trained(folders[-1]).heads[0]}, train, "dev", _never)
    kept_logits = kept[folders[-1] / "head"]
    assert abs(again.start - kept_logits.start).max() < 0.1


def _never() -> Any:
    raise AssertionError("the logits of the snapshot were not kept")


@pytest.mark.parametrize("policy", ["full", "houlsby-8", "lora-4", "cut-2"])
def test_scores_on_the_way_do_not_disturb(home: Path, tmp_path: Path, policy: str) -> None:
    """Snapshots and evaluation between replays: the same losses as without them, dropout and all."""
    values: dict[str, Any] = {"encoder": "noisy", "policy": policy, "precision": "bf16"}
    alone, _, _ = tuned(home, tmp_path / "a", **values)
    scored, folders, _ = tuned(home, tmp_path / "b", snapshots=(0.5, 1.0, 2.5), dev=True, **values)
    assert losses(alone) == pytest.approx(losses(scored), rel=1e-3)
    assert len(scored.results["snapshots"]) == len(folders) == 4
    trained = read_trained(folders[-1])
    assert load_encoder(trained, device="cuda").fingerprint == trained.fingerprint


def test_a_run_goes_on_from_its_checkpoint(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _, _ = tuned(home, tmp_path / "a", encoder="noisy", precision="bf16", policy="houlsby-8")
    real, count = GraphSteps.update, [0]

    def stop(self: GraphSteps) -> None:
        count[0] += 1
        if count[0] == 12:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(GraphSteps, "update", stop)
    values: dict[str, Any] = {
        "encoder": "noisy",
        "precision": "bf16",
        "policy": "houlsby-8",
        "checkpoint_seconds": 0.0,
    }
    with pytest.raises(KeyboardInterrupt):
        tuned(home, tmp_path / "b", **values)
    monkeypatch.setattr(GraphSteps, "update", real)
    again, _, _ = tuned(home, tmp_path / "b", **values)
    assert losses(again) == pytest.approx(losses(whole), rel=0.02)


def test_steps_that_cannot_be_captured_are_taken_plainly(home: Path, tmp_path: Path) -> None:
    """Gradient checkpointing reads random states on the way and cannot be captured; it runs all the same."""
    plain, _, _ = tuned(home, tmp_path / "a", precision="bf16")
    again, _, _ = tuned(home, tmp_path / "b", precision="bf16", checkpointing=True)
    assert losses(plain) == pytest.approx(losses(again), rel=0.05)
