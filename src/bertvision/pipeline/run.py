"""The whole job: settings and data are checked before anything is computed or written; then fine-tuning, and on every
snapshot a fit, the evaluation on dev and test, and ensembles.

OUT/config.yaml            the resolved settings, a recipe that repeats the run
    finetune/snapshot-1/   encoder/ and head/
    fit/snapshot-1/HEAD/   one folder a fitted head
    results.json           every number of the report
    report.html
"""

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import Any

from bertvision.artifacts import check_output, read_json, write_json, write_text
from bertvision.config import dump_yaml, to_mapping
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads.base import Head, load_head
from bertvision.model.record import evaluate, record
from bertvision.pipeline.config import RunArgs
from bertvision.pipeline.fit import load_splits
from bertvision.pipeline.results import System, collect, pairs
from bertvision.report.page import write_page
from bertvision.report.results import RESULTS_FILE
from bertvision.states.base import LiveStates
from bertvision.states.config import Selection
from bertvision.tasks.logits import Logits
from bertvision.train.finetune import tune
from bertvision.train.job import Job
from bertvision.train.parallel import rank_and_world
from bertvision.train.run_folder import RunFolder
from bertvision.train.splits import Split, logits_of
from bertvision.train.zoo import fit_zoo, selection_of_fit, states_for, suited, zoo_members

SplitLogits = dict[str, dict[Path, Logits]]
"""Logits by split and the folder of the head."""


def run(args: RunArgs, *, command: str = "") -> dict[str, Any]:
    """Do the whole job; returns what results.json holds."""
    args = args.seeded()
    if not args.train or not args.dev:
        raise ConfigError("--train and --dev must both be given (or neither, which runs the demo)")
    if rank_and_world()[1] > 1:
        raise ConfigError("run works in one process: use finetune and fit, its stages, with several")
    zoo_members(args.fit, None)  # a mistyped head should fail now, not after the fine-tuning
    began = time.monotonic()
    check_output(args.out)
    encoder = Encoder.load(args.encoder, device=args.device, precision=args.precision)
    args.states.selection.numbers(encoder.num_states)  # and so should a layer that does not exist
    splits = load_splits(args, encoder)
    args = _checked(args, splits["train"])
    about = {"name": encoder.name, "fingerprint": encoder.fingerprint, "parameters": encoder.num_parameters}
    about |= {"states": encoder.num_states, "hidden": encoder.hidden}
    command, seconds = _first_run(args, command)
    recipe = args.out / "config.yaml"
    if not recipe.exists():  # settings that are refused must not replace the record of the work in the folder
        write_text(recipe, _recipe(args, command))
    tuning, snapshots = None, [None]
    if args.finetune.epochs:
        jobs, folder = [Job.only(splits["train"], None, args.finetune)], args.out / "finetune"
        tuning, snapshots = tune(encoder, jobs, folder=folder, config=args.finetune, overwrite=args.overwrite)
    done = [_Snapshot(args, encoder, splits, command, folder).evaluate() for folder in snapshots]
    systems, fits = [system for _, own in done for system in own], [stage for stage, _ in done]
    results = collect(
        systems, splits, finetune=tuning, fits=fits, out=args.out, command=command, settings=to_mapping(args),
        encoder=about, device=str(encoder.device), precision=encoder.precision,
    )  # fmt: skip
    results["seconds"] = seconds or time.monotonic() - began
    write_text(recipe, _recipe(args, command))
    write_json(args.out / RESULTS_FILE, results)
    write_page(results, args.out / "report.html")
    return results


def _checked(args: RunArgs, train: Split) -> RunArgs:
    """Refuse settings that do not suit the task; returns them with `combine` resolved."""
    task = train.task
    if task.group > 1:
        raise ConfigError(
            "run fits heads on texts read together: leave out --apart, or use finetune, which trains a head for "
            "pairs encoded apart with its encoder"
        )
    Job(train, head=args.finetune.head)
    suited(args.states, zoo_members(args.fit, task), task)
    return dataclasses.replace(args, combine=task.join_how(args.combine))


def _recipe(args: RunArgs, command: str) -> str:
    """config.yaml: the resolved settings as a recipe, headed by the command."""
    heading = f"{command}\nbertvision run --config {args.out / 'config.yaml'}"
    return dump_yaml(dataclasses.replace(args, overwrite=False), heading=heading)


