"""Does a head beat its snapshot whatever the seed of the fine-tuning? Reads finished runs of one recipe.

    for s in 0 1 2; do bertvision run --seed $s --out runs/demo-$s; done
    python benchmarks/demo_seeds.py runs/demo-0 runs/demo-1 runs/demo-2

Prints, on test at the thresholds tuned on dev, each run's snapshot, control and best head (chosen on that run's
dev), and the paired differences pooled over the runs: per question the mean over runs and head seeds, then a
bootstrap over questions.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import read_json
from bertvision.data.load import load_span_data
from bertvision.tasks.span.compare import paired_bootstrap
from bertvision.tasks.span.score import per_question


def question_f1(run: Path, system: dict, split: str) -> NDArray[np.float64]:
    """(Q,) F1 of a system, mean over its seeds."""
    data = load_span_data(read_json(run / "results.json")["settings"][split])
    first = run / system["folder"]
    folders = [first] if system["seeds"] is None else sorted(first.parent.glob(f"{system['label']}.seed*"))
    scores = [per_question(data, read_json(folder / split / "predictions.json"))[1] for folder in folders]
    return np.mean(scores, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--split", default="test")
    args = parser.parse_args()
    rows: dict[str, list[NDArray[np.float64]]] = {"snapshot": [], "control": [], "best head": []}
    for run in args.runs:
        systems = [s for s in read_json(run / "results.json")["systems"] if s["folder"]]
        chosen = {
            "snapshot": next(s for s in systems if s["kind"] == "snapshot"),
            "control": next(s for s in systems if s["kind"] == "control"),
            "best head": next(s for s in systems if s["best"]),
        }
        line = [f"{run.name}:"]
        for name, system in chosen.items():
            rows[name].append(question_f1(run, system, args.split))
            zero = system["scores"][args.split]["zero"]["f1"]
            line.append(
                f"{name} ({system['label']}) F1 {100 * rows[name][-1].mean():.2f} (threshold 0: {zero:.2f})"
            )
        print("  ".join(line))
        gain = paired_bootstrap(rows["best head"][-1], rows["snapshot"][-1])
        print(f"    best head - snapshot {gain.difference:+.2f} ({gain.low:+.2f} … {gain.high:+.2f})")
    pooled = {name: np.mean(values, axis=0) for name, values in rows.items()}
    for first, second in (("best head", "snapshot"), ("best head", "control"), ("control", "snapshot")):
        gap = paired_bootstrap(pooled[first], pooled[second])
        print(json.dumps({"pooled over": len(args.runs), "difference": f"{first} - {second}", **vars(gap)}))


if __name__ == "__main__":
    main()
