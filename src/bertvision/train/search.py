"""Trials of a sweep, with optuna's storage, samplers, pruners, heartbeat and retry.

FOLDER/study.db        optuna's storage (SQLite): values, scores and states of all trials, settings of the search
FOLDER/trials/0007/    the fit of trial 7 (train/zoo.py)

Processes that are given the same command share the study. A trial whose process is gone sends no heartbeat any more:
optuna queues it again with its values and scores, and it goes on from the checkpoint in its folder. The values of a new
trial follow from the seed, its number and the trials known by then.
"""

import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from bertvision.artifacts import disk_trouble, remove
from bertvision.errors import ArtifactError, BertvisionError, OutputError
from bertvision.train.config import SearchConfig
from bertvision.train.run_folder import differences, lock_folder
from bertvision.train.space import DATABASE, TRIALS, Candidate, Range, Space, Value

logger = logging.getLogger(__name__)

HEARTBEAT, GRACE = 5, 20
"""Seconds between two signs of life of a trial, and without one until it counts as left behind."""
ATTEMPTS = 6  # how often a trial is begun or continued: its process may need more memory than there is
_REDUCTION = 3  # of the trials at an epoch, successive halving lets one in so many continue


class Trial:
    """A trial that this process runs."""

    def __init__(self, trial: optuna.Trial, number: int, search: "Search") -> None:
        self.number, self._stored, self._epochs = number, trial, search.epochs
        self.folder = f"{TRIALS}/{number:04d}"
        self.candidate = _suggest(trial, search.space)
        self.pruned = bool(trial.user_attrs.get("pruned"))
        """Whether it was ended early; stored before its weights are saved, so that a kill cannot hide it."""

    def report(self, epoch: int, score: float) -> bool:
        """Record the score after an epoch; returns whether the trial should end."""
        self._stored.report(score, epoch)
        if not self.pruned and epoch < self._epochs and self._stored.should_prune():
            self._stored.set_user_attr("pruned", True)
            self.pruned = True
        return self.pruned


