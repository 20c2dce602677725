"""results.json as the page reads it: checked, gaps filled, the chosen head and its snapshot found.

The shape is that of pipeline/results.py. What a run may leave out (fine-tuning, curves, examples, the test split, ...)
is filled in empty by `check`, so that nobody asks twice; null and NaN are "not known".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertvision import words
from bertvision.artifacts import read_json
from bertvision.errors import ArtifactError

System = Mapping[str, Any]

SCHEMA = 2
RESULTS_FILE = "results.json"
KINDS = ("snapshot", "control", "head", "ensemble", "baseline")
"""Kinds of systems, in the order of tables and legends."""

_REQUIRED: dict[str, type] = {"task": dict, "metrics": dict, "encoder": dict, "data": dict, "systems": list}
_OPTIONAL: dict[str, type] = dict.fromkeys(
    ("environment", "settings", "finetune", "fit", "curves", "layer_weights", "details", "sweep"), dict
) | {"examples": list}
UNKNOWN = dict.fromkeys(
    (
        *("snapshot", "head", "parameters", "total", "percent", "flops_per_token"),
        *("seconds", "seeds", "members", "folder", "best", "versus"),
    )
)
"""What a system has where nothing else is known of it."""


def read_results(run: Path) -> dict[str, Any]:
    if not run.exists():
        raise ArtifactError(f"there is no {run}: give the folder of a run")
    path = run / RESULTS_FILE if run.is_dir() else run
    return check(read_json(path), str(path))


def check(results: Any, source: str = RESULTS_FILE) -> dict[str, Any]:
    """A copy with every optional key; raises in one sentence that names `source` and the key."""

    def expect(holder: Any, key: str, kind: type, where: str = "") -> None:
        if not isinstance(holder.get(key) if isinstance(holder, Mapping) else None, kind):
            raise ArtifactError(f"{source}: key {where}{key} is missing or damaged: repeat the run")

    version = results.get("schema") if isinstance(results, Mapping) else None
    if version != SCHEMA:
        reads = f"and this version of bertvision reads {SCHEMA}: repeat the run"
        raise ArtifactError(f"{source}: key schema is {version!r}, {reads}")
    checked = {key: kind() for key, kind in _OPTIONAL.items()}
    checked |= {key: value for key, value in results.items() if value is not None}
    for key, kind in (_REQUIRED | _OPTIONAL).items():
        expect(checked, key, kind)
    checked["curves"] = {"finetune": [], "fit": {}} | checked["curves"]
    metric = str(checked["task"].get("metric"))
    expect(checked["metrics"], metric, dict, "metrics.")
    facts: dict[str, Any] = {"higher": True, "percent": False, "about": ""}
    metrics = checked["metrics"].items()
    checked["metrics"] = {name: facts | {"title": name} | (own or {}) for name, own in metrics}
    if not checked["systems"]:
        raise ArtifactError(f"{source}: key systems is empty: repeat the run")
    for i, system in enumerate(checked["systems"]):
        where = f"systems[{i}]."
        expect(system, "name", str, where)
        expect(system, "scores", dict, where)
        for split, scores in system["scores"].items():
            expect(scores, metric, dict, f"{where}scores.{split}.")
        if (kind := system.get("kind")) not in KINDS:
            raise ArtifactError(f"{source}: key {where}kind is {kind!r}, not {', '.join(KINDS)}")
    gaps = UNKNOWN | {"best": False, "values": {}, "status": None, "epochs": None}
    checked["systems"] = [gaps | {"label": one["name"]} | dict(one) for one in checked["systems"]]
    return checked


@dataclass(frozen=True)
class Difference:
    """A system minus its snapshot, with the ends of the 95 % interval."""

    size: float
    low: float
    high: float
    text: str
    ends: str  # the interval as text
    verdict: str  # "gain", "loss", or "level" where the interval contains zero


@dataclass(frozen=True)
class View:
    """Checked results with the questions that every part of the page asks them.

    A metric of "" is the one that systems are chosen by, a split of "" the one the claims are about.
    """

    results: Mapping[str, Any]

    @property
    def metric(self) -> str:
        return self.results["task"]["metric"]

    def about(self, metric: str = "") -> dict[str, Any]:
        return self.results["metrics"][metric or self.metric]

    def title(self, metric: str = "") -> str:
        return str(self.about(metric)["title"])

    @cached_property
    def compared(self) -> list[str]:
        """The metrics that have differences to a snapshot, in the order of the columns."""
        found = {name for system in self.systems for name in (self.versus(system) or {}).get("metrics") or {}}
        return [name for name in self.results["metrics"] if name in found]

    @cached_property
    def varied(self) -> list[str]:
        """What a sweep varies; the head itself first, where there are several."""
        sweep = self.results["sweep"]
        return [*(["head"] if len(sweep.get("heads", [])) > 1 else []), *sweep.get("space", {})]

    @cached_property
    def split(self) -> str:
        """The split the claims are about: test where there is one, else dev."""
        return "test" if any("test" in system["scores"] for system in self.results["systems"]) else "dev"

    @cached_property
    def systems(self) -> list[System]:
        return sorted(
            self.results["systems"], key=lambda s: (KINDS.index(s["kind"]), -self._rank(s, self.split))
        )

    @cached_property
    def head(self) -> System | None:
        """The head chosen on dev: the best on test would flatter itself."""
        heads = [s for s in self.systems if s["best"]] or self.of_kind("head") or self.of_kind("control")
        return max(heads, key=lambda s: self._rank(s, "dev"), default=None)

    @cached_property
    def snapshot(self) -> System | None:
        own = self.of_kind("snapshot")
        if self.head is not None:
            own = [s for s in own if s["snapshot"] == self.head["snapshot"]] or own
        return own[0] if own else None

    def of_kind(self, kind: str) -> list[System]:
        return [system for system in self.systems if system["kind"] == kind]

    def best_on_dev(self, kind: str) -> System | None:
        """The best of a kind, apart from the chosen head; chosen on dev like that one."""
        own = [s for s in self.of_kind(kind) if s is not self.head and self.mean(s) is not None]
        return max(own, key=lambda s: self._rank(s, "dev"), default=None)

    def name(self, system: System) -> str:
        """The label, with the snapshot where the run has several."""
        several = len({s["snapshot"] for s in self.results["systems"]} - {None}) > 1
        if system["kind"] in ("snapshot", "baseline") or not several:
            return str(system["label"])
        return f"{system['label']} @ {system['snapshot']}"

    def _rank(self, system: System, split: str) -> float:
        known = self.mean(system, split=split)
        return float("-inf") if known is None else known if self.about()["higher"] else -known

    def score(self, system: System, metric: str = "", split: str = "") -> Mapping[str, Any]:
        """{"mean", "sd", "per_seed", "interval"}, empty where the metric was not measured."""
        return system["scores"].get(split or self.split, {}).get(metric or self.metric) or {}

    def mean(self, system: System, metric: str = "", split: str = "") -> float | None:
        return words.finite(self.score(system, metric, split).get("mean"))

    def number(self, value: Any, metric: str = "") -> str:
        return words.number(value, percent=self.about(metric)["percent"])

    def mean_text(self, system: System, metric: str = "") -> str:
        return self.number(self.mean(system, metric), metric)

    def versus(self, system: System) -> Mapping[str, Any] | None:
        """How the system compares with its snapshot on the split of the claims."""
        versus = system["versus"]
        return versus if versus and versus.get("split", self.split) == self.split else None

    def difference(self, system: System, metric: str = "") -> Difference | None:
        """The difference to the snapshot, None unless it and both ends of its interval are known."""
        raw = ((self.versus(system) or {}).get("metrics") or {}).get(metric or self.metric) or {}
        size, low, high = (words.finite(raw.get(key)) for key in ("difference", "low", "high"))
        if size is None or low is None or high is None:
            return None
        percent, higher = self.about(metric)["percent"], self.about(metric)["higher"]
        verdict = words.verdict({"low": low, "high": high}, higher=higher)
        ends = words.interval(low, high, percent=percent)
        return Difference(size, low, high, words.change(size, percent=percent), ends, verdict)
