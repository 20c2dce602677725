"""Mistakes of a user.

Each class below ends a command with one sentence and exit code 2. The sentence names the file, the line or the flag,
and the way out. Any other exception is a defect of bertvision.
"""

import difflib
from collections.abc import Iterable


class BertvisionError(Exception):
    """A user's mistake, described in one sentence.

    Not a `ValueError`: the parser of the command line catches those and would describe them in its own way.
    """

    exit_code = 2


class ConfigError(BertvisionError):
    """A flag, a recipe key or a combination of settings that cannot work."""


class DataError(BertvisionError):
    """A data or predictions file that is missing, broken or inconsistent."""


class EncoderError(BertvisionError):
    """An encoder that cannot be found, loaded or used."""


class ArtifactError(BertvisionError):
    """A saved folder that is incomplete, of another version or of another encoder."""


class OutputError(BertvisionError):
    """An output folder that cannot be written or holds something else."""


class TrainingError(BertvisionError):
    """Training that cannot go on with these settings."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message about a mistyped word: the nearest known ones, or all where none is near."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + ", ".join(known)
