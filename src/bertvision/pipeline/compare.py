"""Compare policies of a fine-tuning on the same data.

Each policy runs in a process of its own, so that its memory is its own: OUT/POLICY/ holds what `finetune --policy`
writes. A policy that is done is not run again. OUT/compare.json has one row per policy.

Hulburd's efficiency score weighs what a model reaches against what was trained for it:

        (F1 - 50) / log10(trainable parameters)
"""

import dataclasses
import json
import math
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bertvision import console
from bertvision.artifacts import check_output, output_folder, write_json, write_text
from bertvision.config import dump_yaml
from bertvision.encoder.freeze import check_policy
from bertvision.encoder.load import bases_of, delta_folder, load_config, read_about
from bertvision.encoder.policy import parse_policy
from bertvision.errors import ConfigError, TrainingError
from bertvision.pipeline.config import FinetuneArgs
from bertvision.pipeline.finetune import check_finetune
from bertvision.train.parallel import rank_and_world
from bertvision.train.zoo import encoder_reference


def compare_policies(args: FinetuneArgs) -> list[dict[str, Any]]:
    """Run the policies of `args.compare` one after another; returns the rows of OUT/compare.json."""
    check_finetune(args)
    if str(parse_policy(args.finetune.policy)) != "full":
        raise ConfigError(
            f"--compare runs the policies it names, and --policy {args.finetune.policy} names one more: leave one "
            "of them out; over a recipe that names it, give --policy full or an empty --compare"
        )
    if not args.dev:
        raise ConfigError("--compare needs --dev: the policies are scored on it")
    if rank_and_world()[1] > 1:
        raise ConfigError("--compare runs in one process: start it without accelerate launch or torchrun")
    names = check_policies(args.compare, encoder_reference(args.encoder)[0])
    check_output(args.out)
    output_folder(args.out)
    rows = []
    for name in names:
        rows.append(policy_row(name, _run(args, name)))
        write_json(args.out / "compare.json", rows)
    return rows


def efficiency(f1: float, trainable: int) -> float:
    """Hulburd's score of an F1 from 0 to 100 for so many trained parameters."""
    return (f1 - 50) / math.log10(trainable) if trainable > 1 else math.nan


def check_policies(texts: tuple[str, ...], encoder: str) -> list[str]:
    """The full names of the policies; raises if the encoder does not support one of them."""
    from transformers import AutoModel

    with torch.device("meta"):
        model: Any = AutoModel.from_config(load_config(encoder))
    policies = [parse_policy(text) for text in texts]
    # The model made from the config alone has no adapters that deltas bring.
    deltas = [folder for name in bases_of(encoder) if (folder := delta_folder(name)) is not None]
    adapted = any(parse_policy(read_about(folder)["policy"]).adapter for folder in deltas)
    for policy in policies:
        check_policy(model, policy, name=encoder, adapted=adapted)
    names = [str(policy) for policy in policies]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"--compare names {twice[0]} twice: name each policy once")
    return names


def policy_row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """A row of the table from what `finetune --json` prints."""
    snapshot, (task, *_) = found["snapshots"][-1], found["tasks"].values()
    scores = found["scores"][Path(snapshot).name]
    return {
        "policy": name,
        "trainable": found["trainable"],
        "parameters": found["parameters"],
        "seconds": found["train_seconds"],
        "tokens_per_second": found["tokens_per_second"],
        "peak_bytes": found["peak_bytes"],
        "inference_seconds": found["inference_seconds"],
        "task": task,
        **scores,
        **({"efficiency": efficiency(scores["f1"], found["trainable"])} if "exact" in scores else {}),
        "snapshot": snapshot,
    }


def _run(args: FinetuneArgs, name: str) -> dict[str, Any]:
    """Run one policy in a process of its own and return the JSON it prints."""
    tuning = dataclasses.replace(args.finetune, policy=name)
    own = dataclasses.replace(args, out=args.out / name, compare=(), inference=True, finetune=tuning)
    with tempfile.TemporaryDirectory() as place:
        recipe = Path(place) / "policy.yaml"
        write_text(recipe, dump_yaml(own, heading=name))
        command = [sys.executable, "-m", "bertvision", "finetune", "--config", str(recipe), "--json"]
        code, printed = _alone(command)
    if code:
        raise TrainingError(
            f"the run of --policy {name} ended with the error above: correct it and give the same command again, "
            "finished policies are kept"
        )
    return json.loads(printed)


def _alone(command: list[str]) -> tuple[int, str]:
    """Run a process to its end: its exit code and its output. SIGTERM (a scheduler, `timeout`) ends both."""
    process: subprocess.Popen[str] | None = None
    ended = False

    def end(*_: Any) -> None:
        nonlocal ended
        ended = True
        if process is not None:
            process.kill()

    before = signal.signal(signal.SIGTERM, end)
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            if ended:  # while it was being started
                process.kill()
            try:
                printed, _ = process.communicate()
            finally:
                process.kill()  # does nothing to a process that has ended
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
    if ended or process.returncode == -signal.SIGTERM:  # schedulers signal both, in any order
        console.note("ended by SIGTERM: give the same command again to go on, finished policies are kept")
        raise SystemExit(128 + signal.SIGTERM)
    return process.returncode, printed
