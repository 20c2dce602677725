"""Heads of random weights saved as training saves them: folders to load, score and serve without a fit."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from bertvision.artifacts import write_json
from bertvision.config import to_mapping
from bertvision.data.texts import Reframe
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, parse_head, save_head
from bertvision.states.config import EVERYTHING, Selection
from bertvision.tasks.base import Task, to_json
from bertvision.tasks.label_score import LabelTask, ScoreTask
from bertvision.tasks.span import SPAN

WINDOWS = WindowConfig(max_seq_length=32, max_query_length=12, doc_stride=8)
MOOD = LabelTask(("bad", "good"))
SAME = LabelTask(("no", "yes"), pairs=True)
COLOUR = LabelTask(("red", "green", "blue"))
ALIKE = ScoreTask(shift=2.5, scale=1.5)
ANSWERABLE = LabelTask(("answer", "no answer"), merge="min", asks=True, pairs=True)


def save_system(
    folder: Path,
    encoder: Encoder,
    head: str,
    task: Task,
    *,
    selection: Selection = EVERYTHING,
    windows: WindowConfig = WINDOWS,
    reframe: Reframe | None = None,
    temperature: float | None = None,
    seed: int = 0,
) -> Path:
    """A head's folder; its weights are large enough to give different texts different answers."""
    layers = selection.numbers(encoder.num_states)
    pooled = task.unit == "window" and encoder.has_pooler and encoder.num_states - 1 in layers
    made = parse_head(head).build(
        Geometry(len(layers), encoder.hidden, task.outputs, task.unit, pooled), seed=seed
    )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    about = {
        "task": task.config(),
        "windows": to_mapping(windows),
        "encoder": {
            "name": encoder.name,
            "path": os.path.relpath(encoder.name, folder),
            "fingerprint": encoder.fingerprint,
        },
    }
    if selection != EVERYTHING:
        about["states"] = to_mapping(selection.resolved(encoder.num_states))
    if reframe is not None:
        about["reframe"] = to_mapping(reframe)
    folder.mkdir(parents=True)
    save_head(made, folder, about=about)
    if temperature is not None:
        write_json(folder / "metrics.json", {"tuning": {"on": "dev", "temperature": temperature}})
    return folder


def save_span(
    folder: Path, encoder: Encoder, head: str = "last_state", *, selection: Selection = EVERYTHING
) -> Path:
    """The same for a head that finds spans."""
    return save_system(folder, encoder, head, SPAN, selection=selection)


def plain(predictions: Any) -> Any:
    """A model's predictions as JSON has them."""
    return json.loads(json.dumps({name: to_json(one) for name, one in predictions.items()}))


def assert_same(answer: Any, expected: Any, rel: float = 1e-4, absolute: float = 1e-6) -> None:
    """Equal, but for `kind`, and numbers that depend on the company in a batch up to rounding."""
    if isinstance(expected, dict):
        assert set(answer) - {"kind"} == set(expected) - {"kind"}
        for name, value in expected.items():
            assert_same(answer[name], value, rel, absolute)
    elif isinstance(expected, list):
        assert len(answer) == len(expected)
        for one, other in zip(answer, expected, strict=True):
            assert_same(one, other, rel, absolute)
    elif isinstance(expected, float):
        assert answer == pytest.approx(expected, rel=rel, abs=absolute)
    else:
        assert answer == expected
