"""The stages of a run that no task changes: fine-tuning, the fit on every snapshot, the walks over dev and test.

What a task changes is left open: how logits become answers and scores, and how those are collected.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from bertvision.artifacts import read_json
from bertvision.config import to_mapping
from bertvision.encoder.encoder import Encoder
from bertvision.heads.base import Head
from bertvision.heads.files import load_head
from bertvision.pipeline.config import RunConfig
from bertvision.report.results import Entry
from bertvision.report.text_results import TextEntry
from bertvision.states.base import States
from bertvision.states.config import Source, StatesConfig
from bertvision.states.live import LiveStates
from bertvision.states.source import open_states
from bertvision.tasks.kinds import SpanTask, Task
from bertvision.train.finetune import tune
from bertvision.train.run_folder import RunFolder
from bertvision.train.scoring import logits_of
from bertvision.train.splits import Split
from bertvision.train.trained import selection_of
from bertvision.train.zoo import fit_zoo

__all__ = ["SplitLogits", "SplitStates", "Stages", "by_label", "pairs_to_join"]

System = TypeVar("System", Entry, TextEntry)
SplitLogits = Mapping[str, Mapping[Path, Any]]
"""Logits by part of the data and the folder of the head."""


class Stages(ABC, Generic[System]):
    """One run's stages, sharing the encoder, the splits and the sources of states."""

    def __init__(self, config: RunConfig, encoder: Encoder, splits: dict[str, Split]) -> None:
        self.config, self.encoder, self.splits = config, encoder, splits
        self.out = config.out
        self.eval_names = [name for name in ("dev", "test") if name in splits]
        self.entries: list[System] = []
        self.fits: list[RunFolder] = []

    @staticmethod
    @abstractmethod
    def settled(config: RunConfig, task: Task) -> RunConfig:
        """The settings as this task reads them; those it cannot have are refused."""

    @abstractmethod
    def evaluate(
        self, name: str, heads: Mapping[Path, Head], stage: RunFolder, logits: SplitLogits
    ) -> list[System]:
        """Score everything on one snapshot: its own head, those that were fitted, and ensembles of them."""

    @abstractmethod
    def collect(self, **measured: Any) -> dict[str, Any]:
        """What results.json holds."""

    def results(self, command: str) -> dict[str, Any]:
        """Run what is not done yet; returns what results.json holds."""
        about = {"name": self.encoder.name, "fingerprint": self.encoder.fingerprint}
        about |= {"parameters": self.encoder.num_parameters}
        about |= {"states": self.encoder.num_states, "hidden": self.encoder.hidden}
        tuning, snapshots = self._finetune()
        for folder in snapshots:
            self._snapshot(folder)
        return self.collect(
            command=command,
            settings=to_mapping(self.config),
            encoder=about,
            splits=self.splits,
            finetune=tuning,
            fits=self.fits,
            out=self.out,
            device=str(self.encoder.device),
            precision=self.encoder.precision,
        )

    def _finetune(self) -> tuple[RunFolder | None, list[Path | None]]:
        """Snapshot folders in order; None stands for the encoder as it came."""
        config = self.config.finetune
        if config.epochs == 0:
            return None, [None]
        stage, folders = tune(
            self.encoder,
            self.splits["train"],
            folder=self.out / "finetune",
            config=config,
            overwrite=self.config.overwrite,
        )
        return stage, list(folders)

    def _snapshot(self, folder: Path | None) -> None:
        """Fit the zoo on one snapshot and evaluate everything on it."""
        name = folder.name if folder else "untuned"
        if folder is None:
            encoder, about = self.encoder, {"name": self.encoder.name}
        else:
            encoder = Encoder.load(
                str(folder / "encoder"), device=self.config.device, precision=self.config.precision
            )
            about = {"name": self.config.encoder, "path": f"../../../finetune/{name}/encoder"}
        sources = SplitStates(encoder, self.config.states, self.splits)
        spans = isinstance(self.splits["train"].task, SpanTask)
        stage = fit_zoo(
            encoder,
            self.splits["train"],
            folder=self.out / "fit" / name,
            config=self.config.fit,
            encoder_about=about,
            states=self.config.states,
            dev=self.splits["dev"],
            dev_states=(lambda source: sources("dev", source)) if spans else None,
            decoding=self.config.decode,
            overwrite=self.config.overwrite,
        )
        self.fits.append(stage)
        heads = {
            stage.folder / head: load_head(stage.folder / head)[0].to(encoder.device)
            for head in stage.results["heads"]
        }
        if not spans:  # heads that need [CLS] alone read no more, which their folders tell
            selection = selection_of(read_json(next(iter(heads)) / "config.json"))
            sources = SplitStates(encoder, StatesConfig.of(self.config.states, selection), self.splits)
        if folder is not None:
            heads = {folder / "head": load_head(folder / "head")[0].to(encoder.device), **heads}
        logits = {split: self._logits(heads, stage, split, sources) for split in self.eval_names}
        self.entries += self.evaluate(name, heads, stage, logits)

    def _logits(
        self, heads: Mapping[Path, Head], stage: RunFolder, split: str, sources: "SplitStates"
    ) -> dict[Path, Any]:
        """Logits of all heads from one walk; from two where the zoo reads less than the snapshot's own head."""
        zoo = {
            path: head for path, head in heads.items() if path.parent == stage.folder or sources.serves(head)
        }
        own = {path: head for path, head in heads.items() if path not in zoo}
        data = self.splits[split]
        logits = logits_of(own, data, split, lambda: sources.whole(split))
        # A run that goes on walks over the states its fit has chosen, in their rounding.
        source = stage.choices.get("dev states") if split == "dev" else None
        return logits | logits_of(zoo, data, split, lambda: sources(split, source))


