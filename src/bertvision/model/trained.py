"""What training left behind, read again. A folder stands for heads:

    a head, an ensemble          itself
    a run                        its best head
    a snapshot                   the head that was tuned with it, or those of all its tasks
    anything else                every head below it: those of a fit, of several tasks, of several snapshots

Readers of single hidden states (`layer_reader`) show how an answer forms; they count as heads only where a folder holds
nothing else. Another encoder than the one a head was fitted on (by fingerprint) is refused: the head would answer from
states it does not know, and with confidence.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertvision.artifacts import read_json, restore
from bertvision.config import from_mapping
from bertvision.data.texts import Reframe
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.device import Precision
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, EncoderError
from bertvision.heads.base import Head, load_head, read_head_config
from bertvision.heads.readouts import layer_of
from bertvision.states.base import States
from bertvision.states.config import EVERYTHING, Selection, SourceConfig, StatesConfig
from bertvision.states.source import open_states
from bertvision.tasks.base import Task, TextConfig, task_from_config
from bertvision.tasks.logits import Logits
from bertvision.tasks.walk import Reader, walk_windows
from bertvision.train.splits import Split, window_split

PACKAGE = "package.json"
_UNFINISHED = re.compile(r"\..+\.tmp-\d+")
"""What artifacts.atomic_folder calls a folder until it is whole."""
_WRITERS = "give what fit, finetune, multitask, ensemble, run or export wrote"


def is_package(folder: str | Path) -> bool:
    """Whether `folder` says that it is one (load.py); it may still be damaged."""
    return (Path(folder) / PACKAGE).is_file()


def check_finished(folder: Path) -> None:
    """Bring back what a killed command left aside, and refuse a folder that does not exist or is not finished."""
    if _UNFINISHED.fullmatch(folder.name):
        raise ArtifactError(f"{folder} was left by a command that was killed: run that command again")
    restore(folder)
    if not folder.is_dir():
        raise ArtifactError(f"there is no folder {folder}: {_WRITERS}")


def heads_in(folder: Path) -> list[Path]:
    """The folders of the heads that `folder` stands for; never empty."""
    check_finished(folder)
    if (results := folder / "results.json").exists():
        best = [system for system in read_json(results).get("systems", []) if system.get("best")]
        if not best:
            raise ArtifactError(f"{folder} has no best head: name one of the folders under {folder / 'fit'}")
        return [folder / best[-1]["folder"]]
    for own in (folder, folder / "head"):
        if (own / "config.json").exists():
            return [own]
    found = heads_below(folder)
    if not found:
        raise ArtifactError(f"{folder} holds neither a package nor a head: {_WRITERS}")
    return [path for path in found if not is_reader(path)] or found


def heads_below(folder: Path) -> list[Path]:
    """Every head below a folder, but for the copies in packages that were exported into it."""
    return [
        path
        for path in sorted(file.parent for file in folder.rglob("config.json"))
        if "encoder" not in path.relative_to(folder).parts
        and is_head(path)
        and not any(is_package(above) for above in path.parents if folder in above.parents)
    ]


def is_head(folder: Path) -> bool:
    files = [folder / name for name in ("config.json", "model.safetensors")]
    return all(file.is_file() for file in files) and "head" in read_json(files[0])


def is_reader(folder: Path) -> bool:
    head: Any = read_head_config(folder)["head"]
    return isinstance(head, dict) and str(head.get("name")).startswith("layer_reader.v")


@dataclass(frozen=True)
class Trained:
    """One trained system: its heads and what they need, without the encoder's weights."""

    folder: Path
    readers: list[Reader]  # all of one task
    windows: WindowConfig
    encoder: str
    """Where the encoder is: a folder or a name."""
    fingerprint: str
    """Of the encoder's weights and tokenizer."""
    tuning: Any
    """What was fitted on dev (tasks/base.py), or how things stand without that."""
    tuned_on: str = ""
    how: str = ""
    """How several heads are joined; empty: the usual way of the task."""
    reframe: Reframe = field(default_factory=Reframe)
    layers: Sequence["Trained"] = ()
    """Readers of its hidden states, the lowest first, which only `Model.explain` asks."""
    members: Sequence[Path] = ()
    """Where its heads lie: in its own folder, or each in one of its own."""
    package: Path | None = None

    @property
    def task(self) -> Task:
        return self.readers[0].task

    @property
    def heads(self) -> list[Head]:
        return [reader.head for reader in self.readers]

    @property
    def name(self) -> str:
        """A short name for tables and folders; a snapshot's own head goes by the snapshot's."""
        return self.folder.parent.name if self.folder.name == "head" else self.folder.name

    @property
    def reads(self) -> tuple[Any, ...]:
        """What decides the windows it reads: systems that agree share one walk over the encoder."""
        return (self.fingerprint, self.windows, self.reframe, self.task.asks, self.task.group)

    @property
    def state(self) -> int | None:
        """The hidden state that a reader of one reads; None for any other head."""
        number, layers = layer_of(self.heads[0]), self.readers[0].selection.layers
        # Its option counts among the states it was fitted on.
        return number if number is None or not layers else layers[number]

    def join(self, logits: Sequence[Logits], windows: Windows) -> Logits:
        return logits[0] if len(logits) == 1 else self.task.join(logits, windows, self.how)


