"""A search over trials: optuna chooses them, several processes may share them, and a killed one is continued.

FOLDER/study.db        optuna's storage (SQLite): values, scores and states of all trials, settings of the search
FOLDER/trials/0007/    the fit of trial 7 (train/zoo.py)

Every process that runs a trial writes a heartbeat. A trial without one is put back into the queue with its values and
its scores, and whoever takes it continues from its checkpoint; so a trial is a chain of attempts with one folder. A new
trial follows from the seed, its number and the trials known by then: one process that is killed and started again makes
the trials it would have made undisturbed.
"""

import importlib.util
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertvision.artifacts import disk_trouble, remove
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.train.run_folder import differences

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from bertvision.train.sweep_space import Candidate, Dimension, Space, Value

__all__ = ["Search", "SearchConfig", "Trial", "check_optuna", "holds_search", "remove_search"]

logger = logging.getLogger(__name__)

DATABASE = "study.db"
TRIALS = "trials"
HEARTBEAT, GRACE = 10, 30
"""Seconds between two signs of life, and after how many without one a trial counts as abandoned."""
ATTEMPTS = 5
"""How often an abandoned trial is continued: its process may need more memory than there is."""
_BEGUN = "begun"
"""Attribute of a trial whose process has sent a heartbeat."""
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


def holds_search(folder: Path) -> bool:
    """Whether trials were begun in this folder."""
    return (folder / DATABASE).exists()


def remove_search(folder: Path) -> None:
    """Delete a search and its trials; optuna is not needed."""
    with disk_trouble(folder):
        remove(folder / DATABASE)  # first: trials without their settings would belong to nothing
        remove(folder / TRIALS)


