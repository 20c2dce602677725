"""Sweeps: the best head among many, by dev scores.

Two ways through the same space (train/sweep_space.py):

    trials   one fit each, chosen by optuna from what earlier ones scored, ended early where they fall behind
             (train/search.py); OUT/trials/0007/ is a fit's folder
    grid     every combination in one fit: all heads see each batch once it is there, those of equal shape are computed
             as one (train/group.py); OUT/grid/ is that fit's folder

A trial's score is its best dev score over epochs, the mean over seeds where there are several. Either way gives the
same results, a mapping that OUT/sweep.json holds and report/sweep_page.py shows:

    schema, mode (trials | grid), metric, percent, encoder, train, dev, heads, space, fit, search
    trials   number, values, head, status (done | pruned | diverged | out of memory | killed | running), score,
             scores (of each seed), history (of each epoch), epochs, seconds, parameters, folder
    best     the number of the best one that was trained to its end, null where there is none

A folder holds one of the two, because its results and its report are those of one: the other way is refused there, or
with --overwrite takes its place once it has ended.
"""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bertvision._version import __version__
from bertvision.artifacts import remove, write_json
from bertvision.config import to_mapping
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError, OutputError, TrainingError
from bertvision.heads.base import head_class
from bertvision.heads.files import read_head_config
from bertvision.heads.spec import parse_head
from bertvision.states.config import StatesConfig
from bertvision.states.source import choose_source
from bertvision.train.fit import FitConfig, OnEpoch
from bertvision.train.parallel import ALONE, Parallel
from bertvision.train.run_folder import RunFolder
from bertvision.train.search import TRIALS, Search, SearchConfig, Trial, holds_search, remove_search
from bertvision.train.splits import Split
from bertvision.train.sweep_space import Candidate, Space
from bertvision.train.zoo import fit_zoo

__all__ = ["RESULTS", "SCHEMA", "SweepWork", "best_of", "check_space", "run_grid", "run_trials"]

logger = logging.getLogger(__name__)

SCHEMA = 1
RESULTS = "sweep.json"
GRID = "grid"


@dataclass(frozen=True)
class SweepWork:
    """What all heads of a sweep are fitted and scored on."""

    encoder: Encoder
    train: Split
    dev: Split
    about: dict[str, Any]
    """How a head's folder names the encoder."""
    states: StatesConfig
    fit: FitConfig
    """Settings of the fits; `heads` is what is searched, and the best epoch is kept whatever `keep` says."""
    folder: Path
    keep_heads: bool = False
    """Keep the heads of every trial, not only of the best."""
    overwrite: bool = False

    def fitted(
        self,
        heads: Sequence[str],
        folder: Path,
        *,
        states: StatesConfig,
        overwrite: bool,
        batch_size: int | None = None,
        parallel: Parallel = ALONE,
        on_epoch: OnEpoch | None = None,
    ) -> RunFolder:
        """A fit of these heads, scored on dev after every epoch."""
        config = dataclasses.replace(
            self.fit, heads=tuple(heads), keep="best", batch_size=batch_size or self.fit.batch_size
        )
        return fit_zoo(
            self.encoder,
            self.train,
            folder=folder,
            config=config,
            encoder_about=self.about,
            states=states,
            dev=self.dev,
            overwrite=overwrite,
            parallel=parallel,
            on_epoch=on_epoch,
        )

    def key(self, space: Space, search: SearchConfig) -> dict[str, Any]:
        """Everything trials depend on; how many there are is not part of it."""
        fit = self.fit.identity
        for name in ("heads", "keep"):
            del fit[name]
        selection = self.states.selection.resolved(self.encoder.num_states)
        return {
            "encoder": self.encoder.fingerprint,
            "train": self.train.fingerprint,
            "dev": self.dev.fingerprint,
            "heads": list(space.heads),
            "space": space.to_mapping(),
            "fit": fit,
            "search": {name: value for name, value in to_mapping(search).items() if name != "trials"},
            "arithmetic": [self.encoder.device.type, self.encoder.precision],
            "states": {"source": self.states.source, "dtype": self.states.dtype} | to_mapping(selection),
        }


