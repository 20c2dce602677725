"""`python -m papers`: list the parts, run them, and write the report."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from papers.data import write_json
from papers.plan import PLAN, Plan, PlanError
from papers.runner import Runner

_SETTINGS = ("encoder", "train", "dev", "cs224n", "glue")


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        plan = Plan.read(args.plan)
        parts = [name for name in args.only.split(",") if name] or [*plan.parts]
        steps = plan.steps(parts, args.seeds)
        settings = _settings(args)
        runner = Runner(plan, args.out, settings, more=args.more.split()) if settings else None
        if args.list:
            _list(plan, runner)
        elif runner is None:
            raise PlanError("name --encoder, --train and --dev")
        else:
            if not args.report:
                write_json(args.out / "settings.json", settings)
                runner.run(steps)
            _report(plan, args.out, settings)
    except PlanError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m papers", description="The experiments of the papers.")
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="folder for everything")
    parser.add_argument("--encoder", default="", help="as `bertvision finetune` takes one")
    parser.add_argument("--train", default="", help="SQuAD 2.0's training questions, JSON")
    parser.add_argument("--dev", default="", help="SQuAD 2.0's dev questions, JSON")
    parser.add_argument("--cs224n", default="", help="folder of CS224N's data, for the part minbert")
    parser.add_argument("--glue", default="", help="folder of GLUE's data, for the part glue")
    parser.add_argument("--only", default="", help="parts to run, by commas, with all they build on")
    parser.add_argument("--seeds", type=_numbers, default=(), help="run only these seeds of the parts' jobs")
    parser.add_argument("--list", action="store_true", help="show the parts and what of them is done")
    parser.add_argument(
        "--report", action="store_true", help="run nothing: write the report of what is there"
    )
    parser.add_argument("--plan", type=Path, default=PLAN, help="another plan")
    parser.add_argument("--more", default="", help="flags for every command, such as '--device cuda'")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _settings(args: argparse.Namespace) -> dict[str, str]:
    """What the flags name and, of what they leave out, what the folder was begun with; {} without either."""
    path = args.out / "settings.json"
    begun = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    settings = {name: getattr(args, name) or begun.get(name, "") for name in _SETTINGS}
    for name in ("encoder", "train", "dev"):
        if begun.get(name, settings[name]) != settings[name]:
            raise PlanError(f"{args.out} was begun with --{name} {begun[name]}: choose another --out")
    complete = all(settings[name] for name in ("encoder", "train", "dev"))
    return settings if complete else {}


def _list(plan: Plan, runner: Runner | None) -> None:
    for part in plan.parts.values():
        steps = plan.steps([part.name])
        done = f"{sum(map(runner.is_done, steps))} of " if runner else ""
        print(f"{part.name:<16}{done}{len(steps):>3} commands   {part.title}")


def _report(plan: Plan, out: Path, settings: dict[str, str]) -> None:
    from papers.measure import Study
    from papers.report import render
    from papers.tables import build

    names = {name: os.path.basename(settings[name].rstrip("/")) for name in ("encoder", "train", "dev")}
    results = build(Study(plan, out, Path(settings["dev"])), names)
    write_json(out / "papers.json", results)
    (out / "papers.html").write_text(render(results), encoding="utf-8")
    print(out / "papers.html")


if __name__ == "__main__":
    sys.exit(main())