class Search:
    """The search of a folder; `key` is everything its trials depend on."""

    def __init__(
        self,
        folder: Path,
        space: Space,
        config: SearchConfig,
        *,
        key: dict[str, Any],
        seed: int,
        epochs: int,
        overwrite: bool = False,
    ) -> None:
        self.folder, self.space, self.config, self.seed, self.epochs = folder, space, config, seed, epochs
        self._lock = FileLock(folder / ".study.lock")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=ExperimentalWarning)
        # Of an epoch that is trained again after a kill, optuna keeps the first score.
        warnings.filterwarnings("ignore", message=".*already reported", category=UserWarning)
        self._retry = RetryHeartbeatStaleTrialCallback(ATTEMPTS - 1, inherit_intermediate_values=True)
        with self._lock:
            self._study = self._open()
            if names := differences(self._study.user_attrs.get("key", key), key):
                if not overwrite:
                    raise OutputError(
                        f"{folder} holds a sweep with other settings ({', '.join(names)}): choose another --out, "
                        "or use --overwrite to replace it"
                    )
                for trial in (folder / TRIALS).glob("*"):
                    lock_folder(trial)  # refuses while another process fits it
                with disk_trouble(folder):
                    remove(folder / DATABASE)  # first: trials without their settings would belong to nothing
                    remove(folder / TRIALS)
                self._study = self._open()
            self._study.set_user_attr("key", key)

    def _open(self) -> optuna.Study:
        path = self.folder / DATABASE
        pruners = {
            "median": MedianPruner(n_startup_trials=self.config.startup),
            "halving": SuccessiveHalvingPruner(min_resource=1, reduction_factor=_REDUCTION),
            "none": NopPruner(),
        }
        waits: dict[str, Any] = {"heartbeat_interval": HEARTBEAT, "grace_period": GRACE}
        waits |= {"engine_kwargs": {"connect_args": {"timeout": 60}}}
        study: dict[str, Any] = {"study_name": "sweep", "direction": "maximize", "load_if_exists": True}
        try:
            with disk_trouble(self.folder):
                storage = RDBStorage(f"sqlite:///{path}", heartbeat_stale_trial_callback=self._retry, **waits)
                return optuna.create_study(storage=storage, pruner=pruners[self.config.pruner], **study)
        except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            raise ArtifactError(
                f"{path} cannot be read ({why}): restore it from a copy, or begin anew with --overwrite"
            ) from error

    def choose(self, name: str, make: Callable[[], Any]) -> Any:
        """The choice that was made for all trials; made now if there is none."""
        with self._lock:
            if name not in self._study.user_attrs:
                self._study.set_user_attr(name, make())
            return self._study.user_attrs[name]

    def run(self, fit: Callable[[Trial], tuple[dict[str, Any], float | None]]) -> None:
        """Run trials until as many as were asked for have begun; a trial whose fit raises is queued again.

        `fit` returns a trial's outcome for the report, and its score; without a score it counts as worse than any
        other.
        """
        number = 0

        def objective(stored: optuna.Trial) -> float:
            nonlocal number
            number = stored.number
            trial = Trial(stored, [one.number for one in self._latest()].index(number), self)
            self._lock.release()  # it was held while the values were drawn, so that no two processes draw alike
            outcome, score = fit(trial)
            stored.set_user_attr("outcome", outcome)
            if score is None or trial.pruned:
                raise optuna.TrialPruned
            return score

        if TrialState.RUNNING in self._states():
            logger.info("a trial runs elsewhere or was left behind: waiting %d s for it", GRACE + 2)
            time.sleep(GRACE + 2)  # the database counts whole seconds
        while True:
            self._lock.acquire()
            try:
                fail_stale_trials(self._study)
                states = self._states()
                if len(states) >= self.config.trials and TrialState.WAITING not in states:
                    return
                self._study.sampler = TPESampler(
                    seed=(self.seed * 1_000_003 + len(states)) % 2**32,
                    n_startup_trials=self.config.startup,
                    multivariate=True,
                    constant_liar=True,  # trials of other processes count as bad ones: no two try the same
                )
                self._study.optimize(objective, n_trials=1)
            except (BertvisionError, KeyboardInterrupt):
                self._retry(self._study, self._study.get_trials()[number])
                raise
            finally:
                self._lock.release()

    def _latest(self) -> list[FrozenTrial]:
        """The last attempt at each trial, in the order of the first ones: a retry has a number of its own in optuna."""
        found: dict[int, FrozenTrial] = {}
        for trial in self._study.get_trials(deepcopy=False):
            first = RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
            found[trial.number if first is None else first] = trial
        return list(found.values())

    def _states(self) -> list[TrialState]:
        return [trial.state for trial in self._latest()]

    def trials(self) -> list[dict[str, Any]]:
        """Every trial for the report, in the order of their numbers."""
        rows = []
        for number, trial in enumerate(self._latest()):
            scores = [score for _, score in sorted(trial.intermediate_values.items())]
            status = "killed" if trial.state == TrialState.FAIL else "running"
            row = {"number": number, "values": dict(trial.params), "status": status}
            row |= {"history": scores, "score": max(scores, default=None)}
            rows.append(row | trial.user_attrs.get("outcome", {}))
        return rows


def _suggest(trial: optuna.Trial, space: Space) -> Candidate:
    """Values for what is varied; a trial that has values keeps them."""
    head = space.heads[0] if len(space.heads) == 1 else trial.suggest_categorical("head", space.heads)
    values: dict[str, Value] = {}
    for name, d in space.of(head).items():
        if isinstance(d, Range):
            suggest: Any = trial.suggest_int if d.whole else trial.suggest_float
            values[name] = d.rounded(suggest(name, d.low, d.high, log=d.log))
        else:
            values[name] = trial.suggest_categorical(name, d)  # pyright: ignore[reportArgumentType]
    return space.candidate(head, values)
