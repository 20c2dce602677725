"""The report of a run, whatever it is about: questions (html.py), labels and scores (text_html.py)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision.artifacts import read_json
from bertvision.errors import ArtifactError
from bertvision.report.bridge import bridged
from bertvision.report.html import summary, write_report
from bertvision.report.schema import RESULTS_FILE, validate
from bertvision.report.text_html import summary_texts, write_text_report
from bertvision.report.text_schema import about_texts, validate_texts

__all__ = ["headline", "read_results", "write_page"]


def read_results(run: Path) -> dict[str, Any]:
    """The checked results of a run folder (or of a results file itself)."""
    if not run.exists():
        raise ArtifactError(f"there is no {run}: give the folder of a run")
    path = run / RESULTS_FILE if run.is_dir() else run
    results = bridged(read_json(path))
    check = validate_texts if about_texts(results) else validate
    return check(results, str(path))


def write_page(results: Mapping[str, Any], path: Path) -> None:
    """Put the report at `path`; an older one stays whole until the new one is."""
    results = bridged(results)
    (write_text_report if about_texts(results) else write_report)(results, path)


def headline(results: Mapping[str, Any]) -> str:
    """The finding in one sentence."""
    results = bridged(results)
    return (summary_texts if about_texts(results) else summary)(results)
