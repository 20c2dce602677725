"""Sweeps: the best head among many, by dev scores.

Two ways through the same space (train/space.py):

    trials   one fit each, chosen by optuna from what earlier ones scored, ended early where they fall behind
             (train/search.py); OUT/trials/0007/ is a fit's folder
    grid     every combination in one fit: all heads see each batch once it is there, those of equal shape are computed
             as one (train/group.py); OUT/grid/ is that fit's folder

A trial's score is its best dev score over epochs, the mean over seeds where there are several. Either way gives the
results.json of a run (pipeline/run.py) with a system for each candidate, which has these keys more

    values    {NAME: value} of what is varied
    status    done | pruned | diverged | out of memory | killed | running
    epochs    how many were trained
    history   dev score of each of them

and with "sweep": {"mode": trials | grid, "heads", "space", "search"}. A folder holds one of the two ways: the other
is refused there, or replaces it with --overwrite.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import torch

from bertvision.artifacts import check_output, output_folder, remove, write_json
from bertvision.config import to_mapping
from bertvision.encoder.device import choose_device
from bertvision.errors import ConfigError, OutputError, TrainingError
from bertvision.heads.base import read_head_config
from bertvision.heads.spec import parse_head
from bertvision.pipeline.config import SweepArgs
from bertvision.pipeline.run import frame
from bertvision.pipeline.train import load_splits, open_encoder
from bertvision.report.page import write_page
from bertvision.report.results import RESULTS_FILE
from bertvision.states.config import StatesConfig
from bertvision.states.stored import choose_source
from bertvision.train.parallel import Parallel, rank_and_world
from bertvision.train.run_folder import RunFolder
from bertvision.train.space import DATABASE, GRID, TRIALS, Candidate, read_space
from bertvision.train.zoo import fit_zoo, suited, zoo_members

if TYPE_CHECKING:
    from bertvision.train.search import Trial

logger = logging.getLogger(__name__)

Row = dict[str, Any]
"""A candidate: number, head, values, status, score, scores (of each seed), history (of each epoch), folder, ..."""


def sweep(args: SweepArgs, *, command: str = "") -> dict[str, Any]:
    """Do the whole search; returns what results.json holds. Of several processes each calls it."""
    for name in ("train", "dev"):
        if not getattr(args, name):
            raise ConfigError(f"--{name} is missing: a sweep fits heads on --train and scores them on --dev")
    if not args.grid and find_spec("optuna") is None:
        raise ConfigError(
            "a search over trials needs optuna: run `pip install 'bertvision[sweep]'`, or use --grid, which does not"
        )
    if not args.grid and rank_and_world()[1] > 1:
        raise ConfigError(
            "trials are not run by accelerate launch or torchrun: give the command once for each device, they share "
            "the study in --out"
        )
    began = time.monotonic()
    with Parallel.start(choose_device(args.device)) as parallel:
        parallel.on_main(lambda: check_output(args.out))
        work = _Sweep(args)
        rows = work.grid(parallel) if args.grid else work.trials()
        results = work.results(rows, command, time.monotonic() - began)
        parallel.on_main(lambda: write_json(args.out / RESULTS_FILE, results))
        parallel.on_main(lambda: write_page(results, args.out / "report.html"))
    return results


def best_of(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The number of the best candidate that was trained to its end; of equals the first."""
    done = [row for row in rows if row["status"] == "done"]
    return max(done, key=lambda row: (row["score"], -row["number"]))["number"] if done else None


