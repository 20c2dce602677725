"""Train, and write the records of what was trained: heads on a frozen encoder's states (`bertvision fit`, `bv.fit`), or
an encoder for one task, for several at once, or on triplets.

Several policies of one task can be compared. Each then runs in a process of its own, so that its memory is its own:
OUT/POLICY/ holds what `finetune --policy` writes, a policy that is done is not run again, and OUT/compare.json has a
row for each. Hulburd's efficiency score weighs what a model reaches against what was trained for it:

        (F1 - 50) / log10(trainable parameters)
"""

import json
import logging
import math
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertvision import console
from bertvision.artifacts import check_output, write_json, write_text
from bertvision.config import dump_yaml, part_of
from bertvision.data.examples import TextData, join_texts
from bertvision.data.load import load_data
from bertvision.data.triplets import TripletSet, mine_triplets
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import choose_device
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.freeze import check_policy
from bertvision.encoder.load import check_apart
from bertvision.encoder.policy import parse_policy
from bertvision.errors import ConfigError, TrainingError
from bertvision.heads.base import cost, load_head
from bertvision.model.record import record
from bertvision.model.trained import load_encoder, read_trained
from bertvision.pipeline.config import (
    FinetuneArgs,
    FitArgs,
    MultitaskArgs,
    RunArgs,
    SweepArgs,
    TrainArgs,
    TripletArgs,
)
from bertvision.states.base import LiveStates
from bertvision.states.config import StatesConfig
from bertvision.tasks.base import PLAIN, Task, TextConfig
from bertvision.tasks.triplet import TripletTask
from bertvision.tasks.walk import head_logits
from bertvision.train.config import FitConfig, JobConfig, TaskSpec, TuneConfig
from bertvision.train.finetune import tune
from bertvision.train.job import Job, Split, dev_logits, load_split, logits_of, window_split
from bertvision.train.parallel import Parallel, rank_and_world
from bertvision.train.run_folder import RunFolder
from bertvision.train.zoo import encoder_reference, fit_zoo, keep_encoder, states_for, zoo_members


@dataclass(frozen=True)
class Fitted:
    """Fitted heads."""

    task: Task
    results: dict[str, Any]
    """What the folder's stage.json says: heads, those that diverged, where the states came from, the profile."""
    rows: list[dict[str, Any]]  # one per head, best first: folder, size, loss and scores on dev

    def to_json(self) -> dict[str, Any]:
        return {"heads": self.rows} | {name: self.results[name] for name in ("dropped", "states", "profile")}


