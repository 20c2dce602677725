"""Kill and start again: real processes, real SIGKILL, and the same bits at the end as without it.

Windows of training data are encoded anew, so nothing but the output folder survives a kill.
"""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import finish, kill_when
from safetensors.torch import load_file

from bertvision.artifacts import (
    atomic_file,
    atomic_folder,
    read_json,
    read_tensors,
    restore,
    sweep,
    write_tensors,
)
from bertvision.errors import ConfigError, OutputError
from bertvision.train.finetune import begin_peak, peak_bytes
from bertvision.train.run_folder import LOCK, RunFolder, read_metrics

WINDOWS = ["--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24"]


def finetune_command(encoder: Path, data: Path, out: Path) -> list[str]:
    return ["finetune", "--train", str(data), "--encoder", str(encoder), "--out", str(out), *WINDOWS,
            "--epochs", "2", "--snapshots", "0.5", "--batch-size", "4", "--lr", "1e-3", "--log-every", "2",
            "--checkpoint-seconds", "0"]  # fmt: skip


def fit_command(encoder: Path, data: Path, out: Path) -> list[str]:
    return ["fit", str(encoder), "--train", str(data), "--dev", str(data), "--out", str(out), *WINDOWS,
            "--heads", "last_state", "adapter:size=8,skip", "--epochs", "3", "--keep", "best", "--batch-size", "4",
            "--checkpoint-seconds", "0", "--states.source", "memory"]  # fmt: skip


def run_command(encoder: Path, data: Path, out: Path) -> list[str]:
    return ["run", "--encoder", str(encoder), "--train", str(data), "--dev", str(data), "--out", str(out), *WINDOWS,
            "--finetune.epochs", "1", "--finetune.batch-size", "8", "--finetune.checkpoint-seconds", "0",
            "--fit.heads", "last_state", "adapter:size=8", "--fit.epochs", "2", "--fit.batch-size", "8",
            "--fit.checkpoint-seconds", "0", "--states.source", "memory"]  # fmt: skip


# Times and memory differ between two runs, and nothing else may; a source that is measured might.
_TIMES = {
    *("seconds", "train_seconds", "encode_seconds", "tokens_per_second", "peak_bytes", "profile", "profiles"),
    *("created", "command", "commands", "commit", "out"),
}


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k not in _TIMES}
    return [_without_times(v) for v in value] if isinstance(value, list) else value


