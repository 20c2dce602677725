"""Labels, scores and many tasks over one encoder, measured: GLUE, answer / no answer, and Q&ABERT beside its baselines.

    python benchmarks/texts.py --encoder FOLDER --data DATA --json OUT.json [--parts glue,cs224n,answerable]

DATA holds the folders glue/, cs224n/ and squad/. Every part is repeated for each seed; OUT.json is written again after
each run, so that a run that is stopped keeps what it has.

glue        one epoch of fine-tuning (the snapshot), then label heads fitted on its frozen states in one pass; every
            head is compared with its snapshot on the same dev examples (paired bootstrap over examples, mean of seeds)
answerable  the same on SQuAD 2.0, answer / no answer, heads on [CLS] states in memory, questions merged from windows
cs224n      SST-5, STS and Quora by one encoder: baseline (pairs encoded apart), triplet (the baseline after triplet
            pre-training), joint (one window, no prompt), qabert (one window behind a question), and without segment ids
"""

import argparse
import dataclasses
import json
import logging
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments

from bertvision.config import from_mapping, read_yaml, recipe_path
from bertvision.data.examples import join_texts
from bertvision.data.load import load_data
from bertvision.data.triplets import mine_triplets
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.heads.base import Geometry
from bertvision.heads.spec import parse_head
from bertvision.model.record import environment
from bertvision.model.trained import read_trained
from bertvision.pipeline.train import load_jobs
from bertvision.states.config import StatesConfig
from bertvision.tasks.triplet import TripletTask
from bertvision.tasks.walk import walk_windows
from bertvision.train.config import FinetuneConfig, FitConfig, MultitaskConfig, TaskSpec
from bertvision.train.finetune import tune
from bertvision.train.job import Job, Split, dev_logits, load_split, score_logits, window_split
from bertvision.train.zoo import fit_zoo

GLUE = {"CoLA": 64, "SST-2": 64, "MRPC": 128, "STS-B": 128, "RTE": 256, "WNLI": 128}
"""Tasks whose training and dev sets are whole, with the length of their windows."""
HEADS = (
    "cls_linear", "cls_mlp", "mean_pooler:last", "tenney_small", "adapter_pooler", "mean_pooler", "attention_pooler",
    "ap_glue",
)  # fmt: skip
ANSWERABLE_HEADS = (
    "cls_linear", "cls_mlp", "tenney_small", "adapter_pooler", "adapter_pooler:pooling=average", "xception_abbr",
    "xception_abbr:cls",
)  # fmt: skip
VARIANTS = ("baseline", "triplet", "joint", "joint without segments", "qabert", "qabert without segments")