def check_space(space: Space, fit: FitConfig) -> None:
    """Refuse values no optimiser takes before anything is trained."""
    for candidate in space.corners():
        try:
            fit.optim(parse_head(candidate.head), fit.seeds[0])
        except ConfigError as error:
            raise ConfigError(f"head {candidate.head!r}: {error}") from error


def best_of(trials: Sequence[Mapping[str, Any]]) -> int | None:
    """The number of the best trial that was trained to its end; of equals the first."""
    done = [trial for trial in trials if trial["status"] == "done"]
    return max(done, key=lambda trial: (trial["score"], -trial["number"]))["number"] if done else None


def _check_folder(work: SweepWork, mode: str) -> None:
    """Refuse a folder that the other way through a space was begun in."""
    if work.overwrite:
        return
    if mode == "grid" and holds_search(work.folder):
        raise OutputError(
            f"{work.folder} holds a sweep of trials, whose results --grid would replace: choose another --out, or use "
            "--overwrite to replace it"
        )
    if mode == "trials" and _holds_grid(work.folder):
        raise OutputError(
            f"{work.folder} holds a sweep made with --grid, whose results trials would replace: choose another --out, "
            "or use --overwrite to replace it"
        )


def _holds_grid(folder: Path) -> bool:
    return (folder / GRID / "stage.json").exists()


def _replace_other(work: SweepWork, mode: str) -> None:
    """With --overwrite, delete what was made the other way."""
    if work.overwrite and mode == "grid" and holds_search(work.folder):
        remove_search(work.folder)
    if work.overwrite and mode == "trials" and _holds_grid(work.folder):
        remove(work.folder / GRID / "stage.json")  # first: half of the work must not look whole
        remove(work.folder / GRID)


# ---- trials


def run_trials(work: SweepWork, space: Space, config: SearchConfig) -> dict[str, Any]:
    """Run trials until there are as many as were asked for; other processes may run some of them."""
    _check_folder(work, "trials")
    search = Search(
        work.folder,
        space,
        config,
        key=work.key(space, config),
        seed=work.fit.seed,
        epochs=work.fit.epochs,
        overwrite=work.overwrite,
    )
    states = _states_of_all(work, search)

    def run(trial: Trial) -> tuple[dict[str, Any], float | None]:
        outcome = _run_trial(work, trial, states)
        score = outcome.get("score")
        shown = "" if score is None else f" {score:.4g}"
        logger.info("trial %d: %s, %s%s", trial.number, outcome["head"], outcome["status"], shown)
        _tidy(work, [*search.trials(), {"number": trial.number, "score": None, **outcome}])
        return outcome, score

    search.run(run)
    rows = search.trials()
    _tidy(work, rows)
    return _write(work, space, rows, "trials", to_mapping(config))


def _states_of_all(work: SweepWork, search: Search) -> StatesConfig:
    """Where the states of every trial come from: chosen once, as they are read in all trials.

    A copy in memory would be made anew for each trial, so `auto` does not consider one.
    """
    train = work.train
    states = train.states(work.states)
    if states.source != "auto":
        return states
    possible = dataclasses.replace(states, memory_gb=0.0)
    if train.task.unit == "window" and all(
        head_class(parse_head(head).name).cls_only for head in search.space.heads
    ):
        possible = dataclasses.replace(possible, positions="cls")  # as the fits will do
    chosen = search.choose(
        "states",
        lambda: choose_source(
            work.encoder,
            train.windows,
            possible,
            label="states of train",
            passes=work.fit.epochs * search.config.trials,
            origin=train.origin,
            store=train.store,
        ),
    )
    return dataclasses.replace(states, source=chosen)


