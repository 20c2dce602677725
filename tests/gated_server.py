"""What a process of tests/serving.py runs: `bertvision serve`, with a model that can be told to wait or to break.

    "wait ..."     as a text is computed only when the file that is the gate exists
    "break ..."    raises an error that speaks of a folder

Without a gate everything is the real thing; with one, everything else. Which threads are left is printed at the end.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bertvision.cli import main


def serve(words: list[str], gate: str | None, environment: dict[str, str]) -> None:
    """Run the command line to its end."""
    os.environ.update(environment)
    if gate is not None:
        _install(Path(gate))
    try:
        main(words)
    finally:
        left = sorted(thread.name for thread in threading.enumerate())
        sys.stdout.write(f"threads: {', '.join(left)}\n")


def _install(gate: Path) -> None:
    from bertvision.model.model import Model

    real: Any = Model.__call__

    def predict(self: Model, first: Any, *args: Any, **options: Any) -> Any:
        if any(text.startswith("break") for text in first):
            raise ValueError(f"a defect in {gate}")
        while any(text.startswith("wait") for text in first) and not gate.exists():
            time.sleep(0.005)
        return real(self, first, *args, **options)

    setattr(Model, "__call__", predict)  # noqa: B010 (no method of its type)
