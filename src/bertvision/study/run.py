"""Run a study: every tuning, then what stands on its snapshots, seed after seed; what is done already is left alone.

A study may be run in several sittings (`limit`), by several processes at once on different seeds or parts, and killed
at any moment: a unit is one part of the recipe with one seed, its training is a stage that goes on where it stopped,
and a system counts as answered when its record is whole.
"""

import dataclasses
import difflib
import gc
import logging
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from bertvision.artifacts import check_output, read_json, write_json, write_text
from bertvision.config import dump_yaml
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.report.origin import commit, environment
from bertvision.study.about import About, Key, digest
from bertvision.study.config import UNTUNED, DecodePart, FitPart, JoinPart, ReadPart, StudyConfig, TunePart
from bertvision.study.judge import Judges
from bertvision.study.material import Material
from bertvision.study.stages import add_unit, forget_unit
from bertvision.study.systems import PARTS, Systems
from bertvision.study.units import Work
from bertvision.tasks.span.ensemble import combine

__all__ = ["needed", "parts_of", "run_study"]

logger = logging.getLogger(__name__)

Part = TunePart | FitPart | ReadPart | JoinPart | DecodePart


def run_study(
    config: StudyConfig,
    *,
    command: str,
    only: Collection[str] = (),
    seeds: Collection[int] = (),
    limit: float = float("inf"),
    alone: bool = True,
    workers: int = 0,
    overwrite: bool = False,
) -> bool:
    """Do what is not done yet of the parts `only` (all of them unless told); whether all of it is done now.

    No unit begins after `limit` seconds. `alone` says that nothing else runs on the device, so that times count.
    """
    if not config.train or not config.dev:
        raise ConfigError("a study needs --train and --dev: name the questions")
    names = needed(config, only)
    known = sorted({seed for part in config.parts for seed in part.seeds})
    if unknown := [seed for seed in seeds if seed not in known]:
        told = ", ".join(map(str, known))
        raise ConfigError(f"--seeds {unknown[0]} is no seed of the recipe: it has {told}")
    check_output(config.out)
    encoder = Encoder.load(config.encoder, device=config.device, precision=config.precision)
    material = Material(config, encoder)
    facts: dict[str, Any] = {
        "command": command,
        "commit": commit() or "",
        "environment": environment(str(encoder.device), encoder.precision),
        "alone": alone,
    }
    _describe(config, material, encoder, facts)
    with Judges({part: material.part(part, "span") for part in PARTS}, workers) as judges:
        systems = Systems(config.out, material, judges)
        study = _Study(config, Work(config, material, systems, facts, overwrite), systems, facts)
        return study.go(names, set(seeds), limit)


def parts_of(config: StudyConfig) -> list[dict[str, Any]]:
    """The parts of a recipe, as they are listed: kind, seeds, what each stands on, and records that are there."""
    rows = []
    for part in config.parts:
        stands = ", ".join(dict.fromkeys(_stands_on(config, part)))
        seeds = ",".join(map(str, part.seeds))
        found = [
            f for f in config.out.glob("records/*/about.json") if read_json(f)["experiment"] == part.name
        ]
        kind = type(part).__name__.removesuffix("Part").lower()
        rows.append(
            {"part": part.name, "kind": kind, "seeds": seeds, "stands on": stands, "records": len(found)}
        )
    return rows