def fit(
    train: str,
    *,
    out: str | Path,
    encoder: str | Encoder = "embedded",
    heads: Sequence[str] = ("default",),
    dev: str | None = None,
    epochs: int = 1,
    lr: float = 1e-3,
    batch_size: int = 16,
    max_seq_length: int = 384,
    seed: int = 0,
    keep: Literal["last", "best"] = "last",
    states: StatesConfig | None = None,
    text: TextConfig | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Fit `heads` on the states of a frozen encoder; returns their folders, as `bertvision fit` writes them.

    Args:
        dev: Heads are scored and tuned on it; with `keep="best"` it chooses the epoch.
        states: Where the states come from and which of them heads read (layers, positions).
        text: How texts with labels or scores are read.

    Example:
        >>> bv.fit("train.json", out="heads", encoder="my-encoder", heads=["adapter:size=64", "learned_pooling"])
    """
    args = FitArgs(
        train=train,
        dev=dev or "",
        out=Path(out),
        encoder=encoder.name if isinstance(encoder, Encoder) else encoder,
        overwrite=overwrite,
        windows=WindowConfig(max_seq_length=max_seq_length),
        text=text or TextConfig(),
        fit=FitConfig(
            heads=tuple(heads),
            seeds=(seed,),
            epochs=epochs,
            lr=lr,
            batch_size=batch_size,
            seed=seed,
            keep=keep,
        ),
        states=states or StatesConfig(),
    )
    fitted = fit_heads(args, encoder=encoder if isinstance(encoder, Encoder) else None)
    return [args.out / name for name in fitted.results["heads"]]


def fit_heads(args: FitArgs, *, encoder: Encoder | None = None, command: str = "") -> Fitted:
    """Fit the heads of `args` on `args.encoder`, or on `encoder` if it is loaded already."""
    with Parallel.start(choose_device(args.device)) as parallel:
        zoo_members(args.fit, None)  # a mistyped head should fail before the encoder is loaded
        if args.fit.scores_epochs and not args.dev:
            raise ConfigError("--keep best and --patience need --dev: scores on it choose the epoch")
        parallel.on_main(lambda: check_output(args.out))
        encoder, about = (encoder, {"name": encoder.name}) if encoder else open_encoder(args)
        splits = load_splits(args, encoder)
        stage = fit_zoo(
            encoder, splits["train"], folder=args.out, config=args.fit, encoder_about=about, states=args.states,
            dev=splits.get("dev"), overwrite=args.overwrite, parallel=parallel,
        )  # fmt: skip
        rows = parallel.on_main(lambda: _record_heads(encoder, args, splits, stage, command))
        return Fitted(splits["train"].task, stage.results, rows)


def load_splits(args: FitArgs | SweepArgs | FinetuneArgs | RunArgs, encoder: Encoder) -> dict[str, Split]:
    """The datasets that are named, in windows; dev and test are read like train: its task, classes and prompts."""
    splits: dict[str, Split] = {}
    for name in ("train", "dev", "test"):
        if source := getattr(args, name, ""):
            most, like = getattr(args, f"max_{name}_examples"), splits.get("train")
            splits[name] = load_split(
                source, encoder, args.windows, max_examples=most, text=args.text, like=like
            )
    return splits


def open_encoder(args: FitArgs | SweepArgs) -> tuple[Encoder, dict[str, Any]]:
    """The encoder of a fit or a sweep, and what its heads keep of it."""
    folder, about = encoder_reference(args.encoder)
    if args.overwrite:
        check_apart(folder, args.out)
    return Encoder.load(folder, device=args.device, precision=args.precision), about


def _record_heads(
    encoder: Encoder, args: FitArgs, splits: dict[str, Split], stage: RunFolder, command: str
) -> list[dict[str, Any]]:
    """Score the heads, write their records and return their rows, best first."""
    infos, train, dev = stage.results["heads"], splits["train"], splits.get("dev")
    if args.with_encoder:
        keep_encoder(encoder, args.out, infos)
    heads = {args.out / name: load_head(args.out / name)[0] for name in infos}
    logits = {}
    if dev is not None:
        logits = logits_of(heads, dev, "dev", lambda: states_for(stage, encoder, dev, "dev", args.states))
    data = {"train": train.name, "dev": dev.name if dev else ""}
    rows, tokens = [], max(1, round(float(train.windows.lengths.mean())))
    for (path, head), info in zip(heads.items(), infos.values(), strict=True):
        kept = record(path, {"dev": (dev, logits[path])} if dev else {}, command, data)
        epoch = info["best_epoch"] if args.fit.keep == "best" else len(info["history"])
        price = cost(head, head.geometry, tokens=tokens)
        rows.append(
            {
                "head": path.name,
                "folder": str(path),
                **vars(price),
                "epoch": epoch,
                "loss": info["history"][epoch - 1]["loss"],
                "seconds": info["seconds"],
                "scores": kept.scores["dev"] if kept else {},
            }
        )
    task = train.task
    sign = -1 if task.metrics[task.metric].higher else 1
    return sorted(rows, key=lambda row: (sign * row["scores"].get(task.metric, 0.0), row["loss"]))


logger = logging.getLogger(__name__)


def finetune(args: FinetuneArgs, *, command: str = "") -> dict[str, Any]:
    """Tune an encoder for one task; returns what --json prints."""
    if args.inference and not args.dev:
        raise ConfigError("--inference answers the questions of --dev: name it")

    def load(encoder: Encoder) -> list[Job]:
        splits = load_splits(args, encoder)
        return [Job.only(splits["train"], splits.get("dev"), args.finetune)]

    return _tune("finetune", args, args.finetune, load, command, inference=args.inference)


def multitask(args: MultitaskArgs, *, command: str = "") -> dict[str, Any]:
    """Tune one encoder for several tasks at once."""
    if not args.tasks:
        raise ConfigError(
            "multitask reads its tasks from a recipe: give --config, for example --config qabert"
        )
    most = args.max_train_examples, args.max_dev_examples
    load = partial(load_jobs, args.tasks, windows=args.windows, data=args.data, most=most)
    return _tune("multitask", args, args.finetune, load, command)


def load_jobs(
    specs: Sequence[TaskSpec],
    encoder: Encoder,
    windows: WindowConfig,
    *,
    data: str = "",
    most: tuple[int | None, int | None] = (None, None),
) -> list[Job]:
    """The tasks with their data in windows; `data` stands where their sources say {data}, `most` limits train and dev.

    tasks:
      - {name: sst, train: ["cs224n:sst:{data}/ids-sst-train.csv"], dev: ..., head: minbert}
      - {name: quora, train: [...], dev: ..., head: minbert, loss: bce, subset: 8000, sampling: weighted}
    """

    def placed(source: str) -> str:
        if "{data}" in source and not data:
            raise ConfigError(f"the recipe names {source}: say with --data which folder {{data}} is")
        return source.replace("{data}", data.rstrip("/"))

    jobs = []
    for spec in specs:
        sources = [placed(source) for source in spec.train]
        if len(sources) == 1:
            train = load_split(sources[0], encoder, windows, max_examples=most[0], text=spec)
        else:
            train = window_split(_joined(sources, spec, most[0]), encoder, windows, text=spec)
        dev = (
            load_split(placed(spec.dev), encoder, windows, max_examples=most[1], like=train)
            if spec.dev
            else None
        )
        jobs.append(Job(train, dev, **vars(part_of(JobConfig, spec))))
    return jobs


def _joined(sources: Sequence[str], text: TextConfig = PLAIN, most: int | None = None) -> TextData:
    parts: list[TextData] = []
    for source in sources:
        classes = parts[0].classes or None if parts else None
        found = load_data(source, columns=text.columns, task=text.task, classes=classes, max_examples=most)
        if not isinstance(found, TextData):
            raise ConfigError(
                f"{source} has questions, which cannot be joined or mined: name texts with labels"
            )
        parts.append(found)
    return join_texts(parts)


def triplet(args: TripletArgs, *, command: str = "") -> dict[str, Any]:
    """Pre-train an encoder on triplets mined from labelled texts."""
    named: dict[TripletSet, tuple[str, ...]] = {"sst": args.sst, "sts": args.sts, "quora": args.quora}
    if not any(named.values()):
        raise ConfigError("triplet needs labelled texts: name some with --sst, --sts or --quora")
    if not 0 <= args.held_out < 1:
        raise ConfigError(f"--held-out must be at least 0 and below 1, not {args.held_out}")

    def load(encoder: Encoder) -> list[Job]:
        mined = mine_triplets(
            {name: _joined(sources) for name, sources in named.items() if sources}, seed=args.finetune.seed
        )
        order = np.random.default_rng(args.finetune.seed).permutation(len(mined))[: args.max_examples]
        apart = round(len(order) * args.held_out)
        logger.info("%d triplets to train on, %d held out", len(order) - apart, apart)
        usual = 1.0 if args.form == "softmin" else 0.0
        margin = usual if args.margin is None else args.margin
        task = TripletTask(args.form, margin, group=2 + mined.negatives)
        split = partial(window_split, encoder=encoder, config=args.windows, keep=False, task=task)
        train, dev = split(mined.take(order[apart:])), split(mined.take(order[:apart])) if apart else None
        return [Job.only(train, dev, args.finetune)]

    return _tune("triplet", args, args.finetune, load, command)


def _tune(
    verb: str,
    args: TrainArgs,
    config: TuneConfig,
    load: Callable[[Encoder], list[Job]],
    command: str,
    *,
    inference: bool = False,
) -> dict[str, Any]:
    """Load the encoder and the data, tune in `args.out`, and write the records beside the heads of the snapshots."""
    if config.epochs == 0:
        raise ConfigError("--epochs 0 leaves nothing to do: give the length of the run")
    with Parallel.start(choose_device(args.device)) as parallel:
        parallel.on_main(lambda: check_output(args.out))
        folder, _ = encoder_reference(args.encoder)
        encoder = Encoder.load(folder, device=args.device, precision=args.precision)
        jobs = load(encoder)
        stage, snapshots = tune(
            encoder, jobs, folder=args.out, config=config, overwrite=args.overwrite, parallel=parallel
        )
        dev = jobs[0].dev
        # Timed once: the same command again reports the same time.
        if inference and dev is not None and stage.results.get("inference_of") != dev.fingerprint:
            seconds = parallel.on_main(lambda: _inference_seconds(snapshots[-1], dev, args))
            stage.finish(stage.results | {"inference_seconds": seconds, "inference_of": dev.fingerprint})
        parallel.on_main(lambda: _record(verb, args, jobs, snapshots, encoder, command))
        results = {name: x for name, x in stage.results.items() if inference or "inference" not in name}
        return results | {
            "snapshots": [str(path) for path in snapshots],
            "seconds": stage.seconds,
            "tasks": {job.name: job.task.config() for job in jobs},
            "scores": results["snapshots"],
        }


def _record(
    verb: str, args: TrainArgs, jobs: Sequence[Job], snapshots: Sequence[Path], encoder: Encoder, command: str
) -> None:
    """Write config.yaml, a recipe that repeats the work, and the records of all heads that predict."""
    path = args.out / "config.yaml"
    heading = f"bertvision {verb} --config {shlex.quote(str(path))}"
    write_text(path, dump_yaml(replace(args, overwrite=False), heading=heading))
    device, precision = str(encoder.device), encoder.precision
    for folder in snapshots:
        for job in jobs:
            if not job.task.predicts:
                continue
            head, dev, found = job.folder(folder), job.dev, {}
            if dev is not None:
                load = partial(Encoder.load, str(folder / "encoder"), device=device, precision=precision)
                found["dev"] = (dev, dev_logits(dev, load_head(head)[0], load, head))
            record(head, found, command, {"train": job.train.name, "dev": dev.name if dev else ""})


def _inference_seconds(snapshot: Path, dev: Split, args: TrainArgs) -> float:
    """Seconds in which a saved snapshot, loaded like any other, answers all windows of dev; the second of two walks."""
    trained = read_trained(snapshot)
    encoder = load_encoder(trained, device=args.device, precision=args.precision)
    states, heads = LiveStates(encoder, dev.windows), {"head": trained.heads[0].to(encoder.device)}
    head_logits(states, heads, dev.task, label="inference, warm-up")
    began = time.perf_counter()
    head_logits(states, heads, dev.task, label="inference")  # numbers on the CPU: the device has finished
    return time.perf_counter() - began


# ---- several policies


def compare_policies(args: FinetuneArgs) -> list[dict[str, Any]]:
    """Run the policies one after another; returns the rows of OUT/compare.json."""
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
    rows = []
    for name in names:
        rows.append(policy_row(name, _run_policy(args, name)))
        write_json(args.out / "compare.json", rows)
    return rows


def efficiency(f1: float, trainable: int) -> float:
    """Hulburd's score of an F1 from 0 to 100 for so many trained parameters."""
    return (f1 - 50) / math.log10(trainable) if trainable > 1 else math.nan


def check_policies(texts: tuple[str, ...], encoder: str) -> list[str]:
    """The full names of the policies, which the encoder must support."""
    policies = [parse_policy(text) for text in texts]
    model = Encoder.load(encoder, device="cpu").model
    for policy in policies:
        check_policy(model, policy, name=encoder)
    names = [str(policy) for policy in policies]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"--compare names {twice[0]} twice: name each policy once")
    return names


