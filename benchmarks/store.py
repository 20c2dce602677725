"""How fast stored states are read, how large they are, and what that makes of an epoch.

    pip install h5py zarr               # the rivals (dependency group `bench`); those not there are left out
    BERTVISION_DATA=FOLDER python benchmarks/store.py [--parts read,bytes,epochs] [--json FILE] [--quick]

read    random states of the embedded encoder's shape in windows with SQuAD's lengths, written as our store, as HDF5 in
        the papers' layout, as zarr and as a raw memmap (store_rivals.py says how), read window by window in the
        random order of a fit's second epoch, in batches of 16; first from the page cache, then from the disk
bytes   a window of SQuAD 2.0's training set in a store, all its files counted, beside float32 padded to 386
epochs  the embedded encoder on real windows: encoding and reading, then an epoch of a head with live states and
        with stored ones (`FitRun`, the product's own loop), and what share of a fit is spent waiting

Ways that are compared take turns in one run; the median of the turns counts, and the spread is told with it. A ratio
A / B says how many times as fast A is, or how many times as many bytes it has; padded float32 is counted without its
token ids, ours with them. The process keeps to two cores (--cores). BERTVISION_DATA names a folder with
squad/train-v2.0*.json; without it windows of random tokens have SQuAD's lengths. --folder needs 12 GB for 800 windows.
"""

import argparse
import gc
import importlib.util
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fit_speed
import numpy as np
import torch
from store_rivals import (
    HDF5,
    HDF5_PART,
    OURS,
    PADDED,
    RAW,
    RAW_WAY,
    WAYS,
    ZARR,
    Case,
    Way,
    check,
    disk_bytes,
    files_of,
    forget,
    new_store,
    one_pass_of,
    write_raw,
    write_store,
)  # fmt: skip

from bertvision.data.cutting import make_windows
from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.encoder import Encoder
from bertvision.heads import parse_head
from bertvision.states.base import LiveStates, States
from bertvision.states.config import StateType
from bertvision.states.store import Store
from bertvision.states.stored import StoredStates
from bertvision.train.config import FitConfig
from bertvision.train.fit import FitRun, fit
from bertvision.train.run_folder import RunFolder

LONG_ENOUGH = 0.5
"""Seconds a turn takes at least: fast ways pass several times. A fifth of it with --quick."""


@dataclass(frozen=True)
class Goal:
    """What was asked for and what was found."""

    name: str
    figure: float
    goal: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.figure >= self.goal if self.at_least else self.figure <= self.goal


