"""What the tests of fine-tuning share: short runs of `tune` on the toy data, and what they left."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from toy import save_encoder

from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.train.config import FinetuneConfig
from bertvision.train.finetune import tune
from bertvision.train.job import Job, Split, load_split
from bertvision.train.run_folder import RunFolder, read_metrics
from bertvision.train.steps import Steps

WINDOWS = WindowConfig(max_seq_length=64, max_query_length=16, doc_stride=24)
POLICIES = ("full", "none", "layers", "top-1", "cut-1", "houlsby-4", "houlsby-4+top-1", "lora-2", "bitfit")


# Fixtures, imported by the files that use them.


@pytest.fixture(scope="session", name="three_layers")
def fixture_three_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT with three layers and dropout."""
    return save_encoder(tmp_path_factory.mktemp("encoders") / "three", num_hidden_layers=3)


@pytest.fixture(scope="session", name="no_dropout")
def fixture_no_dropout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without dropout."""
    folder = tmp_path_factory.mktemp("encoders") / "plain"
    rates: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return save_encoder(folder, num_hidden_layers=3, **rates)


@pytest.fixture(scope="session", name="train")
def fixture_train(three_layers: Path, toy_squad: Path) -> Split:
    """Windows depend on the tokenizer alone, which all toy encoders of BERT's kind share."""
    return load_split(str(toy_squad), Encoder.load(str(three_layers)), WINDOWS)


def config_of(**values: Any) -> FinetuneConfig:
    settings: dict[str, Any] = {
        "batch_size": 8,
        "lr": 1e-3,
        "schedule": "constant",
        "warmup": 0.0,
        "log_every": 1,
    } | values
    return FinetuneConfig(**settings)


def tuned(
    folder: Path,
    train: Split,
    source: Path,
    *,
    dev: Split | None = None,
    **values: Any,
) -> RunFolder:
    """Fine-tune a freshly loaded encoder in `folder`."""
    encoder, config = Encoder.load(str(source)), config_of(**values)
    return tune(encoder, [Job.only(train, dev, config)], folder=folder, config=config)[0]


@contextmanager
def after_step(step: int, act: Callable[[Steps], None]) -> Iterator[None]:
    """Do something to a run when its step number `step`, counted from 1, is taken."""
    real = Steps.update

    def update(self: Steps) -> None:
        real(self)
        if self._step + 1 == step:
            act(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Steps, "update", update)
        yield


def losses(stage: RunFolder) -> list[float]:
    return [record["loss"] for record in read_metrics(stage.metrics) if "loss" in record]


def assert_same_tuning(ours: Path, theirs: Path, *, loose: tuple[str, ...] = ()) -> None:
    """Losses, scored tasks and weights of two fine-tunings up to rounding, but for tensors with names like `loose`."""
    logs = [read_metrics(out / "metrics.jsonl") for out in (ours, theirs)]
    curves = [[record["loss"] for record in log if "loss" in record] for log in logs]
    assert curves[0] == pytest.approx(curves[1], rel=1e-3, abs=1e-5)
    assert [record.get("task") for record in logs[0]] == [record.get("task") for record in logs[1]]
    files = sorted(theirs.glob("snapshot-*/**/*.safetensors"))
    assert files
    for file in (file for file in files if file.name != "logits.safetensors"):
        other = load_file(ours / file.relative_to(theirs))
        for name, tensor in load_file(file).items():
            if not name.endswith(loose):
                torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=5e-5, msg=f"{file} {name}")


def parameters(folder: Path | str) -> dict[str, Tensor]:
    """Of an encoder as it is loaded."""
    return {name: p.detach() for name, p in Encoder.load(str(folder)).model.named_parameters()}


def assert_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert first, "nothing to compare"
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different, different


def largest_difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)