def read_trained(folder: str | Path) -> Trained:
    found = heads_in(Path(folder))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ArtifactError(f"{folder} holds several heads ({names}): name the folder of one of them")
    return read_head(found[0])


def read_head(folder: Path) -> Trained:
    config, members, how = read_json(folder / "config.json"), [folder.resolve()], ""
    if "ensemble" in config:
        how = config["ensemble"]["how"]
        members = [(folder / one).resolve() for one in config["ensemble"]["members"]]
    first, *others = parts = [_read_member(member) for member in members]
    if any((one.fingerprint, one.task) != (first.fingerprint, first.task) for one in others):
        raise ArtifactError(f"the members of {folder} are for different encoders or tasks: use each alone")
    path = folder / "metrics.json"
    stored = read_json(path).get("tuning", {}) if path.exists() else {}
    return replace(
        first,
        folder=folder,
        readers=[one.readers[0] for one in parts],
        tuning=first.task.tuning_from(stored, str(path)) if stored else first.tuning,
        tuned_on=str(stored.get("on", "")),
        how=first.task.join_how(how) if how else "",
        members=members,
    )


def _read_member(folder: Path) -> Trained:
    place = str(folder / "config.json")
    head, about = load_head(folder)
    if not {"encoder", "windows"} <= about.keys():
        raise ArtifactError(f"{place} does not say which encoder and windows the head reads: fit it again")
    encoder, task = about["encoder"], task_from_config(about.get("task"), place)
    # A config that says nothing of states is of a head that reads everything.
    selection = from_mapping(Selection, about["states"], source=place) if "states" in about else EVERYTHING
    return Trained(
        folder=folder,
        readers=[Reader(head, selection, task)],
        windows=from_mapping(WindowConfig, about["windows"], source=place),
        encoder=str((folder / encoder["path"]).resolve()) if "path" in encoder else encoder["name"],
        fingerprint=encoder["fingerprint"],
        tuning=task.untuned(),
        reframe=from_mapping(Reframe, about.get("reframe", {}), source=place),
    )


def load_encoder(
    trained: Trained,
    encoder: str | Encoder | None = None,
    *,
    other: bool = False,
    device: str = "auto",
    precision: Precision = "auto",
) -> Encoder:
    """The encoder a system was fitted on, from where it says or from `encoder`.

    Other weights are refused; `other` allows them where number and size of the states agree.
    """
    if encoder is None:
        encoder = trained.encoder
        if Path(encoder).is_absolute() and not Path(encoder).is_dir():
            raise EncoderError(
                f"the encoder of {trained.folder} is not at {encoder} any more: name it with --encoder"
            )
    if isinstance(encoder, str):
        encoder = Encoder.load(encoder, device=device, precision=precision)
    ours, theirs = trained.heads[0].geometry, (encoder.num_states, encoder.hidden)
    fits = trained.readers[0].selection != EVERYTHING or (ours.states, ours.hidden) == theirs
    if encoder.fingerprint != trained.fingerprint and not (other and fits):
        size = f", which has {theirs[0]} states of {theirs[1]} and not {ours.states} of {ours.hidden}"
        raise ArtifactError(
            f"{trained.folder} was fitted on another encoder (fingerprint {trained.fingerprint[:12]}) than "
            f"{encoder.name} ({encoder.fingerprint[:12]}){'' if fits else size}: name the right one with --encoder"
        )
    return encoder


def logits_of_trained(
    systems: Sequence[Trained],
    data: Any,
    *,
    encoder: str | None = None,
    other_encoder: bool = False,
    device: str = "auto",
    precision: Precision = "auto",
    states: SourceConfig | None = None,
) -> list[tuple[Split, Logits]]:
    """Logits of every system on `data`, in their order; heads that read the same states share one walk."""
    done: dict[int, tuple[Split, Any]] = {}
    opening: dict[str, Any] = {"label": "states", "passes": 1, "keep": False}
    for reads in dict.fromkeys((s.reads, s.task) for s in systems):
        group = {i: s for i, s in enumerate(systems) if (s.reads, s.task) == reads}
        first = next(iter(group.values()))
        source = load_encoder(first, encoder, other=other_encoder, device=device, precision=precision)
        text = TextConfig(prompt=first.reframe.prompt, context=first.reframe.context)
        split = window_split(data, source, first.windows, task=first.task, text=text)
        readers = {f"{i}/{j}": one for i, system in group.items() for j, one in enumerate(system.readers)}
        for reader in readers.values():
            reader.head.to(source.device)

        def opened(selection: Selection, source: Encoder = source, split: Split = split) -> States:
            config = StatesConfig.of(states or SourceConfig(), selection)
            return open_states(source, split.windows, config, origin=split.origin, **opening)

        walked = walk_windows(source, split.windows, readers, opened=opened, label="evaluate")
        for i, system in group.items():
            own = [walked[f"{i}/{j}"] for j in range(len(system.readers))]
            done[i] = (split, system.join(own, split.windows))
    return [done[i] for i in range(len(systems))]
