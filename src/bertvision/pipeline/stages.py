"""The stages of a run: fine-tuning, then on every snapshot a fit, the evaluation on dev and test, and ensembles."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bertvision.artifacts import read_json
from bertvision.encoder.encoder import Encoder
from bertvision.heads.base import Head, load_head
from bertvision.model.record import evaluate, record
from bertvision.model.trained import selection_of
from bertvision.pipeline.config import RunArgs
from bertvision.pipeline.systems import System, pairs
from bertvision.states.base import LiveStates, States
from bertvision.states.config import Selection, Source, StatesConfig
from bertvision.states.source import open_states
from bertvision.tasks.logits import Logits
from bertvision.train.finetune import tune
from bertvision.train.run_folder import RunFolder
from bertvision.train.splits import Split, logits_of
from bertvision.train.zoo import fit_zoo

SplitLogits = Mapping[str, Mapping[Path, Logits]]
"""Logits by split and the folder of the head."""


class Stages:
    """The stages of one run. What is done already is read again."""

    def __init__(self, args: RunArgs, encoder: Encoder, splits: dict[str, Split], command: str) -> None:
        self.args, self.encoder, self.splits = args, encoder, splits
        self.task = splits["train"].task
        self.parts = {name: split for name, split in splits.items() if name != "train"}
        self.command, self.data = command, {name: split.name for name, split in splits.items()}
        self.tuning: RunFolder | None = None
        self.fits: list[RunFolder] = []
        self.systems: list[System] = []

    def run(self) -> None:
        args, train = self.args, self.splits["train"]
        if args.finetune.epochs == 0:
            self._snapshot(None)
            return
        folder = args.out / "finetune"
        self.tuning, snapshots = tune(
            self.encoder, train, folder=folder, config=args.finetune, overwrite=args.overwrite
        )
        for snapshot in snapshots:
            self._snapshot(snapshot)

    def _snapshot(self, folder: Path | None) -> None:
        """Fit heads on one snapshot (None is the untuned encoder) and evaluate everything on it."""
        args = self.args
        if folder is None:
            name, encoder, about = "untuned", self.encoder, {"name": self.encoder.name}
        else:
            name = folder.name
            encoder = Encoder.load(str(folder / "encoder"), device=args.device, precision=args.precision)
            about = {"name": args.encoder, "path": f"../../../finetune/{name}/encoder"}
        opened: dict[tuple[Selection, str], States] = {}

        def states_of(config: StatesConfig, split: str, source: Source | None = None) -> States:
            """States of a split, opened once; `source` is what the fit has chosen, else what suits one walk."""
            key = config.selection.resolved(encoder.num_states), split
            if key not in opened:
                part = self.splits[split]
                opened[key] = open_states(
                    encoder,
                    part.windows,
                    config,
                    label=f"states of {split}",
                    passes=1,
                    origin=part.origin,
                    keep=False,
                    source=source,
                )
            return opened[key]

        stage = fit_zoo(
            encoder,
            self.splits["train"],
            folder=args.out / "fit" / name,
            config=args.fit,
            encoder_about=about,
            states=args.states,
            dev=self.splits["dev"],
            dev_states=lambda config, source: states_of(config, "dev", source),
            decoding=args.decode,
            overwrite=args.overwrite,
        )
        self.fits.append(stage)
        snapshot = _Snapshot(name, encoder, stage, None if folder is None else folder / "head")
        logits = {split: self._logits(snapshot, split, states_of) for split in self.parts}
        systems = self._evaluate(snapshot, logits)
        self.systems += [*systems, *self._ensembles(name, systems, logits)]

    def _logits(
        self, snapshot: "_Snapshot", split: str, states_of: Callable[..., States]
    ) -> dict[Path, Logits]:
        """Logits of all heads from one walk; from two where the fitted heads read less than the snapshot's own."""
        part, encoder, stage = self.splits[split], snapshot.encoder, snapshot.stage
        # What the fitted heads read, which may be less than --states.layers and --states.positions say.
        selection = selection_of(read_json(snapshot.fitted[0] / "config.json"))
        config = StatesConfig.of(self.args.states, selection)
        shared, alone = dict(snapshot.heads), {}
        own = snapshot.own
        if own is not None and not _serves(selection, shared[own], encoder.num_states):
            alone = {own: shared.pop(own)}
        tokens = config.tokens_per_call
        logits = logits_of(
            alone, part, split, lambda: LiveStates(encoder, part.windows, tokens_per_call=tokens)
        )
        # A continued run walks over the states its fit has chosen, with their rounding.
        source = stage.choices.get("dev states") if split == "dev" else None
        return logits | logits_of(shared, part, split, lambda: states_of(config, split, source))

    def _evaluate(self, snapshot: "_Snapshot", logits: SplitLogits) -> list[System]:
        """Score the snapshot's own head and the fitted ones; the seeds of a head are one system."""
        groups: dict[str, list[Path]] = {} if snapshot.own is None else {snapshot.name: [snapshot.own]}
        infos = snapshot.stage.results["heads"]
        for folder in snapshot.fitted:
            groups.setdefault(infos[folder.name]["label"], []).append(folder)
        systems = []
        for label, folders in groups.items():
            records = []
            for folder in folders:
                found = {split: (part, logits[split][folder]) for split, part in self.parts.items()}
                own = record(folder, found, self.command, self.data, decode=self.args.decode)
                assert own is not None
                records.append(own)
            own_infos = [infos[folder.name] for folder in folders if folder != snapshot.own]
            head = snapshot.heads[folders[0]]
            systems.append(System(snapshot.name, label, head, records, folders, own_infos))
        return systems

    def _ensembles(self, snapshot: str, systems: list[System], logits: SplitLogits) -> list[System]:
        how, joined = self.task.join_how(self.args.combine), []
        for pair in pairs(systems):
            records = []
            for folders in pair.folders:
                found = {
                    split: (part, self.task.join([logits[split][f] for f in folders], part.windows, how))
                    for split, part in self.parts.items()
                }
                records.append(evaluate(found, decode=self.args.decode))
            members = [pair.first.label, pair.second.label]
            label = f"{how} of {' and '.join(members)}"
            joined.append(System(snapshot, label, None, records, infos=pair.infos, members=members))
        return joined


@dataclass
class _Snapshot:
    """A snapshot with its heads, by their folders: its own first, then the fitted ones."""

    name: str
    encoder: Encoder
    stage: RunFolder
    own: Path | None

    def __post_init__(self) -> None:
        self.fitted = [self.stage.folder / name for name in self.stage.results["heads"]]
        folders = [*([] if self.own is None else [self.own]), *self.fitted]
        self.heads = {folder: load_head(folder)[0].to(self.encoder.device) for folder in folders}


def _serves(selection: Selection, head: Head, num_states: int) -> bool:
    """Whether a head that was trained on all states finds all it needs in the selected ones."""
    if selection.whole(num_states):
        return True
    return head.cls_only and selection.numbers(num_states) == tuple(range(num_states))
