"""What was measured: the metrics of systems over seeds, with intervals, and what they cost.

A system is JOB/FOLDER: a snapshot, a head, an ensemble. It has values for every seed of its job that was run.
"""

import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.answers import Answers, Gold
from papers.plan import Plan, Step

_DRAWS = 1000
_PERCENT = ("accuracy", "f1", "mcc", "pearson", "spearman")


def read_scores(found: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of one system, in percent, and its threshold: the only place that knows what bertvision writes."""
    scores, threshold = found.get("scores", {}), found.get("tuning", {}).get("threshold")
    if isinstance(first := next(iter(scores.values()), None), Mapping):  # by split
        scores = first
    if "exact" in scores:
        return dict(scores) | ({} if threshold is None else {"threshold": threshold})
    return {name: 100 * scores[name] for name in _PERCENT if name in scores}


class Study:
    """Everything that a runner left in one folder."""

    def __init__(self, plan: Plan, out: Path, dev: Path) -> None:
        self.plan, self.out = plan, out
        self.gold = Gold(dev)
        self.record, self.values = cache(self._record), cache(self._values)
        self.answers, self._draws = cache(self._answers), cache(self._drawn)
        count = len(self.gold.ids)
        drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_DRAWS)
        self._weights = drawn.astype(np.float64)  # one draw for all systems: differences are paired

    # ---- one system, one seed

    def _record(self, step: Step) -> Any:
        """What a command printed; None before it is done."""
        path = self.out / f"{step.path}.json"
        return json.loads(path.read_text(encoding="utf-8"))["printed"] if path.exists() else None

    def folder(self, system: str, seed: int) -> Path | None:
        """Where its metrics lie: scored on dev, or beside what was trained."""
        job, _, name = system.partition("/")
        work = self.out / Step(job, seed).path
        for base in (work.with_name(f"{work.name}.dev"), work):
            for folder in (base / name, base / f"{name}.seed{seed}"):
                if (folder / "metrics.json").exists():
                    return folder
        return None

    def _values(self, system: str, seed: int) -> dict[str, float]:
        """Every metric of a system and what it cost; empty where it was not run."""
        step = Step(system.partition("/")[0], seed)
        if self.record(step) is None:
            return {}
        metrics = self._metrics(system, seed)
        facts = self._facts(system, seed) if metrics else {}
        if metrics.get("f1") and facts.get("trainable", 0) > 1:
            facts["efficiency"] = (metrics["f1"] - 50) / math.log10(facts["trainable"])
        if "seconds" in facts:
            facts["minutes"] = facts["seconds"] / 60
        return facts | metrics

    def _metrics(self, system: str, seed: int) -> dict[str, float]:
        job, _, name = system.partition("/")
        printed = self.record(Step(job, seed))
        if folder := self.folder(system, seed):
            metrics = read_scores(json.loads((folder / "metrics.json").read_text(encoding="utf-8")))
            rows = printed if isinstance(printed, list) else []
            more = next((row.get("wordpiece", {}) for row in rows if row["system"] == folder.name), {})
            return metrics | {f"wordpiece_{metric}": value for metric, value in more.items()}
        if (path := self.out / Step(job, seed).path / "results.json").exists():
            return _of_run(json.loads(path.read_text(encoding="utf-8")), name)
        return read_scores(printed[-1]) if name == "ensemble" else {}  # joined without a folder

    def _facts(self, system: str, seed: int) -> dict[str, float]:
        """Parameters and seconds, those of the encoder's training included, as finetune and fit print them."""
        job, _, name = system.partition("/")
        printed = self.record(Step(job, seed))
        if not isinstance(printed, dict):
            return {}
        if "trainable" in printed:  # finetune, multitask
            facts = {"trainable": printed["trainable"], "encoder": printed["parameters"]}
            *_, last = printed["snapshots"]
            if Path(last).name == name.partition("/")[0]:  # earlier ones have no time of their own
                facts |= {key: printed[key] for key in ("seconds", "inference_seconds") if key in printed}
            return facts
        for head in printed.get("heads", ()):
            if head["head"] in (name, f"{name}.seed{seed}"):
                below, size = self._encoder_facts(Step(job, seed)), head["parameters"]
                facts = {"parameters": size, "trainable": size + below.get("trainable", 0)}
                if "encoder" in below:
                    facts["percent"] = 100 * size / below["encoder"]
                if "seconds" in below:
                    facts["seconds"] = head["seconds"] + below["seconds"]
                return facts
        return {}

    def _encoder_facts(self, step: Step) -> dict[str, float]:
        """Of the encoder whose states a fit reads."""
        folder, _, name = self.plan.words(step, str)[1].partition("/")
        below = next((other for other in self.plan.needs(step) if other.path == folder), None)
        return self._facts(f"{below.job}/{name}", below.seed) if below else {}

    def _answers(self, system: str, seed: int) -> Answers | None:
        folder = self.folder(system, seed)
        threshold = self.values(system, seed).get("threshold")
        return Answers.read(folder, self.gold, threshold) if folder else None

    def _drawn(self, system: str, seed: int) -> dict[str, NDArray[np.float64]]:
        """(draws,) every metric that questions have, over draws of questions."""
        answers = self.answers(system, seed)
        return answers.scores(self._weights) if answers else {}

    # ---- over seeds

    def seeds(self, system: str) -> list[int]:
        """The seeds with which a system was run."""
        job = system.partition("/")[0]
        seeds = self.plan.jobs[job].seeds if job in self.plan.jobs else ()
        return [seed for seed in seeds if self.values(system, seed)]

    def measured(self, system: str, metrics: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Mean, standard deviation over seeds, and the 95 % interval over draws of questions."""
        found = {}
        for metric in metrics:
            seeds = [seed for seed in self.seeds(system) if metric in self.values(system, seed)]
            if seeds:
                found[metric] = _spread([self.values(system, seed)[metric] for seed in seeds])
                found[metric]["interval"] = self._interval([(system, seed, 1) for seed in seeds], metric)
        return found

    def gain(self, system: str, over: str, metrics: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Mean difference over the seeds that both have, with its paired 95 % interval."""
        shared = [seed for seed in self.seeds(system) if seed in self.seeds(over)]
        found = {}
        for metric in metrics:
            seeds = [s for s in shared if metric in self.values(system, s) and metric in self.values(over, s)]
            if seeds:
                found[metric] = _spread(
                    [self.values(system, seed)[metric] - self.values(over, seed)[metric] for seed in seeds]
                )
                pairs = [pair for seed in seeds for pair in ((system, seed, 1), (over, seed, -1))]
                found[metric]["interval"] = self._interval(pairs, metric, len(seeds))
        return found

    def _interval(
        self, systems: list[tuple[str, int, int]], metric: str, count: int = 0
    ) -> list[float] | None:
        """Of the signed sum of systems over `count`; None where questions do not have the metric."""
        drawn = [(sign, self._draws(system, seed)) for system, seed, sign in systems]
        if not all(metric in scores for _, scores in drawn):
            return None
        total = sum(sign * scores[metric] for sign, scores in drawn)
        low, high = np.percentile(total / (count or len(systems)), [2.5, 97.5])
        return [float(low), float(high)]


def _spread(values: list[float]) -> dict[str, Any]:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "sd": spread, "seeds": len(values)}


def _of_run(results: Mapping[str, Any], name: str) -> dict[str, float]:
    """The dev scores of a run's snapshot or of its best head, in percent."""
    for system in results["systems"]:
        if system["kind"] == name or (name == "best" and system["best"]):
            scores = system["scores"]["dev"]
            return {metric: 100 * scores[metric]["mean"] for metric in _PERCENT if metric in scores}
    return {}
