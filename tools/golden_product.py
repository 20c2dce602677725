"""How tools/golden.py calls the product and reads what it leaves.

The only file that knows names: flags, files, keys of results, and the few Python functions that are called. After a
renaming nothing else of the golden numbers needs an edit.
"""

import hashlib
import json
import math
import os
import re
import runpy
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"}  # the same kernels on most machines
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))  # this checkout, whatever is installed

Items = dict[str, Any]
"""Item -> number, text, or a list or dict of them."""


# ---- Names that may change: flags, files and the few Python functions

FLAGS = {
    "source": "--states.source",
    "store": "--states.store",
    "dtype": "--states.dtype",
    "length": "--max-seq-length",
    "stride": "--doc-stride",
    "prompt": "--text.prompt",
    "context_template": "--text.context",
    "task": "--text.task",
    "fit_heads": "--fit.heads",
    "fit_lr": "--fit.lr",
    "tune_lr": "--finetune.lr",
}
"""Keyword of `bv` -> flag, where the flag is not simply the keyword with two dashes in front."""
VALUES = {"hf_nbest": "nbest"}
"""Values of flags that are called otherwise in the record."""
CACHE_VARIABLE = "BERTVISION_CACHE"
NOT_COMPARED = {"head", "folder", "seconds", "system", "name", "epoch"}
"""Keys of a row of scores that name things or tell the time."""
RESUMED = re.compile(r"goes on at|continues at|resum", re.I)
"""What a verb says when it starts from a checkpoint."""
CHECKPOINT = "checkpoint*"


def log(folder: Path, name: str) -> Items:
    """The training log of a fine-tuning: its losses and rates step by step, and the scores between."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    items: Items = {f"{name}/{key}": [record[key] for record in steps] for key in ("loss", "lr")}
    return items | {f"{name}/scores": [numbers(record) for record in records if "loss" not in record]}


def fitted(folder: Path, heads: list[str]) -> dict[str, tuple[Path, list[float]]]:
    """Folder and losses of every head of a fit, by the text it was asked for with."""
    found = json.loads((folder / "stage.json").read_text())["results"]["heads"]
    assert len(found) == len(heads), f"{list(found)} are not {heads}"
    return {
        text: (folder / name, [record["loss"] for record in about["history"]])
        for text, (name, about) in zip(heads, found.items(), strict=True)
    }


def snapshots(folder: Path) -> list[Path]:
    """The snapshots of a fine-tuning, in order."""
    return sorted(folder.glob("snapshot-*"), key=lambda path: float(path.name.removeprefix("snapshot-")))


def answers(folder: Path) -> Items:
    """Logits and answers a head left for one data set."""
    items: Items = {"logits": tensors(folder / "logits.safetensors", logits=True)}
    return items | written(folder)


def written(folder: Path) -> Items:
    """The answers `predict`, `eval` and training write, whichever of these files there are."""
    items: Items = {}
    for name in ("predictions", "null_odds", "probabilities"):
        if (file := folder / f"{name}.json").exists():
            found = json.loads(file.read_text())
            items[name] = [found[key] for key in sorted(found)]
    if (file := folder / "nbest_predictions.json").exists():
        nbest = json.loads(file.read_text())
        rows = [row for key in sorted(nbest)[:12] for row in nbest[key][:4]]
        items["nbest"] = {key: [row[key] for row in rows] for key in ("text", "probability")}
    return items


def run_scores(folder: Path) -> Items:
    """Scores of every system of a run."""
    systems = json.loads((folder / "results.json").read_text())["systems"]
    return {f"{system['kind']}: {system['label']}": system["scores"] for system in systems}


def policy_counts(policy: str) -> list[int]:
    """What trains, and everything, of BERT-base-cased with a linear head for spans."""
    import torch
    from transformers import BertConfig, BertModel

    from bertvision.encoder.freeze import apply_policy, count_trainable
    from bertvision.encoder.policy import parse_policy

    with torch.device("meta"):
        model, head = BertModel(BertConfig(vocab_size=28996)), torch.nn.Linear(768, 2)
    apply_policy(model, parse_policy(policy), seed=0, name="the encoder")
    return list(count_trainable([model, head]))


# ---- Running the command line


class Failed(Exception):
    """A command did not do what it should."""


def bv(
    verb: str, *words: str | Path, kill_at: tuple[Path, int] | None = None, notes: bool = False, **flags: Any
) -> Any:
    """`python -m bertvision VERB WORDS --FLAGS`; returns its JSON output, or what it wrote to stderr (`notes`).

    True is a flag without a value, a list is a flag with several. `kill_at` ends the process with SIGKILL as soon as a
    file has so many lines. The process is a fork of this one, which has imported torch already: that saves seconds.
    """
    argv = ["bertvision", verb, *map(str, words)]
    for key, value in flags.items():
        argv.append(FLAGS.get(key, f"--{key.replace('_', '-')}"))
        values = value if isinstance(value, list) else [] if value is True else [value]
        argv += (VALUES.get(str(one), str(one)) for one in values)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            _become(argv, out.fileno(), err.fileno())
        killed = kill_at is not None and _kill(child, *kill_at)
        status = 0 if killed else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        said, told = out.read(), err.read()
    if status or killed != (kill_at is not None):
        raise Failed(f"{' '.join(argv)} ended with {status}:\n{said[-2000:]}{told[-4000:]}")
    return told if notes else json.loads(said) if said[:1] in ("{", "[") else None


def _become(argv: list[str], out: int, err: int) -> None:
    """Turn this process into the command line, and end it."""
    import torch

    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.argv, code = argv, 1
    torch.seed()  # what hangs on a generator nobody seeded should be seen to change
    try:
        runpy.run_module("bertvision", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 (whatever it is, the parent must not go on in this process)
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _kill(child: int, file: Path, count: int) -> bool:
    """Kill the process as soon as the file has `count` lines; whether it was still running."""
    while not (file.exists() and file.read_bytes().count(b"\n") >= count):
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def tensors(file: Path, *, logits: bool = False) -> Items:
    """What is in a file of tensors: a hash of their names, types and shapes, and one of their bytes.

    Weights have no numbers to compare within a tolerance: along directions without a gradient, such as the bias that
    is added to all logits of a softmax, Adam makes whole steps of rounding noise. For the same reason logits are
    told without their mean, and without those of tokens that no head reads.
    """
    import numpy as np
    from safetensors.numpy import load_file

    loaded = dict(sorted(load_file(file).items()))
    shapes = " ".join(f"{name} {array.dtype} {array.shape}" for name, array in loaded.items())
    values = hashlib.sha256(b"".join(array.tobytes() for array in loaded.values()))
    items: Items = {
        "shapes": hashlib.sha256(shapes.encode()).hexdigest()[:16],
        "sha": values.hexdigest()[:16],
    }
    for name, array in loaded.items() if logits else ():
        flat = array.astype(np.float64).reshape(-1)
        flat = flat[np.abs(flat) < 1e9]
        flat -= flat.mean()
        items[name] = [float(np.sqrt((flat**2).sum())), *flat[:: max(1, math.ceil(flat.size / 24))].tolist()]
    return items


def numbers(row: dict[str, Any]) -> Items:
    """A row of scores without what names things or tells the time."""
    return {key: value for key, value in row.items() if key not in NOT_COMPARED}
