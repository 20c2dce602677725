"""Make the tables of the plan: every row with what is published, what was measured, and the gains of both."""

from collections.abc import Iterator, Mapping
from typing import Any

from papers.analyses import ANALYSES
from papers.figures import SCORES
from papers.measure import Study
from papers.plan import Part, Step
from papers.published import Printed, published

Json = dict[str, Any]


def build(study: Study, settings: Mapping[str, str]) -> Json:
    """All parts as one JSON object, from which the report is drawn."""
    from bertvision import __version__

    parts = [_part(study, part) for part in study.plan.parts.values()]
    return {
        "schema": 1,
        "bertvision": __version__,
        **settings,
        "questions": len(study.gold.ids),
        "parts": parts,
    }


def _part(study: Study, part: Part) -> Json:
    steps = [Step(job, seed) for job in part.jobs for seed in study.plan.jobs[job].seeds]
    done = sum(study.record(step) is not None for step in steps)
    tables = [_table(study, spec) for spec in part.tables]
    return {
        "name": part.name,
        "title": part.title,
        "about": part.about,
        "steps": len(steps),
        "done": done,
    } | {"tables": tables}


def _table(study: Study, spec: Mapping[str, Any]) -> Json:
    rows = [_row(study, row, spec) for row in rows_of(spec)]
    return {"title": spec["title"], "metrics": spec["metrics"], "figure": spec.get("figure"), "rows": rows}


def rows_of(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a table: its own settings, what differs, and {row} filled in."""
    shared = {name: spec[name] for name in ("of", "over", "published", "published_over") if name in spec}
    rows = spec["rows"] if isinstance(spec["rows"], Mapping) else {key: key for key in spec["rows"]}
    for name, differs in rows.items():
        own = differs if isinstance(differs, Mapping) else {"key": differs}
        row = {"name": name, "key": own.get("key", name), **shared, **own}
        yield {
            name: value.replace("{row}", str(row["key"])) if isinstance(value, str) else value
            for name, value in row.items()
        }


def _row(study: Study, row: Mapping[str, Any], spec: Mapping[str, Any]) -> Json:
    metrics = spec["metrics"]
    printed = published(row.get("published") or "")
    base = published(row.get("published_over") or "")
    if row.get("published") == row.get("published_over"):
        base = {}
    found: Json = {"name": row["name"], "key": row["key"], "system": row.get("of")}
    found["published"] = {metric: printed[metric].value for metric in metrics if metric in printed}
    found["published_gain"] = {
        metric: round(printed[metric].value - base[metric].value, 6)
        for metric in metrics
        if metric in SCORES and metric in printed and metric in base
    }
    found["notes"] = _notes(printed, metrics)
    return found | ANALYSES[spec.get("read", "scores")](study, row, metrics)


def _notes(printed: Mapping[str, Printed], metrics: list[str]) -> list[str]:
    """What is wrong with the published values, each remark once."""
    return list(dict.fromkeys(one.note for name, one in printed.items() if name in metrics and one.note))
