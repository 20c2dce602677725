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
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import Clock, Pass, arguments, new_store, random_windows, write
from fit_speed import encode_only, fit_heads
from store_rivals import (
    HDF5,
    HDF5_PART,
    OURS,
    PADDED,
    RAW,
    WAYS,
    ZARR,
    Case,
    Way,
    check,
    disk_bytes,
    files_of,
    forget,
    one_pass_of,
)

from bertvision.data.cutting import make_windows
from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.encoder import Encoder
from bertvision.heads import parse_head
from bertvision.states.base import LiveStates
from bertvision.states.config import StateType
from bertvision.states.stored import StoredStates
from bertvision.train.config import FitConfig
from bertvision.train.fit import fit
from bertvision.train.run_folder import RunFolder


def squad_file() -> Path | None:
    """The training set in the shared data, whole or a part of it."""
    folder = os.environ.get("BERTVISION_DATA")
    found = sorted(Path(folder, "squad").glob("train-v2.0*.json")) if folder else []
    return found[0] if found else None


def some_windows(count: int, encoder: Encoder) -> tuple[Windows, str]:
    """So many windows of random questions of SQuAD, and what they are."""
    file = squad_file()
    if file is None:
        return random_windows(count), "random tokens with SQuAD's lengths"
    data = load_span_data(str(file))
    chosen = np.random.default_rng(0).permutation(len(data))[:count]
    windows = make_windows(data.take(chosen.tolist()), encoder.tokenizer, WindowConfig())
    return windows.take(range(min(count, len(windows)))), file.name


# ---- read


def read(clock: Clock, args: argparse.Namespace, encoder: Encoder, folder: Path) -> None:
    windows, kind = some_windows(args.windows, encoder)
    case = Case(folder, encoder, windows, args.batch)
    print(f"\nread: {len(windows):,} windows ({kind}), {windows.num_tokens:,} tokens, random states")
    ways = [way for way in WAYS if not way.library or importlib.util.find_spec(way.library)]
    for library in {way.library for way in WAYS} - {way.library for way in ways}:
        print(f"{library} is left out: pip install {library}")
    for way in ways:
        way.prepare(case)
        size = sum(file.stat().st_size for file in files_of(folder / way.place))
        print(f"{way.name:52s} {size / 1e9:12.3f} GB on disk")
    for way in ways:
        check(case, way)
    median = clock.take_turns({way.name: one_pass_of(case, way) for way in ways})
    if HDF5 in median:
        faster = min(median[HDF5], median[HDF5_PART])
        clock.ratio("read: store fp16 / HDF5, the faster way", faster / median[OURS], ">= 3")
    for way in ways:
        goal = ">= 0.8" if way.name == RAW else ""
        clock.ratio(f"read: store fp16 / {way.name}", median[way.name] / median[OURS], goal)
    if hasattr(os, "posix_fadvise"):
        read_cold(
            clock, case, {f"cold: {way.name}": way for way in ways if way.name in (RAW, OURS, HDF5, ZARR)}
        )


def read_cold(clock: Clock, case: Case, ways: dict[str, Way]) -> None:
    print("\nfrom the disk: the system is told to forget the files; opening and checking them counts")
    from_disk: dict[str, list[int]] = {name: [] for name in ways}

    def cold_pass(name: str) -> Pass:
        def one_pass() -> int:
            before = disk_bytes()
            tokens = one_pass_of(case, ways[name])()
            from_disk[name].append(disk_bytes() - before)
            return tokens

        return one_pass

    median = clock.take_turns(
        {name: cold_pass(name) for name in ways}, least=0, before=lambda name: forget(case.folder / ways[name].place)
    )  # fmt: skip
    for name, counts in from_disk.items():
        gb = clock.lines[name]["gb_from_disk"] = float(np.median(counts)) / 1e9
        print(f"{name:52s} {gb:12.3f} GB came from the disk")
        clock.ratio(f"store fp16 / {name}", median[name] / median[f"cold: {OURS}"])


# ---- bytes