class Bench:
    """Lets ways take turns and keeps what was found."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.lines: dict[str, dict[str, float]] = {}
        self.ratios: dict[str, float] = {}
        self.bytes: dict[str, Any] = {}
        self.profiles: list[dict[str, float]] = []
        self.goals: list[Goal] = []

    def turns(
        self, ways: Mapping[str, Callable[[], int]], *, numbers: int, long_enough: float = LONG_ENOUGH,
        before: Callable[[str], None] | None = None,
    ) -> dict[str, float]:  # fmt: skip
        """Median microseconds a token of each way; `numbers` of float32 are handed out for a token.

        `before` is called with a way's name before each of its turns, in time that does not count.
        """
        long_enough *= 0.2 if self.args.quick else 1
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self.args.turns):
            for name, one_pass in ways.items():
                if before:
                    before(name)
                began, tokens = time.perf_counter(), 0
                while (seconds := time.perf_counter() - began) < long_enough or not tokens:
                    tokens += one_pass()
                times[name].append(1e6 * seconds / tokens)
        medians = {}
        for name, values in times.items():
            median = medians[name] = float(np.median(values))
            spread = (max(values) - min(values)) / median
            gb = numbers * 4 / median / 1e3
            self.lines[name] = {"tokens_per_second": 1e6 / median, "gb_per_second": gb, "spread": spread}
            print(
                f"{name:50s} {1e6 / median:12,.0f} tokens/s {gb:7.2f} GB/s  (spread {100 * spread:3.0f} %)",
                flush=True,
            )
        return medians

    def ratio(self, name: str, figure: float, goal: float | None = None, *, at_least: bool = True) -> None:
        self.ratios[name] = figure
        print(f"{name:66s} {figure:8.3f}", flush=True)
        if goal is not None:
            self.goals.append(Goal(name, figure, goal, at_least))

    def save(self) -> None:
        if not self.args.json:
            return
        settings = {key: value for key, value in vars(self.args).items() if key not in ("json", "folder")}
        settings |= {
            "cpu": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        goals = [vars(goal) | {"met": goal.met} for goal in self.goals]
        found = {"settings": settings, "lines": self.lines, "ratios": self.ratios, "bytes": self.bytes}
        found |= {"profiles": self.profiles, "goals": goals}
        self.args.json.write_text(json.dumps(found, indent=1))


def squad_file() -> Path | None:
    """The training set in the shared data, whole or a part of it."""
    folder = os.environ.get("BERTVISION_DATA")
    found = sorted(Path(folder, "squad").glob("train-v2.0*.json")) if folder else []
    return found[0] if found else None


def some_windows(count: int, encoder: Encoder) -> tuple[Windows, str]:
    """So many windows of random questions of SQuAD, and what they are."""
    file = squad_file()
    if file is None:
        return fit_speed.make_windows(count), "random tokens with SQuAD's lengths"
    data = load_span_data(str(file))
    chosen = np.random.default_rng(0).permutation(len(data))[:count]
    windows = make_windows(data.take(chosen.tolist()), encoder.tokenizer, WindowConfig())
    return windows.take(range(min(count, len(windows)))), file.name


# ---- read


def read(bench: Bench, encoder: Encoder, folder: Path) -> None:
    args = bench.args
    windows, kind = some_windows(args.windows, encoder)
    case = Case(folder, encoder, windows, args.batch)
    numbers = encoder.num_states * encoder.hidden
    print(
        f"\nread: {len(windows):,} windows ({kind}), {windows.num_tokens:,} tokens; random states "
        f"{encoder.num_states} x {encoder.hidden}; GB/s count what is handed out, float32 without pads"
    )
    ways = [way for way in WAYS if not way.library or importlib.util.find_spec(way.library)]
    for library in {way.library for way in WAYS} - {way.library for way in ways}:
        print(f"{library} is left out: pip install {library}")
    for way in ways:
        began = time.perf_counter()
        way.prepare(case)
        size = sum(file.stat().st_size for file in files_of(folder / way.place))
        print(f"{way.name:50s} {size / 1e9:8.3f} GB on disk ({time.perf_counter() - began:.1f} s)")
    for way in ways:
        check(case, way)
    median = bench.turns({way.name: one_pass_of(case, way) for way in ways}, numbers=numbers)
    bench.ratio("read: store fp16 / raw memmap", median[RAW] / median[OURS], 0.8)
    if HDF5 in median:
        faster = min(median[HDF5], median[HDF5_PART])
        bench.ratio("read: store fp16 / HDF5, the faster way", faster / median[OURS], 3)
    for way in ways:
        if way.name not in (OURS, RAW):
            bench.ratio(f"read: store fp16 / {way.name}", median[way.name] / median[OURS])
    if hasattr(os, "posix_fadvise"):
        print("\nfrom the disk: the system is told to forget the files; opening and checking them counts")
        _read_cold(bench, case, [way for way in ways if way.name in (RAW, OURS, HDF5, ZARR)])


def _read_cold(bench: Bench, case: Case, ways: list[Way]) -> None:
    numbers, places = case.shape[0] * case.shape[1], {f"cold: {way.name}": way.place for way in ways}
    from_disk: dict[str, list[int]] = {name: [] for name in places}

    def cold_pass(way: Way) -> Callable[[], int]:
        def one_pass() -> int:
            before = disk_bytes()
            tokens = one_pass_of(case, way)()
            from_disk[f"cold: {way.name}"].append(disk_bytes() - before)
            return tokens

        return one_pass

    median = bench.turns(
        {f"cold: {way.name}": cold_pass(way) for way in ways},
        numbers=numbers,
        long_enough=0,
        before=lambda name: forget(case.folder / places[name]),
    )
    for name, counts in from_disk.items():
        print(f"{name:50s} {np.median(counts) / 1e9:8.3f} GB came from the disk")
        bench.lines[name]["gb_from_disk"] = float(np.median(counts)) / 1e9
    for way in ways:
        if way.name != OURS:
            figure = median[f"cold: {way.name}"] / median[f"cold: {OURS}"]
            bench.ratio(f"cold: store fp16 / {way.name}", figure)


# ---- bytes


def count_bytes(bench: Bench, encoder: Encoder, folder: Path) -> None:
    file, quick = squad_file(), bench.args.quick
    data = load_span_data(str(file)) if file else None
    if data and quick:
        data = data.take(np.random.default_rng(0).permutation(len(data))[:2000].tolist())
    what = f"{file.name}, {len(data):,} questions" if file and data else "random windows with SQuAD's lengths"
    print(f"\nbytes: {what}{' (--quick: some of them)' if quick else ''}")
    for longest in (384, 386):
        if data is None:
            windows = fit_speed.make_windows(2000 if quick else 130_000)
        else:
            windows = make_windows(data, encoder.tokenizer, WindowConfig(max_seq_length=longest))
        padded = PADDED * encoder.num_states * encoder.hidden * 4
        print(
            f"max_seq_length {longest}: {len(windows):,} windows, {windows.num_tokens:,} tokens, "
            f"{windows.num_tokens / len(windows):.1f} a window; padded fp32 {padded:,} bytes a window"
        )
        goals: dict[StateType, float] = {"fp16": 4.5, "int8": 8.5}
        for dtype, goal in goals.items():
            root = folder / f"bytes-{longest}-{dtype}"
            store = new_store(root, encoder, windows, dtype)
            parts = _sizes(store)
            shutil.rmtree(root)
            each = sum(parts.values()) / len(windows)
            name = f"bytes: padded fp32 / {dtype}, max_seq_length {longest}"
            bench.bytes[f"{dtype} {longest}"] = parts | {
                "windows": len(windows),
                "tokens": windows.num_tokens,
            }
            print(
                f"  {dtype}: {each:,.0f} bytes a window ({', '.join(f'{k} {v:,}' for k, v in parts.items())})"
            )
            bench.ratio(name, padded / each, goal if longest == 384 else None)
        if longest == 384:
            _check_sizes(encoder, windows.take(range(min(100, len(windows)))), folder)


def _sizes(store: Store) -> dict[str, int]:
    """Bytes of a store's files when it is finished."""
    others = [path for path in sorted(store.folder.iterdir()) if "shard-" not in path.name]
    return {"shards": store.nbytes} | {path.name: path.stat().st_size for path in others}


