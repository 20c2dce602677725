"""What training left behind, read again: a head, an ensemble of heads, or a run (its best head).

A head names its encoder and the fingerprint of its weights; another encoder is refused, because the head would
read states it was not fitted on and answer with confidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.artifacts import read_json
from bertvision.config import from_mapping
from bertvision.data.reframe import Reframe
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.device import Precision
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, EncoderError
from bertvision.heads.base import Head, load_head
from bertvision.model.folders import ensemble_of, heads_in
from bertvision.states.base import States
from bertvision.states.config import EVERYTHING, Selection, SourceConfig, StatesConfig
from bertvision.states.source import open_states
from bertvision.tasks.base import Task, task_from_config
from bertvision.tasks.logits import Logits
from bertvision.tasks.settings import TextConfig
from bertvision.tasks.walk import Reader, walk_windows
from bertvision.train.splits import Split, window_split

NO_REFRAME = Reframe()


@dataclass(frozen=True)
class Trained:
    """One trained system: its heads and what they need, without the encoder's weights."""

    folder: Path
    heads: list[Head]
    selections: list[Selection]
    """Which states each head reads: what it was fitted on."""
    windows: WindowConfig
    encoder: str
    """Where the encoder is: a folder or a name."""
    fingerprint: str
    """Of the encoder's weights and tokenizer."""
    task: Task
    tuning: Any
    """What was fitted on dev (tasks/base.py), or how things stand without that."""
    tuned_on: str = ""
    """What the tuning was fitted on."""
    how: str = ""
    """How several heads are joined; empty: the usual way of the task."""
    reframe: Reframe = NO_REFRAME
    """How texts are asked about before they are read."""

    @property
    def name(self) -> str:
        """A short name for tables and folders; a snapshot's own head goes by the snapshot's."""
        return self.folder.parent.name if self.folder.name == "head" else self.folder.name

    @property
    def readers(self) -> list[Reader]:
        """Its heads, each with the states it reads."""
        return [
            Reader(head, selection, self.task)
            for head, selection in zip(self.heads, self.selections, strict=True)
        ]

    @property
    def text(self) -> TextConfig:
        """How texts are read for it."""
        return TextConfig(prompt=self.reframe.prompt, context=self.reframe.context)

    @property
    def reads(self) -> tuple[Any, ...]:
        """What decides the windows it reads: systems that agree share one walk over the encoder."""
        return (self.fingerprint, self.windows, self.reframe, self.task.reads_questions, self.task.group)

    def join(self, logits: Sequence[Logits], windows: Windows) -> Logits:
        """Its logits from those of its heads."""
        return logits[0] if len(logits) == 1 else self.task.join(logits, windows, self.how)


def read_trained(folder: str | Path) -> Trained:
    """Read a folder that `fit`, `finetune`, `ensemble` or `run` wrote; of a run its best head."""
    found = heads_in(Path(folder))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ArtifactError(f"{folder} holds several heads ({names}): name the folder of one of them")
    return read_head(found[0])


def read_head(folder: Path) -> Trained:
    """Read the folder of one head or ensemble."""
    how, members = ensemble_of(folder)
    loaded = [load_head(member) for member in members]
    abouts = [about for _, about in loaded]
    for member, about in zip(members, abouts, strict=True):
        if not {"encoder", "windows"} <= about.keys() or "fingerprint" not in about["encoder"]:
            raise ArtifactError(
                f"{member / 'config.json'} does not say which encoder and windows the head reads: fit it again"
            )
    places = [str(member / "config.json") for member in members]
    tasks = [task_from_config(about.get("task"), place) for place, about in zip(places, abouts, strict=True)]
    if any(task != tasks[0] for task in tasks):
        raise ArtifactError(f"the members of {folder} are for different tasks: use each alone")
    fingerprints = {about["encoder"]["fingerprint"] for about in abouts}
    if len(fingerprints) > 1:
        raise ArtifactError(f"the members of {folder} read {len(fingerprints)} encoders: use each alone")
    tuning, tuned_on = _read_tuning(folder / "metrics.json", tasks[0])
    return Trained(
        folder=folder,
        heads=[head for head, _ in loaded],
        selections=[selection_of(about, place) for about, place in zip(abouts, places, strict=True)],
        windows=from_mapping(WindowConfig, abouts[0]["windows"], source=str(members[0] / "config.json")),
        encoder=_encoder_source(members[0], abouts[0]["encoder"]),
        fingerprint=fingerprints.pop(),
        task=tasks[0],
        tuning=tuning,
        tuned_on=tuned_on,
        how=tasks[0].join_how(how) if how else "",
        reframe=from_mapping(Reframe, abouts[0].get("reframe", {}), source=places[0]),
    )


def _read_tuning(path: Path, task: Task) -> tuple[Any, str]:
    """What metrics.json says was fitted on dev, and on which data; the untuned state where it says nothing."""
    metrics = read_json(path) if path.exists() else {}
    stored = metrics.get("tuning", {}) if isinstance(metrics, dict) else None
    if not isinstance(stored, dict):
        raise ArtifactError(f"{path} is damaged: copy it again, or evaluate the head again")
    return (task.tuning_from(stored, str(path)) if stored else task.untuned()), str(stored.get("on", ""))


def selection_of(about: dict[str, Any], source: str = "config.json") -> Selection:
    """Which states a head reads; a config that says nothing of it is of one that reads everything."""
    if "states" not in about:
        return EVERYTHING
    try:
        selection = from_mapping(Selection, about["states"], source=source)
    except (ConfigError, AttributeError) as error:
        raise ArtifactError(f"{source} does not say which states the head reads: fit it again") from error
    if len(selection.layers) != about["geometry"]["states"]:
        raise ArtifactError(
            f"{source} names {len(selection.layers)} states for a head of {about['geometry']['states']}: fit it again"
        )
    return selection


def _encoder_source(folder: Path, about: dict[str, Any]) -> str:
    return str((folder / about["path"]).resolve()) if "path" in about else about["name"]


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
    fits = trained.selections[0] != EVERYTHING or (ours.states, ours.hidden) == theirs
    if encoder.fingerprint != trained.fingerprint and not (other and fits):
        size = ""
        if not fits:
            size = f", which has {theirs[0]} states of {theirs[1]} and not {ours.states} of {ours.hidden}"
        raise ArtifactError(
            f"{trained.folder} was fitted on another encoder (fingerprint {trained.fingerprint[:12]}) than "
            f"{encoder.name} ({encoder.fingerprint[:12]}){size}: name the right one with --encoder"
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
        split = window_split(data, source, first.windows, task=first.task, text=first.text)
        readers = {
            f"{i}/{j}": reader for i, system in group.items() for j, reader in enumerate(system.readers)
        }
        for reader in readers.values():
            reader.head.to(source.device)

        def opened(selection: Selection, source: Encoder = source, split: Split = split) -> States:
            config = StatesConfig.of(states or SourceConfig(), selection)
            return open_states(source, split.windows, config, origin=split.origin, **opening)

        walked = walk_windows(source, split.windows, readers, opened=opened, label="evaluate")
        for i, system in group.items():
            own = [walked[f"{i}/{j}"] for j in range(len(system.heads))]
            done[i] = (split, system.join(own, split.windows))
    return [done[i] for i in range(len(systems))]
