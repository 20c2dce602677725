"""Sweeps: the best head among many, by dev scores.

Two ways through the same space (train/space.py):

    trials   one fit each, chosen by optuna from what earlier ones scored, ended early where they fall behind
             (train/search.py); OUT/trials/0007/ is a fit's folder
    grid     every combination in one fit: all heads see each batch once it is there, those of equal shape are computed
             as one (train/group.py); OUT/grid/ is that fit's folder

A trial's score is its best dev score over epochs, the mean over seeds where there are several. Either way gives the
results.json of a run (pipeline/results.py) with a system for each candidate, which has these keys more

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
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch

from bertvision.artifacts import check_output, output_folder, remove, write_json
from bertvision.config import to_mapping
from bertvision.encoder.device import choose_device
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import check_apart
from bertvision.errors import ConfigError, OutputError, TrainingError
from bertvision.heads.files import read_head_config
from bertvision.heads.spec import HeadSpec, parse_head
from bertvision.pipeline.results import frame
from bertvision.pipeline.sweep_config import SweepConfig
from bertvision.report.results import RESULTS_FILE
from bertvision.report.run import write_page
from bertvision.states.config import StatesConfig
from bertvision.states.source import choose_source
from bertvision.train.config import FitConfig
from bertvision.train.parallel import Parallel, rank_and_world
from bertvision.train.run_folder import RunFolder
from bertvision.train.search import DATABASE, TRIALS, Search, Trial, check_optuna, remove_search
from bertvision.train.space import Candidate, Space, read_space
from bertvision.train.splits import Split, load_split
from bertvision.train.zoo import encoder_reference, fit_zoo, suited, zoo_members

logger = logging.getLogger(__name__)

GRID = "grid"

Row = dict[str, Any]
"""A candidate: number, head, values, status, score, scores (of each seed), history (of each epoch), folder, ..."""


@dataclass(frozen=True)
class _Sweep:
    config: SweepConfig
    encoder: Encoder
    about: dict[str, Any]
    """How a head's folder names the encoder."""
    train: Split
    dev: Split
    space: Space
    members: Sequence[tuple[str, HeadSpec, int]]
    """Heads that stand for all candidates."""

    def fit(
        self, candidates: Sequence[Candidate], name: str, *, states: StatesConfig, **more: Any
    ) -> RunFolder:
        """A fit of these candidates in OUT/`name`, scored on dev after every epoch."""
        heads = tuple(candidate.head for candidate in candidates)
        config = dataclasses.replace(self.config.fit, heads=heads, keep="best")
        if batch_size := candidates[0].batch_size:
            config = dataclasses.replace(config, batch_size=batch_size)
        return fit_zoo(
            self.encoder,
            self.train,
            folder=self.config.out / name,
            config=config,
            encoder_about=self.about,
            states=states,
            dev=self.dev,
            **more,
        )

    @property
    def key(self) -> dict[str, Any]:
        """Everything trials depend on; how many there are is not part of it."""
        fit, states = self.config.fit.identity, self.config.states
        for name in ("heads", "keep"):
            del fit[name]
        search = to_mapping(self.config.search)
        del search["trials"]
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


def sweep(config: SweepConfig, *, command: str = "") -> dict[str, Any]:
    """Do the whole search; returns what results.json holds. Of several processes each calls it."""
    for name, value in (("train", config.train), ("dev", config.dev)):
        if not value:
            raise ConfigError(f"--{name} is missing: a sweep fits heads on --train and scores them on --dev")
    if config.dev.startswith("store:"):
        raise ConfigError(f"--dev {config.dev} has no examples to score: name the data")
    if not config.grid:
        check_optuna()
        if rank_and_world()[1] > 1:
            raise ConfigError(
                "trials are not run by accelerate launch or torchrun: give the command once for each device, they "
                "share the study in --out"
            )
    with Parallel.start(choose_device(config.device)) as parallel:
        return _sweep(config, command, parallel)