def contents(folder: Path) -> dict[str, Any]:
    """Every file of a folder: JSON without times, tensors bit by bit; a name that should not be there counts."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and path.suffix not in (".html", ".yaml"):
            if path.suffix == ".json":
                found[name] = _without_times(json.loads(path.read_text()))
            elif path.suffix == ".safetensors":  # its header may order the same things differently
                tensors = load_file(path)
                found[name] = {key: (tuple(t.shape), t.numpy().tobytes()) for key, t in tensors.items()}
            else:
                # A card names the command, and with it the folder.
                found[name] = path.read_bytes().replace(f"--out {folder.name}".encode(), b"--out OUT")
    return found


Command = Callable[[Path], list[str]]


def left_alone(command: Command, home: Path) -> tuple[dict[str, Any], int]:
    """What a command writes when nobody kills it, and its operations on files."""
    found, log = [], home / "alone.log"
    for name in ("first", "second"):  # the first fills the cache of windows, which takes operations too
        assert finish(command(home / name), log) == 0, log.read_text()
        found.append(contents(home / name))
    assert found[0] == found[1], "two runs differ without any kill"
    return found[0], int(Path(f"{log}.count").read_text())


def assert_survives_kills(
    command: Command, home: Path, seed: str, *, part: int = 1, alone: tuple[dict[str, Any], int] | None = None
) -> None:
    """A run killed in a quarter of it in the middle of an operation on files, then some checkpoints later, and perhaps
    once more, ends with the bits of one that was left alone; the same command again finds it done."""
    wanted, operations = alone or left_alone(command, home)
    out, log, chance = home / "out", home / "log", random.Random(f"{seed}{part}")
    first = part * (operations // 4) + chance.randint(1, operations // 4)
    assert finish(command(out), log, die_at=first) == -signal.SIGKILL, log.read_text()
    seen: set[int] = set()
    more = chance.randint(2, 4)

    def enough() -> bool:
        for path in out.rglob("checkpoint.safetensors"):
            with contextlib.suppress(FileNotFoundError):
                seen.add(path.stat().st_mtime_ns)
        return len(seen) >= more

    kill_when(command(out), log, enough, delay=chance.uniform(0, 0.01))
    if part % 2:
        finish(command(out), log, die_at=chance.randint(2, operations // 3))
    assert finish(command(out), log) == 0, log.read_text()
    assert contents(out) == wanted, f"killed at operation {first} of {operations}"
    assert part == 3 or "continues at" in log.read_text(), "no kill came behind a checkpoint"
    assert finish(command(out), log) == 0, "finished work is used again"
    assert contents(out) == wanted


@pytest.fixture(scope="module")
def commands(tiny_bert: Path, toy_squad: Path) -> dict[str, Command]:
    tuning = partial(finetune_command, tiny_bert, toy_squad)
    more = ["--dev", str(toy_squad), "--snapshots", "0.5", "1.0", "--log-every", "3"]
    return {
        "finetune": tuning,
        "fit": partial(fit_command, tiny_bert, toy_squad),
        "run": partial(run_command, tiny_bert, toy_squad),
        **{way: lambda out, flags=flags: [*tuning(out), *more, *flags] for way, flags in WAYS.items()},
    }


WAYS: dict[str, list[str]] = {
    "houlsby": ["--policy", "houlsby-4"],
    "cut": ["--policy", "cut-1", "--head", "adapter:size=4,dropout=0.1", "--accumulate", "2"],
    "everything": ["--sampling", "balanced", "--batch-tokens", "150", "--accumulate", "2", "--eps", "1e-6",
                   "--no-bias-correction", "--policy", "top-1"],
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(
    commands: dict[str, Command], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[dict[str, Any], int]]:
    return lru_cache(lambda name: left_alone(commands[name], tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *((name, part) for name in ("finetune", "fit", "run") for part in range(4)),
        *((way, 1) for way in WAYS),
    ],
)
def test_killed_anywhere(
    name: str, part: int, commands: dict[str, Command], alone: Any, tmp_path: Path
) -> None:
    assert_survives_kills(commands[name], tmp_path, name, part=part, alone=alone(name))
    if name in WAYS:
        records = read_metrics(tmp_path / "out" / "metrics.jsonl")
        kept = [r["snapshot"] for r in records if "snapshot" in r]
        assert kept == ["snapshot-0.5", "snapshot-1", "snapshot-2"]


# ---- what a kill leaves behind


def test_only_the_rubbish_of_dead_processes_is_swept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".head.tmp-{dead.pid}").mkdir()
    (tmp_path / f".head.tmp-{dead.pid}" / "config.json").write_text("{")
    (tmp_path / f".checkpoint.tmp-{dead.pid}").write_bytes(b"half a checkpoint")
    kept = {f".a.tmp-{os.getpid()}", f".b.tmp-{os.getppid()}", ".c.tmp-word"}
    for name in kept:
        (tmp_path / name).touch()
    sweep(tmp_path, depth=2)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_the_exchange_of_folders_never_loses_both(tmp_path: Path) -> None:
    """Killed between the two renames: the old folder stands aside, and comes back."""
    target = tmp_path / "ensemble"
    with atomic_folder(target) as new:
        (new / "value").write_text("old")
    target.rename(tmp_path / ".ensemble.old")  # what the process had done when it was killed
    restore(target)
    assert (target / "value").read_text() == "old"
    # Killed after the second rename: the new one is in place, the old one only takes room.
    shutil.copytree(target, tmp_path / ".ensemble.old")
    with atomic_folder(target) as new:
        (new / "value").write_text("new")
    assert (target / "value").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["ensemble"]


def test_a_failure_inside_leaves_the_old_content(tmp_path: Path) -> None:
    """Whatever ends a write, and a full disk in one sentence."""

    def write(content: str, error: OSError | RuntimeError | None = None) -> None:
        with atomic_folder(tmp_path / "folder") as folder, atomic_file(tmp_path / "file") as file:
            (folder / "value").write_text(content)
            file.write_text(content)
            if error:
                raise error

    write("old")
    with pytest.raises(RuntimeError):
        write("half", RuntimeError())
    with pytest.raises(OutputError, match=r"file: no space left on device; .*same command again"):
        write("half", OSError(errno.ENOSPC, "No space left on device"))
    assert (tmp_path / "folder" / "value").read_text() == (tmp_path / "file").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


# ---- the run folder

KEY = {"encoder": "abc", "fit": {"lr": 0.1, "heads": ["a", "b"]}}


def test_another_key_is_refused_by_the_names_of_what_differs(tmp_path: Path) -> None:
    RunFolder(tmp_path, KEY)
    assert not RunFolder(tmp_path, KEY).done
    other = {"encoder": "abc", "fit": {"lr": 0.2, "heads": ["a"]}, "dev": "x"}
    with pytest.raises(OutputError, match=r"other settings \(dev, fit\.heads, fit\.lr\).*--overwrite"):
        RunFolder(tmp_path, other)
    assert read_json(tmp_path / "stage.json")["key"] == KEY


def test_overwriting_begins_from_nothing(tmp_path: Path) -> None:
    stage = RunFolder(tmp_path, KEY)
    stage.checkpoint.write_bytes(b"of the old settings")
    (tmp_path / "head").mkdir()
    stage.finish({"heads": {}})
    assert RunFolder(tmp_path, KEY, overwrite=True).done, "the same settings are no reason to throw work away"
    fresh = RunFolder(tmp_path, KEY | {"encoder": "other"}, overwrite=True)
    assert not fresh.done
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, "stage.json"]
    # Killed while --overwrite removed the folder: a checkpoint without its mark belongs to nobody.
    fresh.checkpoint.write_bytes(b"of other settings")
    fresh.metrics.write_text('{"step": 1}\n')
    (tmp_path / "stage.json").unlink()
    RunFolder(tmp_path, KEY)
    assert not fresh.checkpoint.exists()
    assert not fresh.metrics.exists()


def test_a_finished_folder_keeps_results_and_time_but_no_checkpoint(tmp_path: Path) -> None:
    first = RunFolder(tmp_path, KEY)
    first._began -= 100
    first.save({}, {}, {"step": 3})
    del first
    again = RunFolder(tmp_path, KEY)
    assert again.resume({}, {}) == {"step": 3}
    again.finish({"value": 3})
    again.checkpoint.write_bytes(b"a kill came between the last write and the removal")
    done = RunFolder(tmp_path, KEY)
    assert done.done
    assert done.results == {"value": 3}
    assert 100 < done.seconds < 130
    assert not done.checkpoint.exists()


def test_the_metrics_of_a_resumed_run_hold_no_step_twice(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, KEY)
    assert folder.resume({}, {}) is None
    for step in range(5):
        folder.log({"step": step}, step=step, group="fit")
        if step == 2:
            folder.save({}, {}, {})
    with folder.metrics.open("a") as handle:
        handle.write('{"step": 5')  # killed in the middle of a line
    assert [record["step"] for record in read_metrics(folder.metrics)] == [0, 1, 2, 3, 4]
    again = RunFolder(tmp_path, KEY)
    assert again.resume({}, {}) is not None
    again.log({"step": 3}, step=3, group="fit")
    assert again.lines == 4
    assert [record["step"] for record in read_metrics(again.metrics)] == [0, 1, 2, 3]


def test_trackers_receive_the_numbers_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--track nonsense needs nonsense"):
        RunFolder(tmp_path / "no", KEY, track=["nonsense"])
    assert not (tmp_path / "no").exists()
    pytest.importorskip("accelerate")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = RunFolder(tmp_path, KEY, track=["tensorboard"])
    folder.resume({}, {})
    for step in (1, 2):
        folder.log({"step": step, "epoch": 0.5, "loss": 1.5 * step}, step=step, group="finetune")
    folder.close_log()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["finetune/loss"]
    assert [(event.step, event.value) for event in events.Scalars("finetune/loss")] == [(1, 1.5), (2, 3.0)]


def test_writing_tensors_takes_no_second_copy_of_them(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.randn(4_000_000) for i in range(8)}  # 128 MB
    begin_peak(torch.device("cpu"))
    before = peak_bytes(torch.device("cpu"))
    write_tensors(tmp_path / "file.safetensors", tensors)
    assert peak_bytes(torch.device("cpu")) - before < 64e6


def test_tensors_of_every_kind_come_back(tmp_path: Path) -> None:
    """Read by safetensors itself: scalars, empty ones, views, shared memory, every type."""
    base = torch.arange(12).reshape(3, 4)
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8, torch.bool)  # fmt: skip
    tensors = {str(kind): base.to(kind) for kind in kinds}
    tensors |= {
        "transposed": base.T,
        "part": base[:2, 1:],
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }
    write_tensors(tmp_path / "file.safetensors", tensors, {"note": "größe"})
    found = load_file(tmp_path / "file.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    assert read_tensors(tmp_path / "file.safetensors")[1]["note"] == "größe"
