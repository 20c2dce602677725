"""`bertvision run` with every kind of snapshot: whole encoders and deltas."""

import json
from pathlib import Path

import pytest
from cli_runner import bertvision
from test_resume import WINDOWS, contents


@pytest.mark.parametrize(
    "flags",
    [
        ["--finetune.policy", "houlsby-4"],
        ["--finetune.policy", "lora-2"],
        ["--finetune.policy", "cut-1", "--finetune.head", "adapter:size=4"],
    ],
    ids=lambda flags: flags[1],
)
def test_a_whole_run(flags: list[str], tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    """Tune, fit, evaluate, ensemble, report; then an answer from what was left."""
    words = (
        "run", "--encoder", tiny_bert, "--train", toy_squad, "--dev", toy_squad, "--out", tmp_path, *WINDOWS,
        "--finetune.epochs", "1", "--finetune.snapshots", "0.5", "--fit.heads", "last_state", "adapter:size=4",
        "--states.source", "memory", *flags,
    )  # fmt: skip
    outcome = bertvision(*words)
    assert outcome.code == 0, outcome.err
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["finetune"]["policy"] == flags[1]
    found = [(row["snapshot"], row["kind"]) for row in results["systems"]]
    for fraction in ("0.5", "1"):
        assert [kind for own, kind in found if own == fraction] == ["snapshot", "control", "head", "ensemble"]
    assert (tmp_path / "report.html").stat().st_size > 10_000
    for snapshot in ("snapshot-0.5", "snapshot-1"):
        own = tmp_path / "finetune" / snapshot
        fitted = sorted((tmp_path / "fit" / snapshot).glob("*/config.json"))
        assert len(fitted) == 2
        for system in (own, fitted[0].parent):
            done = bertvision("eval", system, "--data", toy_squad, "--json")
            assert done.code == 0, done.err
    before = contents(tmp_path)
    assert bertvision(*words).code == 0
    assert contents(tmp_path) == before
