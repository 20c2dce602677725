"""A search over trials that several processes share and that survives being killed.

FOLDER/study.journal   what optuna knows: one line for every suggestion, score and end of a trial; and the
                       settings all of it belongs to
FOLDER/trials/0007/    the fit of trial 7 (train/zoo.py)
FOLDER/.lock           who is at work: byte 0 is held by whoever takes a trial, byte n + 1 by whoever runs trial n

Locks die with their process. So a trial that the journal calls running and that nobody holds was left behind, and the
next who takes a trial goes on with it; and since trials are taken one at a time, there are never more than were asked
for. What a trial tries follows from the seed, its number and the trials known by then: one process, killed and
continued, makes the trials it would have made undisturbed.
"""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertvision.artifacts import disk_trouble, remove
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.states.claims import Claims
from bertvision.states.folder import LocalFolder
from bertvision.train.run_folder import differences
from bertvision.train.sweep_space import Candidate, Choices, Dimension, Space, Value

if TYPE_CHECKING:
    import optuna

__all__ = ["SearchConfig", "SharedStudy", "Trial", "check_optuna", "holds_study", "remove_study"]

logger = logging.getLogger(__name__)

JOURNAL = "study.journal"
TRIALS = "trials"
_NAME = "sweep"
_TURN = 0
"""The byte of the lock that belongs to nobody's trial."""
_TRIES = 5
"""So often a trial is gone on with without a new epoch to show for it."""
_REDUCTION = 3
"""Of the trials at an epoch, successive halving lets one in so many go on."""


@dataclass(frozen=True)
class SearchConfig:
    """How trials are chosen and which are ended early."""

    trials: int = 40
    """Trials in all, those of other processes and earlier runs counted in."""
    sampler: Literal["tpe", "random"] = "tpe"
    """tpe: trials near the good ones; random: all of them drawn, to compare with."""
    startup: int = 10
    """Trials that are drawn before tpe and the pruner have enough to go by."""
    pruner: Literal["median", "halving", "none"] = "median"
    """median: end a trial whose best dev score so far is below the median of others at its epoch; halving: let only
    the best third go on after epochs 1, 3, 9, ...; none: train all to the end."""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"--trials must be at least 1, not {self.trials}")
        if self.startup < 0:
            raise ConfigError(f"--startup must not be negative, not {self.startup}")


