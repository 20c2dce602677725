"""`bertvision ensemble HEAD HEAD ... --data FILE`: several heads joined into one system."""

from dataclasses import dataclass

from bertvision.cli.flags import JsonFlag, command_line
from bertvision.config import part_of
from bertvision.pipeline.config import EnsembleArgs


@dataclass(frozen=True, kw_only=True)
class Ensemble(JsonFlag, EnsembleArgs):
    __doc__ = EnsembleArgs.__doc__


ARGS = Ensemble


def main(args: Ensemble) -> None:
    from bertvision.cli.eval import show
    from bertvision.pipeline.evaluate import ensemble

    show(ensemble(part_of(EnsembleArgs, args), command=command_line()), as_json=args.json)
