"""Snapshots are scored whenever a dev set comes: during the run, after it, and again for another set."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import bertvision, tree
from safetensors.numpy import load_file
from toy import squad_json

CUT = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24")


@pytest.mark.parametrize("policy", ["full", "houlsby-4"])
def test_a_dev_set_that_comes_late_gives_the_same_scores(
    policy: str, tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    half = tmp_path / "half.json"
    half.write_text(json.dumps(squad_json(12)), encoding="utf-8")

    def tuned(out: str, *more: str | Path) -> dict[str, Any]:
        words = ("finetune", "--encoder", tiny_bert, "--train", toy_squad, "--out", tmp_path / out, "--policy", policy,
                 "--epochs", "2", "--snapshots", "1", "--lr", "1e-2", "--json", *CUT, *more)  # fmt: skip
        outcome = bertvision(*words)
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    during = tuned("during", "--dev", toy_squad)
    assert set(during["scores"]) == {"snapshot-1", "snapshot-2"}
    assert tuned("after")["scores"] == {}
    weights = {name: data for name, data in tree(tmp_path / "after").items() if name.endswith("safetensors")}
    after = tuned("after", "--dev", toy_squad)
    for name, scores in after["scores"].items():
        assert scores == pytest.approx(during["scores"][name])
    assert weights.items() <= tree(tmp_path / "after").items(), "nothing was trained again"
    other = tuned("after", "--dev", half)
    assert other["scores"] == tuned("half", "--dev", half)["scores"]
    assert other["scores"] != after["scores"]
    before = tree(tmp_path / "after")
    assert tuned("after")["scores"] == other["scores"], "a command without dev leaves them"
    assert tree(tmp_path / "after") | {"config.yaml": None} == before | {"config.yaml": None}


def test_lost_logits_of_a_finished_run_are_computed_again(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    words = ("finetune", "--encoder", tiny_bert, "--train", toy_squad, "--dev", toy_squad, "--out", tmp_path,
             "--policy", "houlsby-4", "--snapshots", "0.5", "--lr", "1e-2", "--json", *CUT)  # fmt: skip
    first = bertvision(*words)
    assert first.code == 0, first.err
    before = tree(tmp_path)
    gone, torn = (
        tmp_path / name / "head" / "dev" / "logits.safetensors" for name in ("snapshot-0.5", "snapshot-1")
    )
    logits = [load_file(gone), load_file(torn)]
    gone.unlink()
    torn.write_bytes(torn.read_bytes()[:-5])
    again = bertvision(*words)
    assert again.code == 0, again.err
    assert json.loads(again.out)["scores"] == json.loads(first.out)["scores"]
    for path, kept in zip((gone, torn), logits, strict=True):
        assert load_file(path).keys() == kept.keys()
        for name, values in load_file(path).items():
            np.testing.assert_allclose(values, kept[name], atol=1e-5)
    after = tree(tmp_path)
    assert before.keys() == after.keys()
    changed = {name for name in after if after[name] != before[name]}
    assert all(name.endswith("logits.safetensors") for name in changed), "the rest is as it was"
