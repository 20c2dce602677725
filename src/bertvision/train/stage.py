"""A stage: a folder of work that can be killed at any moment and started again.

`stage.json` names what the work depends on (its key) and is written first; `done` in it is set last. The same
key means: finished work is reused, unfinished work goes on. Another key is refused, because the folder's files
would belong to two different runs.

Of several processes rank 0 alone touches the folder; the others are told what it found, and must come with the same
key. Processes that were not started together do not share a folder: the second is refused while the first works there.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertvision.artifacts import output_folder, read_json, remove, sweep, write_json
from bertvision.errors import ConfigError, OutputError
from bertvision.train.claim import Claim, claim
from bertvision.train.parallel import ALONE, Parallel

__all__ = ["Stage", "differences"]


class Stage:
    """One folder, one key, done or not."""

    def __init__(
        self, folder: Path, key: dict[str, Any], *, overwrite: bool = False, parallel: Parallel = ALONE
    ) -> None:
        self.folder, self.key, self.parallel = folder, key, parallel
        self._mark = folder / "stage.json"
        self._claim: Claim | None = None
        if not parallel.alone:
            self._check_ranks()
        found = parallel.on_main(lambda: self._begin(overwrite))
        self.done = bool(found and found["done"])
        self.results: dict[str, Any] = found.get("results", {}) if found else {}
        self.choices: dict[str, Any] = found.get("choices", {}) if found else {}
        """What was measured and chosen when the work began; whoever goes on with it chooses the same."""
        self.profile: dict[str, float] = {}
        """Where the time of this try went."""
        self._began = time.monotonic()
        self._seconds: float | None = found.get("seconds") if found else None

    def _begin(self, overwrite: bool) -> dict[str, Any] | None:
        """Look at the folder and make it ready; what stands in its mark, None for new work."""
        folder, key = self.folder, self.key
        self._claim = claim(folder) if folder.is_dir() else None
        found = read_json(self._mark) if self._mark.exists() else None
        if found is not None and found["key"] != key:
            if not overwrite:
                names = ", ".join(differences(found["key"], key))
                raise OutputError(
                    f"{folder} holds work with other settings ({names}): choose another --out, "
                    "or use --overwrite to replace it"
                )
            remove(self._mark)  # first: a kill in the middle must not leave a mark on half of the work
            remove(folder)
            self._claim = found = None
        if found is None:
            output_folder(folder)
            self._claim = self._claim or claim(folder)
            # Without a mark nobody knows what settings they belong to.
            remove(self.checkpoint)
            remove(self.metrics)
            write_json(self._mark, {"key": key, "done": False})
        elif found["done"]:
            remove(self.checkpoint)  # a kill may have come between the mark and its removal
            self._claim = None
        sweep(folder, depth=3)  # SNAPSHOT/head/dev/ is the deepest that is written to
        return found

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
    def resumes(self) -> bool:
        """Whether there is a checkpoint to go on from, as rank 0 sees it."""
        return self.parallel.on_main(self.checkpoint.exists)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def seconds(self) -> float:
        """Time the work took, earlier tries counted in as far as `went_on` told."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    def went_on(self, seconds: float) -> None:
        """Count the time an earlier try had spent when it wrote the checkpoint this one starts from."""
        self._began = time.monotonic() - seconds

    def choose(self, name: str, make: Callable[[], Any]) -> Any:
        """The choice that was made for this work; it is made now where there is none, and kept."""
        if name not in self.choices:
            self.choices[name] = self.parallel.on_main(make)
            if self.parallel.main:
                write_json(self._mark, {"key": self.key, "done": False, "choices": self.choices})
        return self.choices[name]

    def finish(self, results: dict[str, Any]) -> None:
        """Mark the work as done, with rank 0's results; its checkpoint is not needed any more."""
        self.results, self.done, self._seconds = self.parallel.share(results), True, self.seconds
        self.parallel.on_main(self._finish)

    def _finish(self) -> None:
        ended = {"seconds": self.seconds, "choices": self.choices, "results": self.results}
        write_json(self._mark, {"key": self.key, "done": True} | ended)
        remove(self.checkpoint)
        self._claim = None


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of settings that differ."""
    names: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(f"{prefix}{key}")
    return names
