"""What the units of a study are called and made with, and which of them are done: by their records, or on this disk.

A system's `made` (About) is what the recipe decides, and the weights of the encoder it reads:

    DIGEST OF SETTINGS AND DATA . DIGEST OF THE ENCODER'S FINGERPRINT

So records count wherever they were made, and a tuning that is done anew and ends with other weights takes all that was
read from the old ones with it. Records of earlier versions have no dot; they are taken as far as they can be checked.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from bertvision.artifacts import read_json
from bertvision.heads.catalogue import expand
from bertvision.study.about import About, digest
from bertvision.study.config import UNTUNED, FitPart, ReadPart, StudyConfig, TunePart
from bertvision.study.material import Material
from bertvision.study.systems import Systems
from bertvision.train.finetune import snapshot_name
from bertvision.train.fit import FitConfig
from bertvision.train.zoo import zoo_members

__all__ = ["Known", "Trains"]

Trains = TunePart | FitPart | ReadPart
"""Parts that need the encoder."""


class Known:
    """Looks at a study's folder."""

    def __init__(self, config: StudyConfig, material: Material, systems: Systems) -> None:
        self.config, self.material, self.systems = config, material, systems

    # ---- what is there

    def is_recorded(self, part: Trains, seed: int) -> bool:
        """Whether all its systems have answered, here or elsewhere."""
        return all(self._has(part, about) for about in self.abouts(part, seed).values())

    def is_kept(self, part: Trains, seed: int) -> bool:
        """Whether what it trained lies here: then it can answer again."""
        if isinstance(part, TunePart):
            return self._made(self._folder(part, seed), self._tune_key(part, seed)) is not None
        if isinstance(part, FitPart):
            return self._fitted(part, seed) is not None
        return True  # it trains nothing

    def can_answer(self, part: Trains, seed: int) -> bool:
        """Whether its systems can answer without any training."""
        if isinstance(part, TunePart):
            return self.is_kept(part, seed)
        source = self._source(part) if isinstance(part, ReadPart) else part
        return self.is_kept(source, seed) and bool(self._fingerprint(part.snapshot, seed))

    def is_begun(self, part: Trains, seed: int) -> bool:
        """Whether something of it lies here, done or not."""
        if isinstance(part, ReadPart):
            return any(self._has(part, about) for about in self.abouts(part, seed).values())
        if isinstance(part, TunePart):
            return self._holds(self._folder(part, seed), self._tune_key(part, seed)) is not None
        return self._fitting(part, seed) is not None

    def _has(self, part: Trains, about: About) -> bool:
        return self.systems.has(about.key, about.seed, about.made, self._older(part, about.seed))

    def _older(self, part: Trains, seed: int) -> str | None:
        """What a record of an earlier version must say: "" anything, None that it counts for nothing."""
        if isinstance(part, TunePart):
            return self._made(self._folder(part, seed), self._tune_key(part, seed)) or ""
        source = self._source(part) if isinstance(part, ReadPart) else part
        found = self._fitted(source, seed)
        if found is None:  # then its snapshot must be as old
            return "" if "." not in self._told(part.snapshot, seed) else None
        if isinstance(part, FitPart):
            return digest(found["key"])
        return digest([found["key"], self._fingerprint(part.snapshot, seed)])

    # ---- what they are called

    def abouts(self, part: Trains, seed: int) -> dict[Any, About]:
        """What a part keeps: of a tuning by epochs, of a fit (and who reads its heads) by the names of its folders."""
        if isinstance(part, TunePart):
            key = digest(self._tune_key(part, seed))
            return {
                mark: dataclasses.replace(about, made=f"{key}.{self._weights(about.snapshot, seed)}")
                for mark, about in self._snapshots(part, seed).items()
            }
        source = self._source(part) if isinstance(part, ReadPart) else part
        found, stage = self._heads(source, seed), self._fitted(source, seed)
        weights = self._weights(source.snapshot, seed)
        if isinstance(part, ReadPart):
            weights = digest([weights, self._weights(part.snapshot, seed)])
        more: dict[str, Any] = {"made": f"{digest(self._fit_key(source, seed))}.{weights}"}
        if isinstance(part, ReadPart):
            more |= {"experiment": part.name, "snapshot": part.snapshot, "fitted_on": source.snapshot}
        return {
            name: dataclasses.replace(about, **more)
            for name, about in found.items()
            if stage is None or name in stage["results"]["heads"]  # some may have been dropped
        }

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

    def _fitting(self, part: FitPart, seed: int) -> dict[str, Any] | None:
        """The mark of a fit with these settings on this snapshot, done or not."""
        found = self._holds(self._fits(part, seed), self._fit_key(part, seed))
        weights = self._weights(part.snapshot, seed)
        if found is None or (weights and digest(found["key"]["encoder"]) != weights):
            return None
        return found

    def _fitted(self, part: FitPart, seed: int) -> dict[str, Any] | None:
        found = self._fitting(part, seed)
        return found if found is not None and found["done"] else None

    def _tune_key(self, part: TunePart, seed: int) -> dict[str, Any]:
        """What decides a tuning, as far as a recipe can change it."""
        return {
            "encoder": self.material.encoder.fingerprint,
            "train": self.material.train(part.task, part.fraction, seed).fingerprint,
            "finetune": dataclasses.replace(part.finetune, seed=seed).identity,
        }

    def _fit_key(self, part: FitPart, seed: int) -> dict[str, Any]:
        """The same of a fit, whatever the snapshot's weights; its heads are looked at by name."""
        settings = self._fit_config(part, seed).identity
        names = list(expand(settings["heads"], "label" if part.task == "answerable" else "span"))
        return {
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

    def _weights(self, snapshot: str, seed: int) -> str:
        """Digest of the encoder's fingerprint: of the one that lies here, or else of the one that answered."""
        fingerprint = self._fingerprint(snapshot, seed)
        return digest(fingerprint) if fingerprint else self._told(snapshot, seed).partition(".")[2]

    def _told(self, snapshot: str, seed: int) -> str:
        """What the record of a snapshot was made with; "" where there is none, or nothing is told."""
        part, mark = self._snapshot(snapshot, seed)
        if part is None:
            return ""
        key = self._snapshots(part, seed)[mark].key
        return self.systems.about(key, seed).made if seed in self.systems.seeds(key) else ""

    # ---- where they lie

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


def _kind(head: str) -> Any:
    return "control" if head.startswith(("last_state", "cls_linear", "cls_mlp")) else "head"
