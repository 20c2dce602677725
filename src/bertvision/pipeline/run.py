"""The whole job: settings and data are checked before anything is computed or written; then fine-tuning, and on every
snapshot a fit, the evaluation on dev and test, and ensembles.

OUT/config.yaml            the resolved settings, a recipe that repeats the run
    finetune/snapshot-1/   encoder/ and head/
    fit/snapshot-1/HEAD/   one folder a fitted head
    results.json           every number of the report
    report.html

results.json has

    schema, bertvision, command, created, commit, environment, encoder, settings, seconds
    task           the task's settings, with "title" (of its metric) and "outputs"
    metrics        {NAME: {"title", "percent", "higher", "about"}} in the order of the columns
    data           {SPLIT: {"name", "examples", "windows", "tokens", "counts": {CLASS: n} | "range": {...}}}
    finetune, fit  settings and costs
    systems        [{"name", "kind", "label", "snapshot", "head", "parameters", "total", "percent", "flops_per_token",
                     "seconds", "seeds", "members", "folder", "best", "scores", "versus"}]
      scores       {SPLIT: {METRIC: {"mean", "sd", "per_seed": {SEED: x}, "interval": [low, high]}}}
      versus       {"baseline", "split", "metrics": {METRIC: {"difference", "low", "high"}}, "mcnemar_p"}
    curves         {"finetune": [...], "fit": {NAME: [{"epoch", "loss", "score"}]}}
    layer_weights  {NAME: [one share a state]}
    details        {NAME: figures that only this kind of task has}, of the chosen head and its snapshot
    examples       [{"id", "texts", "context", "truth", "head", "snapshot", "head_right", "snapshot_right"}]

What is not known is null. A metric's "percent" says whether it runs to 100 or to 1.
"""

import dataclasses
import datetime
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bertvision._version import __version__
from bertvision.artifacts import check_output, read_json, write_json, write_text
from bertvision.config import dump_yaml, to_mapping
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads.base import Head, cost, load_head
from bertvision.model.record import Record, commit, environment, evaluate, record
from bertvision.pipeline.config import RunArgs
from bertvision.pipeline.train import load_splits
from bertvision.report.page import write_page
from bertvision.report.results import RESULTS_FILE, SCHEMA, UNKNOWN
from bertvision.states.base import LiveStates
from bertvision.tasks.logits import Logits
from bertvision.train.finetune import tune
from bertvision.train.job import Job, Split, logits_of
from bertvision.train.parallel import rank_and_world
from bertvision.train.run_folder import RunFolder, read_metrics
from bertvision.train.zoo import fit_zoo, selection_of_fit, states_for, suited, zoo_members

_EXAMPLES = 12


@dataclass
class System:
    """One row of the results. Its members are the seeds of a head; a snapshot has one member and no seed."""

    snapshot: str
    label: str
    head: Head | None  # None for an ensemble
    records: list[Record]  # answers and scores of each member
    folders: list[Path] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    """What the fit reports of each member: label, seed, seconds, history."""
    members: list[str] | None = None  # labels of the systems that an ensemble joins
    best: bool = False

    def __post_init__(self) -> None:
        self.task, self.seeds = self.records[0].task, [info["seed"] for info in self.infos]
        self.kind = "head"
        if self.head is None:
            self.kind = "ensemble"
        elif not self.infos:
            self.kind = "snapshot"
        elif self.head.last_only:  # as a fine-tuned encoder's own output layer does
            self.kind = "control"
        self.name = self.label if self.kind == "snapshot" else f"{self.snapshot}/{self.label}"
        metric = self.task.metric
        ranked = np.array(self.values("dev", metric)) * (1 if self.task.metrics[metric].higher else -1)
        self.dev_score, self.shipped = float(ranked.mean()), int(ranked.argmax())
        """What systems are chosen by, higher is better; the member that scored best on dev."""

    def values(self, split: str, metric: str) -> list[float]:
        """A metric of each member."""
        return [record.scores[split][metric] for record in self.records]

    def members_on(self, split: str) -> list[tuple[Any, Any]]:
        """The argument of `Task.compare`."""
        return [record.member(split) for record in self.records]


