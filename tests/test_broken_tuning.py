"""A loss that is no number, and weights that are none: where, on what, and what is left to go on from."""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runner import bertvision
from plain_tuning import steps_of
from safetensors import safe_open
from test_resume import WINDOWS as WINDOW_FLAGS
from torch import Tensor
from tuning_helpers import (
    after_step,
    assert_equal,
    config_of,
    fixture_three_layers,  # noqa: F401
    fixture_train,  # noqa: F401
    tuned,
    weights,
)

from bertvision.errors import TrainingError
from bertvision.tasks.span import SpanTask
from bertvision.train.job import Job
from bertvision.train.splits import Split
from bertvision.train.steps import Steps


@contextmanager
def loss_breaks_at(call: int, value: float = math.nan) -> Iterator[None]:
    """The loss of one window of that call, counted from 1, is `value`."""
    real, calls = SpanTask.loss, []

    def broken(task: SpanTask, logits: Tensor, batch: Any) -> Tensor:
        calls.append(1)
        found = real(task, logits, batch)
        if len(calls) == call:
            found = found * torch.tensor([1.0] * (len(found) - 1) + [value])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpanTask, "loss", broken)
        yield


def ids_of_step(train: Split, step: int, **values: Any) -> set[str]:
    """Questions of a step, counted from 1."""
    job = Job(train, sampling=values.pop("sampling", "natural"))
    _, batch = steps_of([job], config_of(epochs=2.0, **values))[step - 1]
    return {train.data.examples[train.windows.example[window]].id for window in batch}


def named(message: str) -> set[str]:
    """Questions that a message names."""
    found = re.search(r"on the examples (.*?)(?:, \.\.\.)?: lower --lr", message)
    assert found, message
    return set(found[1].split(", "))


def assert_good(folder: Path, step: int) -> None:
    """The checkpoint is of this step, and all its numbers are finite."""
    with safe_open(folder / "checkpoint.safetensors", "pt") as file:
        assert json.loads(file.metadata()["progress"])["progress"]["step"] == step
        keys = [key for key in file.keys() if key.startswith(("module/", "optimizer/"))]  # noqa: SIM118
        assert keys
        assert all(file.get_tensor(key).isfinite().all() for key in keys)


@pytest.mark.parametrize(("policy", "value"), [("full", math.nan), ("cut-1", math.inf)])
def test_step_questions_and_checkpoint_are_named(
    policy: str, value: float, tmp_path: Path, train: Split, three_layers: Path
) -> None:
    values = {
        "policy": policy,
        "epochs": 2.0,
        "snapshots": (0.2, 1.0),
        "checkpoint_seconds": 0.0,
        "dev": train,
    }
    with loss_breaks_at(3, value), pytest.raises(TrainingError, match="at step 3 of fine-tuning") as caught:
        tuned(tmp_path / "out", train, three_layers, **values)
    message = str(caught.value)
    assert "\n" not in message
    assert f"the loss became {value}" in message
    assert f"of step 2, is kept in {tmp_path / 'out'}" in message
    assert named(message) == ids_of_step(train, 3)
    assert_good(tmp_path / "out", 2)
    assert [path.name for path in (tmp_path / "out").glob("snapshot-*")] == ["snapshot-0.2"]
    written = (tmp_path / "out" / "snapshot-0.2").stat().st_mtime_ns

    # Whatever broke it is gone: the run goes on, and ends where an unbroken one does.
    stage = tuned(tmp_path / "out", train, three_layers, **values)
    assert stage.results["snapshots"].keys() == {"snapshot-0.2", "snapshot-1", "snapshot-2"}
    assert (tmp_path / "out" / "snapshot-0.2").stat().st_mtime_ns == written, "neither kept nor scored twice"
    tuned(tmp_path / "whole", train, three_layers, **values)
    for name in stage.results["snapshots"]:
        assert_equal(weights(tmp_path / "out" / name), weights(tmp_path / "whole" / name))


@pytest.mark.parametrize(
    "values", [{"batch_tokens": 200, "batch_size": 4}, {"sampling": "balanced"}, {}], ids=str
)
def test_the_first_questions_of_the_batch_are_named_however_it_is_drawn(
    values: dict[str, Any], tmp_path: Path, train: Split, three_layers: Path
) -> None:
    """In two parts, of which the second is broken; no checkpoint was written before."""
    values = {"batch_size": 16} | values
    step = next(s for s in (1, 2) if len(ids_of_step(train, s, **values)) > 8 or "batch_tokens" in values)
    how = {"accumulate": 2, "checkpoint_seconds": 1e9, "epochs": 2.0}
    with loss_breaks_at(2 * step), pytest.raises(TrainingError, match=f"at step {step} of") as caught:
        tuned(tmp_path, train, three_layers, **how, **values)
    some, wanted = named(str(caught.value)), ids_of_step(train, step, **values)
    assert some <= wanted
    assert len(some) == min(8, len(wanted))
    assert "no checkpoint was written before" in str(caught.value)
    assert not (tmp_path / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("part", ["head", "encoder"])
def test_a_step_that_breaks_the_weights_is_in_no_checkpoint_and_no_snapshot(
    part: str, tmp_path: Path, train: Split, three_layers: Path
) -> None:
    """Its own loss is a number: only the weights tell."""

    def spoil(steps: Steps) -> None:
        module = steps.heads[0] if part == "head" else steps.model
        with torch.no_grad():
            next(iter(module.parameters())).view(-1)[0] = math.nan

    third = 3 / math.ceil(len(train.windows) / 8)  # of an epoch
    for snapshots, name in (((0.2,), "the checkpoint"), ((0.2, third), f"snapshot-{third:g}")):
        values = {"epochs": 2.0, "checkpoint_seconds": 0.0, "snapshots": snapshots}
        match = f"the weights of {name} are not finite after step 3 of fine-tuning"
        out = tmp_path / name
        with after_step(3, spoil), pytest.raises(TrainingError, match=match) as caught:
            tuned(out, train, three_layers, **values)
        assert named(str(caught.value)) == ids_of_step(train, 3)
        assert_good(out, 2)
        assert [path.name for path in out.glob("snapshot-*")] == ["snapshot-0.2"]


def test_a_rate_that_is_far_too_high_ends_the_command(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = bertvision(
        "finetune", "--train", toy_squad, "--encoder", tiny_bert, "--out", out, *WINDOW_FLAGS,
        "--lr", "1e36", "--warmup", "0", "--epochs", "3", "--checkpoint-seconds", "0",
    )  # fmt: skip
    assert done.code == 2
    last = done.err.strip().splitlines()[-1]
    assert re.search(
        r"(became nan|became inf|are not finite).* step \d+ of fine-tuning on the examples \d", last
    )
    assert "Traceback" not in done.err
    assert not list(out.glob("snapshot-*"))