class Study:
    """The results so far, on disk after every run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began = args, time.perf_counter()
        self.out: dict[str, Any] = {
            "encoder": Path(args.encoder).name,
            "seeds": args.seeds,
            "environment": {},
        }

    def keep(self) -> None:
        self.out["seconds"] = time.perf_counter() - self.began
        self.args.json.write_text(json.dumps(self.out, indent=1))

    @property
    def late(self) -> bool:
        """Whether no new run should begin."""
        return time.perf_counter() - self.began > self.args.limit

    def load(self, place: str | Path) -> Encoder:
        encoder = Encoder.load(str(place), device=self.args.device)
        self.out["environment"] = environment(str(encoder.device), encoder.precision)
        return encoder


def snapshot_and_heads(
    study: Study, name: str, train: str, dev: str, *, windows: WindowConfig, tuned: FinetuneConfig, fitted: FitConfig,
) -> None:  # fmt: skip
    """One task: the snapshot and its heads, for each seed."""
    found: dict[str, list[tuple[Any, Any]]] = {}  # what `Task.compare` takes
    seconds: dict[str, list[float]] = {"finetune": [], "fit": []}
    parameters: dict[str, int] = {}
    any_null: dict[str, list[dict[str, float]]] = {}
    split: Split | None = None
    for seed in study.args.seeds:
        if study.late:
            break
        encoder = study.load(study.args.encoder)
        limit = study.args.max_examples
        own = load_split(train, encoder, windows, max_examples=limit)
        split = load_split(dev, encoder, windows, max_examples=limit, like=own)
        folder = Path(tempfile.mkdtemp())
        config = dataclasses.replace(tuned, seed=seed)
        stage, snapshots = tune(
            encoder, [Job.only(own, None, config)], folder=folder / "tuned", config=config
        )
        seconds["finetune"].append(stage.results["train_seconds"])
        encoder = study.load(snapshots[-1] / "encoder")
        zoo = fit_zoo(
            encoder, own, folder=folder / "fit", config=dataclasses.replace(fitted, seeds=(seed,), seed=seed),
            encoder_about={"name": encoder.name}, states=StatesConfig(source="auto", memory_gb=40.0),
        )  # fmt: skip
        seconds["fit"].append(zoo.seconds)
        systems = {"snapshot": read_trained(snapshots[-1])}
        systems |= {
            info["label"]: read_trained(zoo.folder / head) for head, info in zoo.results["heads"].items()
        }
        task = split.task
        for system in systems.values():
            system.heads[0].to(encoder.device)
        readers = {label: system.readers[0] for label, system in systems.items()}
        for label, logits in walk_windows(encoder, split.windows, readers).items():
            answers = task.answer(split.windows, logits, split.data)
            found.setdefault(label, []).append((answers, task.untuned()))
            if task.asks:  # the papers' way to merge windows, beside the right one
                votes = task.merged_by("any_null")
                voted = votes.answer(split.windows, logits, split.data)
                any_null.setdefault(label, []).append(votes.score(voted))
            parameters[label] = systems[label].heads[0].num_parameters
        shutil.rmtree(folder)
    if split is None:
        return
    task, rows = split.task, {}
    for label, members in found.items():
        scores = [task.score(*member) for member in members]
        own_metric = np.array([score[task.metric] for score in scores])
        row: dict[str, Any] = {
            "parameters": parameters[label],
            "members": scores,
            "mean": float(own_metric.mean()),
        }
        row["sd"] = float(own_metric.std(ddof=1)) if len(own_metric) > 1 else None
        if label != "snapshot":
            row["versus"] = vars(task.compare(task.metric, members, found["snapshot"]))
        if label in any_null:
            row["any_null"] = any_null[label]
        rows[label] = row
    study.out.setdefault("tasks", {})[name] = {
        "metric": task.metric, "dev": len(split.data), "seconds": seconds, "systems": rows,
        "finetune": tuned.identity, "fit": {"epochs": fitted.epochs, "lr": fitted.lr, "batch_size": fitted.batch_size},
    }  # fmt: skip
    study.keep()


def glue(study: Study) -> None:
    root = Path(study.args.data) / "glue"
    for name, tokens in GLUE.items():
        if study.args.tasks and name not in study.args.tasks:
            continue
        batch = 32 if name in ("SST-2", "CoLA") else 16
        snapshot_and_heads(
            study, name, f"glue:{name}:{root / name / 'train.tsv'}", f"glue:{name}:{root / name / 'dev.tsv'}",
            windows=WindowConfig(max_seq_length=tokens),
            tuned=FinetuneConfig(epochs=1, lr=5e-5, batch_size=batch),
            fitted=FitConfig(heads=HEADS, epochs=3, lr=1e-3, batch_size=32, schedule="linear"),
        )  # fmt: skip


def answerable(study: Study) -> None:
    root = Path(study.args.data) / "squad"
    snapshot_and_heads(
        study, "answerable", f"answerable:{root / 'train-v2.0-partial.json'}", f"answerable:{root / 'dev-v2.0.json'}",
        windows=WindowConfig(max_seq_length=384),
        tuned=FinetuneConfig(epochs=1, lr=5e-5, batch_size=48, sampling="balanced"),
        fitted=FitConfig(heads=ANSWERABLE_HEADS, epochs=5, lr=1e-3, batch_size=64, optimizer="adam"),
    )  # fmt: skip


def cs224n(study: Study) -> None:
    for seed in study.args.seeds:
        for variant in study.args.variants or VARIANTS:
            if study.late:
                return
            encoder = study.load(study.args.encoder)
            if "segments" in variant and not encoder.passes_types:
                continue
            began = time.perf_counter()
            if variant == "triplet":
                encoder = pretrained(study, encoder, seed)
            scores = one_encoder(study, encoder, variant, seed)
            scores["seconds"] = time.perf_counter() - began
            study.out.setdefault("cs224n", {}).setdefault(variant, {})[str(seed)] = scores
            study.keep()


def one_encoder(study: Study, encoder: Encoder, variant: str, seed: int) -> dict[str, Any]:
    """SST, STS and Quora together."""
    recipe = read_yaml(recipe_path("minbert" if variant in ("baseline", "triplet") else "qabert"))
    specs = [from_mapping(TaskSpec, one, source="recipe") for one in recipe["tasks"]]
    if variant.startswith("joint"):
        specs = [dataclasses.replace(spec, prompt="", context="") for spec in specs]
    windows = from_mapping(WindowConfig, recipe["windows"], source="recipe")
    windows = dataclasses.replace(windows, segments="without segments" not in variant)
    config = from_mapping(MultitaskConfig, recipe["finetune"], source="recipe")
    config = dataclasses.replace(config, seed=seed)
    if study.args.epochs:
        config = dataclasses.replace(config, epochs=study.args.epochs)
    limit = study.args.max_examples
    jobs = load_jobs(
        specs,
        encoder,
        windows,
        data=str(Path(study.args.data) / "cs224n"),
        most=(limit, limit),
    )
    folder = Path(tempfile.mkdtemp())
    stage, _ = tune(encoder, jobs, folder=folder, config=config)
    lines = [json.loads(line) for line in stage.metrics.read_text().splitlines()]
    epochs = [line for line in lines if "task" in line]
    shutil.rmtree(folder)
    (last,) = stage.results["snapshots"].values()
    return {"scores": last, "epochs": epochs, "train_seconds": stage.results["train_seconds"]}


def pretrained(study: Study, encoder: Encoder, seed: int) -> Encoder:
    """The encoder after one epoch on triplets."""
    root = Path(study.args.data) / "cs224n"
    quora = ("quora-train-small.csv", "quora-train-pre-left.csv")
    questions: list[Any] = [load_data(f"cs224n:quora:{root / file}") for file in quora]
    sets: dict[Any, Any] = {
        "sst": load_data(f"cs224n:sst:{root / 'ids-sst-train.csv'}"),
        "sts": load_data(f"cs224n:sts:{root / 'sts-train.csv'}"),
        "quora": join_texts(questions),
    }  # fmt: skip
    mined = mine_triplets(sets, seed=seed)
    order = np.random.default_rng(seed).permutation(len(mined))[: study.args.max_examples]
    apart = len(order) // 20
    task = TripletTask("softmin", 1.0, group=2 + mined.negatives)
    windows = WindowConfig(max_seq_length=128)
    train, dev = (
        window_split(mined.take(part), encoder, windows, keep=False, task=task)
        for part in (order[apart:], order[:apart])
    )
    geometry = Geometry(encoder.num_states, encoder.hidden, task.outputs, task.unit)
    head = parse_head(task.head).build(geometry, seed=0).to(encoder.device)
    before = score_logits(dev_logits(dev, head, lambda: encoder), dev)
    folder = Path(tempfile.mkdtemp())
    config = FinetuneConfig(epochs=1, lr=1e-5, batch_size=16, seed=seed)
    stage, snapshots = tune(encoder, [Job.only(train, dev, config)], folder=folder, config=config)
    study.out.setdefault("triplets", {})[str(seed)] = {
        "before": before, "after": stage.results["snapshots"]["snapshot-1"],
        "train_seconds": stage.results["train_seconds"], "triplets": len(train.data),
    }  # fmt: skip
    made = study.load(snapshots[-1] / "encoder")
    shutil.rmtree(folder)
    return made


def main() -> None:
    # tasks are GLUE's and variants cs224n's, by default all; epochs of cs224n 0: as the recipe says
    args = arguments(
        __doc__, encoder=str, data=str, parts="glue,cs224n,answerable", tasks="", variants="", seeds="0,1,2",
        epochs=0.0, max_examples=int, limit=1e9, device="auto",
    )  # fmt: skip
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args.seeds = [int(seed) for seed in args.seeds.split(",")]
    args.tasks = [task for task in args.tasks.split(",") if task]
    args.variants = [variant for variant in args.variants.split(",") if variant]
    study = Study(args)
    for part in args.parts.split(","):
        {"glue": glue, "answerable": answerable, "cs224n": cs224n}[part](study)
    study.keep()


if __name__ == "__main__":
    main()
