"""Everything a study found, in one dict: results.json, from which the page is drawn (report/study_schema.py).

The headline is the cost curve; what is said about it comes from findings.py, and every table from sections/.
"""

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from bertvision._version import __version__
from bertvision.errors import ArtifactError
from bertvision.report.origin import commit
from bertvision.report.schema import SCHEMA
from bertvision.study.findings import facts, headline, lede
from bertvision.study.planned import Plan
from bertvision.study.sections.answerable import answerable
from bertvision.study.sections.baseline import baseline
from bertvision.study.sections.beyond import beyond
from bertvision.study.sections.cacnn import cacnn
from bertvision.study.sections.cost import cost
from bertvision.study.sections.curve import curve
from bertvision.study.sections.decoding import decoding
from bertvision.study.sections.ensembles import ensembles
from bertvision.study.sections.examples import examples
from bertvision.study.sections.fractions import fractions
from bertvision.study.sections.goals import goals
from bertvision.study.sections.how import how
from bertvision.study.sections.hulburd import hulburd
from bertvision.study.sections.inconsistencies import inconsistencies
from bertvision.study.sections.layer_weights import layer_weights
from bertvision.study.sections.lengths import lengths
from bertvision.study.sections.papers import papers
from bertvision.study.sections.question_types import question_types
from bertvision.study.sections.raw import raw
from bertvision.study.sections.second_best import second_best
from bertvision.study.sections.thresholds import thresholds
from bertvision.study.sections.time_table import time_table
from bertvision.study.sections.transfer import transfer
from bertvision.study.verdicts import goals_of
from bertvision.study.view import Study

__all__ = ["collect"]


def collect(
    study: Study,
    *,
    command: str,
    settings: dict[str, Any],
    encoder: dict[str, Any],
    data: dict[str, Any],
) -> dict[str, Any]:
    """The whole dict; sections whose systems are missing are left out.

    `settings` is the study's recipe, which tells what is still missing; its "stages" may hold measured times
    (study/costs.py).
    """
    if not study.groups and not study.labels:
        raise ArtifactError("the study has no answered system: run `bertvision study` first")
    stages = settings.get("stages") or ()
    judged = goals_of(study, settings) if study.groups else []
    sections = [
        cost(study),
        goals(study, settings),
        *(build(study) for build in _REST),
        time_table(study, stages),
        how(study, encoder=encoder, data=data),
    ]
    return {
        "schema": SCHEMA,
        "kind": "study",
        "bertvision": __version__,
        "commit": commit() or "",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "title": _title(encoder),
        "headline": headline(study, whole=Plan.of(settings, study).cost.whole),
        "lede": lede(study, judged),
        "facts": facts(study, judged),
        "sections": [section for section in sections if section is not None],
        "environment": study.environment,
        "encoder": encoder,
        "data": data,
        "settings": settings,
    }


Build = Callable[[Study], dict[str, Any] | None]

_REST: Sequence[Build] = (
    papers, baseline, beyond, ensembles, curve, fractions, raw, transfer, thresholds, question_types, lengths,
    second_best, decoding, layer_weights, examples, hulburd, cacnn, answerable, inconsistencies,
)  # fmt: skip
"""Between the goals and the time table: first what claims rest on, then the papers' further experiments."""


def _title(encoder: dict[str, Any]) -> str:
    told = f" on {encoder['name']}" if encoder.get("name") else ""
    return f"Heads over all layers, measured{told}"
