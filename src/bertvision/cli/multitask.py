"""`bertvision multitask --config RECIPE`: one encoder tuned for several tasks at once."""

from dataclasses import dataclass

from bertvision.cli.flags import JsonFlag, command_line
from bertvision.config import part_of
from bertvision.pipeline.config import MultitaskArgs


@dataclass(frozen=True, kw_only=True)
class Multitask(JsonFlag, MultitaskArgs):
    __doc__ = MultitaskArgs.__doc__


ARGS = Multitask


def main(args: Multitask) -> None:
    from bertvision.cli.finetune import show
    from bertvision.pipeline.finetune import multitask

    show(multitask(part_of(MultitaskArgs, args), command=command_line()), as_json=args.json)
