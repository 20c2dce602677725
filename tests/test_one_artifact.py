"""Adapters and heads in one folder: moved away from where they were made, they answer as before."""

import json
import shutil
from pathlib import Path

import pytest
from cli_runner import bertvision
from safetensors.torch import load_file

CUT = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24")


@pytest.mark.parametrize("policy", ["houlsby-4", "lora-2", "bitfit", "top-1"])
def test_an_encoder_and_its_heads_travel_together(
    policy: str, tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    data = ("--train", toy_squad, *CUT)
    tuned = tmp_path / "tuned"
    outcome = bertvision(
        "finetune", *data, "--encoder", tiny_bert, "--out", tuned, "--policy", policy, "--lr", "1e-2"
    )
    assert outcome.code == 0, outcome.err
    zoo = tmp_path / "zoo"
    fit = ("fit", tuned / "snapshot-1", *data, "--out", zoo, "--heads", "last_state", "adapter:size=4")
    assert bertvision(*fit).code == 0, "fitted without it, and then asked for it"
    assert bertvision(*fit, "--with-encoder").code == 0
    asked = ("--data", toy_squad, "--json")
    before = bertvision("eval", zoo / "adapter-4.seed0", *asked, "--out", tmp_path / "before")
    assert before.code == 0, before.err
    moved = shutil.move(zoo, tmp_path / "moved")
    shutil.rmtree(tuned)
    after = bertvision("eval", Path(moved) / "adapter-4.seed0", *asked, "--out", tmp_path / "after")
    assert after.code == 0, after.err
    first, second = (
        sorted((tmp_path / name).rglob("predictions.json"))[0].read_text() for name in ("before", "after")
    )
    assert json.loads(first) == json.loads(second)
    small = policy != "top-1"
    assert (Path(moved) / "encoder" / "delta.json").exists() == small
    if small:
        base = sum(t.numel() for t in load_file(tiny_bert / "model.safetensors").values())
        kept = sum(t.numel() for t in load_file(Path(moved) / "encoder" / "delta.safetensors").values())
        assert kept < 0.25 * base
    every = bertvision("eval", moved, *asked)
    assert every.code == 0, every.err
    assert [row["system"] for row in json.loads(every.out)] == ["adapter-4.seed0", "last-state.seed0"]
    outcome = bertvision("predict", moved, "--data", toy_squad, "--out", tmp_path / "no")
    assert outcome.code == 2
    assert "(adapter-4.seed0, last-state.seed0)" in outcome.err, "the encoder is not one of the heads"
