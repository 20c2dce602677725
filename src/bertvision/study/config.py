"""A study as a recipe tells it: tunings, fits on their snapshots, and what is read, joined and decoded from them.

    tune:  - {name: curve, family: constant, finetune: {epochs: 2, snapshots: [0.3, 1, 2], schedule: constant, ...}}
    fit:   - {name: heads-1, snapshot: constant@1, heads: [papers], seeds: [0, 1, 2]}
    read:  - {name: transfer, heads_of: heads-0.3, snapshot: constant@1}
    join:  - {name: best-and-snapshot, members: [constant@1, constant@1/adapter-386], how: max}
    decode: - {name: second, of: [constant@1], variant: second}

A snapshot goes by FAMILY@EPOCHS. Names of parts are what `--only` takes; a part brings along what it stands on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Precision
from bertvision.errors import ConfigError
from bertvision.heads.catalogue import expand
from bertvision.heads.spec import parse_head
from bertvision.study.about import About, Key
from bertvision.study.names import check_apart
from bertvision.tasks.span.ensemble import Combination
from bertvision.train.finetune_config import FinetuneConfig
from bertvision.train.fit import FitConfig

__all__ = ["UNTUNED", "DecodePart", "FitPart", "JoinPart", "ReadPart", "StudyConfig", "TunePart"]

UNTUNED = "untuned"
"""The encoder as it came, where a snapshot may be named."""

StudyTask = Literal["span", "answerable"]


@dataclass(frozen=True)
class TunePart:
    """A fine-tuning and its snapshots."""

    name: str
    family: str = ""
    """What its snapshots are called by; its name unless told. Parts of one family are the same but for length."""
    seeds: tuple[int, ...] = (0,)
    task: StudyTask = "span"
    fraction: float = 1.0
    """Part of the training data, drawn at random with its seed."""
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    inference: bool = False
    """Also time the snapshots' answers."""

    @property
    def called(self) -> str:
        return self.family or self.name

    @property
    def snapshots(self) -> dict[str, float]:
        """FAMILY@EPOCHS to epochs."""
        marks = sorted({*self.finetune.snapshots, self.finetune.epochs})
        return {f"{self.called}@{mark:g}": mark for mark in marks}


@dataclass(frozen=True)
class FitPart:
    """Heads on the frozen states of a snapshot, in one pass."""

    name: str
    snapshot: str
    """The snapshot, or untuned."""
    heads: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    """Seeds of the tuning; the heads have the same."""
    task: StudyTask = "span"
    fraction: float = 1.0
    """Part of the training data."""
    fit: FitConfig = field(default_factory=FitConfig)
    inference: bool = False
    """Also time each head's answers."""
    epoch_scores: bool = False
    """Also score every epoch (of answer / no answer: its history)."""


@dataclass(frozen=True)
class ReadPart:
    """Heads that were fitted on one snapshot, read on another."""

    name: str
    heads_of: str
    """The part that fitted them."""
    snapshot: str
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class JoinPart:
    """Several systems of one seed, or all seeds of several systems, joined into one."""

    name: str
    members: tuple[str, ...]
    """Keys of systems, such as constant@1/adapter-386."""
    how: Combination = "max"
    seeds: tuple[int, ...] = (0,)
    over_seeds: bool = False
    """Join the members of all seeds into one system, which has seed 0 whatever they have."""