def _check_sizes(encoder: Encoder, windows: Windows, folder: Path) -> None:
    """The arithmetic against real files."""
    case = Case(folder / "small", encoder, windows, 16)
    case.folder.mkdir()
    write_raw(case, case.folder / RAW_WAY.place)
    dtypes: tuple[StateType, ...] = ("fp16", "int8")
    for dtype in dtypes:
        write_store(dtype)(case, case.folder / dtype)
        store = new_store(case.folder / dtype, encoder, windows, dtype)
        expected, found = _sizes(store), sum(file.stat().st_size for file in files_of(case.folder / dtype))
        assert sum(expected.values()) == found, (expected, found)
    shutil.rmtree(case.folder)
    print(f"  verified: the files of {len(windows)} windows have the bytes that were computed")


# ---- epochs


def epochs(bench: Bench, encoder: Encoder, folder: Path) -> None:
    args = bench.args
    windows, kind = some_windows(args.epoch_windows, encoder)
    live = LiveStates(encoder, windows)
    print(
        f"\nepochs: {len(windows):,} windows ({kind}), {windows.num_tokens:,} tokens, {torch.get_num_threads()} threads"
    )
    store = new_store(folder / "epochs", encoder, windows, "fp16")
    stored = StoredStates(encoder, store)
    stored.fill()
    ways = {"encode": _walk(live, args.batch), "read": _walk(stored, args.batch)}
    for head in ("learned_pooling", "adapter"):
        for name, states in (("live", live), ("stored", stored)):
            ways[f"{head}, {name}"] = _fit_epoch(states, head, args.batch)
    for name in ("read", "learned_pooling, stored", "adapter, stored"):
        ways[
            name
        ]()  # checksums are read once, the first steps load libraries; live ways have run in the extraction
    median = bench.turns(ways, numbers=encoder.num_states * encoder.hidden)
    bench.ratio("epochs: reading / encoding", median["encode"] / median["read"], 20)
    for head, name, goal in (("learned_pooling", "learned pooling", 20), ("adapter", "adapter-386", 3)):
        figure = median[f"{head}, live"] / median[f"{head}, stored"]
        bench.ratio(f"epochs: {name}, stored / live", figure, goal)
    config = FitConfig(heads=("adapter",), batch_size=args.batch, epochs=2, checkpoint_seconds=1e9)
    for turn in range(args.turns):
        stage = RunFolder(folder / f"fit-{turn}", {})
        fit(stored, [("adapter", parse_head("adapter"), 0)], config, stage)
        bench.profiles.append(stage.profile)
    shares = [profile["waiting"] / profile["total"] for profile in bench.profiles]
    print("waiting in each fit: " + ", ".join(f"{share:.1%}" for share in shares))
    share = float(np.median(shares))
    bench.ratio("epochs: share of a stored adapter-386 fit spent waiting", share, 0.05, at_least=False)


