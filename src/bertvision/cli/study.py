"""`bertvision study --config RECIPE`: many tunings and fits over one encoder, and one report on them all."""

from dataclasses import dataclass, field, fields
from typing import Annotated

import tyro

from bertvision.cli.flags import OptionalFloat
from bertvision.data.windows import WindowConfig
from bertvision.study.config import DecodePart, FitPart, JoinPart, ReadPart, StudyConfig, TunePart

__all__ = ["ARGS", "StudyArgs", "main"]


@dataclass(frozen=True)
class StudyArgs(StudyConfig):
    """Run the experiments of a recipe on one encoder and one set of questions, and write one report on them all.

    Killed or stopped by --limit, the same command goes on; several processes may share --out with different --seeds.
    The report is made from the small folder OUT/records and the data, on any machine (--report).
    """

    tune: tyro.conf.Suppress[tuple[TunePart, ...]] = ()
    fit: tyro.conf.Suppress[tuple[FitPart, ...]] = ()
    read: tyro.conf.Suppress[tuple[ReadPart, ...]] = ()
    join: tyro.conf.Suppress[tuple[JoinPart, ...]] = ()
    decode: tyro.conf.Suppress[tuple[DecodePart, ...]] = ()
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    only: tuple[str, ...] = ()
    """Parts of the recipe, with all they stand on; none = all."""
    seeds: tuple[int, ...] = ()
    """Seeds to run; none = all of the recipe."""
    limit: OptionalFloat = None
    """Seconds after which no unit begins."""
    shared: bool = False
    """Something else runs on the device: times are not counted."""
    workers: int = 0
    """Processes that decode answers while the device goes on; 0 = none."""
    report: bool = False
    """Only write the report, from the records in --out."""
    list: bool = False
    """Only list the parts of the recipe and which of them are done."""
    overwrite: bool = False
    """Replace work in --out that was done with other settings."""
    json: bool = False
    """Print the result as JSON."""

    @property
    def study(self) -> StudyConfig:
        return StudyConfig(**{f.name: getattr(self, f.name) for f in fields(StudyConfig)})


ARGS = StudyArgs


def main(args: StudyArgs) -> None:
    import shlex
    import sys

    from bertvision import console
    from bertvision.errors import ConfigError
    from bertvision.study.run import parts_of, run_study

    if not args.parts:
        raise ConfigError("study reads its parts from a recipe: give --config, for example --config study")
    if args.list:
        rows = parts_of(args.study)
        if args.json:
            console.emit_json(rows)
            return
        console.table("parts of the study", list(rows[0]), [[str(v) for v in row.values()] for row in rows])
        return
    command = shlex.join(["bertvision", *sys.argv[1:]])
    whole = True
    if not args.report:
        whole = run_study(
            args.study,
            command=command,
            only=args.only,
            seeds=args.seeds,
            limit=float("inf") if args.limit is None else args.limit,
            alone=not args.shared,
            workers=args.workers,
            overwrite=args.overwrite,
        )
    if not whole:
        console.emit(f"not all of it is done: the same command goes on in {args.out}")
        return
    from bertvision.study.report import write_study_report

    path, headline = write_study_report(args.study)
    if args.json:
        console.emit_json({"report": str(path), "headline": headline})
    else:
        console.emit(headline)
        console.emit(str(path))
