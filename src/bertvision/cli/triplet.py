"""`bertvision triplet`: pre-train an encoder on triplets mined from SST, STS and Quora."""

from dataclasses import dataclass

from bertvision.cli.flags import JsonFlag, command_line
from bertvision.config import part_of
from bertvision.pipeline.config import TripletArgs


@dataclass(frozen=True, kw_only=True)
class Triplet(JsonFlag, TripletArgs):
    __doc__ = TripletArgs.__doc__


ARGS = Triplet


def main(args: Triplet) -> None:
    from bertvision import console
    from bertvision.cli.finetune import show
    from bertvision.pipeline.finetune import triplet

    tuned = triplet(part_of(TripletArgs, args), command=command_line())
    if not args.json:
        (job,) = tuned.jobs
        held_out = 0 if job.dev is None else len(job.dev.data)
        console.emit(f"{len(job.train.data):,} triplets to train on, {held_out:,} held out")
    show(tuned, as_json=args.json, metrics=5)
