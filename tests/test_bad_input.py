"""A user's mistake is one sentence and exit code 2, and nothing that was there before is touched."""

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import TINY, Outcome, bertvision, tree
from toy import squad_json


def refused(*words: str | Path, untouched: Path) -> str:
    """The sentence of a command that must fail and must not change anything below `untouched`."""
    before = tree(untouched)
    outcome = bertvision(*words)
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert re.fullmatch(r"error: [^\n]+\n", outcome.err), outcome.err
    assert before == tree(untouched)
    return outcome.err


# ---- data and encoders; what else can be wrong with a file is in test_squad_reader.py


LONG = copy.deepcopy(squad_json())
LONG["data"][0]["paragraphs"][0]["qas"][0].update(question="who " * 200)
BROKEN: dict[str, tuple[str | None, str]] = {
    "missing": (None, "does not exist"),
    "truncated": (json.dumps(squad_json())[:500], "is not valid JSON at column"),
    "question longer than the window": (json.dumps(LONG), "question 0-0 takes 203 tokens"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("part", ["train", "dev"])
def test_broken_data_leaves_a_finished_run_alone(
    kind: str, part: str, finished_run: Path, tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    content, words = BROKEN[kind]
    file = tmp_path / "broken.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    files = {"train": toy_squad, "dev": toy_squad} | {part: file}
    data = ("--train", files["train"], "--dev", files["dev"])
    flags = ("run", "--encoder", tiny_bert, *data, *TINY, "--max-query-length", "300")
    said = refused(*flags, "--out", finished_run, untouched=finished_run)
    assert words in said
    assert str(file) in said
    refused(*flags, "--out", tmp_path / "new", untouched=tmp_path)


def test_other_settings_do_not_touch_finished_work(
    finished_run: Path, tiny_bert: Path, toy_squad: Path
) -> None:
    data = ("--encoder", tiny_bert, "--train", toy_squad, "--dev", toy_squad)
    for flag, value in (("finetune.lr", "1e-3"), ("fit.lr", "0.5")):
        words = ("run", *data, "--out", finished_run, *TINY, f"--{flag}", value)
        said = refused(*words, untouched=finished_run)
        assert flag in said
        assert "--overwrite" in said


# ---- output folders


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A small file system of its own; call again to change it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = False

    def mount(options: str) -> Path:
        nonlocal mounted
        remount = ("remount," if mounted else "") + options
        words = ["mount", "-t", "tmpfs", "-o", remount, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("needs the right to mount a file system")
        mounted = True
        return folder

    yield mount
    if mounted:
        # Lazily: a reader that the collector has not reached yet may still hold a file there.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_unwritable_output(finished_run: Path, tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    data = ("--train", toy_squad, "--max-seq-length", "96")
    for out in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        for words in (
            ("run", "--encoder", tiny_bert, *data, "--dev", toy_squad, "--out", out),
            ("finetune", "--encoder", tiny_bert, *data, "--out", out),
            ("fit", tiny_bert, *data, "--out", out),
            ("eval", finished_run, "--data", toy_squad, "--out", out),
            ("predict", finished_run, "--data", toy_squad, "--out", out),
            ("report", finished_run, "--out", out / "report.html"),
        ):
            assert f"cannot write {out}" in refused(*words, untouched=tmp_path)
    members = (finished_run / "fit" / "snapshot-1", "--data", toy_squad)
    said = refused("ensemble", *members, "--out", tmp_path / "file", untouched=tmp_path)
    assert "is not an ensemble" in said


def one_error(outcome: Outcome) -> None:
    """A command ended with one sentence about what it could not write."""
    assert outcome.code == 2
    *before, last = outcome.err.splitlines()
    assert last.startswith("error: cannot write")
    assert not any(line.startswith("error: ") for line in before)


def scores(run: Path) -> list[Any]:
    systems = json.loads((run / "results.json").read_text(encoding="utf-8"))["systems"]
    return [(system["name"], system["scores"]) for system in systems]


def test_a_full_disk_keeps_what_is_finished_and_the_run_goes_on(
    disk: Callable[..., Path], finished_run: Path, tiny_bert: Path, toy_squad: Path
) -> None:
    """Room for the first snapshot but not for the second, then for all but the report, then enough."""
    flags = (
        "run", "--encoder", tiny_bert, "--train", toy_squad, "--dev", toy_squad, *TINY,
        "--finetune.snapshots", "0.5", "1.0",
    )  # fmt: skip
    out = disk("size=100m") / "whole"
    assert bertvision(*flags, "--out", out).code == 0
    expected = scores(out)
    one = sum(file.stat().st_size for file in (out / "finetune" / "snapshot-1").rglob("*") if file.is_file())
    shutil.rmtree(out)

    out = disk(f"size={(one * 3 // 2) // 1024}k") / "run"
    one_error(bertvision(*flags, "--out", out))
    kept = out / "finetune" / "snapshot-0.5"
    assert not [path for path in out.rglob(".*tmp*")], "half-written files are left"
    question = ("--question", "Who built it?", "--context", "Ada Holt built it.")
    assert bertvision("predict", kept, *question).code == 0, "the finished snapshot is not usable"
    before = tree(kept)

    disk("size=100m")
    assert bertvision(*flags, "--out", out).code == 0
    assert scores(out) == expected
    after = {f"encoder/{name}": content for name, content in tree(kept / "encoder").items()}
    assert after == {name: content for name, content in before.items() if name.startswith("encoder/")}


def test_a_file_that_may_not_grow_is_one_sentence(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk where none can be mounted."""
    resource = pytest.importorskip("resource")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    data = ("--train", toy_squad, "--max-seq-length", "96")
    flags = ("finetune", "--encoder", tiny_bert, *data, "--out", tmp_path / "ft")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))
        outcome = bertvision(*flags)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    one_error(outcome)
    assert not (tmp_path / "ft" / "snapshot-1").exists()
    assert bertvision(*flags).code == 0
