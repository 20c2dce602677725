"""`finetune` from the command line: one table of several policies, mistakes in one sentence."""

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from cli_runner import answered, as_json, bertvision, refused, tree
from test_resume import WINDOWS

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.policy import parse_policy
from bertvision.errors import ConfigError
from bertvision.pipeline.train import check_policies, efficiency, policy_row
from bertvision.tasks.span import SPAN

QUICK = (*WINDOWS, "--epochs", "0.5", "--batch-size", "8", "--lr", "1e-3")


@pytest.mark.parametrize(("f1", "trainable", "told"), [(75.2, 42_548_738, 3.30), (76.3, 108_311_810, 3.27)])
def test_efficiency_is_the_published_one(f1: float, trainable: int, told: float) -> None:
    assert efficiency(f1, trainable) == pytest.approx(told, abs=0.005)
    assert math.isnan(efficiency(f1, 1)), "no division by zero"


def test_policies_are_checked_all_before_one_runs(tiny_bert: Path, tmp_path: Path) -> None:
    names = check_policies(("full", "TOP-1", "houlsby-4+top-0"), str(tiny_bert))
    assert names == ["full", "top-1", "houlsby-4"]
    with pytest.raises(ConfigError, match="houlsby-4 twice"):
        check_policies(("houlsby-4", "full", "houlsby-4+top-0"), str(tiny_bert))
    encoder = Encoder.load(str(tiny_bert))
    encoder.tune(parse_policy("houlsby-4"), seed=0)
    encoder.save(tmp_path)
    assert check_policies(("full", "bitfit"), str(tmp_path)) == ["full", "bitfit"]
    for policy in ("houlsby-2", "lora-2", "houlsby-2+full"):
        with pytest.raises(ConfigError, match="has adapters already"):
            check_policies(("full", policy), str(tmp_path))


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="this system counts no peak anew")
def test_the_peak_is_that_of_what_came_since() -> None:
    """In a process of its own: one that ran the command line keeps freed memory for the next step."""
    script = """
        import torch
        from bertvision.train.finetune import begin_peak, peak_bytes
        cpu = torch.device("cpu")
        big = torch.ones(60_000_000)  # 240 MB
        before = peak_bytes(cpu)
        del big
        begin_peak(cpu)
        fresh = peak_bytes(cpu)
        assert fresh < before - 150e6
        small = torch.ones(30_000_000)
        assert peak_bytes(cpu) > fresh + 90e6
        del small
        assert peak_bytes(cpu) > fresh + 90e6, "a peak stays when it is over"
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# ---- the table


@pytest.fixture(scope="module")
def words(tiny_bert: Path, toy_squad: Path) -> tuple[str | Path, ...]:
    return ("finetune", "--encoder", tiny_bert, "--train", toy_squad, "--dev", toy_squad, *QUICK)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, words: tuple[str | Path, ...]) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "all of them"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        table = answered(*words, "--out", folder, "--compare", "full,top-1,houlsby-4").out
    assert re.findall(r"^\s*(full|top-1|houlsby-4)\b", table, re.MULTILINE) == ["full", "top-1", "houlsby-4"]
    return folder


def test_one_table_of_all_policies(compared: Path, tiny_bert: Path) -> None:
    folder = compared
    rows = json.loads((folder / "compare.json").read_text())
    assert [row["policy"] for row in rows] == ["full", "top-1", "houlsby-4"]
    for row in rows:
        own = json.loads((folder / row["policy"] / "stage.json").read_text())
        assert row["trainable"] == own["results"]["trainable"]
        scored = own["results"]["snapshots"]["snapshot-0.5"]
        assert (row["f1"], row["exact"]) == (scored["f1"], scored["exact"])
        assert row["efficiency"] == pytest.approx((row["f1"] - 50) / math.log10(row["trainable"]))
        assert row["peak_bytes"] > 1e7, "a process with torch in it"
        assert row["inference_seconds"] > 0
        assert row["seconds"] > 0
        assert row["tokens_per_second"] * row["seconds"] == pytest.approx(
            own["results"]["tokens_per_second"] * own["results"]["train_seconds"]
        )
        assert (Path(row["snapshot"]) / "head" / "config.json").is_file()
        recipe = (folder / row["policy"] / "config.yaml").read_text()
        assert f"policy: {row['policy']}" in recipe
        assert "overwrite: false" in recipe
        path = str(folder / row["policy"] / "config.yaml")
        assert shlex.split(recipe.splitlines()[0]) == ["#", "bertvision", "finetune", "--config", path]
    adapters = 2 * 2 * (2 * 32 * 4 + 4 + 32)
    norms = 5 * 2 * 32
    assert rows[2]["trainable"] == adapters + norms + 66


def test_finished_policies_are_not_run_again(compared: Path, words: tuple[str | Path, ...]) -> None:
    """Neither by the recipe of one policy nor by another table of it."""
    before = {path: path.stat().st_mtime_ns for path in compared.rglob("*.safetensors")}
    rows = {row["policy"]: row for row in json.loads((compared / "compare.json").read_text())}
    found = as_json("finetune", "--config", compared / "top-1" / "config.yaml")
    assert found["train_seconds"] == rows["top-1"]["seconds"], "it was trained once more"
    (again,) = as_json(*words, "--out", compared, "--compare", "top-1")
    assert again["policy"] == "top-1"
    for name in ("seconds", "inference_seconds"):  # measured once
        assert again[name] == rows["top-1"][name]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_policy_of_other_settings_is_refused_and_its_record_stays(
    compared: Path, words: tuple[str | Path, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = compared
    before = tree(folder / "full")
    said = refused(*words, "--seed", "3", "--out", folder, "--compare", "full", late=True)
    assert "the run of --policy full ended with the error above" in said
    assert "other settings (finetune.seed)" in capfd.readouterr().err, "the process told nothing"
    assert tree(folder / "full") == before


def test_a_row_has_the_scores_of_the_last_snapshot_whatever_was_scored_last() -> None:
    zero = {"exact": 0.0, "f1": 0.0, "tuned_f1": 0.0}
    scores = {"snapshot-2": {"exact": 60.0, "f1": 70.0, "tuned_f1": 71.0}, "snapshot-1": zero}
    counted = dict.fromkeys(("parameters", "train_seconds", "tokens_per_second", "peak_bytes"), 1)
    found = {"snapshots": ["a/snapshot-1", "a/snapshot-2"], "scores": scores, "trainable": 100, **counted}
    found["tasks"] = {"": SPAN.config()}
    row = policy_row("full", found | {"inference_seconds": 1.0})
    assert (row["snapshot"], row["exact"], row["f1"], row["tuned_f1"]) == ("a/snapshot-2", 60.0, 70.0, 71.0)
    assert row["efficiency"] == pytest.approx(10)


@pytest.mark.slow
def test_sigterm_ends_the_process_of_a_policy_too(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    """They share stderr, which is at its end only when nobody has it any more; alone the run would take hours."""
    out = tmp_path / "out"
    long = ("--epochs", "1000000", "--out", out, "--compare", "full,top-1")
    command = [sys.executable, "-m", "bertvision", *map(str, (*words, *long))]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until = time.monotonic() + 120
        while not (out / "full" / "metrics.jsonl").exists() and time.monotonic() < until:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.terminate()
        printed, told = process.communicate(timeout=60)
    finally:
        if process.poll() is None or sys.exc_info()[0] is not None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 143
    assert printed == ""
    assert told.splitlines()[-1].startswith("ended by SIGTERM: give the same command again")
    assert "Traceback" not in told
    assert not (out / "top-1").exists()


# ---- mistakes


MISTAKES: dict[str, tuple[list[str], str]] = {
    "layers": (["--policy", "top-9"], "has 2 layers, so K of top-K is at most 2"),
    "cut layers": (["--policy", "cut-3"], "has 2 layers"),
    "adapter of nothing": (["--policy", "houlsby-0"], "the adapter size must be at least 1, not 0"),
    "rank": (["--policy", "lora-0"], "rank must be at least 1"),
    "unknown": (["--policy", "houlsbee-4"], "did you mean houlsby-M"),
    "compare without dev": (["--compare", "full,top-1", "--dev", ""], "--compare needs --dev"),
    "compare unknown": (["--compare", "full,tip-1"], "--policy tip-1 is not known"),
    "compare too deep": (["--compare", "full,top-9"], "has 2 layers"),
    "compare twice": (["--compare", "full,top-1,full"], "--compare names full twice"),
    "inference": (["--inference", "--dev", ""], "--inference answers the questions of --dev"),
    "nothing to do": (["--epochs", "0"], "--epochs 0 leaves nothing to do"),
    "head": (["--head", "adaptor"], "there is no head 'adaptor'"),
    "set of heads": (["--head", "papers"], "--head papers is a set of heads"),
    "compare and policy": (
        ["--compare", "full,top-1", "--policy", "bitfit"],
        "--policy bitfit names one more",
    ),
    "eps": (["--eps", "0"], "eps must be a finite number above 0"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_sentence_and_nothing_is_written(
    case: str, words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    flags, told = MISTAKES[case]
    assert told in refused(*words, "--out", tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("architecture", "flags", "told"),
    [
        ("albert", ["--policy", "cut-1"], "share their weights"),
        ("mpnet", ["--checkpointing"], "leave out --checkpointing"),
        ("modernbert", ["--policy", "bitfit"], "has no biases"),
    ],
)
def test_what_an_architecture_cannot_do(
    architecture: str, flags: list[str], told: str, toy_encoder: Any, toy_squad: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    said = refused(
        "finetune", "--encoder", toy_encoder(architecture), "--train", toy_squad, "--out", out, *QUICK, *flags
    )
    assert told in said
    assert not out.exists()


@pytest.mark.parametrize("flags", [["--policy", "lora-2"], ["--compare", "full,lora-2"]], ids=str)
def test_lora_without_peft(
    flags: list[str], words: tuple[str | Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import util

    real = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *more: None if name == "peft" else real(name, *more))
    told = refused(*words, "--out", tmp_path / "out", *flags)
    assert "needs peft: run `pip install 'bertvision[lora]'`" in told
    assert not (tmp_path / "out").exists()


def test_overwrite_does_not_delete_the_encoder_it_reads(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """Nor the one that its encoder is a delta of."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert bertvision(*words, "--out", first).code == 0
    delta = (*words, "--encoder", first / "snapshot-0.5", "--policy", "houlsby-4")
    assert "would delete the encoder" in refused(*delta, "--out", first, "--overwrite")
    assert bertvision(*delta, "--out", second, "--overwrite").code == 0
    before = tree(tmp_path)
    deeper = (*words, "--encoder", second / "snapshot-0.5", "--policy", "bitfit", "--overwrite")
    for out in (first, second, second / "snapshot-0.5"):
        assert "would delete the encoder" in refused(*deeper, "--out", out)
    assert tree(tmp_path) == before


def test_a_run_answers_by_every_snapshot_and_times_the_last(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    command = (*words, "--out", tmp_path, "--policy", "lora-2", "--snapshots", "0.2", "--inference")
    told = answered(*command)
    assert re.match(r"lora-2: trainable [\d.]+ k of [\d.]+ k", told.out)
    assert [line.split(":")[0] for line in told.err.splitlines() if line.startswith("inference")] == [
        "inference, warm-up", "inference"
    ]  # fmt: skip
    found = as_json(*command)
    assert list(found["scores"]) == [Path(path).name for path in found["snapshots"]]
    assert list(found["scores"]) == ["snapshot-0.2", "snapshot-0.5"]
    assert found["inference_seconds"] > 0
