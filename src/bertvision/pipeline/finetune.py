"""Tune an encoder: for one task, for several at once, or on triplets; write the records of its snapshots' heads."""

import logging
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.artifacts import check_output, write_text
from bertvision.config import dump_yaml
from bertvision.data.examples import TextData
from bertvision.data.triplets import TripletSet, mine_triplets
from bertvision.encoder.device import choose_device
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.model.record import record
from bertvision.model.trained import load_encoder, read_trained
from bertvision.pipeline.config import FinetuneArgs, MultitaskArgs, TrainArgs, TripletArgs
from bertvision.states.base import LiveStates
from bertvision.tasks.triplet import TripletTask
from bertvision.tasks.walk import head_logits
from bertvision.train.config import TuneConfig
from bertvision.train.finetune import tune_jobs
from bertvision.train.job import Job, load_jobs, load_joined
from bertvision.train.parallel import Parallel
from bertvision.train.splits import Split, kept_logits, load_split, null_weighted, window_split
from bertvision.train.steps import shares_out
from bertvision.train.zoo import encoder_reference

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tuned:
    """A tuned encoder."""

    jobs: Sequence[Job]
    snapshots: Sequence[Path]
    """Folders, in order."""
    results: dict[str, Any]
    """What the folder's stage.json says: policy, counts, seconds of training, peak memory, scores of the snapshots."""
    seconds: float

    def scores(self, snapshot: Path) -> dict[str, dict[str, float]]:
        """Scores on dev by the name of the task, which is empty if there is only one."""
        found = self.results["snapshots"].get(snapshot.name, {})
        return found if len(self.jobs) > 1 else {self.jobs[0].name: found}

    def to_json(self) -> dict[str, Any]:
        return self.results | {
            "snapshots": [str(path) for path in self.snapshots],
            "seconds": self.seconds,
            "tasks": {job.name: job.task.config() for job in self.jobs},
            "scores": self.results["snapshots"],
        }


def finetune(args: FinetuneArgs, *, command: str = "") -> Tuned:
    """Tune an encoder for one task."""
    check_finetune(args)
    if args.inference and not args.dev:
        raise ConfigError("--inference answers the questions of --dev: name it")

    def load(encoder: Encoder) -> list[Job]:
        train = load_split(
            args.train, encoder, args.windows, max_examples=args.max_train_examples, text=args.text
        )
        dev = None
        if args.dev:
            dev = load_split(args.dev, encoder, args.windows, max_examples=args.max_dev_examples, like=train)
        train = null_weighted(train, args.finetune.null_weight)
        return [Job(train, dev, head=args.finetune.head, sampling=args.finetune.sampling)]

    return _tune("finetune", args, args.finetune, load, command, inference=args.inference)


def check_finetune(args: FinetuneArgs) -> None:
    """Refuse what no fine-tuning can do."""
    if args.finetune.epochs == 0:
        raise ConfigError("--epochs 0 leaves nothing to do: give the length of the run")
    for name, source in (("train", args.train), ("dev", args.dev)):
        if source.startswith("store:"):
            raise ConfigError(f"--{name} {source} has states and no tokens to tune on: name the data")


def multitask(args: MultitaskArgs, *, command: str = "") -> Tuned:
    """Tune one encoder for several tasks at once."""
    if not args.tasks:
        raise ConfigError(
            "multitask reads its tasks from a recipe: give --config, for example --config qabert"
        )

    def load(encoder: Encoder) -> list[Job]:
        limits: dict[str, Any] = {
            "max_examples": args.max_train_examples,
            "max_dev_examples": args.max_dev_examples,
        }
        return load_jobs(args.tasks, encoder, args.windows, data=args.data, **limits)

    return _tune("multitask", args, args.finetune, load, command)


