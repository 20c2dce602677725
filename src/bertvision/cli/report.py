"""`bertvision report RUN_DIR`: write the HTML report of a finished run again, from its results.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bertvision import console
from bertvision.options import OptionalPath


@dataclass(frozen=True)
class Report:
    """Write the HTML report of a run, one file with everything in it."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder that `bertvision run` wrote (it holds results.json)."""
    out: OptionalPath = None
    """File to write; report.html in the run's folder by default."""
    json: bool = False
    """Print path and headline as JSON."""


ARGS = Report


def main(args: Report) -> None:
    from bertvision.report.results import read_results
    from bertvision.report.run import headline, write_page

    results = read_results(args.run_dir)
    folder = args.run_dir if args.run_dir.is_dir() else args.run_dir.parent
    path = args.out or folder / "report.html"
    write_page(results, path)
    said = headline(results)
    if args.json:
        console.emit_json({"report": str(path), "headline": said})
    else:
        console.emit(said)
        console.emit(str(path))
