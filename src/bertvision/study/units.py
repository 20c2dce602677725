"""The units of a study that need the encoder: a tuning, a fit on a snapshot, heads of one snapshot read on another."""

import dataclasses
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.artifacts import read_json
from bertvision.encoder.encoder import Encoder
from bertvision.feed import FeedConfig, LiveFeed, Reading
from bertvision.heads.base import Head
from bertvision.heads.catalogue import expand
from bertvision.heads.cost import cost
from bertvision.report.results import layer_weights
from bertvision.study.about import About, digest
from bertvision.study.config import UNTUNED, FitPart, ReadPart, StudyConfig, StudyTask, TunePart
from bertvision.study.material import Material
from bertvision.study.systems import PARTS, Systems
from bertvision.train.evaluate import logits_by_reading, task_logits
from bertvision.train.finetune import snapshot_name, tune
from bertvision.train.fit import FitConfig
from bertvision.train.log import read_metrics
from bertvision.train.memory import begin_peak, peak_bytes
from bertvision.train.trained import Trained, read_trained
from bertvision.train.zoo import fit_zoo, zoo_members

__all__ = ["Work"]

_TIMED = 2048
"""Windows of dev on which answering is timed; the time is told for all of dev."""


class Work:
    """Does units with the device."""

    def __init__(
        self,
        config: StudyConfig,
        material: Material,
        systems: Systems,
        facts: dict[str, Any],
        overwrite: bool,
    ) -> None:
        self.config, self.material, self.systems = config, material, systems
        self.facts, self.overwrite = facts, overwrite

    # ---- the three kinds: what is done already, and the work

    def is_tuned(self, part: TunePart, seed: int) -> bool:
        """Whether a tuning is done with these settings, and all its snapshots have answered."""
        made = self._made(self._folder(part, seed), self._tune_key(part, seed))
        return made is not None and all(
            self.systems.has(about.key, seed, made) for about in self._snapshots(part, seed).values()
        )

    def tune(self, part: TunePart, seed: int) -> None:
        """Fine-tune, and answer with every snapshot."""
        tuned = self._folder(part, seed)
        stage, _ = tune(
            self._load(self.config.encoder),
            self.material.train(part.task, part.fraction, seed),
            folder=tuned,
            config=dataclasses.replace(part.finetune, seed=seed),
            overwrite=self.overwrite,
        )
        made = digest(stage.key)
        for mark, about in self._snapshots(part, seed).items():
            if self.systems.has(about.key, seed, made):
                continue
            folder = tuned / snapshot_name(mark)
            encoder = self._load(folder / "encoder")
            told = _tuning(part, mark, stage.results) | {"history": tuple(_thin(read_metrics(stage.metrics)))}
            self._answer(
                encoder,
                {about.label: read_trained(folder)},
                {about.label: dataclasses.replace(about, **told, made=made)},
                part.task,
                timed=part.inference,
            )

    def is_fitted(self, part: FitPart, seed: int) -> bool:
        """Whether a fit is done with these settings, and all its heads have answered."""
        folder = self._fits(part, seed)
        made = self._made(folder, self._fit_key(part, seed))
        if made is None:
            return False
        done = read_json(folder / "stage.json")["results"]["heads"]  # some may have been dropped
        return all(
            self.systems.has(about.key, seed, made)
            for name, about in self._heads(part, seed).items()
            if name in done
        )

    def fit(self, part: FitPart, seed: int) -> None:
        """Fit heads on a snapshot, and answer with each."""
        folder = self._fits(part, seed)
        before = self._made(folder, self._fit_key(part, seed)) is not None
        train = self.material.train(part.task, part.fraction, seed)
        abouts = self._heads(part, seed)
        tuned, mark = self._snapshot(part.snapshot, seed)
        encoder = self._load(self._states(part.snapshot, seed))
        begin_peak(encoder.device)
        stage = fit_zoo(
            encoder,
            train,
            folder=folder,
            config=self._fit_config(part, seed),
            encoder_about={"name": encoder.name},
            feed=FeedConfig(source="memory" if part.task == "answerable" else "live"),
            dev=self.material.part("dev", part.task) if part.epoch_scores else None,
            overwrite=self.overwrite,
        )
        # Of a fit that was done before this moment nobody knows it any more.
        shared: dict[str, Any] = {"peak_bytes": None if before else peak_bytes(encoder.device)}
        if tuned is not None:
            done = read_json(self._folder(tuned, seed) / "stage.json")["results"]
            shared = _tuning(tuned, mark, done) | shared
        made = digest(stage.key)
        told = {}
        for name, info in stage.results["heads"].items():
            own = {"fit_seconds": stage.results["profile"].get("encoder", 0.0) + info["seconds"]}
            about = dataclasses.replace(
                abouts[name], **shared, **own, history=tuple(info["history"]), made=made
            )
            if not self.systems.has(about.key, seed, made):
                told[name] = about
        self._answer(
            encoder,
            {name: read_trained(folder / name) for name in told},
            told,
            part.task,
            timed=part.inference,
        )

    def is_read(self, part: ReadPart, seed: int) -> bool:
        """Whether the heads have answered on the other snapshot."""
        return (self._fits(self._source(part), seed) / "stage.json").exists() and not self._moved(part, seed)

    def read(self, part: ReadPart, seed: int) -> None:
        """Answer with heads of another snapshot; of that one they know nothing."""
        source, told = self._source(part), self._moved(part, seed)
        folder = self._fits(source, seed)
        self._answer(
            self._load(self._states(part.snapshot, seed)),
            {name: read_trained(folder / name) for name in told},
            told,
            source.task,
        )

    def is_begun(self, part: TunePart | FitPart | ReadPart, seed: int) -> bool:
        """Whether something of it lies here, done or not."""
        if isinstance(part, ReadPart):
            return len(self._moved(part, seed)) < len(self._heads(self._source(part), seed))
        if isinstance(part, TunePart):
            return self._holds(self._folder(part, seed), self._tune_key(part, seed)) is not None
        return self._holds(self._fits(part, seed), self._fit_key(part, seed)) is not None

    # ---- what they are called

    def _snapshots(self, part: TunePart, seed: int) -> dict[float, About]:
        """What a tuning keeps, by its epochs."""
        return {
            mark: About(
                experiment=part.name, kind="snapshot", label=name, seed=seed, task=part.task, snapshot=name,
                data_fraction=part.fraction,
            )
            for name, mark in part.snapshots.items()
        }  # fmt: skip

    def _heads(self, part: FitPart, seed: int) -> dict[str, About]:
        """What a fit keeps, by the names of its folders."""
        train = self.material.train(part.task, part.fraction, seed)
        sizes = {"tokens": train.config.max_seq_length, "states": self.material.encoder.num_states}
        members = zoo_members(self._fit_config(part, seed), train.task, **sizes)
        return {
            name: About(
                experiment=part.name, kind=_kind(spec.name), label=spec.label, seed=seed, task=part.task,
                snapshot=part.snapshot, data_fraction=part.fraction,
            )
            for name, spec, _ in members
        }  # fmt: skip

    def _moved(self, part: ReadPart, seed: int) -> dict[str, About]:
        """Heads that have yet to answer on the other snapshot."""
        source = self._source(part)
        folder, found = self._fits(source, seed), {}
        stage = read_json(folder / "stage.json")
        made = digest([stage["key"], self._fingerprint(part.snapshot, seed)])
        abouts = self._heads(source, seed)
        for name in stage["results"]["heads"]:
            about = dataclasses.replace(
                self.systems.about(abouts[name].key, seed),
                experiment=part.name,
                snapshot=part.snapshot,
                fitted_on=source.snapshot,
                history=(),
                inference_seconds=None,
                made=made,
            )
            if not self.systems.has(about.key, seed, made):
                found[name] = about
        return found

    def _source(self, part: ReadPart) -> FitPart:
        return next(fit for fit in self.config.fit if fit.name == part.heads_of)

    # ---- what they were made with

    def _made(self, folder: Path, wanted: dict[str, Any]) -> str | None:
        """Digest of the key of finished work; None where it is not finished or has other settings."""
        found = self._holds(folder, wanted)
        return digest(found["key"]) if found is not None and found["done"] else None

    def _holds(self, folder: Path, wanted: dict[str, Any]) -> dict[str, Any] | None:
        """The mark of work with these settings, done or not."""
        mark = folder / "stage.json"
        if not mark.exists():
            return None
        found = read_json(mark)
        plain = json.loads(json.dumps(wanted))  # as files have it
        return found if all(found["key"].get(name) == value for name, value in plain.items()) else None

    def _tune_key(self, part: TunePart, seed: int) -> dict[str, Any]:
        """What decides a tuning, as far as a recipe can change it."""
        return {
            "encoder": self.material.encoder.fingerprint,
            "train": self.material.train(part.task, part.fraction, seed).fingerprint,
            "finetune": dataclasses.replace(part.finetune, seed=seed).identity,
        }

    def _fit_key(self, part: FitPart, seed: int) -> dict[str, Any]:
        """The same of a fit; its heads are looked at by name."""
        settings = self._fit_config(part, seed).identity
        names = list(expand(settings["heads"], "label" if part.task == "answerable" else "span"))
        return {
            "encoder": self._fingerprint(part.snapshot, seed),
            "train": self.material.train(part.task, part.fraction, seed).fingerprint,
            "fit": settings | {"heads": [head for head, _ in names]},
        }

    def _fit_config(self, part: FitPart, seed: int) -> FitConfig:
        config = dataclasses.replace(part.fit, heads=part.heads, seeds=(seed,), seed=seed)
        if part.epoch_scores:  # scored after every epoch, and never stopped by it
            config = dataclasses.replace(config, patience=config.epochs + 1)
        return config

    def _fingerprint(self, snapshot: str, seed: int) -> str:
        """Of the encoder's weights, "" where it is not tuned yet."""
        if snapshot == UNTUNED:
            return self.material.encoder.fingerprint
        head = self._states(snapshot, seed).parent / "head" / "config.json"
        return read_json(head)["encoder"]["fingerprint"] if head.exists() else ""

    # ---- what they share

    def _load(self, place: str | Path) -> Encoder:
        return Encoder.load(str(place), device=self.config.device, precision=self.config.precision)

    def _folder(self, part: TunePart, seed: int) -> Path:
        return self.config.out / "tune" / f"{part.name}.seed{seed}"

    def _fits(self, part: FitPart, seed: int) -> Path:
        return self.config.out / "fit" / f"{part.name}.seed{seed}"

    def _snapshot(self, name: str, seed: int) -> tuple[TunePart | None, float]:
        """The tuning that made a snapshot, and the epochs behind it."""
        if name == UNTUNED:
            return None, 0.0
        part = self.config.tuning_of(name, seed)
        assert part is not None  # the settings were checked
        return part, part.snapshots[name]

    def _states(self, snapshot: str, seed: int) -> Path:
        """Where the encoder lies."""
        part, mark = self._snapshot(snapshot, seed)
        if part is None:
            return Path(self.config.encoder)
        return self._folder(part, seed) / snapshot_name(mark) / "encoder"

    def _answer(
        self,
        encoder: Encoder,
        trained: Mapping[str, Trained],
        abouts: Mapping[str, About],
        task: StudyTask,
        *,
        timed: bool = False,
    ) -> None:
        """Walk over dev and what is held out with all heads at once, and keep what each gave."""
        if not trained:
            return
        heads = {name: (one.heads[0].to(encoder.device), one.readings[0]) for name, one in trained.items()}
        logits = {}
        for part in PARTS:
            split = self.material.part(part, task)
            logits[part] = logits_by_reading(heads, partial(_live, encoder, split.windows), task=split.task)
        tokens = round(float(self.material.part("dev", task).windows.lengths.mean()))
        for name, (head, _) in heads.items():
            about = abouts[name]
            price = cost(head, head.geometry, tokens=tokens)
            fitted = price.parameters if about.kind != "snapshot" else 0
            more: dict[str, Any] = dict(
                parameters=price.parameters,
                flops_per_token=price.flops_per_token,
                trainable=(about.trainable or 0) + fitted,
                encoder_flops_per_token=_encoder_flops(encoder, tokens),
                layer_weights=tuple(layer_weights(head) or ()),
            )
            if timed:
                more["inference_seconds"] = self._seconds(encoder, head, task)
            self.systems.keep(
                dataclasses.replace(about, **more, **self.facts), {part: logits[part][name] for part in PARTS}
            )

    def _seconds(self, encoder: Encoder, head: Head, task: StudyTask) -> float:
        """Of answering all of dev: the second of two walks over some of its windows, drawn evenly."""
        split = self.material.part("dev", task)
        rows = np.unique(np.linspace(0, len(split.windows) - 1, _TIMED).astype(np.int64))
        feed = LiveFeed(encoder, split.windows.take(rows))
        took = 0.0
        for _ in range(2):
            began = time.perf_counter()
            task_logits(split.task, feed, {"": head})
            took = time.perf_counter() - began
        return took * split.windows.num_tokens / feed.windows.num_tokens


