"""The command line: `bertvision VERB ...`.

One small file a verb: a dataclass of flags (`ARGS`) and a `main` that calls the library and prints. A verb's
file is imported only when it is called, and torch only when the verb needs it, so `--help` answers at once.
"""

import errno
import importlib
import os
import sys
from collections.abc import Sequence

from bertvision._version import __version__
from bertvision.errors import BertvisionError, ConfigError

__all__ = ["VERBS", "main"]

VERBS = {
    "run": "the whole job: finetune, fit a zoo of heads, evaluate, ensemble, report (no arguments: the demo)",
    "finetune": "tune an encoder, with snapshots at fractions of an epoch",
    "fit": "fit several heads in one pass over a frozen encoder's states",
    "eval": "score heads on a data set",
    "ensemble": "combine several heads and score the result",
    "predict": "answer questions with a trained head",
    "score": "official SQuAD 2.0 scores of a predictions file",
    "data": "what is in a data set: examples, windows, lengths, balance",
    "heads": "the heads: structure, parameters, FLOPs, for any encoder size",
    "report": "write the HTML report of a run again",
    "recipes": "list or show the shipped recipes",
}


def _help() -> str:
    rows = "\n".join(f"  {verb:<10} {text}" for verb, text in VERBS.items())
    return (
        "usage: bertvision VERB [flags]\n\n"
        "Tiny heads on all hidden states of a text encoder.\n\n"
        f"verbs:\n{rows}\n\n"
        "  bertvision run              the demo: offline, on a CPU, a few minutes\n"
        "  bertvision VERB --help      the flags of a verb\n"
        "  --config RECIPE             start from a YAML recipe; flags override it\n"
        "  --debug                     show the traceback of an error\n"
        "  --version                   the version\n"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run one verb; a user's mistake is one sentence on stderr and exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return
    if words[0] in ("-V", "--version"):
        sys.stdout.write(f"bertvision {__version__}\n")
        return
    try:
        _run(words)
    except BertvisionError as error:
        if debug:
            raise
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        if debug:
            raise
        _fail("interrupted: run the same command again to go on from the last checkpoint", 130)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (MemoryError, RuntimeError) as error:
        # torch's class for a full device is a RuntimeError, and a full CPU has none; torch may not be imported here.
        full = type(error).__name__ in ("MemoryError", "OutOfMemoryError") or "allocate memory" in str(error)
        if debug or not full:
            raise
        _fail("out of memory: lower the batch size, --feed.tokens-per-call or --feed.memory-gb", 2)
    except OSError as error:
        if debug or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _fail(
            f"no space is left on the disk ({error.filename or 'output'}): make room and run the command again",
            2,
        )


def _run(words: list[str]) -> None:
    verb, rest = words[0], words[1:]
    if verb not in VERBS:
        import difflib

        close = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {close[0]}?" if close else "`bertvision --help` lists the verbs"
        raise ConfigError(f"there is no verb {verb!r}: {hint}")
    from bertvision import console

    console.setup_logging()
    from bertvision.cli.flags import parse
    from bertvision.cli.memory import tune_memory

    tune_memory()

    module = importlib.import_module(f"bertvision.cli.{verb}")
    module.main(parse(module, rest, prog=f"bertvision {verb}"))


def _fail(sentence: str, code: int) -> None:
    sys.stderr.write(f"error: {sentence}\n")
    sys.exit(code)
