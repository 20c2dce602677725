"""Where states come from: the rule of `auto`, the room a store may take, and a fit that keeps its choice."""

import json
import logging
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import bertvision
from safetensors.numpy import load_file
from store_cases import extract

from bertvision.encoder.encoder import Encoder
from bertvision.errors import OutputError
from bertvision.states import stored as source_module
from bertvision.states.base import LiveStates, MemoryStates
from bertvision.states.config import StatesConfig
from bertvision.states.store import entries, make_room
from bertvision.states.stored import StoredStates, measure, open_states, store_of
from bertvision.train import zoo as zoo_module
from bertvision.train.job import Split

Disk = namedtuple("Disk", "total used free")
FAST = (1000.0, 100_000.0, True)
"""Rates of encoding and reading, and whether half precision is enough."""


def opened(encoder: Encoder, train: Split, root: Path | str, **values: Any) -> Any:
    names = ("source", "memory_gb", "cache_gb", "dtype")
    config = StatesConfig(store=str(root), **{name: values.pop(name) for name in names if name in values})
    return open_states(encoder, train.windows, config, label="states of train", origin=train.origin, **values)


CASES: dict[str, tuple[dict[str, Any], tuple[float, float, bool], float, type]] = {
    "memory has room": ({}, FAST, 1e12, MemoryStates),
    "a store where memory has none": ({"memory_gb": 0.0}, FAST, 1e12, StoredStates),
    "reading is not faster": ({}, (1000, 900, True), 1e12, LiveStates),
    "a disk would hardly be faster": ({"memory_gb": 0.0}, (1000, 2900, True), 1e12, LiveStates),
    "a fifth of the disk is too little": ({"memory_gb": 0.0}, FAST, 1e5, LiveStates),
    "the limit of all stores": ({"memory_gb": 0.0, "cache_gb": 1e-6}, FAST, 1e12, LiveStates),
    "half precision is too little": ({}, (*FAST[:2], False), 1e12, LiveStates),
    "no store may be begun": ({"memory_gb": 0.0, "keep": False}, FAST, 1e12, LiveStates),
    "one pass": ({"passes": 1}, FAST, 1e12, LiveStates),
}


@pytest.mark.parametrize("case", CASES)
def test_auto_follows_its_rule(
    case: str, encoder: Encoder, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    values, rates, free, kind = CASES[case]
    monkeypatch.setattr(source_module, "measure", lambda *_, **__: rates)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(int(free), 0, int(free)))
    with caplog.at_level(logging.INFO, "bertvision"):
        states = opened(encoder, train, tmp_path, **{"passes": 3} | values)
    assert type(states) is kind
    (line,) = (text for text in caplog.messages if text.startswith("states of train: 1,"))
    assert {LiveStates: "live", MemoryStates: "memory", StoredStates: "stored"}[kind] in line


def test_a_named_source_is_taken(
    encoder: Encoder, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "measure", lambda *_, **__: FAST)
    for source, kind in (("live", LiveStates), ("memory", MemoryStates), ("stored", StoredStates)):
        assert type(opened(encoder, train, tmp_path, source=source)) is kind
    (tmp_path / "file").write_text("not a folder")
    assert type(opened(encoder, train, tmp_path / "file", memory_gb=0.0, passes=3)) is LiveStates
    with pytest.raises(OutputError, match=r"^cannot write"):
        opened(encoder, train, tmp_path / "file", source="stored")
    evaluated = opened(encoder, train, tmp_path / "other", source="stored", passes=1, keep=False)
    assert type(evaluated) is LiveStates
    assert not (tmp_path / "other").exists(), "evaluation begins no store"