def _walk(states: States, batch_size: int) -> Callable[[], int]:
    lengths = states.windows.lengths

    def one_pass() -> int:
        batches = states.epoch(1, batch_size=batch_size, seed=0, reuse=True)
        return sum(int(lengths[batch.windows].sum()) for batch in batches)

    return one_pass


def _fit_epoch(states: States, head: str, batch_size: int) -> Callable[[], int]:
    config = FitConfig(heads=(head,), batch_size=batch_size, epochs=1000)
    run = FitRun(states, [(head, parse_head(head), 0)], config)
    lengths = states.windows.lengths

    def one_pass() -> int:
        tokens, run.epoch, run.batch = 0, 1, 0
        for batch in run.batches():
            run.train_batch(batch)
            tokens += int(lengths[batch.windows].sum())
        run.settle()
        return tokens

    return one_pass


PARTS = {"read": read, "bytes": count_bytes, "epochs": epochs}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--windows", type=int, default=800, help="windows of the part read")
    parser.add_argument("--epoch-windows", type=int, default=192, help="windows of the part epochs")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, help="where files are written for the time it runs; a temporary folder"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.quick:
        args.windows, args.epoch_windows = min(args.windows, 64), min(args.epoch_windows, 16)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    torch.set_num_threads(min(args.cores, torch.get_num_threads()))
    bench, encoder = Bench(args), Encoder.load("embedded", device="cpu")
    for part in args.parts.split(","):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            PARTS[part](bench, encoder, Path(folder))
            gc.collect()  # maps of files that go now
        bench.save()
    print(f"\n{'':66s} {'found':>9s} {'goal':>9s}")
    for goal in bench.goals:
        asked = f"{'>=' if goal.at_least else '<='} {goal.goal:g}"
        print(f"{goal.name:66s} {goal.figure:9.3f} {asked:>9s}  {'met' if goal.met else 'NOT MET'}")


if __name__ == "__main__":
    main()
