"""What rounding costs: heads fitted on stored states of every dtype, scored against each other on a real task.

    python benchmarks/store_quality.py --encoder FOLDER --train train-v2.0.json --dev dev-v2.0.json --out runs/quality

One snapshot is fine-tuned and frozen. The same heads with the same seeds are fitted on its live states and on stores of
every dtype, then scored on dev twice: on live states, and on states that were stored in the same dtype (what a
run sees that reads both from its store). Differences to fp16 are paired, question by question. Dev chooses nothing
but each head's threshold.
"""

import argparse
import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

from bertvision import console
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.heads.base import load_head
from bertvision.model.record import Record, evaluate
from bertvision.states.config import StatesConfig
from bertvision.states.source import open_states
from bertvision.tasks.metrics import Difference
from bertvision.tasks.walk import head_logits
from bertvision.train.config import FinetuneConfig, FitConfig
from bertvision.train.finetune import tune
from bertvision.train.job import Job
from bertvision.train.run_folder import RunFolder
from bertvision.train.splits import Split, load_split
from bertvision.train.zoo import fit_zoo

REFERENCE = "fp16"
METRICS = {"zero": "f1", "tuned": "tuned_f1"}
"""F1 at both thresholds."""

Members = dict[str, list[Record]]
"""What the seeds of each head answer, by its label."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--train", default="demo:train")
    parser.add_argument("--dev", default="demo:dev")
    parser.add_argument("--out", type=Path, default=Path("runs/quality"))
    parser.add_argument(
        "--max-tune-examples", type=int, default=None, help="questions the snapshot is tuned on"
    )
    parser.add_argument("--max-train-examples", type=int, default=None, help="questions heads are fitted on")
    parser.add_argument("--max-dev-examples", type=int, default=None)
    parser.add_argument("--max-seq-length", type=int, default=384)
    parser.add_argument("--tune-epochs", type=float, default=1.0)
    parser.add_argument("--tune-lr", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--heads", nargs="+", default=["adapter", "learned_pooling"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sources", nargs="+", default=["live", "fp32", "fp16", "bf16", "int8"])
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


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
    args = arguments()
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
        "settings": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()},
        "device": str(encoder.device), "precision": encoder.precision, "train_windows": len(train.windows),
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
        _write(found, args.json)
    found["against_fp16"] = _differences(scores)
    _write(found, args.json)
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


def _write(found: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