def check_optuna() -> None:
    """Refuse a search where optuna is not installed; it is only looked for."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            "a search over trials needs optuna: run `pip install 'bertvision[sweep]'`, or use --grid, which does not"
        )


def holds_study(folder: Path) -> bool:
    """Whether trials were begun in this folder."""
    return (folder / JOURNAL).exists()


def remove_study(folder: Path) -> None:
    """Delete a study and its trials, unless another process is at it; optuna is not needed."""
    journal = folder / JOURNAL
    claims = Claims(LocalFolder(folder))
    with disk_trouble(folder), claims.claim(_TURN, wait=True):
        lines = journal.read_bytes().count(b"\n")  # more than there can be trials
        for number in range(lines):
            with claims.claim(number + 1) as ours:
                if not ours:
                    raise OutputError(f"another process works in {folder}: end it before --overwrite")
        remove(journal)  # first: trials without their settings would be nobody's
        remove(folder / TRIALS)


class Trial:
    """A trial that this process runs."""

    def __init__(
        self, trial: "optuna.Trial", study: "optuna.Study", candidate: Candidate, epochs: int
    ) -> None:
        self._trial, self._study, self._epochs = trial, study, epochs
        self.number, self.candidate = trial.number, candidate
        frozen = study.get_trials(deepcopy=False)[trial.number]
        self._told = dict(frozen.intermediate_values)
        self.pruned = bool(frozen.user_attrs.get("pruned"))
        """Whether it was ended early; known before its weights are saved, so that a kill cannot hide it."""

    def report(self, epoch: int, score: float) -> bool:
        """Tell the score after an epoch; whether the trial should end."""
        if epoch not in self._told:  # an epoch that is trained again after a kill has been told
            self._trial.report(score, epoch)
            self._told[epoch] = score
        if not self.pruned and epoch < self._epochs and self._trial.should_prune():
            self._trial.set_user_attr("pruned", True)
            self.pruned = True
        return self.pruned

    def end(self, outcome: dict[str, Any], *, score: float | None) -> None:
        """Close it, with what the report tells; without a score it counts as worse than any other."""
        from optuna.trial import TrialState

        self._trial.set_user_attr("outcome", outcome)
        if score is None or self.pruned:
            self._study.tell(self._trial, state=TrialState.PRUNED)
        else:
            self._study.tell(self._trial, score)

    def fail(self) -> None:
        """Close it as one that says nothing about its values."""
        from optuna.trial import TrialState

        self._study.tell(self._trial, state=TrialState.FAIL)


class SharedStudy:
    """The study of a folder; `key` is everything its trials depend on."""

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
        import optuna

        self.folder, self.space, self.config, self.seed, self.epochs = folder, space, config, seed, epochs
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._claims = Claims(LocalFolder(folder))
        with disk_trouble(folder), self._claims.claim(_TURN, wait=True):
            self._study = self._open()
            found = self._study.user_attrs.get("key")
            if found is not None and (names := differences(found, key)):
                if not overwrite:
                    raise OutputError(
                        f"{folder} holds a sweep with other settings ({', '.join(names)}): choose another --out, "
                        "or use --overwrite to replace it"
                    )
                self._clear()
                found = None
            if found is None:
                self._study.set_user_attr("key", key)

    def _clear(self) -> None:
        """Begin anew, unless another process is at it."""
        from optuna.trial import TrialState

        for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            with self._claims.claim(frozen.number + 1) as ours:
                if not ours:
                    raise OutputError(f"another process works in {self.folder}: end it before --overwrite")
        remove(self.folder / JOURNAL)  # first: trials without their settings would be nobody's
        remove(self.folder / TRIALS)
        self._study = self._open()

    def choose(self, name: str, make: Callable[[], Any]) -> Any:
        """The choice that was made for all trials; it is made now where there is none, and kept."""
        with self._claims.claim(_TURN, wait=True):
            found = self._study.user_attrs.get(name)
            if found is None:
                found = make()
                self._study.set_user_attr(name, found)
        return found

    def place(self, number: int) -> Path:
        """The folder of a trial."""
        return self.folder / TRIALS / f"{number:04d}"

    def _open(self) -> "optuna.Study":
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        path = self.folder / JOURNAL
        _mend(path)
        try:
            storage = JournalStorage(JournalFileBackend(str(path)))
        except (ValueError, KeyError) as error:
            raise ArtifactError(
                f"{path} cannot be read ({error}): restore it from a copy, or begin anew with --overwrite"
            ) from error
        if _NAME in optuna.get_all_study_names(storage):  # creating it again would add a line
            return optuna.load_study(storage=storage, study_name=_NAME, pruner=self._pruner())
        return optuna.create_study(
            storage=storage, study_name=_NAME, direction="maximize", pruner=self._pruner()
        )

    @contextmanager
    def take(self) -> Iterator[Trial | None]:
        """The next trial, ours until the block ends: one that was left behind, else a new one, or None."""
        with ExitStack() as held:
            with self._claims.claim(_TURN, wait=True), _quiet():
                trial = self._left_behind(held) or self._new(held)
                candidate = None if trial is None else self._suggest(trial)
            if trial is None or candidate is None:
                yield None
            else:
                yield Trial(trial, self._study, candidate, self.epochs)

    def _left_behind(self, held: ExitStack) -> "optuna.Trial | None":
        import optuna
        from optuna.trial import TrialState

        for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            claim = ExitStack()
            if not claim.enter_context(self._claims.claim(frozen.number + 1)):
                claim.close()
                continue
            held.push(claim)
            self._study.sampler = self._sampler(frozen.number)
            trial = optuna.Trial(self._study, frozen._trial_id)
            if self._hopeless(trial, frozen):
                continue
            logger.info("trial %d was left behind and goes on", frozen.number)
            return trial
        return None

    def _hopeless(self, trial: "optuna.Trial", frozen: "optuna.trial.FrozenTrial") -> bool:
        """Close a trial whose process dies whenever it is run: it may need more memory than there is."""
        from optuna.trial import TrialState

        told, tries = frozen.user_attrs.get("tries", (0, 0))
        tries = tries + 1 if told == len(frozen.intermediate_values) else 1
        trial.set_user_attr("tries", (len(frozen.intermediate_values), tries))
        if tries <= _TRIES:
            return False
        logger.warning("trial %d ended %d times within one epoch and is given up", frozen.number, tries)
        trial.set_user_attr("outcome", {"status": "killed"})
        self._study.tell(trial, state=TrialState.PRUNED)
        return True

    def _new(self, held: ExitStack) -> "optuna.Trial | None":
        from optuna.trial import TrialState

        trials = self._study.get_trials(deepcopy=False)
        if sum(trial.state != TrialState.FAIL for trial in trials) >= self.config.trials:
            return None
        held.enter_context(self._claims.claim(len(trials) + 1))
        self._study.sampler = self._sampler(len(trials))
        return self._study.ask()

    def _suggest(self, trial: "optuna.Trial") -> Candidate:
        """Values for what is varied; those that a trial has already stay."""
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
        """Every trial as the report tells it, in the order of their numbers."""
        from optuna.trial import TrialState

        rows = []
        for trial in self._study.get_trials(deepcopy=False):
            row: dict[str, Any] = {"number": trial.number, "values": dict(trial.params), "status": "running"}
            scores = [trial.intermediate_values[epoch] for epoch in sorted(trial.intermediate_values)]
            row |= {"history": scores, "epochs": len(scores), "score": max(scores, default=None)}
            row |= trial.user_attrs.get("outcome", {})
            if trial.state == TrialState.FAIL:
                row["status"] = "failed"
            rows.append(row)
        return rows


def _draw(trial: "optuna.Trial", name: str, dimension: Dimension) -> Value:
    if isinstance(dimension, Choices):
        return trial.suggest_categorical(name, dimension.values)  # pyright: ignore[reportReturnType]
    low, high, log = dimension.low, dimension.high, dimension.log
    if dimension.whole:
        return trial.suggest_int(name, int(low), int(high), step=int(dimension.step) or 1, log=log)
    return trial.suggest_float(name, low, high, step=dimension.step or None, log=log)


def _mend(path: Path) -> None:
    """Cut off a line that was written by half (a full disk, a machine that stopped): nobody has gone by it."""
    from optuna.storages.journal import JournalFileSymlinkLock

    if not path.exists():
        return
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        with path.open("r+b") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                logger.warning("%s ends in half a line, which is cut off", path)
                file.truncate(whole)
    finally:
        lock.release()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without optuna's remarks on arguments that may change and on steps that do not end at `high`."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", message=".*is not divisible by.*")
        warnings.filterwarnings("ignore", message="Choices for a categorical distribution should be")
        yield