def _first_run(args: RunArgs, command: str) -> tuple[str, float]:
    """The command and the time of the first run where this one repeats it; else this command and 0."""
    recipe, results = args.out / "config.yaml", args.out / RESULTS_FILE
    text = recipe.read_text(encoding="utf-8") if recipe.is_file() else ""
    first = text.partition("\n")[0].removeprefix("# ")
    if text != _recipe(args, first):
        return command, 0.0
    return first, read_json(results).get("seconds", 0.0) if results.is_file() else 0.0


class _Snapshot:
    """A snapshot (None: the untuned encoder) with its own head, if it has one, and those fitted on it."""

    def __init__(
        self, args: RunArgs, encoder: Encoder, splits: dict[str, Split], command: str, folder: Path | None
    ) -> None:
        self.args, self.splits = args, splits
        self.command, self.data = command, {name: split.name for name, split in splits.items()}
        self.own: Path | None = None
        if folder is None:
            self.name, self.encoder, about = "untuned", encoder, {"name": encoder.name}
        else:
            self.name, self.own = folder.name, folder / "head"
            source = str(folder / "encoder")
            self.encoder = Encoder.load(source, device=args.device, precision=args.precision)
            about = {"name": args.encoder, "path": f"../../../finetune/{self.name}/encoder"}
        self.stage = fit_zoo(
            self.encoder, splits["train"], folder=args.out / "fit" / self.name, config=args.fit,
            encoder_about=about, states=args.states, dev=splits["dev"], decoding=args.decode,
            overwrite=args.overwrite,
        )  # fmt: skip
        self.fitted = [self.stage.folder / name for name in self.stage.results["heads"]]
        folders = [*([self.own] if self.own else []), *self.fitted]
        self.heads = {folder: load_head(folder)[0] for folder in folders}

    def evaluate(self) -> tuple[RunFolder, list[System]]:
        """The fit, and every system on the snapshot: its own head, the fitted ones, ensembles of two."""
        parts = {name: split for name, split in self.splits.items() if name != "train"}
        logits = {name: self._logits(name, split) for name, split in parts.items()}
        systems = self._systems(parts, logits)
        return self.stage, [*systems, *self._ensembles(parts, logits, systems)]

    def _logits(self, name: str, split: Split) -> dict[Path, Logits]:
        """Logits of all heads from one walk; from two where the fitted heads read less than the snapshot's own."""
        shared, alone, encoder, states = dict(self.heads), {}, self.encoder, self.args.states
        if self.own and not _serves(selection_of_fit(self.stage), shared[self.own], encoder.num_states):
            alone[self.own] = shared.pop(self.own)
        live = partial(LiveStates, encoder, split.windows, tokens_per_call=states.tokens_per_call)
        read = partial(states_for, self.stage, encoder, split, name, states)
        return logits_of(alone, split, name, live) | logits_of(shared, split, name, read)

    def _systems(self, parts: dict[str, Split], logits: SplitLogits) -> list[System]:
        """Score the snapshot's own head and the fitted ones; the seeds of a head are one system."""
        groups: dict[str, list[Path]] = {self.name: [self.own]} if self.own else {}
        infos = self.stage.results["heads"]
        for folder in self.fitted:
            groups.setdefault(infos[folder.name]["label"], []).append(folder)
        systems = []
        for label, folders in groups.items():
            records = []
            for folder in folders:
                found = {name: (split, logits[name][folder]) for name, split in parts.items()}
                kept = record(folder, found, self.command, self.data, decode=self.args.decode)
                assert kept is not None
                records.append(kept)
            own_infos = [infos[folder.name] for folder in folders if folder != self.own]
            systems.append(System(self.name, label, self.heads[folders[0]], records, folders, own_infos))
        return systems

    def _ensembles(self, parts: dict[str, Split], logits: SplitLogits, systems: list[System]) -> list[System]:
        task, joined = self.splits["train"].task, []
        how = task.join_how(self.args.combine)
        for members, of_seeds, infos in pairs(systems):
            records = []
            for folders in of_seeds:
                found = {
                    name: (split, task.join([logits[name][f] for f in folders], split.windows, how))
                    for name, split in parts.items()
                }
                records.append(evaluate(found, decode=self.args.decode))
            names = [member.label for member in members]
            label = f"{how} of {' and '.join(names)}"
            joined.append(System(self.name, label, None, records, infos=infos, members=names))
        return joined


def _serves(selection: Selection, head: Head, num_states: int) -> bool:
    """Whether a head that was trained on all states finds all it needs in the selected ones."""
    all_layers = selection.numbers(num_states) == tuple(range(num_states))
    return selection.whole(num_states) or (head.cls_only and all_layers)
