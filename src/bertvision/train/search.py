"""A search over trials: optuna chooses them, several processes may share them, and a killed one is continued.

FOLDER/study.db        optuna's storage (SQLite): values, scores and states of all trials, settings of the search
FOLDER/trials/0007/    the fit of trial 7 (train/zoo.py), with 0007.lock beside it

A process locks the trial it runs, and the lock ends with the process: whoever finds a running trial unlocked continues
it from its checkpoint before it begins a new one. A new trial follows from the seed, its number and the trials known by
then, so one process that is killed and started again makes the trials it would have made undisturbed.
"""

import importlib.util
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertvision.artifacts import disk_trouble, remove
from bertvision.errors import ArtifactError, ConfigError, OutputError

if TYPE_CHECKING:
    import optuna
    from filelock import FileLock

    from bertvision.train.space import Candidate, Space, Value


DATABASE = "study.db"
TRIALS = "trials"
WAIT = 1.0
"""Seconds between two looks at trials that other processes run."""
ATTEMPTS = 6
"""How often a trial is begun or continued: its process may need more memory than there is."""
_REDUCTION = 3
"""Of the trials at an epoch, successive halving lets one in so many continue."""


@dataclass(frozen=True)
class SearchConfig:
    """How trials are chosen and which are ended early."""

    trials: int = 40
    """Trials in all, including those of other processes and earlier runs."""
    sampler: Literal["tpe", "random"] = "tpe"
    """tpe: trials near the good ones; random: all of them drawn, to compare with."""
    startup: int = 10
    """Trials that are drawn at random before tpe and the pruner have enough to go by."""
    pruner: Literal["median", "halving", "none"] = "median"
    """median: end a trial whose best dev score so far is below the median of others at its epoch; halving: let only
    the best third continue after epochs 1, 3, 9, ...; none: train all to the end."""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"--trials must be at least 1, not {self.trials}")
        if self.startup < 0:
            raise ConfigError(f"--startup must not be negative, not {self.startup}")


