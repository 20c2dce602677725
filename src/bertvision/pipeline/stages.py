"""The stages of a run: fine-tuning, the fit on every snapshot, the walks over dev and test, ensembles."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision.artifacts import read_json
from bertvision.config import to_mapping
from bertvision.encoder.encoder import Encoder
from bertvision.heads.base import Head
from bertvision.heads.files import load_head
from bertvision.model.record import Made, evaluate, record
from bertvision.model.trained import selection_of
from bertvision.pipeline.config import RunConfig
from bertvision.pipeline.results import collect
from bertvision.pipeline.systems import System, by_label, kind_of, pairs_to_join
from bertvision.states.base import States
from bertvision.states.config import Selection, Source, StatesConfig
from bertvision.states.live import LiveStates
from bertvision.states.source import open_states
from bertvision.tasks.logits import Logits
from bertvision.train.finetune import tune
from bertvision.train.run_folder import RunFolder
from bertvision.train.scoring import logits_of
from bertvision.train.splits import Split
from bertvision.train.zoo import fit_zoo

__all__ = ["Stages"]

SplitLogits = Mapping[str, Mapping[Path, Logits]]
"""Logits by part of the data and the folder of the head."""


class Stages:
    """One run's stages, sharing the encoder, the splits and the sources of states."""

    def __init__(self, config: RunConfig, encoder: Encoder, splits: dict[str, Split], command: str) -> None:
        self.config, self.encoder, self.splits = config, encoder, splits
        self.task = splits["train"].task
        self.out = config.out
        self.parts = {name: splits[name] for name in ("dev", "test") if name in splits}
        self.systems: list[System] = []
        self.fits: list[RunFolder] = []
        self.made = Made(command, {name: split.name for name, split in splits.items()})

    def results(self) -> dict[str, Any]:
        """Run what is not done yet; returns what results.json holds."""
        about = {"name": self.encoder.name, "fingerprint": self.encoder.fingerprint}
        about |= {"parameters": self.encoder.num_parameters}
        about |= {"states": self.encoder.num_states, "hidden": self.encoder.hidden}
        tuning, snapshots = self._finetune()
        for folder in snapshots:
            self._snapshot(folder)
        return collect(
            self.systems,
            command=self.made.command,
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
        shared: dict[Selection, SplitStates] = {}

        def states_of(config: StatesConfig) -> SplitStates:
            selection = config.selection.resolved(encoder.num_states)
            return shared.setdefault(selection, SplitStates(encoder, config, self.splits))

        stage = fit_zoo(
            encoder,
            self.splits["train"],
            folder=self.out / "fit" / name,
            config=self.config.fit,
            encoder_about=about,
            states=self.config.states,
            dev=self.splits["dev"],
            dev_states=lambda config, source: states_of(config)("dev", source),
            decoding=self.config.decode,
            overwrite=self.config.overwrite,
        )
        self.fits.append(stage)
        heads = {
            stage.folder / head: load_head(stage.folder / head)[0].to(encoder.device)
            for head in stage.results["heads"]
        }
        # What the fitted heads read, which may be less than what was asked for.
        selection = selection_of(read_json(next(iter(heads)) / "config.json"))
        states = states_of(StatesConfig.of(self.config.states, selection))
        if folder is not None:
            heads = {folder / "head": load_head(folder / "head")[0].to(encoder.device), **heads}
        logits = {split: self._logits(heads, stage, split, states) for split in self.parts}
        self.systems += self._evaluate(name, heads, stage, logits)

    def _logits(
        self, heads: Mapping[Path, Head], stage: RunFolder, split: str, states: "SplitStates"
    ) -> dict[Path, Logits]:
        """Logits of all heads from one walk; from two where the zoo reads less than the snapshot's own head."""
        zoo = {
            path: head for path, head in heads.items() if path.parent == stage.folder or states.serves(head)
        }
        own = {path: head for path, head in heads.items() if path not in zoo}
        data = self.splits[split]
        logits = logits_of(own, data, split, lambda: states.whole(split))
        # A run that goes on walks over the states its fit has chosen, in their rounding.
        source = stage.choices.get("dev states") if split == "dev" else None
        return logits | logits_of(zoo, data, split, lambda: states(split, source))

    def _evaluate(
        self, name: str, heads: Mapping[Path, Head], stage: RunFolder, logits: SplitLogits
    ) -> list[System]:
        """Score everything on one snapshot: its own head, those that were fitted, and ensembles of them."""
        decode, systems = self.config.decode, []
        for label, folders in by_label(name, heads, stage).items():
            infos = [info for folder in folders if (info := stage.results["heads"].get(folder.name))]
            records = []
            for folder in folders:
                found = {split: (part, logits[split][folder]) for split, part in self.parts.items()}
                own = record(folder, found, self.made, decode=decode)
                assert own is not None
                records.append(own)
            head = heads[folders[0]]
            systems.append(System(name, label, kind_of(head, infos), head, folders, infos, records))
        return systems + self._ensembles(name, systems, logits)

    def _ensembles(self, snapshot: str, systems: list[System], logits: SplitLogits) -> list[System]:
        how, joined = self.task.join_how(self.config.combine), []
        for first, second, seeds, pairs in pairs_to_join(systems):
            records = []
            for pair in pairs:
                found = {
                    split: (
                        part,
                        self.task.join([logits[split][folder] for folder in pair], part.windows, how),
                    )
                    for split, part in self.parts.items()
                }
                records.append(evaluate(found, decode=self.config.decode))
            infos = [info for info in second.infos if info["seed"] in seeds]
            label = f"{how} of {first.label} and {second.label}"
            members = [first.label, second.label]
            joined.append(System(snapshot, label, "ensemble", None, [], infos, records, members))
        return joined


class SplitStates:
    """States of one encoder, opened when first asked for."""

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
