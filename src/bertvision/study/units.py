"""The units of a study that need the encoder: a tuning, a fit on a snapshot, heads of one snapshot read on another."""

import dataclasses
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
from bertvision.heads.cost import cost
from bertvision.report.run_facts import layer_weights
from bertvision.study.about import About
from bertvision.study.config import FitPart, ReadPart, StudyConfig, StudyTask, TunePart
from bertvision.study.known import Known, Trains
from bertvision.study.material import Material
from bertvision.study.systems import PARTS, Systems
from bertvision.train.evaluate import logits_by_reading, task_logits
from bertvision.train.finetune import snapshot_name, tune
from bertvision.train.log import read_metrics
from bertvision.train.memory import begin_peak, peak_bytes
from bertvision.train.trained import Trained, read_trained
from bertvision.train.zoo import fit_zoo

__all__ = ["Work"]

_TIMED = 2048
"""Windows of dev on which answering is timed; the time is told for all of dev."""


class Work(Known):
    """Does units with the device."""

    def __init__(
        self,
        config: StudyConfig,
        material: Material,
        systems: Systems,
        facts: dict[str, Any],
        overwrite: bool,
    ) -> None:
        super().__init__(config, material, systems)
        self.facts, self.overwrite = facts, overwrite

    def tune(self, part: TunePart, seed: int) -> None:
        """Fine-tune, and answer with every snapshot."""
        tuned, before = self._folder(part, seed), self.is_kept(part, seed)
        stage, _ = tune(
            self._load(self.config.encoder),
            self.material.train(part.task, part.fraction, seed),
            folder=tuned,
            config=dataclasses.replace(part.finetune, seed=seed),
            overwrite=self.overwrite,
        )
        for mark, about in self.abouts(part, seed).items():
            if before and self._is_answered(part, about):
                continue
            folder = tuned / snapshot_name(mark)
            encoder = self._load(folder / "encoder")
            told = _tuning(part, mark, stage.results) | {"history": tuple(_thin(read_metrics(stage.metrics)))}
            self._answer(
                encoder,
                {about.label: read_trained(folder)},
                {about.label: dataclasses.replace(about, **told)},
                part.task,
                timed=part.inference,
            )

    def fit(self, part: FitPart, seed: int) -> None:
        """Fit heads on a snapshot, and answer with each."""
        folder, before = self._fits(part, seed), self.is_kept(part, seed)
        train = self.material.train(part.task, part.fraction, seed)
        tuned, mark = self._snapshot(part.snapshot, seed)
        encoder = self._load(self._states(part.snapshot, seed))
        # Heads with these settings on a snapshot that was tuned anew are of no use any more.
        stale = tuned is not None and self._holds(folder, self._fit_key(part, seed)) is not None
        begin_peak(encoder.device)
        stage = fit_zoo(
            encoder,
            train,
            folder=folder,
            config=self._fit_config(part, seed),
            encoder_about={"name": encoder.name},
            feed=FeedConfig(source="memory" if part.task == "answerable" else "live"),
            dev=self.material.part("dev", part.task) if part.epoch_scores else None,
            overwrite=self.overwrite or (stale and not self.is_begun(part, seed)),
        )
        # Of a fit that was done before this moment nobody knows it any more.
        shared: dict[str, Any] = {"peak_bytes": None if before else peak_bytes(encoder.device)}
        if tuned is not None:
            done = read_json(self._folder(tuned, seed) / "stage.json")["results"]
            shared = _tuning(tuned, mark, done) | shared
        told = {}
        for name, about in self.abouts(part, seed).items():
            if before and self._is_answered(part, about):
                continue
            info = stage.results["heads"][name]
            own = {"fit_seconds": stage.results["profile"].get("encoder", 0.0) + info["seconds"]}
            told[name] = dataclasses.replace(about, **shared, **own, history=tuple(info["history"]))
        self._answer(
            encoder,
            {name: read_trained(folder / name) for name in told},
            told,
            part.task,
            timed=part.inference,
        )

    def read(self, part: ReadPart, seed: int) -> None:
        """Answer with heads of another snapshot; of that one they know nothing."""
        source = self._source(part)
        folder, fitted = self._fits(source, seed), self.abouts(source, seed)
        told = {
            name: dataclasses.replace(
                self.systems.about(fitted[name].key, seed),
                experiment=part.name,
                snapshot=part.snapshot,
                fitted_on=source.snapshot,
                history=(),
                inference_seconds=None,
                made=about.made,
            )
            for name, about in self.abouts(part, seed).items()
            if not self._is_answered(part, about)
        }
        self._answer(
            self._load(self._states(part.snapshot, seed)),
            {name: read_trained(folder / name) for name in told},
            told,
            source.task,
        )

    def _is_answered(self, part: Trains, about: About) -> bool:
        return self._has(part, about) and self.systems.has_logits(about.key, about.seed)

    def _load(self, place: str | Path) -> Encoder:
        return Encoder.load(str(place), device=self.config.device, precision=self.config.precision)

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


def _thin(lines: list[dict[str, Any]], most: int = 60) -> list[dict[str, Any]]:
    """Some lines of a log, evenly."""
    return lines[:: max(1, len(lines) // most)]


def _encoder_flops(encoder: Encoder, tokens: int) -> int:
    """A token's forward pass: two a weight of the layers, and attention over `tokens`."""
    embeddings = sum(p.numel() for name, p in encoder.model.named_parameters() if "embeddings" in name)
    weights = encoder.num_parameters - embeddings
    return int(2 * weights + 4 * (encoder.num_states - 1) * encoder.hidden * tokens)
