"""Heads on disk: what is saved comes back bit by bit, and damage is told in one sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_heads import SMALL_SPECS, inputs, shaken

from bertvision.artifacts import write_tensors
from bertvision.errors import ArtifactError
from bertvision.heads import load_head, save_head


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_saved_head_comes_back_bit_by_bit(text: str, tmp_path: Path) -> None:
    head = shaken(text)
    save_head(head, tmp_path, about={"label": "mine"})
    loaded, config = load_head(tmp_path)
    assert loaded.config == head.config
    assert loaded.geometry == head.geometry
    assert not loaded.training
    assert config["label"] == "mine"
    assert config["parameters"] == head.num_parameters
    assert torch.equal(loaded(*inputs()), head(*inputs()))
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def _json(folder: Path, change: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


DAMAGE = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    "cut weights": (lambda f: _cut(f / "model.safetensors"), "is damaged"),
    "cut config": (lambda f: _cut(f / "config.json"), "is not valid JSON"),
    "list": (lambda f: (f / "config.json").write_text("[1]"), "does not describe a bertvision head"),
    "an encoder's": (lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), "does not describe"),
    "newer": (
        lambda f: _json(f, lambda c: c.update(schema=99, bertvision="9.0")),
        r"format 99 by bertvision 9\.0",
    ),
    "unknown head": (
        lambda f: _json(f, lambda c: c["head"].update(name="adaptor.v1")),
        r"adaptor.*adapter\.v1",
    ),
    "bad setting": (
        lambda f: _json(f, lambda c: c["head"]["config"].update(size=0)),
        "size must be at least 1",
    ),
    "other geometry": (lambda f: _json(f, lambda c: c["geometry"].update(hidden=13)), "asks for"),
    "bad geometry": (lambda f: _json(f, lambda c: c["geometry"].update(depth=1)), "cannot build"),
    "lost tensor": (lambda f: write_tensors(f / "model.safetensors", {"a": torch.ones(1)}), "asks for"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_head_is_one_sentence(case: str, tmp_path: Path) -> None:
    spoil, words = DAMAGE[case]
    save_head(shaken("adapter:size=3"), tmp_path, about={})
    spoil(tmp_path)
    with pytest.raises(ArtifactError, match=words) as caught:
        load_head(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_is_written_twice_over(tmp_path: Path) -> None:
    """The folder can be copied anywhere: nothing in it names a place."""
    head = shaken("adapter:size=3")
    save_head(head, tmp_path / "a", about={})
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert torch.equal(load_head(tmp_path / "b")[0](*inputs()), head(*inputs()))