def policy_row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """A row of the table from what `finetune --json` prints."""
    snapshot, (task, *_) = found["snapshots"][-1], found["tasks"].values()
    scores = found["scores"][Path(snapshot).name]
    measured = ("trainable", "parameters", "tokens_per_second", "peak_bytes", "inference_seconds")
    return {
        "policy": name,
        **{key: found[key] for key in measured},
        "seconds": found["train_seconds"],
        "task": task,
        **scores,
        **({"efficiency": efficiency(scores["f1"], found["trainable"])} if "exact" in scores else {}),
        "snapshot": snapshot,
    }


def _run_policy(args: FinetuneArgs, name: str) -> dict[str, Any]:
    """Run one policy in a process of its own, which SIGTERM (a scheduler, `timeout`) ends too; the JSON it prints."""

    def end(*_: Any) -> None:
        console.note("ended by SIGTERM: give the same command again to go on, finished policies are kept")
        raise SystemExit(128 + signal.SIGTERM)

    tuning = replace(args.finetune, policy=name)
    own = replace(args, out=args.out / name, compare=(), inference=True, finetune=tuning)
    with tempfile.TemporaryDirectory() as place:
        recipe = Path(place) / "policy.yaml"
        write_text(recipe, dump_yaml(own, heading=name))
        command = [sys.executable, "-m", "bertvision", "finetune", "--config", str(recipe), "--json"]
        before = signal.signal(signal.SIGTERM, end)
        try:  # what interrupts `run` kills the process
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        finally:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
    if done.returncode == -signal.SIGTERM:  # schedulers signal both, in any order
        end()
    if done.returncode:
        raise TrainingError(
            f"the run of --policy {name} ended with the error above: correct it and give the same command again, "
            "finished policies are kept"
        )
    return json.loads(done.stdout)
