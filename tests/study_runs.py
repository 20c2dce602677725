"""A tiny study as a user would write it down: every kind of part, eight articles, some seconds on one core."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Outcome, bertvision
from toy import squad_json

__all__ = ["RECIPE", "answers", "command", "one_sitting", "study", "titled", "untimed", "write_recipe"]

_FIT = {"epochs": 1, "batch_size": 4, "lr": 1e-2, "null_weight": 2}
_TUNE = {"epochs": 1, "snapshots": [0.5], "schedule": "constant", "warmup": 0, "lr": 2e-3, "batch_size": 4}

RECIPE: dict[str, Any] = {
    "holdout": 0.2,
    "windows": {"max_seq_length": 96, "max_query_length": 24, "doc_stride": 32, "stride": "step"},
    "device": "cpu",
    "precision": "fp32",
    "tune": [
        {"name": "curve", "family": "constant", "finetune": _TUNE | {"null_weight": 2}},
        {"name": "constant", "seeds": [1], "finetune": _TUNE | {"null_weight": 2}, "inference": True},
        {"name": "part", "fraction": 0.5, "finetune": {**_TUNE, "snapshots": [], "policy": "top-1"}},
        {"name": "pooled", "task": "answerable", "finetune": {**_TUNE, "snapshots": []}},
    ],
    "fit": [
        {"name": "early", "snapshot": "constant@0.5", "heads": ["adapter:size=4", "last_state"], "seeds": [0, 1],
         "fit": _FIT},
        {"name": "late", "snapshot": "constant@1", "heads": ["adapter:size=4", "learned_pooling"], "seeds": [0, 1],
         "fit": _FIT, "inference": True},
        {"name": "half", "snapshot": "constant@1", "heads": ["adapter:size=4"], "fraction": 0.5, "fit": _FIT},
        {"name": "raw", "snapshot": "untuned", "heads": ["learned_pooling"], "fit": _FIT},
        {"name": "labels", "task": "answerable", "snapshot": "pooled@1",
         "heads": ["cls_linear", "adapter_pooler:size=4"], "epoch_scores": True,
         "fit": {"epochs": 2, "batch_size": 4, "lr": 1e-2}},
    ],
    "read": [{"name": "moved", "heads_of": "early", "snapshot": "constant@1", "seeds": [0, 1]}],
    "join": [
        {"name": "pair", "members": ["constant@1", "constant@1/adapter-4"], "how": "max", "seeds": [0, 1]},
        {"name": "all seeds", "members": ["constant@1/adapter-4"], "how": "mean", "seeds": [0, 1], "over_seeds": True},
    ],
    "decode": [
        {"name": "second", "of": ["constant@1", "constant@1/adapter-4"], "variant": "second", "seeds": [0, 1]},
        {"name": "published", "of": ["constant@1/adapter-4"], "variant": "bertvision"},
    ],
}  # fmt: skip


def titled(folder: Path) -> Path:
    """The toy questions, every paragraph an article of its own."""
    data = squad_json()
    (only,) = data["data"]
    data["data"] = [{"title": f"Toy {i}", "paragraphs": [one]} for i, one in enumerate(only["paragraphs"])]
    path = folder / "titled.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def write_recipe(folder: Path, **changes: Any) -> Path:
    """RECIPE with some of its keys replaced; JSON is YAML, too."""
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(RECIPE | changes), encoding="utf-8")
    return path


def command(recipe: Path, encoder: Path, data: Path, out: Path, *flags: str) -> list[str]:
    """Train and dev are the same questions: what is held out of train is in dev, which no test minds."""
    return ["study", "--config", str(recipe), "--encoder", str(encoder), "--train", str(data), "--dev", str(data),
            "--out", str(out), *flags]  # fmt: skip


def study(recipe: Path, encoder: Path, data: Path, out: Path, *flags: str) -> Outcome:
    return bertvision(*command(recipe, encoder, data, out, *flags))


_TIMES = {"tune_seconds", "fit_seconds", "inference_seconds", "peak_bytes", "command", "history", "commit"}


def untimed(about: dict[str, Any]) -> dict[str, Any]:
    """What two runs of one recipe must agree on."""
    return {name: value for name, value in about.items() if name not in _TIMES}


def answers(out: Path) -> dict[str, Any]:
    """Every record of a study: the bytes of its answers, and what is told of it but for times and commands."""
    return {
        f"{path.parent.name}/{path.name}": untimed(json.loads(path.read_text()))
        if path.suffix == ".json"
        else path.read_bytes()
        for path in sorted(out.glob("records/*/*"))
    }


def one_sitting(factory: pytest.TempPathFactory, recipe: Path, encoder: Path, data: Path) -> Path:
    """The folder of a study that was run from its beginning to its end: to read, not to change."""
    out = factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(factory.getbasetemp() / "cache"))
        outcome = study(recipe, encoder, data, out)
    assert outcome.code == 0, outcome.err
    return out