def _live(encoder: Encoder, windows: Any, reading: Reading) -> LiveFeed:
    return LiveFeed(encoder, windows, reading=reading)


def _tuning(part: TunePart, mark: float, done: dict[str, Any]) -> dict[str, Any]:
    """What a system's snapshot cost, from the results of its tuning."""
    how = part.finetune
    return {
        "policy": done["policy"], "schedule": how.schedule, "lr": how.lr, "epochs": how.epochs,
        "batch_size": how.batch_size, "trainable": done["trainable"], "peak_bytes": done["peak_bytes"],
        "tune_seconds": done["train_seconds"] * mark / how.epochs,
    }  # fmt: skip


def _kind(head: str) -> Any:
    return "control" if head.startswith(("last_state", "cls_linear", "cls_mlp")) else "head"


def _thin(lines: list[dict[str, Any]], most: int = 60) -> list[dict[str, Any]]:
    """Some lines of a log, evenly."""
    return lines[:: max(1, len(lines) // most)]


def _encoder_flops(encoder: Encoder, tokens: int) -> int:
    """A token's forward pass: two a weight of the layers, and attention over `tokens`."""
    embeddings = sum(p.numel() for name, p in encoder.model.named_parameters() if "embeddings" in name)
    weights = encoder.num_parameters - embeddings
    return int(2 * weights + 4 * (encoder.num_states - 1) * encoder.hidden * tokens)