def test_a_finished_store_is_used_without_measuring(
    encoder: Encoder, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(encoder, train, tmp_path, source="stored").store
    monkeypatch.setattr(source_module, "measure", lambda *_, **__: FAST)
    assert type(opened(encoder, train, tmp_path, passes=1)) is LiveStates, "one that was begun does not bind"
    assert type(opened(encoder, train, tmp_path, passes=3)) is MemoryStates
    extract(store, encoder)
    monkeypatch.setattr(source_module, "measure", None)
    for passes, keep in ((1, False), (3, True)):
        states = opened(encoder, train, tmp_path, passes=passes, keep=keep)
        assert type(states) is StoredStates
        list(states.walk())
        assert states.times.encode == 0


def test_measuring_leaves_nothing_behind(
    encoder: Encoder, train: Split, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    encode, read, half = measure(encoder, train.windows, StatesConfig(layers=(0, -1), positions="cls"))
    assert 0 < encode < read
    assert half
    huge = Encoder.load(str(tiny_bert))
    with torch.no_grad():
        huge.model.encoder.layer[-1].output.LayerNorm.weight.fill_(1e6)
    huge.changed()
    assert not measure(huge, train.windows, StatesConfig())[2]
    assert list(tmp_path.iterdir()) == []


# ---- room


def test_a_store_without_room_is_refused_before_anything_is_encoded(
    encoder: Encoder, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10, 0, 10))
    with pytest.raises(OutputError, match=r"the states need .* kB and the disk of .* has 10 B free"):
        opened(encoder, train, tmp_path, source="stored")
    assert list(tmp_path.iterdir()) == []


def test_the_least_recently_used_stores_go_first(
    encoder: Encoder, train: Split, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Never one that was used today, is being written, or holds what is not ours."""
    config, days = StatesConfig(store=str(tmp_path)), {}
    for age, layer in ((9, (0,)), (7, (1,)), (5, (2,)), (3, (0, 1)), (0, (0, 2))):
        store = store_of(encoder, train.windows, replace(config, layers=layer), train.origin).begin()
        extract(store, encoder)
        then = (store.folder / "plan.json").stat().st_mtime - age * 86_400
        os.utime(store.folder / "plan.json", (then, then))
        days[age] = store
    (days[7].folder / "thesis.tex").write_text("years of work")
    there = sorted(tmp_path.iterdir())
    new = store_of(encoder, train.windows, config, train.origin)
    assert sorted(tmp_path.iterdir()) == there, "planning writes nothing"
    total = new.nbytes + sum(entry.nbytes for entry in entries(tmp_path))

    def left() -> set[int]:
        return {age for age, store in days.items() if store.folder.exists()}

    make_room(new, total / 1e9)
    assert left() == {9, 7, 5, 3, 0}
    with days[9].locked():
        make_room(new, (total - 1) / 1e9)
    assert left() == {9, 7, 5, 3, 0}
    assert os.listdir(days[7].folder) == ["thesis.tex"], "the oldest is being written; what is not ours stays"
    StoredStates(encoder, days[3])  # is in use
    with caplog.at_level(logging.INFO, "bertvision"):
        make_room(new, 0.0)
    assert left() == {7, 3, 0}
    assert "9 days ago" in caplog.text
    assert "--states.cache-gb" in caplog.text


# ---- a fit and its choice


def test_a_fit_keeps_to_its_choice_when_it_goes_on(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the first step; by then another source would be measured as the fastest."""
    words = ["fit", tiny_bert, "--train", toy_squad, "--out", tmp_path / "zoo", "--heads", "last_state",
             "--max-seq-length", "64", "--epochs", "2", "--states.store", tmp_path / "states"]  # fmt: skip
    real = zoo_module.fit

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zoo_module, "choose_source", lambda *_, **__: "stored")
    monkeypatch.setattr(zoo_module, "fit", killed)
    assert bertvision(*words).code == 130
    assert json.loads((tmp_path / "zoo" / "stage.json").read_text())["choices"] == {"states": "stored"}
    monkeypatch.setattr(zoo_module, "choose_source", lambda *_, **__: "live")
    monkeypatch.setattr(zoo_module, "fit", real)
    done = bertvision(*words)
    assert done.code == 0, done.err
    stage = json.loads((tmp_path / "zoo" / "stage.json").read_text())
    assert stage["results"]["states"] == "stored"
    profile = stage["results"]["profile"]
    spent = sum(profile[part] for part in ("encoder", "heads", "waiting", "writing", "other"))
    assert spent == pytest.approx(profile["total"], rel=0.05)
    assert min(profile["encoder"], profile["reading"]) > 0


def test_dev_is_scored_again_on_the_states_it_was_scored_on(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    """Killed between the fit and the scores: half precision would be missed in the null odds."""
    words = ["run", "--encoder", tiny_bert, "--finetune.epochs", "0", "--train", toy_squad, "--dev", toy_squad,
             "--out", tmp_path, "--max-seq-length", "64", "--fit.heads", "adapter:size=4", "--fit.keep", "best",
             "--fit.epochs", "2", "--states.source", "memory"]  # fmt: skip
    assert bertvision(*words).code == 0
    (folder,) = tmp_path.rglob("dev/logits.safetensors")
    before = load_file(folder)  # safetensors writes its own header in any order
    shutil.rmtree(folder.parent)
    (tmp_path / "results.json").unlink(missing_ok=True)
    words = [word if word != "memory" else "auto" for word in words]
    stage = folder.parents[2] / "stage.json"
    content = json.loads(stage.read_text())
    content["key"]["states"]["source"] = "auto"  # as if auto had chosen memory
    stage.write_text(json.dumps(content))
    done = bertvision(*words)
    assert done.code == 0, done.err
    after = load_file(folder)
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[name], before[name]) for name in before)
