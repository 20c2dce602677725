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
    fixture_no_dropout,  # noqa: F401
    fixture_three_layers,  # noqa: F401
    fixture_train,  # noqa: F401
    tuned,
    weights,
)

from bertvision.encoder.encoder import Encoder
from bertvision.errors import TrainingError
from bertvision.tasks.span import SpanTask
from bertvision.train.finetune import tune
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


def named(message: str) -> tuple[set[str], int]:
    """Questions that a message names, and how many more it counts."""
    found = re.search(r"on the examples (.*?)(?: and (\d+) more)?: lower --lr", message)
    assert found, message
    return set(found[1].split(", ")), int(found[2] or 0)


def checkpoint(folder: Path) -> tuple[int, dict[str, Tensor]]:
    with safe_open(folder / "checkpoint.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["progress"])["progress"]["step"], tensors


def assert_good(folder: Path, step: int) -> None:
    found, tensors = checkpoint(folder)
    assert found == step
    modules = [t for key, t in tensors.items() if key.startswith(("module/", "optimizer/"))]
    assert modules
    assert all(t.isfinite().all() for t in modules)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("policy", ["full", "cut-1"])
def test_step_questions_and_checkpoint_are_named(
    policy: str, value: float, tmp_path: Path, train: Split, three_layers: Path
) -> None:
    values = {"policy": policy, "epochs": 2.0, "snapshots": (0.2, 1.0), "checkpoint_seconds": 0.0}
    with loss_breaks_at(3, value), pytest.raises(TrainingError, match="at step 3 of fine-tuning") as caught:
        tuned(tmp_path / "out", train, three_layers, **values)
    message = str(caught.value)
    assert "\n" not in message
    assert f"the loss became {value}" in message
    assert "of step 2, is kept in" in message
    assert str(tmp_path / "out") in message
    wanted = ids_of_step(train, 3)
    assert named(message) == (wanted, 0)
    assert_good(tmp_path / "out", 2)
    first = [path.name for path in (tmp_path / "out").glob("snapshot-*")]
    assert first == ["snapshot-0.2"], "only what was kept before it broke"

    # Whatever broke it is gone: the run goes on, and ends where an unbroken one does.
    tuned(tmp_path / "out", train, three_layers, **values)
    tuned(tmp_path / "whole", train, three_layers, **values)
    for name in ("snapshot-0.2", "snapshot-1", "snapshot-2"):
        assert_equal(weights(tmp_path / "out" / name), weights(tmp_path / "whole" / name))


def test_with_parts_the_whole_batch_is_named(tmp_path: Path, train: Split, three_layers: Path) -> None:
    """The second part of a step; of many questions the first are named and the others counted."""
    values = {"accumulate": 2, "batch_size": 16, "checkpoint_seconds": 1e9}
    step = next(s for s in (1, 2) if len(ids_of_step(train, s, batch_size=16)) > 8)
    with loss_breaks_at(2 * step), pytest.raises(TrainingError, match=f"at step {step} of") as caught:
        tuned(tmp_path, train, three_layers, **values)
    wanted = ids_of_step(train, step, batch_size=16)
    some, more = named(str(caught.value))
    assert some <= wanted
    assert len(some) + more == len(wanted)
    assert len(wanted) > len(some) == 8
    assert "no checkpoint was written before" in str(caught.value)
    assert not (tmp_path / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("values", [{"batch_tokens": 200}, {"sampling": "balanced"}], ids=str)
def test_the_questions_are_those_of_the_batch_however_it_is_drawn(
    values: dict[str, Any], tmp_path: Path, train: Split, three_layers: Path
) -> None:
    with loss_breaks_at(4), pytest.raises(TrainingError, match="at step 4 ") as caught:
        tuned(tmp_path, train, three_layers, batch_size=4, epochs=2.0, **values)
    assert named(str(caught.value)) == (ids_of_step(train, 4, batch_size=4, **values), 0)


@pytest.mark.parametrize("part", ["head", "encoder"])
def test_a_step_that_breaks_the_weights_is_in_no_checkpoint(
    part: str, tmp_path: Path, train: Split, three_layers: Path
) -> None:
    """Its own loss is a number: only the weights tell."""

    def spoil(steps: Steps) -> None:
        module = steps.tuning.heads[0] if part == "head" else steps.model
        with torch.no_grad():
            next(iter(module.parameters())).view(-1)[0] = math.nan

    values = {"epochs": 2.0, "checkpoint_seconds": 0.0, "snapshots": (0.2,)}
    match = "the weights of the checkpoint are not finite after step 3 of fine-tuning"
    with after_step(3, spoil), pytest.raises(TrainingError, match=match) as caught:
        tuned(tmp_path, train, three_layers, **values)
    assert named(str(caught.value))[0] == ids_of_step(train, 3)
    assert "of step 2, is kept in" in str(caught.value)
    assert_good(tmp_path, 2)
    third = 3 / math.ceil(len(train.windows) / 8)  # of an epoch
    values |= {"snapshots": (0.2, third)}
    match = f"the weights of snapshot-{third:g} are not finite after step 3 of fine-tuning"
    with after_step(3, spoil), pytest.raises(TrainingError, match=match):
        tuned(tmp_path / "other", train, three_layers, **values)
    assert [path.name for path in (tmp_path / "other").glob("snapshot-*")] == ["snapshot-0.2"]
    assert_good(tmp_path / "other", 2)


def test_a_score_on_the_way_stands_in_the_checkpoint(
    tmp_path: Path, train: Split, three_layers: Path
) -> None:
    """A run that broke behind a snapshot does not score it twice."""
    values = {"epochs": 2.0, "snapshots": (0.5,), "checkpoint_seconds": 0.0, "dev": train}
    with loss_breaks_at(4), pytest.raises(TrainingError):
        tuned(tmp_path, train, three_layers, **values)
    before = (tmp_path / "snapshot-0.5").stat().st_mtime_ns
    stage = tuned(tmp_path, train, three_layers, **values)
    assert (tmp_path / "snapshot-0.5").stat().st_mtime_ns == before
    assert stage.results["snapshots"].keys() == {"snapshot-0.5", "snapshot-2"}


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


def test_questions_without_texts_are_named_by_number(
    tmp_path: Path, train: Split, three_layers: Path
) -> None:
    from dataclasses import replace

    from bertvision.data.examples import SpanData

    bare = replace(train, data=SpanData([], [], "windows alone"))
    with loss_breaks_at(2), pytest.raises(TrainingError, match=r"on the examples number \d+"):
        tune(Encoder.load(str(three_layers)), bare, folder=tmp_path, config=config_of())
