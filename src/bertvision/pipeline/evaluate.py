"""Score trained systems on a dataset, and join several into one: `bertvision eval` and `bertvision ensemble`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertvision._version import __version__
from bertvision.artifacts import atomic_folder, check_output, read_json, write_json
from bertvision.config import to_mapping
from bertvision.encoder.load import load_tokenizer, token_ids
from bertvision.errors import ConfigError, OutputError
from bertvision.model.record import Record, record
from bertvision.model.record import evaluate as score
from bertvision.model.trained import Trained, heads_below, logits_of_trained, read_trained
from bertvision.pipeline.config import EnsembleArgs, EvalArgs, ScoreArgs
from bertvision.tasks.base import DecodeConfig, Task
from bertvision.tasks.logits import Logits
from bertvision.tasks.span_answers import score_wordpiece
from bertvision.tasks.span_decode import second_best
from bertvision.train.splits import Split

Scored = tuple[Task, dict[str, Any]]
"""A system's task, and its row: system, examples, scores (at the tuning stored with it), oracle (the task's own metric
at the best tuning for this very data), tuning, details, metric, and wordpiece (the paper's scores) where asked for."""


def evaluate(args: EvalArgs, *, command: str = "") -> list[Scored]:
    """Score systems at the tuning stored with each; `args.out` gets answers and metrics, a folder a system."""
    if args.other_encoder and args.encoder is None:
        raise ConfigError("--other-encoder needs --encoder: name the encoder to read")
    wordpiece, merge = args.scorer == "wordpiece", args.text_merge
    found = _read(args, least=1, verb="eval")
    if args.out is not None:
        check_output(args.out)
    for flag, given in (("--scorer wordpiece", wordpiece), ("--second-best", args.second_best)):
        if given:
            _check_spans(found, flag)
    if merge != "stored":
        found = {
            name: replace(one, readers=[replace(r, task=r.task.merged_by(merge)) for r in one.readers])
            for name, one in found.items()
        }
    rows, logits = [], _logits(found, args, other_encoder=args.other_encoder)
    for (name, system), (split, own) in zip(found.items(), logits, strict=True):
        parts = {"eval": (split, second_best(split.windows, own) if args.second_best else own)}
        result = score(parts, tuning=system.tuning, tuned_on=system.tuned_on)
        if args.out is not None:
            record(args.out / name, parts, command, {"eval": split.name}, evaluated=result)
        rows.append(_row(name, result, "eval"))
        if wordpiece:
            tokenize = token_ids(load_tokenizer(args.encoder or system.encoder))
            answers = result.answers["eval"]
            rows[-1][1]["wordpiece"] = score_wordpiece(answers.data, answers.token_ids(), tokenize)
    return rows


def ensemble(args: EnsembleArgs, *, command: str = "") -> list[Scored]:
    """Score systems and their ensemble, which is tuned on the data; `args.out` gets it as a system of its own."""
    found = _read(args, least=2, verb="ensemble")
    systems = list(found.values())
    if args.out is not None:
        _check_out(args.out, systems)
    first = systems[0]
    task, how = first.task, first.task.join_how(args.how)
    if other := next((system for system in systems if system.task != task), None):
        raise ConfigError(
            f"{first.folder} and {other.folder} are for different tasks (classes, scale of scores, loss): "
            "they cannot be joined"
        )
    decodes = {getattr(system.tuning, "decode", None) for system in systems}
    if len(decodes) > 1:
        raise ConfigError("these heads were tuned with different decodings: name one with --decoding")
    logits = _logits(found, args)
    if len({split.fingerprint for split, _ in logits}) > 1:
        raise ConfigError(
            "these heads read different windows (tokenizer, window settings or prompts): they cannot be joined"
        )
    split = logits[0][0]
    rows = [
        _row(name, score({"eval": (split, own)}, tuning=system.tuning), "eval")
        for (name, system), (_, own) in zip(found.items(), logits, strict=True)
    ]
    # As dev, because the stored tuning is fitted on it.
    parts = {"dev": (split, task.join([own for _, own in logits], split.windows, how))}
    result = score(parts, decode=decodes.pop())
    rows.append(_row(f"{how} of {len(systems)}", result, "dev"))
    if args.out is not None:
        with atomic_folder(args.out) as temporary:
            members = [os.path.relpath(system.folder.resolve(), args.out.resolve()) for system in systems]
            about = {"bertvision": __version__, "ensemble": {"how": how, "members": members}}
            write_json(temporary / "config.json", about)
            config = read_json(first.members[0] / "config.json")
            label = config.get("label") or config["head"]["name"]
            config["label"] = f"{how} of {len(systems)}, the first of them {label}"
            config["parameters"] = sum(head.num_parameters for system in systems for head in system.heads)
            record(temporary, parts, command, {"dev": split.name}, evaluated=result, config=config)
    return rows


def _check_out(out: Path, systems: Sequence[Trained]) -> None:
    """Refuse an ensemble that nothing could load."""
    check_output(out.parent)
    if out.exists() and not (out / "config.json").exists():
        raise OutputError(f"--out {out} exists and is not an ensemble: choose another folder")
    if len({system.fingerprint for system in systems}) > 1:
        raise ConfigError(
            "these heads read different encoders: score them without --out, nothing could load it"
        )
    if any(len(system.heads) > 1 for system in systems):
        raise ConfigError("an ensemble cannot be a member of another with --out: name its heads instead")


# ---- systems and their logits


def _read(args: ScoreArgs, *, least: int, verb: str) -> dict[str, Trained]:
    """The systems by short names; names that several share get the folder above in front.

    A whole fit or fine-tuning stands for all its heads or snapshots.
    """
    paths: list[Path] = []
    for folder in args.folders:
        if not any((folder / name).exists() for name in ("config.json", "results.json")):
            heads = sorted(file.parent for file in folder.glob("snapshot-*/heads/*/config.json"))
            if heads:  # no data is for all of them
                raise ConfigError(
                    f"{folder} holds heads of several tasks: name one of {', '.join(map(str, heads))}"
                )
        paths += (heads_below(folder) if (folder / "stage.json").is_file() else []) or [folder]
    if len(paths) < least:
        what = "one folder" if least == 1 else "two folders"
        raise ConfigError(f"{verb} needs at least {what} that fit, finetune, ensemble or run wrote")
    systems = [read_trained(path) for path in paths]
    short = [system.name for system in systems]
    folders = [system.folder.resolve() for system in systems]
    # The folder that holds a head, or the snapshot that it belongs to.
    above = [folder.parents[1 if folder.name == "head" else 0].name for folder in folders]
    pairs = zip(above, short, strict=True)
    names = [f"{outer}.{name}" if short.count(name) > 1 else name for outer, name in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two of the folders are called {twice}: score them one at a time")
    found = dict(zip(names, systems, strict=True))
    if args.decode == DecodeConfig():
        return found
    _check_spans(found, "--decoding")
    return {name: replace(one, tuning=replace(one.tuning, decode=args.decode)) for name, one in found.items()}


def _check_spans(systems: Mapping[str, Trained], flag: str) -> None:
    for system in systems.values():
        if not system.task.abstains:
            raise system.task.refused(flag, "spans")


def _logits(
    systems: Mapping[str, Trained], args: ScoreArgs, *, other_encoder: bool = False
) -> list[tuple[Split, Logits]]:
    """Logits of every system on the data, which is loaded once for each task."""
    found: dict[str, tuple[Split, Logits]] = {}
    tasks = dict.fromkeys(system.task for system in systems.values())
    # All data first: a mistake in it should be found before anything is computed.
    loaded = [task.load(args.data, columns=args.text, max_examples=args.max_examples) for task in tasks]
    for task, data in zip(tasks, loaded, strict=True):
        own = {name: system for name, system in systems.items() if system.task == task}
        how: dict[str, Any] = {
            key: getattr(args, key) for key in ("encoder", "device", "precision", "states")
        }
        results = logits_of_trained(list(own.values()), data, other_encoder=other_encoder, **how)
        found |= dict(zip(own, results, strict=True))
    return [found[name] for name in systems]


def _row(name: str, result: Record, split: str) -> Scored:
    answers, task = result.answers[split], result.task
    return task, {
        "system": name,
        "examples": len(answers),
        "scores": result.scores[split],
        "oracle": task.score(answers)[task.metric],
        "tuning": to_mapping(result.tuning),
        "details": task.details(answers, result.tuning),
        "metric": task.metric,
    }