def pairs(
    systems: Sequence[System],
) -> Iterator[tuple[tuple[System, System], list[tuple[Path, Path]], list[dict[str, Any]]]]:
    """The best head on dev with its snapshot, and the two best heads: both systems, their folders seed by seed, and
    what the fit reports of the second's."""
    heads = sorted((s for s in systems if s.kind == "head"), key=lambda s: -s.dev_score)
    own = [s for s in systems if s.kind == "snapshot"]
    for first, second in [*zip(own[:1], heads[:1], strict=False), *pairwise(heads[:2])]:
        of_seed = {info["seed"]: folder for info, folder in zip(first.infos, first.folders, strict=False)}
        both = [
            ((of_seed.get(info["seed"], first.folders[0]), folder), info)
            for info, folder in zip(second.infos, second.folders, strict=True)
            if not of_seed or info["seed"] in of_seed  # a seed that diverged is missing
        ]
        if both:
            yield (first, second), [folders for folders, _ in both], [info for _, info in both]


def collect(
    systems: list[System],
    splits: Mapping[str, Split],
    *,
    finetune: RunFolder | None,
    fits: list[RunFolder],
    out: Path,
    **about: Any,
) -> dict[str, Any]:
    """The dict that results.json holds; claims are made on test where there is one. `about` is for `frame`."""
    final = "test" if "test" in splits else "dev"
    own = {system.snapshot: system for system in systems if system.kind == "snapshot"}
    chosen = _mark_best(systems)
    length = round(float(splits["dev"].windows.lengths.mean()))
    rows = [_about(system, about["encoder"]["parameters"], out, length) for system in systems]
    for row, system in zip(rows, systems, strict=True):
        row["scores"] = {name: _scores(system, name, final) for name in system.records[0].scores}
        row["versus"] = _versus(system, own.get(system.snapshot), final)
    rows += _baselines(splits)
    compared = own.get(chosen.snapshot) if chosen else next(iter(own.values()), None)
    return frame(rows, splits=splits, **about) | {
        "finetune": _tuned(about["settings"]["finetune"], finetune),
        "fit": about["settings"]["fit"] | _fit_facts(fits),
        "curves": {
            "finetune": read_metrics(finetune.metrics) if finetune else [],
            "fit": {s.name: _mean_history(s) for s in systems if s.infos and s.head},
        },
        "layer_weights": {s.name: w for s in systems if s.head and (w := s.head.layer_weights())},
        "details": {s.name: _details(s, final) for s in (chosen, compared) if s is not None},
        "examples": _examples(chosen, compared, final),
    }


def frame(
    systems: Sequence[dict[str, Any]],
    command: str,
    settings: dict[str, Any],
    encoder: dict[str, Any],
    splits: Mapping[str, Split],
    device: str,
    precision: str,
) -> dict[str, Any]:
    """What the results of every verb hold: where they come from, the task, the data, the systems."""
    task = splits["train"].task
    present = {name for row in systems for scores in row["scores"].values() for name in scores}
    return {
        "schema": SCHEMA,
        "bertvision": __version__,
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "environment": environment(device, precision),
        "encoder": encoder,
        "settings": settings,
        "task": task.config() | {"title": task.title(task.metric), "outputs": task.outputs},
        "metrics": {
            name: {"title": task.title(name)}
            | {key: getattr(task.metrics[name], key) for key in ("percent", "higher", "about")}
            for name in dict.fromkeys((*task.selecting, *task.metrics))
            if name in present
        },
        "data": {name: split.describe() for name, split in splits.items()},
        "systems": systems,
    }


# ---- systems


def _mark_best(systems: Sequence[System]) -> System | None:
    """Mark the best head on each snapshot, or the best control where there is none; returns the best of all."""
    marked = []
    for snapshot in dict.fromkeys(system.snapshot for system in systems):
        own = [s for s in systems if s.snapshot == snapshot]
        if heads := [s for s in own if s.kind == "head"] or [s for s in own if s.kind == "control"]:
            marked.append(max(heads, key=lambda s: s.dev_score))
            marked[-1].best = True
    return max(marked, key=lambda s: s.dev_score, default=None)


def _about(system: System, encoder: int, out: Path, length: int) -> dict[str, Any]:
    row = UNKNOWN | {key: getattr(system, key) for key in ("name", "kind", "label", "members", "best")}
    row |= {"snapshot": system.snapshot.removeprefix("snapshot-"), "seeds": system.seeds or None}
    if system.folders:
        row["folder"] = str(system.folders[system.shipped].relative_to(out))
    if (head := system.head) is not None:
        price = cost(head, head.geometry, tokens=length)
        row |= vars(price) | {"head": head.name, "percent": 100 * price.parameters / encoder}
        if system.infos:
            row["seconds"] = float(np.mean([info["seconds"] for info in system.infos]))
    return row