class Trial:
    """A trial that this process runs."""

    def __init__(self, trial: "optuna.Trial", search: "Search") -> None:
        self._trial, self._epochs = trial, search.epochs
        trials = trial.study.get_trials(deepcopy=False)
        frozen = trials[trial.number]
        self.number = next(number for number, chain in enumerate(_chains(trials)) if frozen in chain)
        self.folder = search.folder / TRIALS / f"{self.number:04d}"
        self.candidate = search.suggest(trial)
        self._reported = set(frozen.intermediate_values)
        self.pruned = bool(frozen.user_attrs.get("pruned"))
        """Whether it was ended early; kept before its weights are saved, so that a kill cannot hide it."""

    def report(self, epoch: int, score: float) -> bool:
        """Record the score after an epoch; returns whether the trial should end."""
        if epoch not in self._reported:  # an epoch that is trained again after a kill is reported already
            self._trial.report(score, epoch)
            self._reported.add(epoch)
        if not self.pruned and epoch < self._epochs and self._trial.should_prune():
            self._trial.set_user_attr("pruned", True)
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

        self.folder, self.space, self.config, self.seed, self.epochs = folder, space, config, seed, epochs
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = self._open()
        self._wait_for_abandoned()
        found = self._study.user_attrs.get("key")
        if found is not None and (names := differences(found, key)):
            if not overwrite:
                raise OutputError(
                    f"{folder} holds a sweep with other settings ({', '.join(names)}): choose another --out, "
                    "or use --overwrite to replace it"
                )
            if self._running():
                raise OutputError(f"another process works in {folder}: end it before --overwrite")
            remove_search(folder)
            self._study = self._open()
        self._study.set_user_attr("key", key)

    def _open(self) -> "optuna.Study":
        import optuna
        from filelock import FileLock
        from optuna.exceptions import StorageInternalError
        from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
        from sqlalchemy.exc import SQLAlchemyError

        path = self.folder / DATABASE
        try:
            # Processes that begin together must not create the tables at the same moment.
            with _quiet(), disk_trouble(self.folder), FileLock(self.folder / ".study.lock"):
                storage = RDBStorage(
                    f"sqlite:///{path}",
                    engine_kwargs={"connect_args": {"timeout": 60}},
                    heartbeat_interval=HEARTBEAT,
                    grace_period=GRACE,
                    heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(
                        max_retry=ATTEMPTS, inherit_intermediate_values=True
                    ),
                )
                return optuna.create_study(
                    storage=storage,
                    study_name="sweep",
                    direction="maximize",
                    pruner=self._pruner(),
                    load_if_exists=True,
                )
        except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            raise ArtifactError(
                f"{path} cannot be read ({why}): restore it from a copy, or begin anew with --overwrite"
            ) from error

    def _running(self) -> bool:
        return any(row["status"] == "running" for row in self.trials())

    def _wait_for_abandoned(self) -> None:
        """Give the processes of running trials time for a sign of life, then queue the others again."""
        if self._running():
            logger.info("unfinished trials: waiting %d s for a sign of life of their processes", GRACE + 1)
            time.sleep(GRACE + 1)
        self._queue_abandoned()

    def _queue_abandoned(self) -> None:
        """Queue the trials again that no process runs any more."""
        from datetime import datetime, timedelta

        import optuna
        from optuna.trial import TrialState

        with _quiet():
            optuna.storages.fail_stale_trials(self._study)
            for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
                # A process that was killed before its first heartbeat leaves a trial that never goes stale.
                age = datetime.now() - (trial.datetime_start or datetime.now())
                if _BEGUN not in trial.user_attrs and age > timedelta(seconds=GRACE):
                    self._study.tell(trial.number, state=TrialState.FAIL)
                    self._queue_again(trial)

    def _queue_again(self, trial: "FrozenTrial") -> None:
        import optuna

        with _quiet():
            retry = optuna.storages.RetryHeartbeatStaleTrialCallback(
                max_retry=ATTEMPTS, inherit_intermediate_values=True
            )
            retry(self._study, trial)

    def choose(self, name: str, make: Callable[[], Any]) -> Any:
        """The choice that was made for all trials; made now if there is none."""
        found = self._study.user_attrs.get(name)
        if found is None:
            found = make()
            self._study.set_user_attr(name, found)
        return found

    def run(self, work: Callable[[Trial], tuple[dict[str, Any], float | None]]) -> None:
        """Run trials until there are as many as were asked for.

        Args:
            work: Fits a trial; returns its outcome for the report, and its score. Without a score it counts as worse
                than any other.
        """
        import optuna

        class Surplus(Exception):
            """Another process took the last trial at the same moment."""

        def objective(trial: optuna.Trial) -> float:
            frozen = self._study.get_trials(deepcopy=False)
            if (
                self._counted(frozen[: trial.number]) >= self.config.trials
                and "failed_trial" not in frozen[trial.number].system_attrs
            ):
                raise Surplus
            trial.set_user_attr(_BEGUN, True)
            mine = Trial(trial, self)
            try:
                outcome, score = work(mine)
            except KeyboardInterrupt:
                self._queue_again(self._study.get_trials()[trial.number])
                raise
            trial.set_user_attr("outcome", outcome)
            if score is None or mine.pruned:
                raise optuna.TrialPruned
            return score

        with _quiet():
            while True:
                trials = self._study.get_trials(deepcopy=False)
                waiting = any(trial.state.name == "WAITING" for trial in trials)
                if self._counted(trials) >= self.config.trials and not waiting:
                    if not self._running():
                        return
                    time.sleep(HEARTBEAT)  # the last ones may be abandoned by their processes
                    self._queue_abandoned()
                    continue
                self._study.sampler = self._sampler(self._counted(trials))
                self._study.optimize(objective, n_trials=1, catch=(Surplus,))

    @staticmethod
    def _counted(trials: "list[FrozenTrial]") -> int:
        """Trials that count: chains of attempts, without those that were never run to an outcome."""
        return sum(1 for chain in _chains(trials) if _status(chain) != "failed")

    def suggest(self, trial: "optuna.Trial") -> "Candidate":
        """Values for what is varied; a trial that has values keeps them."""
        heads = self.space.heads
        head = heads[0] if len(heads) == 1 else trial.suggest_categorical("head", heads)
        values = {name: _draw(trial, name, d) for name, d in self.space.of(head).items()}
        return self.space.candidate(head, values)

    def _sampler(self, number: int) -> "optuna.samplers.BaseSampler":
        from optuna.samplers import RandomSampler, TPESampler

        seed = (self.seed * 1_000_003 + number) % 2**32
        if self.config.sampler == "random":
            return RandomSampler(seed=seed)
        # Trials that other processes run count as bad ones, so that two do not try the same.
        return TPESampler(
            seed=seed, n_startup_trials=self.config.startup, multivariate=True, constant_liar=True
        )

    def _pruner(self) -> "optuna.pruners.BasePruner":
        from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

        if self.config.pruner == "median":
            return MedianPruner(n_startup_trials=self.config.startup)
        if self.config.pruner == "halving":
            return SuccessiveHalvingPruner(min_resource=1, reduction_factor=_REDUCTION)
        return NopPruner()

    def trials(self) -> list[dict[str, Any]]:
        """Every trial for the report, in the order of their numbers."""
        rows = []
        for number, chain in enumerate(_chains(self._study.get_trials(deepcopy=False))):
            last = chain[-1]
            if _status(chain) == "failed":
                continue
            row: dict[str, Any] = {"number": number, "values": dict(last.params), "status": _status(chain)}
            scores = [last.intermediate_values[epoch] for epoch in sorted(last.intermediate_values)]
            row |= {"history": scores, "epochs": len(scores), "score": max(scores, default=None)}
            rows.append(row | last.user_attrs.get("outcome", {}))
        return rows


def _chains(trials: "list[FrozenTrial]") -> "list[list[FrozenTrial]]":
    """All attempts at each trial, in the order of the first ones."""
    chains: dict[int, list[FrozenTrial]] = {}
    for trial in trials:
        chains.setdefault(trial.system_attrs.get("failed_trial", trial.number), []).append(trial)
    return list(chains.values())


def _status(chain: "list[FrozenTrial]") -> str:
    last = chain[-1]
    if "outcome" in last.user_attrs:
        return str(last.user_attrs["outcome"].get("status"))
    if last.state.name != "FAIL":
        return "running"
    return "killed" if len(chain) > ATTEMPTS else "failed"


def _draw(trial: "optuna.Trial", name: str, dimension: "Dimension") -> "Value":
    from bertvision.train.sweep_space import Choices

    if isinstance(dimension, Choices):
        return trial.suggest_categorical(name, dimension.values)  # pyright: ignore[reportReturnType]
    low, high, log = dimension.low, dimension.high, dimension.log
    if dimension.whole:
        return trial.suggest_int(name, int(low), int(high), step=int(dimension.step) or 1, log=log)
    return trial.suggest_float(name, low, high, step=dimension.step or None, log=log)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without optuna's remarks on functions that may change and on steps that do not end at `high`."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", message=".*not divisible by", category=UserWarning)
        yield
