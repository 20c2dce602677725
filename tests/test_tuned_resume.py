"""Fine-tuning by policy, killed with SIGKILL and started again: the same bits at the end as without it.

Every way to tune is killed twice in the middle of an operation on files and once at a random time, then left alone.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from test_resume import WINDOWS, assert_survives_kills

from bertvision.train.run_folder import read_metrics

WAYS: dict[str, list[str]] = {
    "houlsby": ["--policy", "houlsby-4"],
    "lora": ["--policy", "lora-2", "--head", "learned_pooling"],
    "cut": ["--policy", "cut-1", "--head", "adapter:size=4,dropout=0.1", "--accumulate", "2"],
    "everything": ["--sampling", "balanced", "--batch-tokens", "150", "--accumulate", "2", "--eps", "1e-6",
                   "--no-bias-correction", "--policy", "top-1"],
    "again": ["--checkpointing", "--head", "adapter:size=4,dropout=0.2"],
}  # fmt: skip


@pytest.fixture
def command(tiny_bert: Path, toy_squad: Path) -> Callable[[str, Path], list[str]]:
    def words(way: str, out: Path) -> list[str]:
        return ["finetune", "--train", str(toy_squad), "--dev", str(toy_squad), "--encoder", str(tiny_bert),
                "--out", str(out), *WINDOWS, "--epochs", "2", "--snapshots", "0.5", "1.0", "--batch-size", "4",
                "--lr", "1e-3", "--log-every", "3", "--checkpoint-seconds", "0", *WAYS[way]]  # fmt: skip

    return words


@pytest.mark.parametrize("way", WAYS)
def test_killed_and_started_again(
    way: str, command: Callable[[str, Path], list[str]], tmp_path: Path
) -> None:
    assert_survives_kills(functools.partial(command, way), tmp_path, way)
    records = read_metrics(tmp_path / "out" / "metrics.jsonl")
    assert [r["snapshot"] for r in records if "snapshot" in r] == ["snapshot-0.5", "snapshot-1", "snapshot-2"]
