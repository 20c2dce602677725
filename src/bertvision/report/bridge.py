"""results.json (pipeline/results.py) in the two shapes that the present pages read; temporary."""

from collections.abc import Mapping
from typing import Any

__all__ = ["bridged"]


def bridged(results: Any) -> Any:
    """The shape of html.py (spans) or text_html.py; what is in one of them already stays."""
    if not isinstance(results, Mapping) or results.get("schema") != 2:
        return results
    spans = results["task"]["kind"] == "span"
    system, history = (_span_system, "dev_f1") if spans else (_text_system, "dev_score")
    metric = results["task"]["metric"]
    made = dict(results) | {
        "schema": 1,
        "systems": [system(one, metric) for one in results["systems"]],
        "data": {name: _data(one) for name, one in results["data"].items()},
        "examples": [(_span_example if spans else _text_example)(one) for one in results["examples"]],
    }
    fit = {
        name: [{history if key == "score" else key: value for key, value in row.items()} for row in rows]
        for name, rows in results["curves"]["fit"].items()
    }
    made["curves"] = results["curves"] | {"fit": fit}
    made["task"] = {"classes": []} | results["task"]
    if spans:
        del made["task"]
    return made


def _data(one: Mapping[str, Any]) -> dict[str, Any]:
    counts = one.get("counts", {})
    more = {"unanswerable": counts["no answer"]} if set(counts) == {"answer", "no answer"} else {}
    return dict(one) | more | ({"classes": counts} if counts else {"scores": one.get("range", {})})


def _per_seed(scores: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    seeds = next(iter(scores.values()))["per_seed"]
    if not seeds:
        return None
    return [
        {"seed": int(seed)} | {name: one["per_seed"][seed] for name, one in scores.items()} for seed in seeds
    ]


def _span_system(system: Mapping[str, Any], metric: str) -> dict[str, Any]:
    made, versus = dict(system), system["versus"]
    made["scores"] = {}
    for split, scores in system["scores"].items():
        mean = {name: one["mean"] for name, one in scores.items()}
        tuned = {
            name.removeprefix("tuned_"): value for name, value in mean.items() if name.startswith("tuned_")
        }
        made["scores"][split] = {
            "zero": mean,
            "tuned": tuned | {"threshold": None},
            "per_seed": _per_seed(scores),
        }
    if versus:
        parts = {
            at: {name: versus["metrics"][f"{prefix}{name}"] for name in ("exact", "f1")}
            for at, prefix in (("zero", ""), ("tuned", "tuned_"))
        }
        parts["tuned"]["mcnemar_p"] = versus["mcnemar_p"]
        made["versus"] = {"baseline": versus["baseline"], "split": versus["split"]} | parts
    return made


def _text_system(system: Mapping[str, Any], metric: str) -> dict[str, Any]:
    made, versus = dict(system), system["versus"]
    made["scores"] = {
        split: {
            "mean": {name: one["mean"] for name, one in scores.items()},
            "spread": {name: one["sd"] for name, one in scores.items()}
            if metric and scores[metric]["sd"]
            else None,
            "per_seed": _per_seed(scores),
        }
        for split, scores in system["scores"].items()
    }
    if versus:
        made["versus"] = {name: versus[name] for name in ("baseline", "split", "mcnemar_p")}
        made["versus"] |= {"metric": metric} | versus["metrics"][metric]
    return made


def _span_example(one: Mapping[str, Any]) -> dict[str, Any]:
    return dict(one) | {"question": one["texts"][0], "gold": one["truth"]}


def _text_example(one: Mapping[str, Any]) -> dict[str, Any]:
    return dict(one) | {
        "first": one["texts"][0],
        "second": one["texts"][1] if len(one["texts"]) > 1 else None,
    }