def _run_trial(work: SweepWork, trial: Trial, states: StatesConfig) -> dict[str, Any]:
    """Fit one candidate and report its dev scores epoch by epoch; returns its outcome."""
    candidate, folder = trial.candidate, trial.folder
    latest: dict[str, float] = {}

    def on_epoch(epoch: int, scores: Mapping[str, float]) -> bool:
        latest.update({name: score for name, score in scores.items() if math.isfinite(score)})
        return trial.report(epoch, fmean(latest.values())) if latest else False

    outcome: dict[str, Any] = {"head": candidate.head, "values": candidate.values}
    outcome["folder"] = str(folder.relative_to(work.folder))
    try:
        stage = work.fitted(
            [candidate.head],
            folder,
            batch_size=candidate.batch_size,
            states=states,
            on_epoch=on_epoch,
            overwrite=True,  # the folder is the search's own; what lies there is of another one
        )
    except TrainingError:
        return outcome | {"status": "diverged"}
    except torch.OutOfMemoryError:
        return outcome | {"status": "out of memory"}
    if stage.results["dropped"]:
        return outcome | {"status": "diverged"}
    found = _row(candidate, list(stage.results["heads"]), stage.results, folder)
    status = "pruned" if trial.pruned else "done"
    return outcome | found | {"status": status, "seconds": stage.seconds}


def _tidy(work: SweepWork, rows: Sequence[Mapping[str, Any]]) -> None:
    """Delete the heads of all ended trials but the best; a trial that was passed never comes first again."""
    if work.keep_heads:
        return
    best = best_of(rows)
    for row in rows:
        if row["status"] != "running" and row["number"] != best:
            for head in (work.folder / TRIALS / f"{row['number']:04d}").glob("*.seed*"):
                remove(head)


# ---- the grid


def run_grid(work: SweepWork, space: Space, parallel: Parallel = ALONE) -> dict[str, Any]:
    """Fit every combination in one pass over the states."""
    candidates = space.grid()
    parallel.on_main(lambda: _check_folder(work, "grid"))
    logger.info("a grid of %d heads, with %d seeds each", len(candidates), len(work.fit.seeds))
    folder = work.folder / GRID
    heads = [candidate.head for candidate in candidates]
    stage = work.fitted(heads, folder, states=work.states, overwrite=work.overwrite, parallel=parallel)
    rows = []
    for number, candidate in enumerate(candidates):
        label = parse_head(candidate.head).label
        names = [f"{label}.seed{seed}" for seed in work.fit.seeds]
        row: dict[str, Any] = {"number": number, "values": candidate.values, "head": candidate.head}
        row |= {"status": "diverged", "score": None, "history": [], "epochs": 0, "folder": GRID}
        if not set(names) & set(stage.results["dropped"]):
            row |= {"status": "done"} | _row(candidate, names, stage.results, folder)
        rows.append(row)
    return parallel.on_main(lambda: _write(work, space, rows, "grid", None))


# ---- results


def _row(
    candidate: Candidate, names: Sequence[str], results: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """What the seeds of one candidate scored."""
    members = [results["heads"][name] for name in names if name in results["heads"]]
    curves = [[epoch["score"] for epoch in member["history"] if "score" in epoch] for member in members]
    scores = [max(curve) for curve in curves if curve]
    longest = max((len(curve) for curve in curves), default=0)
    history = [fmean(curve[i] for curve in curves if i < len(curve)) for i in range(longest)]
    return {
        "score": fmean(scores) if scores else None,
        "scores": scores,
        "history": history,
        "epochs": longest,
        "seconds": sum(member["seconds"] for member in members),
        "parameters": read_head_config(folder / names[0])["parameters"],
    }


def _write(
    work: SweepWork, space: Space, rows: list[dict[str, Any]], mode: str, search: dict[str, Any] | None
) -> dict[str, Any]:
    """Put the results together and at OUT/sweep.json."""
    _replace_other(work, mode)
    fit = to_mapping(work.fit) | {"keep": "best"}
    del fit["heads"]
    task = work.train.task
    results = {
        "schema": SCHEMA,
        "bertvision": __version__,
        "mode": mode,
        "task": task.kind,
        "metric": task.metric,
        "title": task.title(task.metric),
        "percent": task.metrics[task.metric].percent,
        "encoder": {"name": work.about["name"], "fingerprint": work.encoder.fingerprint},
        "train": work.train.describe(),
        "dev": work.dev.describe(),
        "heads": list(space.heads),
        "space": space.to_mapping(),
        "fit": fit,
        "search": search,
        "trials": rows,
        "best": best_of(rows),
    }
    write_json(work.folder / RESULTS, results)
    return results
