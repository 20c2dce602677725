"""The whole job: settings and data are checked before anything is computed or written, then the stages run.

OUT/config.yaml            the resolved settings, a recipe that repeats the run
    finetune/snapshot-1/   encoder/ and head/
    fit/snapshot-1/HEAD/   one folder a fitted head
    results.json           every number of the report
    report.html
"""

import dataclasses
import time
from typing import Any

from bertvision.artifacts import check_output, read_json, write_json, write_text
from bertvision.config import dump_yaml, to_mapping
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads.catalogue import expand
from bertvision.heads.spec import parse_head
from bertvision.pipeline.config import RunArgs
from bertvision.pipeline.results import collect
from bertvision.pipeline.stages import Stages
from bertvision.report.page import write_page
from bertvision.train.job import Job
from bertvision.train.parallel import rank_and_world
from bertvision.train.splits import Split, load_split
from bertvision.train.zoo import suited, zoo_members


def run(args: RunArgs, *, command: str = "") -> dict[str, Any]:
    """Do the whole job; returns what results.json holds."""
    args = args.seeded()
    if not args.train or not args.dev:
        raise ConfigError("--train and --dev must both be given (or neither, which runs the demo)")
    if rank_and_world()[1] > 1:
        raise ConfigError("run works in one process: use finetune and fit, its stages, with several")
    for text, _ in expand(args.fit.heads):  # a mistyped head should fail now, not after the fine-tuning
        parse_head(text)
    began = time.monotonic()
    check_output(args.out)
    encoder = Encoder.load(args.encoder, device=args.device, precision=args.precision)
    args.states.selection.numbers(encoder.num_states)  # and so should a layer that does not exist
    splits = _splits(args, encoder)
    args = _checked(args, splits["train"])
    record = _Record(args, command)
    record.begin()
    stages = Stages(args, encoder, splits, record.command)
    about = {"name": encoder.name, "fingerprint": encoder.fingerprint, "parameters": encoder.num_parameters}
    about |= {"states": encoder.num_states, "hidden": encoder.hidden}
    stages.run()
    results = collect(
        stages.systems,
        command=record.command,
        settings=to_mapping(args),
        encoder=about,
        splits=splits,
        finetune=stages.tuning,
        fits=stages.fits,
        out=args.out,
        device=str(encoder.device),
        precision=encoder.precision,
    )
    results["seconds"] = record.seconds or time.monotonic() - began
    record.end()
    write_json(args.out / "results.json", results)
    write_page(results, args.out / "report.html")
    return results


def _checked(args: RunArgs, train: Split) -> RunArgs:
    """Refuse settings that do not suit the task; returns them with `combine` resolved."""
    task = train.task
    if task.group > 1:
        raise ConfigError(
            "run fits heads on texts read together: leave out --apart, or use finetune, which trains a head for "
            "pairs encoded apart with its encoder"
        )
    Job(train, head=args.finetune.head)
    suited(args.states, zoo_members(args.fit, task), task)
    return dataclasses.replace(args, combine=task.join_how(args.combine))


def _splits(args: RunArgs, encoder: Encoder) -> dict[str, Split]:
    """Dev and test are read like train: with its task, its classes and its prompts."""
    sources = {name: getattr(args, name) for name in ("train", "dev", "test") if getattr(args, name)}
    for name, source in sources.items():
        if source.startswith("store:"):
            raise ConfigError(
                f"--{name} {source} has no questions to ask: name the data, `fit --train` reads stores"
            )
    splits: dict[str, Split] = {}
    for name, source in sources.items():
        most = getattr(args, f"max_{name}_examples")
        splits[name] = load_split(
            source, encoder, args.windows, max_examples=most, text=args.text, like=splits.get("train")
        )
    return splits


class _Record:
    """config.yaml: the resolved settings as a recipe, headed by the command.

    `begin` writes it only where there is none: a command that is refused because of its settings must not replace the
    record of the work in the folder. A repeated run keeps the command and the time of the first.
    """

    def __init__(self, args: RunArgs, command: str) -> None:
        self._path, self._args = args.out / "config.yaml", dataclasses.replace(args, overwrite=False)
        self.command, self.seconds = command, 0.0
        if self._path.is_file():
            first, _, rest = self._path.read_text(encoding="utf-8").partition("\n")
            if f"{first}\n{rest}" == self._text(first.removeprefix("# ")):
                self.command = first.removeprefix("# ")
                results = args.out / "results.json"
                self.seconds = read_json(results).get("seconds", 0.0) if results.is_file() else 0.0

    def _text(self, command: str) -> str:
        return dump_yaml(self._args, heading=f"{command}\nbertvision run --config {self._path}")

    def begin(self) -> None:
        if not self._path.exists():
            self.end()

    def end(self) -> None:
        write_text(self._path, self._text(self.command))
