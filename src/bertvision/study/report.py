"""From the records of a study to results.json and report.html; needs the data, and neither encoder nor device."""

from pathlib import Path

from bertvision.artifacts import read_json, write_json
from bertvision.config import to_mapping
from bertvision.data.load import load_span_data
from bertvision.report.pages import headline, write_page
from bertvision.study.config import StudyConfig
from bertvision.study.material import held_out
from bertvision.study.results import collect
from bertvision.study.stages import read_stages
from bertvision.study.view import Study

__all__ = ["write_study_report"]


def write_study_report(config: StudyConfig) -> tuple[Path, str]:
    """Write both files; returns the report's path and the finding in one sentence."""
    told = read_json(config.out / "study.json")
    study = Study.load(config.out, load_span_data(config.dev), held_out(config))
    results = collect(
        study,
        command=told["command"],
        settings=to_mapping(config) | {"stages": read_stages(config.out, study)},
        encoder=told["encoder"],
        data=told["data"],
    )
    write_json(config.out / "results.json", results)
    path = config.out / "report.html"
    write_page(results, path)
    return path, headline(results)