def _scores(system: System, split: str, final: str) -> dict[str, Any]:
    """Every metric: mean, standard deviation over the members (n - 1), each member, the interval of the mean."""
    task, members, found = system.task, system.members_on(split), {}
    for name in system.records[0].scores[split]:
        values, interval = system.values(split, name), None
        if split == final and task.metrics[name].selects:
            drawn = task.compare(name, members)
            interval = [drawn.low, drawn.high]
        found[name] = {
            "mean": float(np.mean(values)),
            "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "per_seed": dict(zip(map(str, system.seeds), values, strict=True)) if system.seeds else None,
            "interval": interval,
        }
    return found


def _versus(system: System, own: System | None, final: str) -> dict[str, Any] | None:
    if own is None or own is system:
        return None
    task, ours, theirs = system.task, system.members_on(final), own.members_on(final)
    return {
        "baseline": own.name,
        "split": final,
        "metrics": {name: vars(task.compare(name, ours, theirs)) for name in task.selecting},
        "mcnemar_p": task.mcnemar(ours[0], theirs[0]),
    }


def _baselines(splits: Mapping[str, Split]) -> list[dict[str, Any]]:
    train = splits["train"]
    parts = {name: split.data for name, split in splits.items() if name != "train"}
    unknown: dict[str, Any] = {"sd": None, "per_seed": None, "interval": None}
    rows = []
    for label, found in train.task.baselines(train.data, parts).items():
        row = UNKNOWN | {"name": label, "kind": "baseline", "label": label, "best": False}
        row["scores"] = {
            split: {name: {"mean": value} | unknown for name, value in own.items()}
            for split, own in found.items()
        }
        rows.append(row)
    return rows


def _details(system: System, split: str) -> dict[str, Any]:
    seed = system.seeds[system.shipped] if system.seeds else None
    return {"seed": seed} | system.task.details(*system.members_on(split)[system.shipped])


def _examples(chosen: System | None, own: System | None, split: str) -> list[dict[str, Any]]:
    """A fair draw of examples on which a head and its snapshot differ; wins and losses are drawn alike."""
    if chosen is None or own is None:
        return []
    both = (s.task.examples(s.members_on(split)[s.shipped]) for s in (chosen, own))
    differing = [(ours, theirs) for ours, theirs in zip(*both, strict=True) if ours["said"] != theirs["said"]]
    random.Random(0).shuffle(differing)
    return [
        {key: value for key, value in ours.items() if key not in ("said", "right")}
        | {"head": ours["said"], "snapshot": theirs["said"]}
        | {"head_right": ours["right"], "snapshot_right": theirs["right"]}
        for ours, theirs in differing[:_EXAMPLES]
    ]


# ---- costs and curves


def _fit_facts(fits: Sequence[RunFolder]) -> dict[str, Any]:
    encoding = [stage.results["encode_seconds"] for stage in fits]
    return {
        # The time of a stage includes that of its encoder, which is reported by itself.
        "seconds": sum(max(0.0, stage.seconds - own) for stage, own in zip(fits, encoding, strict=True)),
        "encode_seconds": sum(encoding),
        "states": sorted({stage.results["states"] for stage in fits}),
        "profiles": [stage.results["profile"] for stage in fits],
    }


def _tuned(settings: dict[str, Any], stage: RunFolder | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    chosen = ("lr", "schedule", "warmup", "batch_size", "epochs", "seed", "weight_decay")
    measured = ("policy", "trainable", "parameters", "tokens_per_second")
    found = {name: settings[name] for name in chosen} | {name: stage.results[name] for name in measured}
    return found | {"seconds": stage.seconds}


def _mean_history(system: System) -> list[dict[str, float]]:
    records = []
    for i in range(max(len(info["history"]) for info in system.infos)):
        rows = [info["history"][i] for info in system.infos if i < len(info["history"])]
        names = [name for name in ("epoch", "loss", "score") if all(name in row for row in rows)]
        records.append({name: float(np.mean([row[name] for row in rows])) for name in names})
    return records


SplitLogits = dict[str, dict[Path, Logits]]  # logits by split and the folder of the head


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
        selection, count = selection_of_fit(self.stage), encoder.num_states
        every = selection.numbers(count) == tuple(range(count))
        if self.own and not (selection.whole(count) or (every and shared[self.own].cls_only)):
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