def by_label(name: str, folders: Iterable[Path], stage: RunFolder) -> dict[str, list[Path]]:
    """The folders of each system: a fitted head with all its seeds, or the snapshot's own head under its name."""
    groups: dict[str, list[Path]] = {}
    for folder in folders:
        info = stage.results["heads"].get(folder.name)
        groups.setdefault(info["label"] if info else name, []).append(folder)
    return groups


def pairs_to_join(
    entries: Sequence[System], score: Callable[[System], float]
) -> Iterator[tuple[System, System, list[int], list[tuple[Path, Path]]]]:
    """Best head with its snapshot, and the two best heads, with the folders that go together seed by seed.

    Chosen on dev; two heads that share no seed that did not diverge are left out.
    """
    heads = sorted((e for e in entries if e.kind == "head"), key=lambda e: -score(e))
    own = [e for e in entries if e.kind == "snapshot"]
    pairs = [(own[0], heads[0])] if own and heads else []
    pairs += [(heads[0], heads[1])] if len(heads) > 1 else []
    for first, second in pairs:
        seeds = [seed for seed in second.by_seed if first.kind == "snapshot" or seed in first.by_seed]
        if seeds:
            folders = [(first.by_seed.get(seed, first.folders[0]), second.by_seed[seed]) for seed in seeds]
            yield first, second, seeds, folders


class SplitStates:
    """Sources of states of one encoder, opened when first asked for."""

    def __init__(self, encoder: Encoder, config: StatesConfig, splits: dict[str, Split]) -> None:
        self.encoder, self.config, self.splits = encoder, config, splits
        self._kept: dict[str, States] = {}

    def __call__(self, name: str, source: Source | None = None) -> States:
        """Of one split; `source` where the fit has chosen it, else what suits one walk."""
        if name not in self._kept:
            split = self.splits[name]
            self._kept[name] = open_states(
                self.encoder,
                split.windows,
                self.config,
                label=f"states of {name}",
                passes=1,
                origin=split.origin,
                keep=False,
                source=source,
            )
        return self._kept[name]

    def serves(self, head: Head) -> bool:
        """Whether a head that was trained on all states finds all it needs in these."""
        if self.config.selection.whole(self.encoder.num_states):
            return True
        every = tuple(range(self.encoder.num_states))
        return head.cls_only and self.config.selection.numbers(self.encoder.num_states) == every

    def whole(self, name: str) -> States:
        """All states, read once: for the snapshot's own head."""
        windows, tokens = self.splits[name].windows, self.config.tokens_per_call
        return LiveStates(self.encoder, windows, tokens_per_call=tokens)
