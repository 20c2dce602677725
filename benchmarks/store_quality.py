"""What rounding costs: heads fitted on stored states of every dtype, scored against each other on a real task.

    python benchmarks/store_quality.py --encoder FOLDER --train train-v2.0.json --dev dev-v2.0.json --out runs/quality

One snapshot is fine-tuned and frozen. The same heads with the same seeds are fitted on its live states and on stores of
every dtype, then scored on dev twice: on live states, and on states that were stored in the same dtype (what a
run sees that reads both from its store). Differences to fp16 are paired, question by question. Dev chooses nothing
but each head's threshold.
"""

import logging
import shutil
import time
from pathlib import Path
from typing import Any

from common import arguments, write

from bertvision import console
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.heads.base import load_head
from bertvision.model.record import Record, evaluate
from bertvision.states.config import StatesConfig
from bertvision.states.stored import open_states
from bertvision.tasks.metrics import Difference
from bertvision.tasks.walk import head_logits
from bertvision.train.config import FinetuneConfig, FitConfig
from bertvision.train.finetune import tune
from bertvision.train.job import Job, Split, load_split
from bertvision.train.run_folder import RunFolder
from bertvision.train.zoo import fit_zoo

REFERENCE = "fp16"
METRICS = {"zero": "f1", "tuned": "tuned_f1"}
"""F1 at both thresholds."""

Members = dict[str, list[Record]]
"""What the seeds of each head answer, by its label."""


def states_config(source: str, out: Path) -> StatesConfig:
    if source == "live":
        return StatesConfig(source="live")
    return StatesConfig(source="stored", dtype=source, store=str(out / "states" / source))  # pyright: ignore[reportArgumentType]


def score(zoo: RunFolder, encoder: Encoder, dev: Split, config: StatesConfig) -> Members:
    """Each head with all its seeds on dev, from the states `config` names."""
    states = open_states(encoder, dev.windows, config, label="states of dev", origin=dev.origin)
    heads = zoo.results["heads"]
    loaded = {name: load_head(zoo.folder / name)[0].to(encoder.device) for name in heads}
    found: Members = {}
    for name, logits in head_logits(states, loaded, dev.task).items():
        found.setdefault(heads[name]["label"], []).append(evaluate({"dev": (dev, logits)}))
    return found


def main() -> None:
    args = arguments(
        __doc__, encoder="embedded", train="demo:train", dev="demo:dev", out=Path("runs/quality"),
        max_tune_examples=int, max_train_examples=int, max_dev_examples=int, max_seq_length=384, tune_epochs=1.0,
        tune_lr=1e-4, epochs=2, heads=["adapter", "learned_pooling"], seeds=[0, 1, 2],
        sources=["live", "fp32", "fp16", "bf16", "int8"],
    )  # fmt: skip
    console.setup_logging()
    logging.getLogger("bertvision").setLevel(logging.INFO)
    windows = WindowConfig(max_seq_length=args.max_seq_length)
    encoder = Encoder.load(args.encoder)
    whole = load_split(args.train, encoder, windows, max_examples=args.max_tune_examples)
    tuning = FinetuneConfig(epochs=args.tune_epochs, lr=args.tune_lr, batch_size=32)
    _, snapshots = tune(encoder, [Job.only(whole, None, tuning)], folder=args.out / "finetune", config=tuning)
    encoder = Encoder.load(str(snapshots[-1] / "encoder"))
    train = load_split(args.train, encoder, windows, max_examples=args.max_train_examples)
    dev = load_split(args.dev, encoder, windows, max_examples=args.max_dev_examples)
    config = FitConfig(heads=tuple(args.heads), seeds=tuple(args.seeds), epochs=args.epochs, batch_size=32)
    found: dict[str, Any] = {
        "precision": encoder.precision, "train_windows": len(train.windows),
        "train_tokens": train.windows.num_tokens, "dev_questions": len(dev.data), "sources": {},
    }  # fmt: skip
    scores: dict[str, dict[str, Members]] = {}
    for source in args.sources:
        began = time.perf_counter()
        states = states_config(source, args.out)
        zoo = fit_zoo(
            encoder, train, folder=args.out / "fit" / source, config=config,
            encoder_about={"name": encoder.name}, states=states,
        )  # fmt: skip
        scores[source] = {"live": score(zoo, encoder, dev, StatesConfig(source="live"))}
        if source != "live":
            scores[source]["own"] = score(zoo, encoder, dev, states)
            shutil.rmtree(args.out / "states" / source)  # the next one needs the room
        found["sources"][source] = {
            "seconds": time.perf_counter() - began,
            "profile": zoo.results["profile"],
        }
        for metric in METRICS.values():
            found["sources"][source][metric] = {
                on: {label: [member.scores["dev"][metric] for member in own] for label, own in by.items()}
                for on, by in scores[source].items()
            }
        write(args, **found)
    found["against_fp16"] = _differences(scores)
    write(args, **found)
    for source, by in found["against_fp16"].items():
        for on, heads in by.items():
            for label, gap in heads.items():
                line = ", ".join(
                    f"{at} {gap[at]['difference']:+.2f} ({gap[at]['low']:+.2f} ... {gap[at]['high']:+.2f})"
                    for at in METRICS
                )
                console.emit(f"{label}: {source} - {REFERENCE}, dev {on}: F1 {line}")


def _differences(scores: dict[str, dict[str, Members]]) -> dict[str, Any]:
    """Every source minus fp16, F1 at both thresholds; `own` dev states against fp16's own."""
    result: dict[str, Any] = {}
    if REFERENCE not in scores:
        return result
    for source, by in scores.items():
        if source == REFERENCE:
            continue
        result[source] = {
            on: {
                label: {
                    at: vars(_difference(metric, own, scores[REFERENCE][on][label]))
                    for at, metric in METRICS.items()
                }
                for label, own in heads.items()
            }
            for on, heads in by.items()
        }
    return result


def _difference(metric: str, ours: list[Record], theirs: list[Record]) -> Difference:
    return ours[0].task.compare(metric, [m.member("dev") for m in ours], [m.member("dev") for m in theirs])


if __name__ == "__main__":
    main()