def triplet(args: TripletArgs, *, command: str = "") -> Tuned:
    """Pre-train an encoder on triplets mined from labelled texts."""
    named: dict[TripletSet, tuple[str, ...]] = {"sst": args.sst, "sts": args.sts, "quora": args.quora}
    if not any(named.values()):
        raise ConfigError("triplet needs labelled texts: name some with --sst, --sts or --quora")
    if not 0 <= args.held_out < 1:
        raise ConfigError(f"--held-out must be at least 0 and below 1, not {args.held_out}")

    def load(encoder: Encoder) -> list[Job]:
        sets: dict[TripletSet, TextData] = {
            name: load_joined(sources) for name, sources in named.items() if sources
        }
        mined = mine_triplets(sets, seed=args.finetune.seed)
        order = np.random.default_rng(args.finetune.seed).permutation(len(mined))[: args.max_examples]
        apart = round(len(order) * args.held_out)
        logger.info("%d triplets to train on, %d held out", len(order) - apart, apart)
        usual = 1.0 if args.form == "softmin" else 0.0
        margin = usual if args.margin is None else args.margin
        task = TripletTask(args.form, margin, group=2 + mined.negatives)
        split = partial(window_split, encoder=encoder, config=args.windows, keep=False, task=task)
        train, dev = split(mined.take(order[apart:])), split(mined.take(order[:apart])) if apart else None
        return [Job(train, dev, head=args.finetune.head, sampling=args.finetune.sampling)]

    return _tune("triplet", args, args.finetune, load, command)


def _tune(
    verb: str,
    args: TrainArgs,
    config: TuneConfig,
    load: Callable[[Encoder], list[Job]],
    command: str,
    *,
    inference: bool = False,
) -> Tuned:
    """Load the encoder and the data, tune in `args.out`, and write the records beside the heads of the snapshots."""
    with Parallel.start(choose_device(args.device)) as parallel:
        parallel.on_main(lambda: check_output(args.out))
        folder, _ = encoder_reference(args.encoder)
        parked = shares_out(config, parallel)
        encoder = Encoder.load(folder, device=args.device, precision=args.precision, parked=parked)
        jobs = load(encoder)
        stage, snapshots = tune_jobs(
            encoder, jobs, folder=args.out, config=config, overwrite=args.overwrite, parallel=parallel
        )
        dev = jobs[0].dev
        # Timed once: the same command again reports the same time.
        if inference and dev is not None and stage.results.get("inference_of") != dev.fingerprint:
            seconds = parallel.on_main(lambda: _inference_seconds(snapshots[-1], dev, args))
            stage.finish(stage.results | {"inference_seconds": seconds, "inference_of": dev.fingerprint})
        parallel.on_main(lambda: _record(verb, args, jobs, snapshots, encoder, command))
        results = {name: x for name, x in stage.results.items() if inference or "inference" not in name}
        return Tuned(jobs, snapshots, results, stage.seconds)


def _record(
    verb: str,
    args: TrainArgs,
    jobs: Sequence[Job],
    snapshots: Sequence[Path],
    encoder: Encoder,
    command: str,
) -> None:
    """Write config.yaml, a recipe that repeats the work, and the records of all heads that predict."""
    path = args.out / "config.yaml"
    heading = f"bertvision {verb} --config {shlex.quote(str(path))}"
    write_text(path, dump_yaml(replace(args, overwrite=False), heading=heading))
    for folder in snapshots:
        for job in jobs:
            if not job.task.predicts:
                continue
            head, dev, found = job.folder(folder), job.dev, {}
            if dev is not None:
                device, precision = str(encoder.device), encoder.precision
                logits = kept_logits(head, folder / "encoder", dev, device=device, precision=precision)
                found["dev"] = (dev, logits)
            record(head, found, command, {"train": job.train.name, "dev": dev.name if dev else ""})


def _inference_seconds(snapshot: Path, dev: Split, args: TrainArgs) -> float:
    """Seconds in which a saved snapshot, loaded like any other, answers all windows of dev; the second of two walks."""
    trained = read_trained(snapshot)
    encoder = load_encoder(trained, device=args.device, precision=args.precision)
    states = LiveStates(encoder, dev.windows)
    heads = {"head": trained.heads[0].to(encoder.device)}
    seconds = 0.0
    for label in ("inference, warm-up", "inference"):
        began = time.perf_counter()
        head_logits(
            states, heads, dev.task, label=label
        )  # returns numbers on the CPU, so the device has finished
        seconds = time.perf_counter() - began
    return seconds
