"""What the benchmarks share: flags, encoders and windows of known shapes, and ways that take turns."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, parse_head
from bertvision.model.trained import Trained
from bertvision.states.config import EVERYTHING, StateType
from bertvision.states.store import Identity, Origin, Store
from bertvision.tasks.base import Task
from bertvision.tasks.walk import Reader

LENGTHS = [36, 68, 84, 98, 107, 113, 117, 121, 124, 127, 130, 133, 135, 138, 141, 144, 147, 150, 153, 156, 159,
           162, 166, 169, 173, 177, 182, 186, 191, 196, 202, 209, 216, 224, 234, 246, 260, 276, 299, 338,
           386]  # fmt: skip
"""Quantiles 0, 1/40, ... 1 of the windows of SQuAD 2.0's training set at 386 tokens."""

SHAPES = {"large": (24, 1024, 16), "base": (12, 768, 12), "small": (6, 384, 12), "tiny": (2, 32, 2)}
"""Layers, hidden size, attention heads."""

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"

Pass = Callable[[], int]
"""Passes over the windows once and returns the real tokens it read."""


def arguments(doc: str | None, **flags: Any) -> argparse.Namespace:
    """Flags from their defaults (a list takes several values, a type has no default, False is a switch), and --json."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (flags | {"json": Path}).items():
        how: dict[str, Any] = {"type": type(default), "default": default}
        if isinstance(default, type):
            how = {"type": default}
        elif isinstance(default, list):
            how = {"type": type(default[0]), "nargs": "+", "default": default}
        elif default is False:
            how = {"action": "store_true"}
        parser.add_argument("--" + name.replace("_", "-"), **how)
    return parser.parse_args()


def write(args: argparse.Namespace, **found: Any) -> None:
    """The figures and what they were measured on, where --json says."""
    if args.json is None:
        return
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    settings["device"] = torch.cuda.get_device_name() if GPU else platform.processor() or platform.machine()
    settings |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    args.json.write_text(json.dumps({"settings": settings, **found}, indent=1) + "\n", encoding="utf-8")


class _Tokenizer:
    """What encoding and saving ask of one."""

    pad_token_id = 0
    backend_tokenizer: Any = None

    def save_pretrained(self, folder: Path) -> None:
        pass


def random_encoder(shape: str, device: str) -> Encoder:
    """One of a BERT's shape with random weights."""
    layers, hidden, attention = SHAPES[shape]
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=attention,
        intermediate_size=4 * hidden,
    )
    torch.manual_seed(0)
    model = BertModel(config)
    encoder = Encoder(model, _Tokenizer(), name=shape, device=torch.device(device), precision="auto")
    encoder._fingerprint, encoder.changed = shape, lambda: None  # it is not looked up by what it is
    return encoder


def random_windows(count: int) -> Windows:
    """Random tokens with SQuAD's lengths; the answer begins and ends with marks that can be learned."""
    rng = np.random.default_rng(0)
    lengths = np.interp(rng.random(count), np.linspace(0, 1, len(LENGTHS)), LENGTHS).round().astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(1000, 30000, int(offsets[-1])).astype(np.int32)
    start = 14 + (rng.random(count) * (lengths - 18)).astype(np.int64)
    ids[offsets[:-1] + start], ids[offsets[:-1] + start + 2] = 500, 501
    return Windows(
        ids=ids,
        types=np.zeros(len(ids), np.uint8),
        chars=np.zeros((len(ids), 2), np.int32),
        offsets=offsets,
        example=np.arange(count, dtype=np.int32),
        context=np.stack([np.full(count, 14), lengths - 1], axis=1).astype(np.int32),
        labels=np.stack([start, start + 2], axis=1).astype(np.int32),
        null=np.zeros(count, np.int32),
        best=np.ones(len(ids), np.bool_),
    )


def new_store(root: Path, encoder: Encoder, windows: Windows, dtype: StateType) -> Store:
    """An empty store below `root`."""
    identity = Identity.of(encoder, Origin("benchmark", {}, "benchmark"), EVERYTHING, dtype)
    return Store(root / identity.key, identity, windows, encoder=encoder.name, data="benchmark").begin()


