"""Where numbers and heads come from: machine, versions and commit; commands and data, without where anything lay."""

import os
import platform
import re
import shlex
import subprocess
from pathlib import Path, PurePath
from typing import Any

_HUB_FLAGS = ("--push", "--datasets")
"""What follows them are names on the Hub."""
_NO_PLACES = ("hub:", "demo:")
_BEFORE = re.compile(r"(?:[\w.-]+=)?(?:[\w.-]+:)*")


def environment(device: str, precision: str) -> dict[str, Any]:
    """Where the numbers were measured."""
    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "precision": precision,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str | None:
    """The checkout's commit, where this is a checkout of bertvision; a copy has it from BERTVISION_COMMIT."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return os.environ.get("BERTVISION_COMMIT") or None
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def file_name(name: str) -> str:
    """What a data set is called without where it lay: the last part of a path, names of the Hub as they are."""
    if name.startswith(("hub:", "demo:")):
        return name
    scheme, colon, rest = name.partition(":")
    if colon and scheme in ("glue", "cs224n", "answerable"):
        kind, _, place = rest.rpartition(":")
        return ":".join(part for part in (scheme, kind, PurePath(place).name) if part)
    return PurePath(name).name


def plain_command(command: str) -> str:
    """A command line without folders, whether its files were named from the root or from the working folder.

    org/name may be a folder as well as a name on the Hub, so it stays only where it cannot be one.
    """
    try:
        parts = shlex.split(command)
    except ValueError:
        return ""
    plain, flag = [], ""
    for part in parts:
        flag = part.partition("=")[0] if part.startswith("--") else flag
        plain.append(part if flag in _HUB_FLAGS else _plain_word(part))
    return shlex.join(plain)


def _plain_word(word: str) -> str:
    """A word without folders; what stands before a path stays: --flag=, a name of a task, a scheme."""
    match = _BEFORE.match(word)
    assert match is not None  # it matches nothing as well
    before, path = word[: match.end()], word[match.end() :]
    if before.endswith(_NO_PLACES) or ("/" not in path and not path.startswith("~")):
        return word
    return before + (PurePath(path).name or ".")