def check_optuna() -> None:
    """Refuse a search where optuna is not installed; it is not imported."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            "a search over trials needs optuna: run `pip install 'bertvision[sweep]'`, or use --grid, which does not"
        )


class Trial:
    """A trial that this process runs."""

    def __init__(self, trial: "optuna.Trial", search: "Search", lock: "FileLock") -> None:
        self.stored, self.lock, self._epochs = trial, lock, search.epochs
        self.number = trial.number
        self.folder = search.folder / TRIALS / f"{self.number:04d}"
        self.candidate = _suggest(trial, search.space)
        self.pruned = bool(trial.user_attrs.get("pruned"))
        """Whether it was ended early; stored before its weights are saved, so that a kill cannot hide it."""

    def report(self, epoch: int, score: float) -> bool:
        """Record the score after an epoch; returns whether the trial should end."""
        with warnings.catch_warnings():
            # Of an epoch that is trained again after a kill, optuna keeps the first score.
            warnings.filterwarnings("ignore", message=".*already reported", category=UserWarning)
            self.stored.report(score, epoch)
        if not self.pruned and epoch < self._epochs and self.stored.should_prune():
            self.stored.set_user_attr("pruned", True)
            self.pruned = True
        return self.pruned


class Search:
    """The search of a folder; `key` is everything its trials depend on."""

    def __init__(
        self,
        folder: Path,
        space: "Space",
        config: SearchConfig,
        *,
        key: dict[str, Any],
        seed: int,
        epochs: int,
        overwrite: bool = False,
    ) -> None:
        import optuna
        from filelock import FileLock

        from bertvision.train.run_folder import differences

        self.folder, self.space, self.config, self.seed, self.epochs = folder, space, config, seed, epochs
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._lock = FileLock(folder / ".study.lock")  # one process at a time chooses or ends a trial
        with self._lock:
            self._study = self._open()
            found = self._study.user_attrs.get("key")
            if found is not None and (names := differences(found, key)):
                if not overwrite:
                    raise OutputError(
                        f"{folder} holds a sweep with other settings ({', '.join(names)}): choose another --out, "
                        "or use --overwrite to replace it"
                    )
                remove_search(folder)
                self._study = self._open()
            self._study.set_user_attr("key", key)

    def _open(self) -> "optuna.Study":
        import optuna
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import SQLAlchemyError

        path = self.folder / DATABASE
        try:
            with disk_trouble(self.folder):
                storage = optuna.storages.RDBStorage(
                    f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}}
                )
                return optuna.create_study(
                    storage=storage,
                    study_name="sweep",
                    direction="maximize",
                    pruner=_pruner(self.config),
                    load_if_exists=True,
                )
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
        """Run trials until there are as many as were asked for; a trial whose fit raises stays to be continued.

        Args:
            fit: Fits a trial; returns its outcome for the report, and its score. Without a score it counts as worse
                than any other.
        """
        while (trial := self._next()) is not None:
            try:
                outcome, score = fit(trial)
                self._end(trial.stored, outcome, None if trial.pruned else score)
            finally:
                trial.lock.release()

    def _next(self) -> Trial | None:
        """An abandoned trial, else a new one; None when there are as many as were asked for and all have ended."""
        from optuna.trial import Trial as Stored

        while True:
            with self._lock:
                trials = self._study.get_trials(deepcopy=False)
                running = [trial for trial in trials if not trial.state.is_finished()]
                for trial in running:
                    if lock := _locked(self.folder, trial.number):
                        self._study.sampler = self._sampler(trial.number)
                        # Attached to what the study holds: it keeps its values and its scores.
                        if found := self._begun(Stored(self._study, trial._trial_id), lock):
                            return found
                if len(trials) < self.config.trials and (lock := _locked(self.folder, len(trials))):
                    self._study.sampler = self._sampler(len(trials))
                    return self._begun(self._study.ask(), lock)
                if not running:
                    return None
            time.sleep(WAIT)  # other processes run the last trials, which may be abandoned yet

    def _begun(self, stored: "optuna.Trial", lock: "FileLock") -> Trial | None:
        """The trial, unless its processes were killed too often."""
        before = stored.user_attrs.get("attempts", 0)
        if before < ATTEMPTS:
            stored.set_user_attr("attempts", before + 1)
            return Trial(stored, self, lock)
        self._end(stored, {"status": "killed"}, None)
        lock.release()
        return None

    def _end(self, stored: "optuna.Trial", outcome: dict[str, Any], score: float | None) -> None:
        from optuna.trial import TrialState

        with self._lock:
            stored.set_user_attr("outcome", outcome)
            self._study.tell(stored, score, state=TrialState.PRUNED if score is None else None)

    def _sampler(self, number: int) -> "optuna.samplers.BaseSampler":
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import RandomSampler, TPESampler

        seed = (self.seed * 1_000_003 + number) % 2**32
        if self.config.sampler == "random":
            return RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            # Trials that other processes run count as bad ones, so that two do not try the same.
            return TPESampler(
                seed=seed, n_startup_trials=self.config.startup, multivariate=True, constant_liar=True
            )

    def trials(self) -> list[dict[str, Any]]:
        """Every trial for the report, in the order of their numbers."""
        rows = []
        for trial in self._study.get_trials(deepcopy=False):
            scores = [trial.intermediate_values[epoch] for epoch in sorted(trial.intermediate_values)]
            row: dict[str, Any] = {"number": trial.number, "values": dict(trial.params), "status": "running"}
            row |= {"history": scores, "score": max(scores, default=None)}
            rows.append(row | trial.user_attrs.get("outcome", {}))
        return rows


def remove_search(folder: Path) -> None:
    """Delete a search and its trials; optuna is not needed."""
    for lock in (folder / TRIALS).glob("*.lock"):
        if not (own := _locked(folder, int(lock.stem))):
            raise OutputError(f"another process works in {folder}: end it before --overwrite")
        own.release()
    with disk_trouble(folder):
        remove(folder / DATABASE)  # first: trials without their settings would belong to nothing
        remove(folder / TRIALS)


def _locked(folder: Path, number: int) -> "FileLock | None":
    """The lock of a trial; None where another process has it."""
    from filelock import FileLock, Timeout

    (folder / TRIALS).mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / TRIALS / f"{number:04d}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def _pruner(config: SearchConfig) -> "optuna.pruners.BasePruner":
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

    if config.pruner == "median":
        return MedianPruner(n_startup_trials=config.startup)
    if config.pruner == "halving":
        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=_REDUCTION)
    return NopPruner()


def _suggest(trial: "optuna.Trial", space: "Space") -> "Candidate":
    """Values for what is varied; a trial that has values keeps them."""
    from bertvision.train.space import Range

    head = space.heads[0] if len(space.heads) == 1 else trial.suggest_categorical("head", space.heads)
    values: dict[str, Value] = {}
    for name, d in space.of(head).items():
        if not isinstance(d, Range):
            values[name] = trial.suggest_categorical(name, d)  # pyright: ignore[reportArgumentType]
            continue
        high = float(d.grid[-1]) if d.step else d.high  # optuna warns of a last step that is cut short
        if d.whole:
            values[name] = trial.suggest_int(name, int(d.low), int(high), step=int(d.step) or 1, log=d.log)
        else:
            values[name] = trial.suggest_float(name, d.low, high, step=d.step or None, log=d.log)
    return space.candidate(head, values)