def count_bytes(clock: Clock, args: argparse.Namespace, encoder: Encoder, folder: Path) -> None:
    file = squad_file()
    data = load_span_data(str(file)) if file else None
    if data and args.quick:
        data = data.take(np.random.default_rng(0).permutation(len(data))[:2000].tolist())
    print(
        f"\nbytes: {file.name if file else 'random windows with SQuAD lengths'}, the files of a finished store"
    )
    goals: dict[StateType, float] = {"fp16": 4.5, "int8": 8.5}
    for longest in (384, 386):
        if data is None:
            windows = random_windows(2000 if args.quick else 130_000)
        else:
            windows = make_windows(data, encoder.tokenizer, WindowConfig(max_seq_length=longest))
        padded = PADDED * encoder.num_states * encoder.hidden * 4
        mean = windows.num_tokens / len(windows)
        print(
            f"max_seq_length {longest}: {len(windows):,} windows of {mean:.1f} tokens; padded fp32 {padded:,} bytes"
        )
        for dtype, goal in goals.items():
            root = folder / f"bytes-{longest}-{dtype}"
            store = new_store(root, encoder, windows, dtype)
            others = [path for path in store.folder.iterdir() if "shard-" not in path.name]
            each = (store.nbytes + sum(path.stat().st_size for path in others)) / len(windows)
            shutil.rmtree(root)
            asked = f">= {goal}" if longest == 384 else ""
            clock.ratio(f"bytes: padded fp32 / {dtype}, max_seq_length {longest}", padded / each, asked)


# ---- epochs


def epochs(clock: Clock, args: argparse.Namespace, encoder: Encoder, folder: Path) -> None:
    windows, kind = some_windows(args.epoch_windows, encoder)
    live = LiveStates(encoder, windows)
    print(f"\nepochs: {len(windows):,} windows ({kind}), {windows.num_tokens:,} tokens")
    stored = StoredStates(encoder, new_store(folder / "epochs", encoder, windows, "fp16"))
    stored.fill()
    ways = {"encode": encode_only(live, args.batch), "read": encode_only(stored, args.batch)}
    for head in ("learned_pooling", "adapter"):
        for name, states in (("live", live), ("stored", stored)):
            ways[f"{head}, {name}"] = fit_heads(states, (head,), args.batch)
    for name in ("read", "learned_pooling, stored", "adapter, stored"):
        ways[
            name
        ]()  # checksums are read once, the first steps load libraries; live ways ran in the extraction
    median = clock.take_turns(ways)
    clock.ratio("epochs: reading / encoding", median["encode"] / median["read"], ">= 20")
    for head, goal in (("learned_pooling", ">= 20"), ("adapter", ">= 3")):
        clock.ratio(
            f"epochs: {head}, stored / live", median[f"{head}, live"] / median[f"{head}, stored"], goal
        )
    config, shares = (
        FitConfig(heads=("adapter",), batch_size=args.batch, epochs=2, checkpoint_seconds=1e9),
        [],
    )
    for turn in range(args.turns):
        stage = RunFolder(folder / f"fit-{turn}", {})
        fit(stored, [("adapter", parse_head("adapter"), 0)], config, stage)
        shares.append(stage.profile["waiting"] / stage.profile["total"])
    clock.ratio(
        "epochs: share of a stored adapter-386 fit spent waiting", float(np.median(shares)), "<= 0.05"
    )


PARTS: dict[str, Callable[..., None]] = {"read": read, "bytes": count_bytes, "epochs": epochs}


def main() -> None:
    args = arguments(
        __doc__, parts=",".join(PARTS), windows=800, epoch_windows=192, batch=16, turns=3, cores=2, folder=Path,
        quick=False,
    )  # fmt: skip
    if args.quick:
        args.windows, args.epoch_windows = min(args.windows, 64), min(args.epoch_windows, 16)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    torch.set_num_threads(min(args.cores, torch.get_num_threads()))
    encoder = Encoder.load("embedded", device="cpu")
    width = encoder.num_states * encoder.hidden
    clock = Clock(turns=args.turns, least=0.1 if args.quick else 0.5, width=width)
    for part in args.parts.split(","):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            PARTS[part](clock, args, encoder, Path(folder))
            gc.collect()  # maps of files that go now
        write(args, lines=clock.lines, ratios=clock.ratios)


if __name__ == "__main__":
    main()
