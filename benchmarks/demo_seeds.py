"""Does a head beat its snapshot whatever the seed of the fine-tuning? Reads finished runs of one recipe.

    for s in 0 1 2; do bertvision run --seed $s --out runs/demo-$s; done
    python benchmarks/demo_seeds.py runs/demo-0 runs/demo-1 runs/demo-2 --out docs/results/demo.json

Prints, on test at threshold 0 and at the threshold tuned on dev, each run's snapshot, control and best head (chosen
on that run's dev), and the paired differences pooled over the runs: per question the mean over runs and head seeds,
then a bootstrap over questions.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import read_json, write_json
from bertvision.data.load import load_span_data
from bertvision.tasks.metrics import mean_difference
from bertvision.tasks.span_answers import per_question


def question_f1(run: Path, system: dict, split: str, at: str) -> NDArray[np.float64]:
    """(Q,) F1 of a system at threshold 0 or at the tuned one, mean over its seeds."""
    data = load_span_data(read_json(run / "results.json")["settings"][split])
    first = run / system["folder"]
    folders = [first] if system["seeds"] is None else sorted(first.parent.glob(f"{system['label']}.seed*"))
    return np.mean([per_question(data, predictions(folder / split, at))[1] for folder in folders], axis=0)


def predictions(folder: Path, at: str) -> dict[str, str]:
    """predictions.json holds the answers at the tuned threshold; those at 0 follow from odds and candidates."""
    if at == "tuned":
        return read_json(folder / "predictions.json")
    odds, nbest = read_json(folder / "null_odds.json"), read_json(folder / "nbest_predictions.json")
    best = {key: next((c["text"] for c in candidates if c["text"]), "") for key, candidates in nbest.items()}
    return {key: "" if odds[key] > 0 else best[key] for key in odds}


def choose(run: Path) -> dict[str, dict]:
    """A run's snapshot, control, and best head (chosen on its dev)."""
    systems = [s for s in read_json(run / "results.json")["systems"] if s["folder"]]
    return {
        "snapshot": next(s for s in systems if s["kind"] == "snapshot"),
        "control": next(s for s in systems if s["kind"] == "control"),
        "best head": next(s for s in systems if s["best"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    told: dict = {"split": args.split, "runs": [], "pooled": {}}
    for run in args.runs:
        results = read_json(run / "results.json")
        told["runs"].append({
            "command": results["command"],
            "commit": results["commit"],
            "environment": results["environment"],
            "seconds": results["seconds"],
            f"{args.split} fingerprint": load_span_data(results["settings"][args.split]).fingerprint,
        })  # fmt: skip
    for at in ("zero", "tuned"):
        rows: dict[str, list[NDArray[np.float64]]] = {"snapshot": [], "control": [], "best head": []}
        for run, record in zip(args.runs, told["runs"], strict=True):
            for name, system in choose(run).items():
                rows[name].append(question_f1(run, system, args.split, at))
                record.setdefault(name, {"label": system["label"]})[at] = 100 * float(rows[name][-1].mean())
            record.setdefault("best head - snapshot", {})[at] = vars(
                mean_difference([rows["best head"][-1]], [rows["snapshot"][-1]])
            )
        pooled = {name: np.mean(values, axis=0) for name, values in rows.items()}
        told["pooled"][at] = {name: {"f1": 100 * float(values.mean())} for name, values in pooled.items()} | {
            f"{first} - {second}": vars(mean_difference([pooled[first]], [pooled[second]]))
            for first, second in (
                ("best head", "snapshot"),
                ("best head", "control"),
                ("control", "snapshot"),
            )
        }
    print(json.dumps(told, indent=2))
    if args.out:
        write_json(args.out, told)


if __name__ == "__main__":
    main()
