"""Steps for graphs, which zero gradients instead of dropping them, are plain steps: what a task does not reach rests.

Graphs need a GPU (tests/test_gpu_tuning.py); here the same steps are taken on a CPU, one operation at a time.
"""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_tuning import fixture_lively, label_texts, snapshot_weights, split_of  # noqa: F401
from test_multitask import WINDOWS, losses, tuned
from tuning_helpers import largest_difference

from bertvision.encoder.encoder import Encoder
from bertvision.train import steps as steps_module
from bertvision.train.job import Job
from bertvision.train.splits import load_split
from bertvision.train.steps import GraphSteps


class _Stream:
    def wait_stream(self, other: Any) -> None:
        pass


class _WithoutGraphs(GraphSteps):
    """The steps of a GPU where nothing could be captured."""

    def __init__(self, *values: Any, **more: Any) -> None:
        super().__init__(*values, **more)
        self.graphs.possible = False


@pytest.fixture
def as_for_graphs(monkeypatch: pytest.MonkeyPatch) -> Any:
    def switch() -> None:
        for name, value in (("graph_pool_handle", lambda: None), ("Stream", _Stream), ("current_stream", _Stream),
                            ("stream", lambda _: contextlib.nullcontext())):  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(steps_module, "Steps", _WithoutGraphs)

    return switch


@pytest.mark.parametrize("values", [{"order": "mixed"}, {"order": "sequential", "accumulate": 2}], ids=str)
def test_what_a_task_does_not_reach_rests(
    values: dict[str, Any], lively: Path, toy_squad: Path, tmp_path: Path, as_for_graphs: Any
) -> None:
    """The pooler belongs to the label; Adam would go on with it while spans train, and shrink it."""
    spans = load_split(str(toy_squad), Encoder.load(str(lively)), WINDOWS)
    jobs = [Job(split_of(label_texts(27), lively), name="mood"), Job(spans, name="where")]
    more: dict[str, Any] = {"weight_decay": 0.5, **values}
    plain = tuned(tmp_path / "plain", lively, jobs, **more)
    as_for_graphs()
    other = tuned(tmp_path / "other", lively, jobs, **more)
    assert losses(other) == pytest.approx(losses(plain), rel=1e-5)
    found, wanted = (snapshot_weights(tmp_path / name / "snapshot-2") for name in ("other", "plain"))
    assert largest_difference(found, wanted) < 1e-6
