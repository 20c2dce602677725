"""Read plan.yaml: jobs, in the order in which they can run, and parts."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PLAN = Path(__file__).with_name("plan.yaml")
_PLACE = re.compile(r"\{([^{}]+)\}")


class PlanError(Exception):
    """A mistake in the plan or in how it is asked for, in one sentence."""


@dataclass(frozen=True)
class Job:
    """One command of bertvision, run once for every seed."""

    name: str
    run: str
    seeds: Mapping[int, str]
    """Each seed's further flags."""
    score: bool


@dataclass(frozen=True)
class Step:
    """A job with one of its seeds."""

    job: str
    seed: int

    @property
    def path(self) -> str:
        """Its folder, and the start of the names of what lies beside it."""
        return f"{self.job}.s{self.seed}"


@dataclass(frozen=True)
class Part:
    """Jobs that belong together and the tables made of them."""

    name: str
    title: str
    about: str
    jobs: Sequence[str]
    tables: Sequence[Mapping[str, Any]]


class Plan:
    """All jobs and parts, checked: every name that is used exists."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._flags: Mapping[str, str] = content["flags"]
        self.jobs: dict[str, Job] = {}
        for name, spec in content["jobs"].items():
            self._add(name, spec)
        self.parts = {
            name: Part(name, spec["title"], spec["about"], spec["jobs"], [*_tables(spec["tables"])])
            for name, spec in content["parts"].items()
        }
        self.steps(self.parts)

    @classmethod
    def read(cls, path: Path = PLAN) -> "Plan":
        return cls(yaml.safe_load(path.read_text(encoding="utf-8")))

    def _add(self, name: str, spec: Mapping[str, Any]) -> None:
        seeds = {int(seed): flags for seed, flags in _mapping(spec.get("seeds", [0])).items()}
        for key, flags in _mapping(spec.get("each", [""])).items():
            run = f"{self._expand(keyed(spec['run'], key))} {flags}".strip()
            own = keyed(name, key)
            self.jobs[own] = Job(own, run, seeds, spec.get("score", True))

    def _expand(self, text: str) -> str:
        """Put the words of `flags` in the place of their $NAME."""
        while match := re.search(r"\$(\w+)", text):
            if match[1] not in self._flags:
                raise PlanError(f"the plan names ${match[1]}, which is not among its flags")
            text = text.replace(match[0], self._flags[match[1]])
        return text

    def words(self, step: Step, place: Callable[[str], str]) -> list[str]:
        """The command of a step; `place` gives what stands for {NAME}, of a job its step's path."""
        job = self.jobs[step.job]
        text = f"{job.run} {job.seeds[step.seed]}"

        def fill(match: re.Match[str]) -> str:
            name = match[1]
            if name == "seed":
                return str(step.seed)
            found = self._reference(name, step.seed)
            return place(found.path if found else name)

        return [_PLACE.sub(fill, word) for word in shlex.split(text)]

    def needs(self, step: Step) -> list[Step]:
        """The steps whose folders a step reads."""
        names = _PLACE.findall(f"{self.jobs[step.job].run} {self.jobs[step.job].seeds[step.seed]}")
        found = (self._reference(name, step.seed) for name in names)
        return list(dict.fromkeys(one for one in found if one))

    def _reference(self, name: str, seed: int) -> Step | None:
        name, _, other = name.partition(":")
        return Step(name, int(other) if other else seed) if name in self.jobs else None

    def steps(self, parts: Iterable[str], seeds: Sequence[int] = ()) -> list[Step]:
        """Every step of these parts and what they build on, each behind what it needs; of `seeds`, if any, alone."""
        done: dict[Step, None] = {}

        def add(step: Step) -> None:
            if step in done:
                return
            if step.seed not in self.jobs[step.job].seeds:
                raise PlanError(f"the plan needs seed {step.seed} of the job {step.job}, which has none such")
            for other in self.needs(step):
                add(other)
            done[step] = None

        for name in parts:
            if name not in self.parts:
                raise PlanError(f"there is no part {name!r}: choose among {', '.join(self.parts)}")
            for job in self.parts[name].jobs:
                if job not in self.jobs:
                    raise PlanError(f"the part {name} names the job {job}, which the plan has not")
                for seed in self.jobs[job].seeds:
                    if not seeds or seed in seeds:
                        add(Step(job, seed))
        return list(done)


def keyed(value: Any, key: str) -> Any:
    """`value` with `key` in the place of every *."""
    if isinstance(value, str):
        return value.replace("*", key)
    if isinstance(value, Mapping):
        return {keyed(name, key): keyed(part, key) for name, part in value.items()}
    if isinstance(value, Sequence):
        return [keyed(part, key) for part in value]
    return value


def _mapping(value: Any) -> dict[Any, str]:
    """A list as keys without further flags."""
    return dict(value) if isinstance(value, Mapping) else dict.fromkeys(value, "")


def _tables(specs: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """The tables of a part, those with `each` once for every key."""
    for spec in specs:
        spec = dict(spec)
        for key in spec.pop("each", [""]):
            yield keyed(spec, key)
