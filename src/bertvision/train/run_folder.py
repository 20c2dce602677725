"""The folder of one piece of training: its settings, lock, metrics, checkpoint and results.

    stage.json               key (everything that decides the result) first; results and `done` last
    metrics.jsonl            one JSON object a line; trackers (`--track`) receive the same numbers
    checkpoint.safetensors   everything a killed run needs to continue; deleted when it is done

The same key reuses finished work and continues unfinished work. Another key is refused, because the folder's files
would belong to two different runs. One process at a time works in a folder: a lock ends with its process.

Of several ranks, rank 0 alone touches the folder. The others receive what it found and must come with the same key.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import Tensor, nn

from bertvision.artifacts import (
    disk_trouble,
    output_folder,
    read_json,
    remove,
    sweep,
    write_json,
    write_text,
)
from bertvision.errors import ConfigError, OutputError
from bertvision.train.checkpoint import load_checkpoint, save_checkpoint
from bertvision.train.config import differences
from bertvision.train.parallel import ALONE, Parallel

LOCK = ".lock"


class RunFolder:
    """One folder, one key, done or not."""

    def __init__(
        self,
        folder: Path,
        key: dict[str, Any],
        *,
        overwrite: bool = False,
        parallel: Parallel = ALONE,
        track: Sequence[str] = (),
    ) -> None:
        self.folder, self.key, self.parallel = folder, key, parallel
        self.checkpoint, self.metrics = folder / "checkpoint.safetensors", folder / "metrics.jsonl"
        self._state_file = folder / "stage.json"
        self._track, self._trackers = _installed(track), []
        self._lock: filelock.BaseFileLock | None = None
        if not parallel.alone:
            self._check_ranks()
        found: dict[str, Any] = parallel.on_main(lambda: self._open(overwrite))
        self.done: bool = found["done"]
        self.results: dict[str, Any] = found.get("results", {})
        self.choices: dict[str, Any] = found.get("choices", {})
        """What was measured and chosen when the work began; whoever continues it makes the same choices."""
        self.profile: dict[str, float] = {}
        """Where the time of this attempt went."""
        self.lines = 0
        """Lines of metrics.jsonl."""
        self._seconds: float | None = found.get("seconds")
        self._began = time.monotonic()

    # ---- opening and ending

    def _open(self, overwrite: bool) -> dict[str, Any]:
        """Make the folder ready; returns the content of its stage.json."""
        if self.folder.is_dir():
            self._lock = _locked(self.folder)
        found = read_json(self._state_file) if self._state_file.exists() else None
        if found is not None and found["key"] != self.key:
            if not overwrite:
                names = ", ".join(differences(found["key"], self.key))
                raise OutputError(
                    f"{self.folder} holds work with other settings ({names}): choose another --out, "
                    "or use --overwrite to replace it"
                )
            self._clear()
            found = None
        if found is None:
            output_folder(self.folder)
            self._lock = self._lock or _locked(self.folder)
            # Without stage.json nobody knows what settings they belong to.
            remove(self.checkpoint)
            remove(self.metrics)
            found = {"key": self.key, "done": False}
            write_json(self._state_file, found)
        elif found["done"]:
            remove(
                self.checkpoint
            )  # a kill may have come between the last write of stage.json and this removal
            self._release()
        sweep(self.folder, depth=3)  # SNAPSHOT/head/dev/ is the deepest folder that is written to
        return found

    def _clear(self) -> None:
        remove(self._state_file)  # first: a kill in the middle must not leave it on half of the work
        for path in self.folder.iterdir():
            if path.name != LOCK:
                remove(path)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def _check_ranks(self) -> None:
        """Refuse processes that were started on different data, encoders or settings."""
        own = json.loads(json.dumps(self.key))
        names = ", ".join(differences(self.parallel.share(own), own))
        if names:
            raise ConfigError(
                f"process {self.parallel.rank} has other settings than process 0 ({names}): start all of them with the "
                "same command, data and encoder"
            )

    @property
    def seconds(self) -> float:
        """Seconds spent on the work, including earlier interrupted attempts up to their last checkpoint."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    def choose(self, name: str, make: Callable[[], Any]) -> Any:
        """The choice of that name; rank 0 makes it on the first call and stage.json keeps it."""
        if name not in self.choices:
            self.choices[name] = self.parallel.on_main(make)
            if self.parallel.main:
                write_json(self._state_file, {"key": self.key, "done": False, "choices": self.choices})
        return self.choices[name]

    def finish(self, results: dict[str, Any]) -> None:
        """Mark the work as done, with rank 0's results, and delete the checkpoint."""
        self.results, self._seconds, self.done = self.parallel.share(results), self.seconds, True
        self.parallel.on_main(self._finish)

    def _finish(self) -> None:
        state: dict[str, Any] = {"key": self.key, "done": True, "seconds": self.seconds}
        write_json(self._state_file, state | {"choices": self.choices, "results": self.results})
        remove(self.checkpoint)
        self._release()

    # ---- metrics

    def log(self, record: dict[str, Any], *, step: int, group: str = "") -> None:
        """Append a line to metrics.jsonl; trackers receive its numbers under the name of their group."""
        self.lines += 1
        if not self.parallel.main:
            return
        with disk_trouble(self.metrics), self.metrics.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record) + "\n")
        if self._trackers:
            prefix = f"{group}/" if group else ""
            numbers = {name: value for name, value in record.items() if isinstance(value, float)}
            values = {f"{prefix}{name}": value for name, value in numbers.items() if name != "epoch"}
            for tracker in self._trackers:
                tracker.log(values, step=step)

    def close_log(self) -> None:
        """End the trackers."""
        for tracker in self._trackers:
            tracker.finish()
        self._trackers = []

    def _open_log(self, keep: int) -> None:
        """Start the log, cut back to the lines that the checkpoint counted: no step is in it twice."""
        self.lines = keep
        if self.parallel.main:
            old = self.metrics.read_text(encoding="utf-8").splitlines() if self.metrics.exists() else []
            write_text(self.metrics, "".join(line + "\n" for line in old[:keep]))
            self._trackers = [_tracker(name, self.folder) for name in self._track]

    # ---- checkpoints

    def save(
        self,
        modules: Mapping[str, nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        progress: Mapping[str, Any],
        *,
        extra: Mapping[str, Tensor] | None = None,
        every_rank: bool = True,
    ) -> None:
        """Write the checkpoint. Every rank calls it, or, with every_rank=False, rank 0 alone.

        Rank 0 alone is enough where no rank has weights or random states of its own.
        """
        own = {"progress": dict(progress), "lines": self.lines, "seconds": self.seconds}
        parallel = self.parallel if every_rank else ALONE
        save_checkpoint(self.checkpoint, modules, optimizers, progress=own, extra=extra, parallel=parallel)

    def resume(
        self, modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Start the log and load the checkpoint; returns its progress and extra tensors, None without one."""
        if not self.parallel.on_main(self.checkpoint.exists):
            self._open_log(0)
            return None
        saved, extra = load_checkpoint(self.checkpoint, modules, optimizers, parallel=self.parallel)
        self._began = time.monotonic() - saved["seconds"]
        self._open_log(saved["lines"])
        return saved["progress"], extra


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a metrics.jsonl; a line that a kill cut off is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def _locked(folder: Path) -> filelock.BaseFileLock | None:
    """Lock a folder for this process, which may lock it again; None where the file system has no locks.

    Raises:
        OutputError: another process works there.
    """
    lock = filelock.FileLock(folder / LOCK, is_singleton=True, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise OutputError(
            f"another process works in {folder}: wait for it or stop it, or choose another --out"
        ) from None
    except (OSError, NotImplementedError):  # no locks, or a folder that cannot be written
        return None
    return lock


def _installed(trackers: Sequence[str]) -> Sequence[str]:
    """Refuse trackers that are not installed, before anything is computed."""
    for name in ("accelerate", *trackers) if trackers else ():
        if find_spec(name) is None:
            raise ConfigError(f"--track {' '.join(trackers)} needs {name}: run `pip install {name}`")
    return trackers


def _tracker(name: str, folder: Path) -> Any:
    """A running tracker of accelerate. Rank 0 alone makes one."""
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # accelerate's log messages need it
    label = "-".join(folder.resolve().parts[-2:])
    own: dict[str, dict[str, Any]] = {
        "tensorboard": {"run_name": "tensorboard", "logging_dir": str(folder)},
        "mlflow": {"experiment_name": "bertvision", "run_name": label},
    }
    tracker = LOGGER_TYPE_TO_CLASS[name](**own.get(name, {"run_name": "bertvision", "name": label}))
    tracker.main_process_only = False  # else it asks accelerate for the rank at every line
    tracker.start()
    return tracker
