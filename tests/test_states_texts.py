"""States of texts in stores: their keys, and what `cache extract` keeps for a fit on labels."""

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cache_runner import answered, as_json, forbid_encoding
from cli_runner import bertvision
from safetensors.numpy import load_file
from text_tables import write_labels

from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.states.config import StatesConfig
from bertvision.states.source import planned_store
from bertvision.train.splits import load_split

WINDOWS = ("--max-seq-length", "32", "--doc-stride", "8")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labels(tmp_path_factory.mktemp("data") / "train.csv", 0)


def test_every_window_setting_makes_another_store(tiny_bert: Path, table: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(str(tiny_bert), device="cpu", precision="fp32")
    states = StatesConfig(source="stored", store=str(tmp_path), dtype="fp32")
    changes: tuple[dict[str, Any], ...] = ({}, {"doc_stride": 9}, {"segments": False}, {"apart": True})
    keys = set()
    for change in changes:
        config = replace(WindowConfig(max_seq_length=32, doc_stride=8), **change)
        split = load_split(str(table), encoder, config)
        assert split.origin.preprocessing == asdict(config)
        keys.add(planned_store(encoder, split.windows, states, split.origin).key)
    assert len(keys) == len(changes)


def heads(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: load_file(path) for path in folder.glob("*/model.safetensors")}


def test_the_flags_it_names_lead_to_its_store(
    tiny_bert: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt with quotes, no segment ids; the heads are those of states that were never stored."""
    asked = (
        "--no-segments",
        "--text.prompt",
        'Is it "so", or isn\'t it?',
        *WINDOWS,
        "--max-seq-length",
        "64",
    )
    fit = ("fit", tiny_bert, "--train", table, "--heads", "mean_pooler", "tenney_small", "--epochs", "2")
    live = bertvision(*fit, *asked, "--states.source", "live", "--out", tmp_path / "live")
    assert live.code == 0, live.err
    store = ("--store", tmp_path / "stores", "--dtype", "fp32")
    made = as_json("extract", tiny_bert, "--data", table, *asked, *store)
    flags = shlex.split(made["flags"])
    assert "--no-segments" in flags
    forbid_encoding(monkeypatch)
    stored = bertvision(*fit, *flags, "--out", tmp_path / "stored", "--json")
    assert stored.code == 0, stored.err
    assert json.loads(stored.out)["states"] == "stored"
    first, second = heads(tmp_path / "live"), heads(tmp_path / "stored")
    assert first.keys() == second.keys() == {"mean-pooler.seed0", "tenney-small.seed0"}
    for name, tensors in first.items():
        for key, tensor in tensors.items():
            assert abs(tensor - second[name][key]).max() < 1e-6, (name, key)


def test_cls_states_are_enough_for_heads_that_read_no_more(
    tiny_bert: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ("--store", tmp_path / "stores")
    small = as_json("extract", tiny_bert, "--data", table, *WINDOWS, *store, "--positions", "cls")
    whole = as_json("extract", tiny_bert, "--data", table, *WINDOWS, *store)
    assert small["bytes"] < whole["bytes"] / 4
    forbid_encoding(monkeypatch)
    fit = (
        "fit",
        tiny_bert,
        "--train",
        table,
        *WINDOWS,
        "--states.source",
        "stored",
        "--states.store",
        tmp_path / "stores",
    )
    for head in ("adapter_pooler:size=4", "mean_pooler"):
        done = bertvision(*fit, "--heads", head, "--out", tmp_path / head.partition(":")[0])
        assert done.code == 0, done.err


def test_a_store_of_texts_is_no_training_set_by_itself(tiny_bert: Path, table: Path, tmp_path: Path) -> None:
    """It has numbers for labels and no names for the classes; what is printed does not promise otherwise."""
    outcome = answered("extract", tiny_bert, "--data", table, *WINDOWS, "--store", tmp_path / "stores").out
    assert "finished" in outcome
    assert "store:" not in outcome
    key = as_json("extract", tiny_bert, "--data", table, *WINDOWS, "--store", tmp_path / "stores")["key"]
    done = bertvision(
        "fit", tiny_bert, "--train", f"store:{key}", "--heads", "tenney_small", "--states.store", tmp_path / "stores",
        "--out", tmp_path / "h",
    )  # fmt: skip
    assert done.code == 2
    assert "name the data instead" in done.err
    assert not (tmp_path / "h").exists()
