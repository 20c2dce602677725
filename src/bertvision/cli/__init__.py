"""The command line: `bertvision VERB ...`.

One small file a verb: a dataclass of flags (`ARGS`) and a `main` that calls the library and prints. A verb's
file is imported only when it is called, and torch only when the verb needs it, so `--help` answers at once.
A verb with several actions (`bertvision cache ls`) is a folder of such files.
"""

import errno
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from bertvision._version import __version__
from bertvision.errors import BertvisionError, ConfigError

__all__ = ["VERBS", "find_command", "main"]

_ASKS = ("-h", "--help", "help")
"""Words that ask for help."""

VERBS = {
    "run": "the whole job: finetune, fit a zoo of heads, evaluate, ensemble, report (no arguments: the demo)",
    "finetune": "tune an encoder, with snapshots at fractions of an epoch",
    "multitask": "tune one encoder for several tasks at once, a head for each",
    "triplet": "pre-train an encoder on triplets mined from labelled texts",
    "fit": "fit several heads in one pass over a frozen encoder's states",
    "sweep": "search for the best head: trials on one study, or a grid in one pass",
    "eval": "score heads on a data set",
    "ensemble": "combine several heads and score the result",
    "predict": "answer questions with a trained head",
    "score": "official SQuAD 2.0 scores of a predictions file",
    "data": "what is in a data set: examples, windows, lengths, balance",
    "heads": "the heads: structure, parameters, FLOPs, for any encoder size",
    "cache": "stored hidden states: extract, ls, info, verify, rm",
    "export": "put an encoder and heads into one folder to ship, for the Hub or as ONNX",
    "serve": "answer over HTTP, with a page that looks inside",
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
    if not words or words[0] in _ASKS:
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
        again = "" if words[0] == "serve" else ": run the same command again to go on"
        _fail(f"interrupted{again}", 130)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (MemoryError, RuntimeError) as error:
        # torch's class for a full device is a RuntimeError, and a full CPU has none; torch may not be imported here.
        full = type(error).__name__ in ("MemoryError", "OutOfMemoryError") or "allocate memory" in str(error)
        if debug or not full:
            raise
        _fail("out of memory: lower the batch size, --states.tokens-per-call or --states.memory-gb", 2)
    except OSError as error:
        if debug or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _fail(
            f"no space is left on the disk ({error.filename or 'output'}): make room and run the command again",
            2,
        )


def _run(words: list[str]) -> None:
    _check(words[0], VERBS, kind="verb", prog="bertvision")
    from bertvision import console

    console.setup_logging()
    from bertvision.cli.flags import parse
    from bertvision.cli.memory import tune_memory

    tune_memory()

    module, rest, prog = find_command(words)
    if hasattr(module, "ACTIONS"):
        sys.stdout.write(module.help_text())
    else:
        module.main(_parsed(parse, module, rest, prog))


def _parsed(parse: Callable[..., Any], module: ModuleType, rest: list[str], prog: str) -> Any:
    """The flags; of several processes that were started with the same mistake the first one tells it."""
    try:
        return parse(module, rest, prog=prog)
    except BertvisionError as error:
        if os.environ.get("RANK", "0") == "0":
            raise
        raise SystemExit(error.exit_code) from error


def find_command(words: Sequence[str]) -> tuple[ModuleType, list[str], str]:
    """The module of a verb, or of the action of a verb that has several; its flags; and what it is called.

    `cache` alone, or with --help, is the module that lists its actions.
    """
    verb, *rest = words
    _check(verb, VERBS, kind="verb", prog="bertvision")
    module = importlib.import_module(f"bertvision.cli.{verb}")
    if not hasattr(module, "ACTIONS") or not rest or rest[0] in _ASKS:
        return module, rest, f"bertvision {verb}"
    action, *rest = rest
    _check(action, module.ACTIONS, kind="action", prog=f"bertvision {verb}")
    return importlib.import_module(f"bertvision.cli.{verb}.{action}"), rest, f"bertvision {verb} {action}"


def _check(word: str, known: Mapping[str, str], *, kind: str, prog: str) -> None:
    """Refuse a word that is not one of `known`."""
    if word not in known:
        import difflib

        close = difflib.get_close_matches(word, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"`{prog} --help` lists the {kind}s"
        raise ConfigError(f"there is no {kind} {word!r}: {hint}")


def _fail(sentence: str, code: int) -> None:
    sys.stderr.write(f"error: {sentence}\n")
    sys.exit(code)
