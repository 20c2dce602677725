"""`bertvision finetune --compare`: several policies on the same data, one table.

Each policy runs in a process of its own, so that its memory is its own: OUT/POLICY/ holds what `finetune --policy`
writes, and config.yaml, written when it is done, repeats that run alone. A policy that is done is not run again.
"""

import dataclasses
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from bertvision import console
from bertvision.artifacts import check_output, output_folder, write_json, write_text
from bertvision.cli.columns import columns, terminal_width
from bertvision.cli.finetune import FinetuneArgs
from bertvision.config import dump_yaml
from bertvision.encoder.policy import short_count
from bertvision.errors import ConfigError, TrainingError
from bertvision.tasks.base import task_from_config
from bertvision.train.compare import check_policies, efficiency
from bertvision.train.parallel import rank_and_world
from bertvision.train.zoo import encoder_reference

__all__ = ["compare_policies"]


def compare_policies(args: FinetuneArgs) -> None:
    """Run them one after another, write OUT/compare.json and print the table."""
    if not args.dev:
        raise ConfigError("--compare needs --dev: the policies are scored on it")
    if rank_and_world()[1] > 1:
        raise ConfigError("--compare runs in one process: start it without accelerate launch or torchrun")
    names = check_policies(args.compare, encoder_reference(args.encoder)[0])
    check_output(args.out)
    output_folder(args.out)
    rows = []
    for name in names:
        rows.append(_row(name, _run(args, name)))
        write_json(args.out / "compare.json", rows)
    if args.json:
        console.emit_json(rows)
        return
    _tell(rows)


def _run(args: FinetuneArgs, name: str) -> dict[str, Any]:
    """One policy in a process of its own; what it printed as JSON."""
    folder = args.out / name
    own = dataclasses.replace(
        args,
        out=folder,
        compare=(),
        inference=True,
        json=True,
        finetune=dataclasses.replace(args.finetune, policy=name),
    )
    with tempfile.TemporaryDirectory() as place:
        recipe = Path(place) / "policy.yaml"
        write_text(recipe, dump_yaml(own, heading=name))
        command = [sys.executable, "-m", "bertvision", "finetune", "--config", str(recipe)]
        code, printed = _alone(command)
    if code:
        raise TrainingError(
            f"the run of --policy {name} ended with an error, told above: correct it and give the same command "
            "again, finished policies are kept"
        )
    # Only now: a run that was refused must not replace the record of the work that stands there.
    record, lasting = folder / "config.yaml", dataclasses.replace(own, overwrite=False, json=False)
    write_text(record, dump_yaml(lasting, heading=f"bertvision finetune --config {shlex.quote(str(record))}"))
    return json.loads(printed)


def _alone(command: list[str]) -> tuple[int, str]:
    """A process run to its end: its exit code and what it printed. SIGTERM (a scheduler, `timeout`) ends both."""
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
                process.kill()  # nothing to a process that has ended
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
    if ended or process.returncode == -signal.SIGTERM:  # schedulers tell both, in any order
        console.note("ended by SIGTERM: give the same command again to go on, finished policies are kept")
        raise SystemExit(128 + signal.SIGTERM)
    return process.returncode, printed


def _row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    snapshot = found["snapshots"][-1]
    scores = found["scores"][Path(snapshot).name]
    return {
        "policy": name,
        "trainable": found["trainable"],
        "parameters": found["parameters"],
        "seconds": found["train_seconds"],
        "tokens_per_second": found["tokens_per_second"],
        "peak_bytes": found["peak_bytes"],
        "inference_seconds": found["inference_seconds"],
        "task": found["task"],
        **scores,
        **({"efficiency": efficiency(scores["f1"], found["trainable"])} if "exact" in scores else {}),
        "snapshot": snapshot,
    }


def _tell(rows: list[dict[str, Any]]) -> None:
    task = task_from_config(rows[0]["task"], "finetune")
    cells = [
        {
            "policy": row["policy"],
            "trainable": short_count(row["trainable"]),
            "of all": f"{row['trainable'] / row['parameters']:.2%}",
            "train s": f"{row['seconds']:.1f}",
            "memory": console.size_text(row["peak_bytes"]),
            "answer s": f"{row['inference_seconds']:.2f}",
            **task.cells(row),
            **({"eff.": f"{row['efficiency']:.2f}"} if "efficiency" in row else {}),
        }
        for row in rows
    ]
    width = terminal_width()
    legend = "memory: the most held while training; answer s: seconds to answer all of dev"
    if any("efficiency" in row for row in rows):
        legend = f"eff.: efficiency, (F1 - 50) / log10(trainable parameters); {legend}"
    others = [task.title(name) for name in task.metrics if name != task.metric]
    table = columns(cells, width, texts=("policy",), optional=(*others, "of all"))
    for line in (*table, *textwrap.wrap(legend, width)):
        console.emit(line)
