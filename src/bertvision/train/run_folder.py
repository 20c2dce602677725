"""The folder of one piece of training: its settings, lock, metrics, checkpoint and results.

    stage.json               key (everything that decides the result) first; results and `done` last
    metrics.jsonl            one JSON object a line; trackers (`--track`) receive the same numbers
    checkpoint.safetensors   everything a killed run needs to continue; deleted when it is done

The same key reuses finished work and continues unfinished work. Another key is refused, because the folder's files
would belong to two different runs. One process at a time works in a folder: a lock ends with its process.

A checkpoint is renamed into place: complete or absent. Its tensors are

    module/NAME/KEY    optimizer/NAME/NUMBER/MOMENT    random/cpu  random/device

and its metadata the rest as JSON. It is the same for any number of processes, but for the random states, which belong
to a rank (random/cpu/1 is rank 1's).

Of several ranks, rank 0 alone touches the folder; the others receive what it found.
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
    read_tensors,
    remove,
    sweep,
    write_json,
    write_tensors,
    write_text,
)
from bertvision.errors import ConfigError, OutputError
from bertvision.train.optim import generator_of
from bertvision.train.parallel import ALONE, Parallel

LOCK = ".lock"

Modules = Mapping[str, nn.Module]
Optimizers = Mapping[str, torch.optim.Optimizer]


class RunFolder:
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
        for name in ("accelerate", *track) if track else ():
            if find_spec(name) is None:  # refused before anything is computed
                raise ConfigError(f"--track {' '.join(track)} needs {name}: run `pip install {name}`")
        self._track, self._trackers = track, []
        self._lock: filelock.BaseFileLock | None = None
        self._state: dict[str, Any] = parallel.on_main(lambda: self._open(overwrite))
        """What stage.json says."""
        self.done: bool = self._state["done"]
        self.results: dict[str, Any] = self._state.get("results", {})
        self.choices: dict[str, Any] = self._state.setdefault("choices", {})
        """What was measured and chosen when the work began; whoever continues it makes the same choices."""
        self.profile: dict[str, float] = {}  # where the time of this attempt went
        self.lines = 0  # lines of metrics.jsonl
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds spent, including earlier attempts up to their last checkpoint."""
        return self._state.get("seconds", time.monotonic() - self._began)

    # ---- opening and ending

    def _open(self, overwrite: bool) -> dict[str, Any]:
        """Make the folder ready; returns the content of its stage.json."""
        if self.folder.is_dir():
            self._lock = lock_folder(self.folder)
        found = read_json(self._state_file) if self._state_file.exists() else None
        if found is not None and found["key"] != self.key:
            if not overwrite:
                names = ", ".join(differences(found["key"], self.key))
                raise OutputError(
                    f"{self.folder} holds work with other settings ({names}): choose another --out, "
                    "or use --overwrite to replace it"
                )
            remove(self._state_file)  # first: a kill in the middle must not leave it on half of the work
            for path in self.folder.iterdir():
                if path.name != LOCK:
                    remove(path)
            found = None
        if found is None:
            output_folder(self.folder)
            self._lock = self._lock or lock_folder(self.folder)
            # Without stage.json nobody knows what settings they belong to.
            remove(self.checkpoint)
            remove(self.metrics)
            found = {"key": self.key, "done": False}
            write_json(self._state_file, found)
        elif found["done"]:
            remove(self.checkpoint)  # a kill may have come between stage.json and this removal
            self._release()
        sweep(self.folder, depth=3)  # SNAPSHOT/head/dev/ is the deepest folder that is written to
        return found

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def choose(self, name: str, make: Callable[[], Any]) -> Any:
        """The choice of that name; rank 0 makes it on the first call and stage.json keeps it."""
        if name not in self.choices:
            self.choices[name] = self.parallel.on_main(make)
            if self.parallel.main:
                write_json(self._state_file, self._state)
        return self.choices[name]

    def finish(self, results: dict[str, Any]) -> None:
        """Mark the work as done, with rank 0's results, and delete the checkpoint."""
        self.results, self.done = self.parallel.share(results), True
        self._state |= {"done": True, "seconds": self.seconds, "results": self.results}
        self.parallel.on_main(lambda: write_json(self._state_file, self._state))
        if self.parallel.main:
            remove(self.checkpoint)
            self._release()

    # ---- metrics

    def log(self, record: dict[str, Any], *, step: int, group: str) -> None:
        """Append a line to metrics.jsonl; trackers receive its numbers under the name of their group."""
        self.lines += 1
        if not self.parallel.main:
            return
        with disk_trouble(self.metrics), self.metrics.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record) + "\n")
        numbers = {name: x for name, x in record.items() if isinstance(x, float) and name != "epoch"}
        for tracker in self._trackers:
            tracker.log({f"{group}/{name}": x for name, x in numbers.items()}, step=step)

    def close_log(self) -> None:
        for tracker in self._trackers:
            tracker.finish()
        self._trackers = []

    def _open_log(self, keep: int) -> None:
        """Start the log, cut back to the lines the checkpoint counted: no step is in it twice."""
        self.lines = keep
        if self.parallel.main:
            old = self.metrics.read_text(encoding="utf-8").splitlines() if self.metrics.exists() else []
            write_text(self.metrics, "".join(line + "\n" for line in old[:keep]))
            self._trackers = [_tracker(name, self.folder) for name in self._track]

    # ---- checkpoints

    def save(
        self, modules: Modules, optimizers: Optimizers, progress: dict[str, Any], *, every_rank: bool = True
    ) -> None:
        """Write the checkpoint; `progress` is plain JSON.

        Every rank calls it, or, with every_rank=False, rank 0 alone, where no rank has weights or random states of its
        own.
        """
        parallel = self.parallel if every_rank else ALONE
        tensors: dict[str, Tensor] = {}
        for name, module in modules.items():
            tensors |= {f"module/{name}/{key}": value for key, value in _trained(module).items()}
        for name, optimizer in optimizers.items():
            for index, moments in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer/{name}/{index}/{key}": value for key, value in moments.items()}
        for name, generator in _generators(modules).items():
            first, *others = parallel.every(generator.get_state())
            tensors[f"random/{name}"] = first
            tensors |= {f"random/{name}/{rank}": state for rank, state in enumerate(others, 1)}
        own = {"progress": progress, "lines": self.lines, "seconds": self.seconds}
        parallel.on_main(lambda: write_tensors(self.checkpoint, tensors, {"progress": json.dumps(own)}))

    def resume(self, modules: Modules, optimizers: Optimizers) -> dict[str, Any] | None:
        """Start the log and put a checkpoint back where there is one; returns its progress."""
        if not self.parallel.on_main(self.checkpoint.exists):
            self._open_log(0)
            return None
        tensors, metadata = read_tensors(self.checkpoint)
        for name, module in modules.items():
            found, there = _under(tensors, f"module/{name}/"), _trained(module)
            assert there.keys() == found.keys(), "a checkpoint of other modules"
            module.load_state_dict(found, strict=False)
        for name, optimizer in optimizers.items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in _under(tensors, f"optimizer/{name}/").items():
                index, _, moment = key.partition("/")
                state.setdefault(int(index), {})[moment] = value
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        for name, generator in _generators(modules).items():
            own = f"random/{name}/{self.parallel.rank}" if self.parallel.rank else f"random/{name}"
            if own in tensors:
                generator.set_state(tensors[own])
        saved = json.loads(metadata["progress"])
        self._began = time.monotonic() - saved["seconds"]
        self._open_log(saved["lines"])
        return saved["progress"]


def _trained(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module without its frozen parameters: those come from where it was loaded."""
    frozen = {name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    return {name: value for name, value in module.state_dict().items() if name not in frozen}


def _generators(modules: Modules) -> dict[str, torch.Generator]:
    device = next((p.device for module in modules.values() for p in module.parameters()), torch.device("cpu"))
    return {"cpu": torch.default_generator, "device": generator_of(device)}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a metrics.jsonl; a line that a kill cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the settings that differ."""
    names: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(f"{prefix}{key}")
    return names


def lock_folder(folder: Path) -> filelock.BaseFileLock | None:
    """Lock a folder for this process, which may lock it again; None where the file system has no locks."""
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


def _tracker(name: str, folder: Path) -> Any:
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