class _Sweep:
    """What all candidates share: the encoder, the data, the space."""

    def __init__(self, args: SweepArgs) -> None:
        self.args = args
        self.encoder, self.about = open_encoder(args)
        splits = load_splits(args, self.encoder)
        self.train, self.dev = splits["train"], splits["dev"]
        self.space = read_space(args.fit.heads, args.space, args.vary, unit=self.train.task.unit)
        # Values that no head or optimiser takes are refused before anything is trained.
        heads = tuple(dict.fromkeys(candidate.head for candidate in self.space.corners()))
        self.members = zoo_members(dataclasses.replace(args.fit, heads=heads), self.train.task)

    def _fit(self, candidates: Sequence[Candidate], name: str, **more: Any) -> RunFolder:
        heads = tuple(candidate.head for candidate in candidates)
        size = candidates[0].batch_size or self.args.fit.batch_size
        config = dataclasses.replace(self.args.fit, heads=heads, keep="best", batch_size=size)
        data: dict[str, Any] = {"dev": self.dev, "encoder_about": self.about}
        return fit_zoo(self.encoder, self.train, folder=self.args.out / name, config=config, **data, **more)

    def _take_folder(self, way: str) -> None:
        """Refuse a folder with a sweep of the other way, or delete that with --overwrite."""
        out = self.args.out
        output_folder(out)
        other, trace = (GRID, f"{GRID}/stage.json") if way == TRIALS else (TRIALS, DATABASE)
        if (out / trace).exists():
            if not self.args.overwrite:
                raise OutputError(
                    f"{out} holds a sweep of another way ({other}): choose another --out, or use --overwrite "
                    "to replace it"
                )
            remove(out / DATABASE)  # first: trials without their settings would belong to nothing
            remove(out / other)

    # ---- trials

    def trials(self) -> list[Row]:
        """Run trials until there are as many as were asked for; other processes may run some of them."""
        from bertvision.train.search import Search

        args = self.args
        self._take_folder(TRIALS)
        more: dict[str, Any] = {"epochs": args.fit.epochs, "overwrite": args.overwrite}
        search = Search(args.out, self.space, args.search, key=self._key(), seed=args.fit.seed, **more)
        states = args.states
        if states.source == "auto":  # chosen once; a copy in memory would be made anew for each trial
            possible = suited(dataclasses.replace(states, memory_gb=0.0), self.members, self.train.task)
            choice = partial(
                choose_source, self.encoder, self.train.windows, possible, label="states of train",
                origin=self.train.origin, passes=args.fit.epochs * args.search.trials,
            )  # fmt: skip
            states = dataclasses.replace(states, source=search.choose("states", choice))

        def run(trial: "Trial") -> tuple[Row, float | None]:
            row = {"number": trial.number, "score": None} | self._trial(trial, states)
            shown = "" if row["score"] is None else f" {row['score']:.4g}"
            logger.info("trial %d: %s, %s%s", row["number"], row["head"], row["status"], shown)
            self._tidy([*search.trials(), row])
            return row, row["score"]

        search.run(run)
        self._tidy(search.trials())
        return search.trials()

    def _key(self) -> dict[str, Any]:
        """Everything trials depend on; how many there are is not part of it."""
        fit, search, states = self.args.fit.identity, to_mapping(self.args.search), self.args.states
        for mapping, name in ((fit, "heads"), (fit, "keep"), (search, "trials")):
            del mapping[name]
        selection = states.selection.resolved(self.encoder.num_states)
        return {
            "encoder": self.encoder.fingerprint,
            "train": self.train.fingerprint,
            "dev": self.dev.fingerprint,
            "heads": list(self.space.heads),
            "space": self.space.to_mapping(),
            "fit": fit,
            "search": search,
            "arithmetic": [self.encoder.device.type, self.encoder.precision],
            "states": {"source": states.source, "dtype": states.dtype} | to_mapping(selection),
        }

    def _trial(self, trial: "Trial", states: StatesConfig) -> Row:
        candidate, latest = trial.candidate, {}

        def on_epoch(epoch: int, scores: Mapping[str, float]) -> bool:
            latest.update({name: score for name, score in scores.items() if math.isfinite(score)})
            return trial.report(epoch, fmean(latest.values())) if latest else False

        row: Row = {"head": candidate.head, "values": candidate.values, "folder": trial.folder}
        row["status"] = "diverged"
        try:
            # overwrite: the folder belongs to the search; what lies there is of another one
            stage = self._fit([candidate], trial.folder, states=states, on_epoch=on_epoch, overwrite=True)
        except TrainingError:
            return row
        except torch.OutOfMemoryError:
            return row | {"status": "out of memory"}
        if stage.results["dropped"]:
            return row
        scores = _scores(stage, list(stage.results["heads"]))
        return row | scores | {"status": "pruned" if trial.pruned else "done", "seconds": stage.seconds}

    def _tidy(self, rows: Sequence[Row]) -> None:
        """Delete the heads of all ended trials but the best, which none of the others can become again."""
        best = best_of(rows)
        for row in rows if not self.args.keep_heads else ():
            if row["status"] not in ("running", "killed") and row["number"] != best:
                for head in (self.args.out / row["folder"]).glob("*.seed*"):
                    remove(head)

    # ---- the grid

    def grid(self, parallel: Parallel) -> list[Row]:
        """Fit every combination in one pass over the states."""
        args, candidates = self.args, self.space.grid()
        parallel.on_main(lambda: self._take_folder(GRID))
        logger.info("a grid of %d heads, with %d seeds each", len(candidates), len(args.fit.seeds))
        stage = self._fit(candidates, GRID, states=args.states, overwrite=args.overwrite, parallel=parallel)
        rows = []
        for number, candidate in enumerate(candidates):
            label = parse_head(candidate.head).label
            names = [f"{label}.seed{seed}" for seed in args.fit.seeds]
            row: Row = {"number": number, "values": candidate.values, "head": candidate.head, "score": None}
            row["status"] = "diverged"
            if not {*names} & {*stage.results["dropped"]}:
                row |= {"status": "done", "folder": f"{GRID}/{names[0]}"} | _scores(stage, names)
            rows.append(row)
        return rows

    # ---- results

    def results(self, rows: Sequence[Row], command: str, seconds: float) -> dict[str, Any]:
        args, encoder, best = self.args, self.encoder, best_of(rows)
        about = {"name": self.about["name"], "fingerprint": encoder.fingerprint, "hidden": encoder.hidden}
        about |= {"parameters": encoder.num_parameters, "states": encoder.num_states}
        systems = [self._system(row) | {"best": row["number"] == best} for row in rows]
        splits, device = {"train": self.train, "dev": self.dev}, str(encoder.device)
        found = frame(systems, command, to_mapping(args), about, splits, device, encoder.precision)
        spent = sum(row.get("seconds", 0.0) for row in rows)
        search = None if args.grid else to_mapping(args.search)
        return found | {
            "fit": to_mapping(args.fit) | {"keep": "best", "seconds": spent},
            "seconds": seconds,
            "sweep": {"mode": GRID if args.grid else TRIALS, "search": search}
            | {"heads": list(self.space.heads), "space": self.space.to_mapping()},
        }

    def _system(self, row: Row) -> dict[str, Any]:
        scores, parameters, seeds = row.get("scores") or [], row.get("parameters"), list(self.args.fit.seeds)
        several = len(scores) > 1
        score = {
            "mean": row["score"],
            "sd": stdev(scores) if several else None,
            "per_seed": dict(zip(map(str, seeds), scores, strict=False)) if several else None,
            "interval": None,
        }
        return {key: row.get(key) for key in ("values", "status", "history", "seconds", "folder")} | {
            "name": f"{row['number']:04d}",
            "kind": "head",
            "label": row.get("head", "unknown"),
            "parameters": parameters,
            "percent": None if parameters is None else 100 * parameters / self.encoder.num_parameters,
            "seeds": seeds,
            "scores": {"dev": {self.train.task.metric: score}},
            "epochs": len(row.get("history", [])),
        }


def _scores(stage: RunFolder, names: Sequence[str]) -> Row:
    members = [stage.results["heads"][name] for name in names]
    curves = [[epoch["score"] for epoch in member["history"] if "score" in epoch] for member in members]
    scores = [max(curve) for curve in curves if curve]
    longest = max(map(len, curves), default=0)
    return {
        "score": fmean(scores) if scores else None,
        "scores": scores,
        "history": [fmean(curve[i] for curve in curves if i < len(curve)) for i in range(longest)],
        "seconds": sum(member["seconds"] for member in members),
        "parameters": read_head_config(stage.folder / names[0])["parameters"],
    }