def questions(source: str, count: int) -> list[tuple[str, str]]:
    """Questions and contexts, evenly drawn from the data in its order: paragraphs of all lengths come by."""
    data = load_span_data(source)
    step = max(1, len(data) // count)
    return [(e.question, data.context(e)) for e in data.examples[::step][:count]]


def random_system(
    name: str, head: str, encoder: Encoder, task: Task, windows: WindowConfig, *, seed: int = 0, tuning: Any = None
) -> Trained:  # fmt: skip
    """A head with random weights, which costs what a trained one costs."""
    pooled = task.unit == "window" and encoder.has_pooler
    geometry = Geometry(encoder.num_states, encoder.hidden, task.outputs, task.unit, pooled)
    return Trained(
        folder=Path(name),
        readers=[Reader(parse_head(head).build(geometry, seed=seed), EVERYTHING, task)],
        windows=windows,
        encoder=encoder.name,
        fingerprint=encoder.fingerprint,
        tuning=tuning or task.untuned(),
    )


# ---- two ways, by the clock and by the CPU


def contest(first: Callable[[], Any], second: Callable[[], Any], count: int, turns: int) -> dict[str, Any]:
    """Milliseconds an input of two ways that take turns, medians, and how often the second fits into the first."""
    times: dict[Any, list[tuple[float, float]]] = {first: [], second: []}
    for turn in range(-1, turns):  # the first one warms up
        for work in (first, second) if turn % 2 else (second, first):
            began, used = time.perf_counter(), time.process_time()
            work()
            if turn >= 0:
                times[work].append((time.perf_counter() - began, time.process_time() - used))
    row: dict[str, Any] = {"inputs": count, "turns": turns}
    for place, clock in enumerate(("wall", "cpu")):
        ratios = [a[place] / b[place] for a, b in zip(times[first], times[second], strict=True)]
        row[clock] = {
            "first_ms": 1e3 * statistics.median(t[place] for t in times[first]) / count,
            "second_ms": 1e3 * statistics.median(t[place] for t in times[second]) / count,
            "ratio": statistics.median(ratios),
            "turns": [min(ratios), max(ratios)],
        }
    return row


def show_contest(name: str, row: dict[str, Any]) -> None:
    for clock in ("wall", "cpu"):
        part = row[clock]
        low, high = part["turns"]
        line = f"{name:<12} {clock:<5} {part['first_ms']:>9.2f} ms {part['second_ms']:>9.2f} ms"
        print(f"{line}  ratio {part['ratio']:.3f} (single turns {low:.2f} to {high:.2f})")


# ---- many ways, by tokens a second


class Clock:
    """Ways take turns in one run, so that a clock that drifts decides no ratio; medians and spreads are kept."""

    def __init__(self, *, turns: int = 3, least: float = 0.0, width: int = 0) -> None:
        """`least`: seconds a turn takes; `width`: numbers of float32 that a way hands out for a token, for GB/s."""
        self.turns, self.least, self.width = turns, least, width
        self.lines: dict[str, dict[str, float]] = {}
        self.ratios: dict[str, float] = {}

    def _turn(self, one_pass: Pass, least: float) -> float:
        """Microseconds a real token."""
        if GPU:
            torch.cuda.synchronize()
        began, tokens = time.perf_counter(), 0
        while not tokens or time.perf_counter() - began < least:
            tokens += one_pass()
        if GPU:
            torch.cuda.synchronize()
        return 1e6 * (time.perf_counter() - began) / tokens

    def take_turns(
        self, ways: Mapping[str, Pass], *, before: Callable[[str], None] = lambda name: None, least: float | None = None
    ) -> dict[str, float]:  # fmt: skip
        """Median microseconds a token of each way; `before` its turn is called with its name and does not count."""
        least = self.least if least is None else least
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self.turns):
            for name, one_pass in ways.items():
                before(name)
                times[name].append(self._turn(one_pass, least))
        medians = {name: float(np.median(values)) for name, values in times.items()}
        for name, values in times.items():
            rate, spread = 1e6 / medians[name], (max(values) - min(values)) / medians[name]
            self.lines[name] = {"tokens_per_second": rate, "spread": spread}
            speed = f" {rate * self.width * 4e-9:7.2f} GB/s" if self.width else ""
            print(f"{name:52s} {rate:12,.0f} tokens/s{speed}  (spread {100 * spread:3.0f} %)", flush=True)
        return medians

    def ratio(self, name: str, figure: float, goal: str = "") -> None:
        self.ratios[name] = figure
        print(f"{name:68s} {figure:8.3f}{f'  (goal {goal})' if goal else ''}", flush=True)

    def compare(self, name: str, one_pass: Pass, beside: tuple[str, Pass]) -> None:
        """The time of a way as a multiple of another's, both warmed up."""
        ways = {beside[0]: beside[1], name: one_pass}
        for run in ways.values():
            run()
        median = self.take_turns(ways)
        self.ratio(f"{name} / {beside[0]}", median[name] / median[beside[0]])
