"""Ten label heads served from one encoder pass, beside each of them alone.

    python benchmarks/serve_heads.py [--encoder embedded] [--batches 1,32] [--threads 2] [--json FILE]

`Model` on a stream of sentences of the embedded demo data, in batches of one and of 32; everything counts,
from the text to the predictions. Ten heads and one of them alone take turns on the same sentences in one process, and
the one that stands alone changes from turn to turn. Shown are medians over the turns, and the ratio of ten to one; of
the process's own CPU time too, which says more on a machine that others use (with one thread: several wait by
spinning). Weights of heads are random, which costs the same as trained ones.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, parse_head
from bertvision.heads.base import Head
from bertvision.model.model import Model
from bertvision.model.trained import Trained
from bertvision.states.config import EVERYTHING
from bertvision.tasks.label import LabelTask

HEADS = (
    "tenney_small",
    "tenney_small:order=last",
    "adapter_pooler",
    "adapter_pooler:size=64",
    "adapter_pooler:pooling=average",
    "cls_linear",
    "cls_mlp",
    "cls_mlp:match=64",
    "mean_pooler",
    "mean_pooler:last",
)


def make_system(text: str, number: int, encoder: Encoder) -> Trained:
    """A label task of 2 to 5 classes with a head of random weights."""
    task = LabelTask(tuple(f"class {i}" for i in range(2 + number % 4)))
    geometry = Geometry(encoder.num_states, encoder.hidden, task.outputs, "window", encoder.has_pooler)
    head = parse_head(text).build(geometry, seed=number)
    assert isinstance(head, Head)
    return Trained(
        folder=Path(f"task{number}-{text.partition(':')[0]}"),
        heads=[head],
        selections=[EVERYTHING],
        windows=WindowConfig(max_seq_length=128),
        encoder=encoder.name,
        fingerprint=encoder.fingerprint,
        task=task,
        tuning=task.untuned(),
    )


def sentences(count: int) -> list[str]:
    """Of the demo's paragraphs."""
    found: list[str] = []
    for paragraph in load_span_data("demo:dev").paragraphs:
        found += [part.strip() for part in paragraph.split(". ") if part.strip()]
    return [found[i % len(found)] for i in range(count)]


def seconds(model: Model, texts: list[str], batch: int) -> tuple[float, float]:
    """Of the clock and of the CPU, a sentence."""
    began, used = time.perf_counter(), time.process_time()
    for i in range(0, len(texts), batch):
        model(texts[i : i + batch])
    return (time.perf_counter() - began) / len(texts), (time.process_time() - used) / len(texts)


def measure(many: Model, alone: list[Model], texts: list[str], batch: int, turns: int) -> dict[str, Any]:
    for model in (many, *alone):
        seconds(model, texts[: 2 * batch], batch)  # warm
    together, single = [], []
    for turn in range(turns):
        pair = [(many, together), (alone[turn % len(alone)], single)]
        for model, times in pair if turn % 2 else pair[::-1]:
            times.append(seconds(model, texts, batch))
    row: dict[str, Any] = {"batch": batch, "sentences": len(texts), "turns": turns}
    for place, clock in enumerate(("wall", "cpu")):
        one, ten = (statistics.median(times[place] for times in all_) for all_ in (single, together))
        ratios = [a[place] / b[place] for a, b in zip(together, single, strict=True)]
        row[clock] = {
            "one_ms": 1e3 * one,
            "all_ms": 1e3 * ten,
            "ratio": ten / one,
            "ratio_of_turns": [min(ratios), statistics.median(ratios), max(ratios)],
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--heads", nargs="+", default=list(HEADS))
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--sentences", type=int, default=64, help="of one turn")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    encoder = Encoder.load(args.encoder, device="cpu")
    systems = [make_system(text, number, encoder) for number, text in enumerate(args.heads)]
    names = [system.folder.name for system in systems]
    many = Model(dict(zip(names, systems, strict=True)), encoder)
    alone = [Model({name: system}, encoder) for system, name in zip(systems, names, strict=True)]
    rows = [
        measure(many, alone, sentences(max(args.sentences, batch)), batch, args.turns)
        for batch in map(int, args.batches.split(","))
    ]
    print(f"{encoder.name}: {len(systems)} heads, {args.threads} threads, {platform.machine()}")
    print(
        "batch  clock  one: ms a sentence  all: ms a sentence  ratio  of single turns (least, median, most)"
    )
    for row in rows:
        for clock in ("wall", "cpu"):
            part = row[clock]
            turns = "  ".join(f"{ratio:.3f}" for ratio in part["ratio_of_turns"])
            print(
                f"{row['batch']:>5}  {clock:<5}  {part['one_ms']:>18.3f}  {part['all_ms']:>18.3f}  "
                f"{part['ratio']:>5.3f}  {turns}"
            )
    if args.json:
        found = {"encoder": encoder.name, "heads": args.heads, "threads": args.threads, "rows": rows}
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