def _sweep(config: SweepConfig, command: str, parallel: Parallel) -> dict[str, Any]:
    began = time.monotonic()
    parallel.on_main(lambda: check_output(config.out))
    folder, about = encoder_reference(config.encoder)
    if config.overwrite:
        check_apart(folder, config.out)
    encoder = Encoder.load(folder, device=config.device, precision=config.precision)
    train = load_split(
        config.train, encoder, config.windows, max_examples=config.max_train_examples, stores=config.states.store,
        text=config.text,
    )  # fmt: skip
    dev = load_split(config.dev, encoder, train.config, max_examples=config.max_dev_examples, like=train)
    space = read_space(config.fit.heads, config.space, config.vary, unit=train.task.unit)
    work = _Sweep(config, encoder, about, train, dev, space, check_space(space, config.fit, train.task))
    rows = _grid(work, parallel) if config.grid else _trials(work)
    results = _results(work, rows, command, time.monotonic() - began)
    parallel.on_main(lambda: write_json(config.out / RESULTS_FILE, results))
    parallel.on_main(lambda: write_page(results, config.out / "report.html"))
    return results


def check_space(space: Space, fit: FitConfig, task: Any) -> list[tuple[str, HeadSpec, int]]:
    """Refuse values that no head or optimiser takes before anything is trained."""
    heads = tuple(dict.fromkeys(candidate.head for candidate in space.corners()))
    return zoo_members(dataclasses.replace(fit, heads=heads), task)