def needed(config: StudyConfig, only: Collection[str]) -> set[str]:
    """The parts `only` and everything they stand on."""
    known = {part.name: part for part in config.parts}
    if unknown := next((name for name in only if name not in known), None):
        close = difflib.get_close_matches(unknown, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "--list shows them all"
        raise ConfigError(f"--only {unknown} is no part of the recipe: {hint}")
    found: set[str] = set()
    waiting = list(only or known)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _stands_on(config, known[name])
    return found


def _stands_on(config: StudyConfig, part: Part) -> Iterator[str]:
    if isinstance(part, (FitPart, ReadPart)):
        yield from (p.name for p in config.tune if part.snapshot in p.snapshots)
    if isinstance(part, ReadPart):
        yield part.heads_of
    if isinstance(part, (JoinPart, DecodePart)):
        for key in map(Key.of, part.members if isinstance(part, JoinPart) else part.of):
            yield from (p.name for p in config.join if key.snapshot == "join" and key.label == p.name)
            yield from (p.name for p in config.tune if key.snapshot in p.snapshots)
            if not key.label:
                continue
            made_on = (key.fitted_on or key.snapshot, key.fraction)
            fits = [p.name for p in config.fit if (p.snapshot, p.fraction) == made_on]
            yield from fits
            if key.fitted_on:
                yield from (p.name for p in config.read if p.snapshot == key.snapshot and p.heads_of in fits)


def _describe(config: StudyConfig, material: Material, encoder: Encoder, facts: dict[str, Any]) -> None:
    """study.json: what the report tells of data and encoder; config.yaml: the recipe that repeats it."""
    train, parts = material.train("span"), {part: material.part(part, "span") for part in PARTS}
    about = {"name": Path(encoder.name).name, "fingerprint": encoder.fingerprint}
    about |= {"parameters": encoder.num_parameters, "states": encoder.num_states, "hidden": encoder.hidden}
    described = {"train": train.describe()} | {part: split.describe() for part, split in parts.items()}
    write_json(config.out / "study.json", {"encoder": about, "data": described} | facts)
    record = config.out / "config.yaml"
    write_text(record, dump_yaml(config, heading=f"bertvision study --config {record}"))


class _Study:
    """One process's way through the units."""

    def __init__(self, config: StudyConfig, work: Work, systems: Systems, facts: dict[str, Any]) -> None:
        self.config, self.work, self.systems, self.facts = config, work, systems, facts
        self.units: list[tuple[Part, int]] = []
        """All that was asked for, done or not."""
        self.waits: dict[str, None] = {}
        """What joins and decodes wait for, in order; each is told once."""

    def go(self, names: set[str], seeds: set[int], limit: float) -> bool:
        """Whether all of it is done now; what waited for others is tried again when everything else is done."""
        ends = time.monotonic() + limit
        every = sorted({seed for part in self.config.parts for seed in part.seeds})
        self.units = todo = [
            (part, seed)
            for seed in every
            if not seeds or seed in seeds
            for part in self._order(seed)
            if part.name in names
        ]
        while todo:
            self.waits.clear()
            waiting = []
            for part, seed in todo:
                if self._is_done(part, seed):
                    continue
                if time.monotonic() >= ends:
                    logger.warning(
                        "time is up before %s of seed %d: the same command goes on there", part.name, seed
                    )
                    return False
                if not self._unit(part, seed):
                    waiting.append((part, seed))
            if len(waiting) == len(todo):
                break
            todo = waiting
        for told in self.waits if todo else ():
            logger.warning("%s", told)
        return not todo

    def _unit(self, part: Part, seed: int) -> bool:
        """Do it and write down how long it took; whether it could be done."""
        began = time.monotonic()
        if not self._is_begun(part, seed):
            forget_unit(self.config.out, part.name, seed)
        if not self._do(part, seed):
            return False
        _rest()
        took = time.monotonic() - began
        add_unit(self.config.out, part.name, seed, took, alone=self.facts["alone"])
        logger.info("%s of seed %d took %.1f s", part.name, seed, took)
        return True

    def _order(self, seed: int) -> Iterator[Part]:
        """Of one seed: a tuning, then all that reads its snapshots; last what joins and decodes."""
        config = self.config
        fits = [part for part in config.fit if seed in part.seeds]
        reads = [part for part in config.read if seed in part.seeds]
        there, fitted = {UNTUNED}, set[str]()
        for tuning in (None, *(part for part in config.tune if seed in part.seeds)):
            if tuning is not None:
                yield tuning
                there |= set(tuning.snapshots)
            for fit in [part for part in fits if part.snapshot in there and part.name not in fitted]:
                yield fit
                fitted.add(fit.name)
            for read in [part for part in reads if part.snapshot in there and part.heads_of in fitted]:
                yield read
                reads.remove(read)
        yield from (part for part in (*config.join, *config.decode) if seed in part.seeds)

    def _is_done(self, part: Part, seed: int) -> bool:
        """Its records are there, and nothing that is not done needs what it would leave beside them."""
        if isinstance(part, JoinPart) and part.over_seeds and seed != max(part.seeds):
            return True  # with the last of its seeds
        if isinstance(part, (JoinPart, DecodePart)):
            own = (f"join/{part.name}", self.config.own_seed(f"join/{part.name}", seed))
            short = isinstance(part, JoinPart) and not self.systems.has_logits(*own)
            return self._is_recorded(part, seed) and not (short and own in self._wanted())
        if not self.work.is_recorded(part, seed):
            return False
        if self.work.can_answer(part, seed):
            systems = {(about.key, seed) for about in self.work.abouts(part, seed).values()}
            lacks = {system for system in systems if not self.systems.has_logits(*system)}
            if lacks and lacks & self._wanted():
                return False
        return self.work.is_kept(part, seed) or all(
            self._is_done(other, seed) for other in self._readers(part, seed)
        )

    def _readers(self, part: Part, seed: int) -> list[FitPart | ReadPart]:
        """What of this run stands on the snapshots or heads of a part."""
        found = [other for other, own in self.units if own == seed and isinstance(other, (FitPart, ReadPart))]
        if isinstance(part, TunePart):
            return [other for other in found if other.snapshot in part.snapshots]
        return [other for other in found if isinstance(other, ReadPart) and other.heads_of == part.name]

    def _wanted(self) -> set[tuple[str, int]]:
        """Key and seed of systems whose logits are needed by what is not joined or decoded yet."""
        joins = {f"join/{part.name}": part for part in self.config.join}
        waiting: list[tuple[str, int]] = []
        for part, seed in self.units:
            if isinstance(part, (JoinPart, DecodePart)) and not self._is_recorded(part, seed):
                waiting += self._members(part, seed)
        found: set[tuple[str, int]] = set()
        while waiting:
            key, seed = waiting.pop()
            if (key, seed) not in found and key in joins and not self.systems.has_logits(key, seed):
                waiting += self._members(joins[key], seed)
            found.add((key, seed))
        return found

    def _is_recorded(self, part: JoinPart | DecodePart, seed: int) -> bool:
        if isinstance(part, DecodePart):
            return all(self._is_decoded(part, key, seed) for key in part.of)
        if part.over_seeds and seed != max(part.seeds):
            return True  # with the last of its seeds
        about = self._joined(part, seed)
        return about is not None and self.systems.has(about.key, about.seed, about.made)

    def _do(self, part: Part, seed: int) -> bool:
        """Whether it could be done: what joins and decodes waits for its members."""
        if isinstance(part, TunePart):
            self.work.tune(part, seed)
        elif isinstance(part, FitPart):
            self.work.fit(part, seed)
        elif isinstance(part, ReadPart):
            self.work.read(part, seed)
        elif isinstance(part, JoinPart):
            return self._join(part, seed)
        else:
            return self._decode(part, seed)
        return True

    def _is_begun(self, part: Part, seed: int) -> bool:
        """Whether an earlier try left something of it: then its seconds count, too."""
        if isinstance(part, JoinPart):
            return False
        if isinstance(part, DecodePart):
            return any(self._is_decoded(part, key, seed) for key in part.of)
        return self.work.is_begun(part, seed)

    def _members(self, part: JoinPart | DecodePart, seed: int) -> list[tuple[str, int]]:
        """Key and seed of everything that is joined or decoded; an ensemble over seeds has seed 0."""
        keys = part.members if isinstance(part, JoinPart) else part.of
        seeds = part.seeds if isinstance(part, JoinPart) and part.over_seeds else (seed,)
        found = [(key, self.config.own_seed(key, own)) for own in seeds for key in keys]
        return list(dict.fromkeys(found))  # an ensemble over seeds is there once

    def _joined(self, part: JoinPart, seed: int) -> About | None:
        """The ensemble, None where a member is missing."""
        members = self._members(part, seed)
        if missing := [key for key, own in members if own not in self.systems.seeds(key)]:
            self.waits[f"{part.name} of seed {seed} waits for {missing[0]}"] = None
            return None
        abouts = [self.systems.about(key, own) for key, own in members]
        return About(
            experiment=part.name, kind="ensemble", label=part.name, seed=0 if part.over_seeds else seed,
            members=tuple(f"{key} seed {own}" if part.over_seeds else key for key, own in members), how=part.how,
            made=digest([part.how, *(about.made for about in abouts)]), **(self.facts | _together(abouts)),
        )  # fmt: skip

    def _join(self, part: JoinPart, seed: int) -> bool:
        about = self._joined(part, seed)
        if about is None:
            return False
        members, joined = self._members(part, seed), {}
        if short := [key for key, own in members if not self.systems.has_logits(key, own)]:
            self._waits_for_logits(part, seed, short[0])
            return False
        for name in PARTS:
            windows = self.systems.material.part(name, "span").windows
            joined[name] = combine(
                [self.systems.load(key, own, name) for key, own in members], windows, how=part.how
            )
        self.systems.keep(about, joined)
        return True

    def _decoded(self, part: DecodePart, key: str, seed: int) -> About | None:
        """A system decoded in the other way, None where it is missing."""
        own = self.config.own_seed(key, seed)
        if own not in self.systems.seeds(key):
            self.waits[f"{part.name} of seed {seed} waits for {key}"] = None
            return None
        source = self.systems.about(key, own)
        return dataclasses.replace(source, experiment=part.name, variant=part.variant, history=())

    def _is_decoded(self, part: DecodePart, key: str, seed: int) -> bool:
        about = self._decoded(part, key, seed)
        return about is not None and self.systems.has(about.key, about.seed, about.made)

    def _decode(self, part: DecodePart, seed: int) -> bool:
        whole = True
        for key in part.of:
            about = self._decoded(part, key, seed)
            if about is None:
                whole = False
            elif self.systems.has(about.key, about.seed, about.made):
                continue
            elif not self.systems.has_logits(key, about.seed):
                self._waits_for_logits(part, seed, key)
                whole = False
            else:
                self.systems.again(about, key)
        return whole

    def _waits_for_logits(self, part: Part, seed: int, key: str) -> None:
        self.waits[f"{part.name} of seed {seed} waits for {key}: its logits are not here"] = None


def _rest() -> None:
    """Give the device back what the last unit held: captured steps of one encoder are of no use to the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _together(members: list[About]) -> dict[str, Any]:
    """What an ensemble costs: all its heads, and every snapshot once."""
    found: dict[str, Any] = {"alone": all(about.alone for about in members)}
    tunings = {(about.snapshot, about.seed): about.tune_seconds for about in members}
    fits = [about.fit_seconds for about in members if about.kind != "snapshot"]
    if None not in tunings.values() and None not in fits:
        found["tune_seconds"] = sum(value or 0.0 for value in tunings.values())
        found["fit_seconds"] = sum(value or 0.0 for value in fits)
    if None not in (sizes := [about.parameters for about in members]):
        found["parameters"] = sum(size or 0 for size in sizes)
    return found
