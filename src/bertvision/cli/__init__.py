"""The command line: `bertvision VERB ...`.

A verb is a function of the same name: the class of its parameter has a field for each flag, and it returns its result
for --json together with a function that prints it for people. The function's file is imported only when it is called,
and torch only inside the function, so `--help` answers at once. A verb with several actions (`bertvision cache ls`) has
a function for each.
"""

import errno
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertvision._version import __version__
from bertvision.errors import BertvisionError, ConfigError, nearest

_HELP = ("-h", "--help", "help")

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

_FILES = {
    **dict.fromkeys(("run", "finetune", "multitask", "triplet", "fit", "sweep", "eval", "ensemble"), "flows"),
    **dict.fromkeys(("score", "report", "recipes"), "files"),
}
"""Where a verb's function is, if not in the file of its name."""
_DATA = {"--train", "--dev", "--test"}
"""Flags without which `run` is the demo."""


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
    if not words or words[0] in _HELP:
        sys.stdout.write(_help())
        return
    if words[0] in ("-V", "--version"):
        sys.stdout.write(f"bertvision {__version__}\n")
        return
    try:
        _run(words)
    except BrokenPipeError:
        # The reader of our output went away (`| head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (BertvisionError, KeyboardInterrupt, MemoryError, RuntimeError, OSError) as error:
        sentence, code = _explained(error, words[0])
        if debug or not sentence:
            raise
        sys.stderr.write(f"error: {sentence}\n")
        sys.exit(code)


def _explained(error: BaseException, verb: str) -> tuple[str, int]:
    """The sentence and the exit code for an error; an empty sentence for a defect of bertvision."""
    if isinstance(error, BertvisionError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted" + (": run the same command again to go on" if verb != "serve" else ""), 130
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = error.filename or "output"
        return f"no space is left on the disk ({place}): make room and run the command again", 2
    # torch's class for a full GPU is a RuntimeError, and a full CPU has no class; torch may not be imported here.
    if type(error).__name__ in ("MemoryError", "OutOfMemoryError") or "allocate memory" in str(error):
        return "out of memory: lower the batch size, --states.tokens-per-call or --states.memory-gb", 2
    return "", 2


def _run(words: list[str]) -> None:
    command, rest, prog = find_command(words)
    if isinstance(command, str):
        sys.stdout.write(command)
        return
    from bertvision import console
    from bertvision.cli.flags import parse
    from bertvision.cli.memory import tune_memory

    console.setup_logging()
    tune_memory(serving=words[0] == "serve")
    args, as_json = parse(command, rest, prog)
    if (result := command(args)) is None:
        return
    value, show = result
    if as_json:
        console.emit_json(value)
    else:
        show()


def find_command(words: Sequence[str]) -> tuple[Callable[[Any], Any] | str, list[str], str]:
    """The function of a verb or of its action, the flags and the name; of `cache` alone the text that lists actions."""
    verb, *rest = words
    _check(verb, VERBS, kind="verb")
    module = importlib.import_module(f"bertvision.cli.{_FILES.get(verb, verb)}")
    if not hasattr(module, "ACTIONS"):
        if verb == "run" and not {word.partition("=")[0] for word in rest} & {"--config", *_DATA}:
            rest = ["--config", "demo", *rest]
        return getattr(module, verb), rest, f"bertvision {verb}"
    if not rest or rest[0] in _HELP:
        return module.help_text(), rest, f"bertvision {verb}"
    action, *rest = rest
    _check(action, module.ACTIONS, kind=f"action of {verb}")
    return getattr(module, action), rest, f"bertvision {verb} {action}"


def _check(word: str, known: Mapping[str, str], *, kind: str) -> None:
    if word not in known:
        raise ConfigError(f"there is no {kind} {word!r}: {nearest(word, known)}")