def best_of(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The number of the best candidate that was trained to its end; of equals the first."""
    done = [row for row in rows if row["status"] == "done"]
    return max(done, key=lambda row: (row["score"], -row["number"]))["number"] if done else None


def _take_folder(config: SweepConfig) -> None:
    """Refuse a folder with a sweep of the other way, or delete that with --overwrite."""
    other, way = (DATABASE, "trials") if config.grid else (f"{GRID}/stage.json", "--grid")
    if not (config.out / other).exists():
        return
    if not config.overwrite:
        raise OutputError(
            f"{config.out} holds a sweep of {way}: choose another --out, or use --overwrite to replace it"
        )
    if config.grid:
        remove_search(config.out)
    else:
        remove(config.out / GRID)


# ---- trials


def _trials(work: _Sweep) -> list[Row]:
    """Run trials until there are as many as were asked for; other processes may run some of them."""
    config = work.config
    output_folder(config.out)
    _take_folder(config)
    search = Search(
        config.out,
        work.space,
        config.search,
        key=work.key,
        seed=config.fit.seed,
        epochs=config.fit.epochs,
        overwrite=config.overwrite,
    )
    states = _states_of_all(work, search)

    def run(trial: Trial) -> tuple[Row, float | None]:
        row = {"number": trial.number, "score": None} | _fit_trial(work, trial, states)
        shown = "" if row["score"] is None else f" {row['score']:.4g}"
        logger.info("trial %d: %s, %s%s", row["number"], row["head"], row["status"], shown)
        _tidy(work, [*search.trials(), row])
        return row, row["score"]

    search.run(run)
    rows = search.trials()
    _tidy(work, rows)
    return rows


def _states_of_all(work: _Sweep, search: Search) -> StatesConfig:
    """Where the states of every trial come from: chosen once, as they are read in all trials.

    A copy in memory would be made anew for each trial, so `auto` does not consider one.
    """
    train, config = work.train, work.config
    states = train.states(config.states)
    if states.source != "auto":
        return states
    possible = suited(dataclasses.replace(states, memory_gb=0.0), work.members, train.task)
    chosen = search.choose(
        "states",
        lambda: choose_source(
            work.encoder,
            train.windows,
            possible,
            label="states of train",
            passes=config.fit.epochs * config.search.trials,
            origin=train.origin,
            store=train.store,
        ),
    )
    return dataclasses.replace(states, source=chosen)


def _fit_trial(work: _Sweep, trial: Trial, states: StatesConfig) -> Row:
    """Fit one candidate and report its dev scores epoch by epoch."""
    candidate, latest = trial.candidate, {}

    def on_epoch(epoch: int, scores: Mapping[str, float]) -> bool:
        latest.update({name: score for name, score in scores.items() if math.isfinite(score)})
        return trial.report(epoch, fmean(latest.values())) if latest else False

    name = f"{TRIALS}/{trial.folder.name}"
    row = {"head": candidate.head, "values": candidate.values, "folder": name}
    try:
        # overwrite: the folder belongs to the search; what lies there is of another one
        stage = work.fit([candidate], name, states=states, on_epoch=on_epoch, overwrite=True)
    except TrainingError:
        return row | {"status": "diverged"}
    except torch.OutOfMemoryError:
        return row | {"status": "out of memory"}
    if stage.results["dropped"]:
        return row | {"status": "diverged"}
    status = "pruned" if trial.pruned else "done"
    return row | _scores(stage, list(stage.results["heads"])) | {"status": status, "seconds": stage.seconds}


def _tidy(work: _Sweep, rows: Sequence[Row]) -> None:
    """Delete the heads of all ended trials but the best; a trial that was passed never comes first again."""
    best = best_of(rows)
    for row in rows if not work.config.keep_heads else ():
        if row["status"] != "running" and row["number"] != best:
            for head in (work.config.out / TRIALS / f"{row['number']:04d}").glob("*.seed*"):
                remove(head)


# ---- the grid


def _grid(work: _Sweep, parallel: Parallel) -> list[Row]:
    """Fit every combination in one pass over the states."""
    config, candidates = work.config, work.space.grid()
    parallel.on_main(lambda: _take_folder(config))
    logger.info("a grid of %d heads, with %d seeds each", len(candidates), len(config.fit.seeds))
    stage = work.fit(candidates, GRID, states=config.states, overwrite=config.overwrite, parallel=parallel)
    rows = []
    for number, candidate in enumerate(candidates):
        label = parse_head(candidate.head).label
        names = [f"{label}.seed{seed}" for seed in config.fit.seeds]
        row: Row = {"number": number, "values": candidate.values, "head": candidate.head}
        row |= {"status": "diverged", "score": None}
        if not set(names) & set(stage.results["dropped"]):
            row |= {"status": "done", "folder": f"{GRID}/{names[0]}"} | _scores(stage, names)
        rows.append(row)
    return rows


# ---- results


def _scores(stage: RunFolder, names: Sequence[str]) -> Row:
    """What the seeds of one candidate scored."""
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


def _results(work: _Sweep, rows: Sequence[Row], command: str, seconds: float) -> dict[str, Any]:
    config, encoder = work.config, work.encoder
    about = {
        "name": work.about["name"],
        "fingerprint": encoder.fingerprint,
        "parameters": encoder.num_parameters,
    }
    about |= {"states": encoder.num_states, "hidden": encoder.hidden}
    systems, best = [_system(work, row) for row in rows], best_of(rows)
    for row, system in zip(rows, systems, strict=True):
        system["best"] = row["number"] == best
    splits, device = {"train": work.train, "dev": work.dev}, str(encoder.device)
    found = frame(systems, command, to_mapping(config), about, splits, device, encoder.precision)
    mode = {"mode": "trials", "search": to_mapping(config.search)}
    space = {"heads": list(work.space.heads), "space": work.space.to_mapping()}
    return found | {
        "fit": to_mapping(config.fit)
        | {"keep": "best", "seconds": sum(row.get("seconds", 0.0) for row in rows)},
        "seconds": seconds,
        "sweep": ({"mode": "grid", "search": None} if config.grid else mode) | space,
    }


def _system(work: _Sweep, row: Row) -> dict[str, Any]:
    scores, parameters, seeds = row.get("scores") or [], row.get("parameters"), list(work.config.fit.seeds)
    several = len(scores) > 1
    score = {
        "mean": row["score"],
        "sd": stdev(scores) if several else None,
        "per_seed": dict(zip(map(str, seeds), scores, strict=False)) if several else None,
        "interval": None,
    }
    kept = {key: row.get(key) for key in ("values", "status", "history", "seconds", "folder")}
    return kept | {
        "name": f"{row['number']:04d}",
        "kind": "head",
        "label": row.get("head", "unknown"),
        "parameters": parameters,
        "percent": None if parameters is None else 100 * parameters / work.encoder.num_parameters,
        "seeds": seeds,
        "scores": {"dev": {work.train.task.metric: score}},
        "epochs": len(row.get("history", [])),
    }
