"""Call the command line inside the test's own process, and look at what it did to a folder.

A process of its own costs seconds of imports, so tests start one only where the process is what they are about.
"""

import contextlib
import io
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = ("--max-seq-length", "96", "--fit.heads", "last_state", "learned_pooling", "adapter:size=4")
"""Flags that make `run` fit the toy encoders."""


@dataclass(frozen=True)
class Outcome:
    code: Any
    """Exit code, 0 where `main` came back."""
    out: str
    err: str


def bertvision(*words: str | Path) -> Outcome:
    """`bertvision WORDS`, with everything it prints."""
    from bertvision.cli import main

    argv = [str(word) for word in words]
    logger = logging.getLogger("bertvision")
    before = list(logger.handlers), logger.level, logger.propagate
    out, err, command, code = io.StringIO(), io.StringIO(), sys.argv, 0
    sys.argv = ["bertvision", *argv]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(argv)
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = command
        # The command line sets up logging for a whole process; other tests share this one.
        logger.handlers[:], logger.level, logger.propagate = before
    return Outcome(code, out.getvalue(), err.getvalue())


def answered(*words: str | Path) -> Outcome:
    """A command that must come to a good end."""
    outcome = bertvision(*words)
    assert outcome.code == 0, outcome.err
    return outcome


def as_json(*words: str | Path) -> Any:
    """The result of a command that must print JSON, and nothing else, on stdout."""
    return json.loads(answered(*words, "--json").out)


def refused(*words: str | Path, late: bool = False) -> str:
    """The one sentence of a user's mistake; a late one stands below what was told until then."""
    outcome = bertvision(*words)
    assert (outcome.code, outcome.out) == (2, ""), outcome
    *before, line = outcome.err.splitlines()
    assert line.startswith("error: "), outcome.err
    assert "Traceback" not in outcome.err
    assert late or not before, outcome.err
    return line


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file below `folder` with its content, every folder with None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
