"""metrics.jsonl, always; TensorBoard, when asked.

A resumed run cuts the file back to the lines its checkpoint knew, so that no step stands in it twice.
Of several processes rank 0 alone writes (`main`); the others only count.
"""

import json
from pathlib import Path
from typing import Any

from bertvision.artifacts import disk_trouble, write_text
from bertvision.errors import ConfigError

__all__ = ["MetricsLog", "read_metrics"]


class MetricsLog:
    """Appends one JSON object a line."""

    def __init__(self, path: Path, *, keep: int = 0, tensorboard: bool = False, main: bool = True) -> None:
        self.path, self._main = path, main
        self._board = _tensorboard(path.parent) if tensorboard and main else None
        if not main:
            self.lines = keep
            return
        lines = path.read_text(encoding="utf-8").splitlines()[:keep] if path.exists() else []
        write_text(path, "".join(line + "\n" for line in lines))
        self.lines = len(lines)

    def write(self, record: dict[str, Any], *, step: int, group: str = "") -> None:
        self.lines += 1
        if not self._main:
            return
        with disk_trouble(self.path), self.path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record) + "\n")
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, float) and name != "epoch":
                    self._board.add_scalar(f"{group}/{name}" if group else name, value, step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("--tensorboard needs it: run `pip install 'bertvision[track]'`") from error
    return SummaryWriter(str(folder / "tensorboard"))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a line cut off by a kill is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records