@dataclass(frozen=True)
class DecodePart:
    """Systems decoded in another way."""

    name: str
    of: tuple[str, ...]
    variant: Literal["second", "bertvision"]
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class StudyConfig:
    """Many tunings and fits over one encoder and one set of questions, and one report on them all."""

    encoder: str = "embedded"
    """embedded, a local folder in Hugging Face format, or a name on the Hub."""
    train: str = ""
    """SQuAD .json or any other set of questions with answers."""
    dev: str = ""
    """The same for dev, on which nothing is tuned."""
    out: Path = Path("runs/study")
    """Folder for everything; the same command again goes on where it stopped."""
    holdout: float = 0.05
    """Part of the articles of train that nothing is trained on: thresholds are tuned and heads are chosen there."""
    tune: tuple[TunePart, ...] = ()
    fit: tuple[FitPart, ...] = ()
    read: tuple[ReadPart, ...] = ()
    join: tuple[JoinPart, ...] = ()
    decode: tuple[DecodePart, ...] = ()
    windows: WindowConfig = field(default_factory=WindowConfig)
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""

    def __post_init__(self) -> None:
        if not 0 < self.holdout < 1:
            raise ConfigError(f"--holdout must lie between 0 and 1, not {self.holdout}")
        names = [part.name for part in self.parts]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"the recipe has two parts called {twice}: rename one")
        for part in self.parts:
            if not part.seeds:
                raise ConfigError(f"part {part.name} of the recipe has no seeds: give at least one")
            if not 0 < getattr(part, "fraction", 1.0) <= 1:
                raise ConfigError(f"fraction of part {part.name} must be above 0 and at most 1")
        for part in self.fit:
            for head, _ in expand(part.heads, "label" if part.task == "answerable" else "span"):
                parse_head(head)
        for part in (*self.fit, *self.read):
            for seed in part.seeds:
                if part.snapshot != UNTUNED and self.tuning_of(part.snapshot, seed) is None:
                    raise ConfigError(
                        f"part {part.name} of the recipe reads {part.snapshot} of seed {seed}, which no tuning makes: "
                        "correct its name or add the seed there"
                    )
        for part in self.read:
            seeds = {seed for fit in self.fit if fit.name == part.heads_of for seed in fit.seeds}
            if missing := [seed for seed in part.seeds if seed not in seeds]:
                raise ConfigError(
                    f"part {part.name} of the recipe reads heads of {part.heads_of} with seed {missing[0]}, which no "
                    "fit of that name has: correct its name or add the seed there"
                )
        for part in (*self.join, *self.decode):
            for key in part.members if isinstance(part, JoinPart) else part.of:
                if lacks := [seed for seed in part.seeds if not self._makes(key, seed)]:
                    raise ConfigError(
                        f"part {part.name} of the recipe takes {key} of seed {lacks[0]}, which no part makes: "
                        "correct the key or add what makes it"
                    )
        check_apart(self._systems())

    def own_seed(self, key: str, seed: int) -> int:
        """The seed a system goes by where a part of `seed` takes it: an ensemble over seeds has one for all."""
        over = any(part.over_seeds and key == f"join/{part.name}" for part in self.join)
        return 0 if over else seed

    def _systems(self) -> Iterator[tuple[str, str, int]]:
        """(part, key, seed) of everything that is made."""
        for part in self.tune:
            for name in part.snapshots:
                about = About(
                    part.name, "snapshot", name, task=part.task, snapshot=name, data_fraction=part.fraction
                )
                yield from ((part.name, about.key, seed) for seed in part.seeds)
        fits = {part.name: part for part in self.fit}
        for part in (*self.fit, *self.read):
            source = part if isinstance(part, FitPart) else fits[part.heads_of]
            moved = "" if part is source else source.snapshot
            for head, _ in expand(source.heads, "label" if source.task == "answerable" else "span"):
                about = About(
                    part.name, "head", parse_head(head).label, task=source.task, snapshot=part.snapshot,
                    fitted_on=moved, data_fraction=source.fraction,
                )  # fmt: skip
                yield from ((part.name, about.key, seed) for seed in part.seeds)
        for part in self.join:
            key = f"join/{part.name}"
            yield from ((part.name, key, self.own_seed(key, seed)) for seed in part.seeds)
        for part in self.decode:
            for key in part.of:
                yield from (
                    (part.name, f"{key}#{part.variant}", self.own_seed(key, seed)) for seed in part.seeds
                )

    def _makes(self, text: str, seed: int) -> bool:
        """Whether some part makes a system; names of heads are not looked at."""
        try:
            key = Key.of(text)
        except ValueError:
            return False
        if key.snapshot == "join":
            return any(p.name == key.label and (p.over_seeds or seed in p.seeds) for p in self.join)
        if key.label:
            fits = [(p.snapshot, p.fraction) for p in self.fit if seed in p.seeds and p.task == "span"]
            return (key.fitted_on or key.snapshot, key.fraction) in fits
        tuning = self.tuning_of(key.snapshot, seed)
        return tuning is not None and (tuning.task, tuning.fraction) == ("span", key.fraction)

    @property
    def parts(self) -> "tuple[TunePart | FitPart | ReadPart | JoinPart | DecodePart, ...]":
        return (*self.tune, *self.fit, *self.read, *self.join, *self.decode)

    def tuning_of(self, snapshot: str, seed: int) -> TunePart | None:
        """The part that makes a snapshot."""
        return next((p for p in self.tune if snapshot in p.snapshots and seed in p.seeds), None)
