"""The whole job: settings and data are checked before anything is computed or written, then the stages run."""

import dataclasses
import time
from typing import Any

from bertvision.artifacts import check_output, read_json, write_json, write_text
from bertvision.config import dump_yaml
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads.catalogue import expand
from bertvision.heads.spec import parse_head
from bertvision.pipeline.config import RunConfig
from bertvision.pipeline.stages import Stages
from bertvision.report.run import write_page
from bertvision.train.job import Job
from bertvision.train.parallel import rank_and_world
from bertvision.train.splits import Split, load_split
from bertvision.train.zoo import suited, zoo_members

__all__ = ["run"]


def run(config: RunConfig, *, command: str) -> dict[str, Any]:
    """Do the whole job; returns what results.json holds."""
    config = config.seeded()
    if not config.train or not config.dev:
        raise ConfigError("--train and --dev must both be given (or neither, which runs the demo)")
    if rank_and_world()[1] > 1:
        raise ConfigError("run works in one process: use finetune and fit, its stages, with several")
    for text, _ in expand(config.fit.heads):  # a mistyped head should fail now, not after the fine-tuning
        parse_head(text)
    began = time.monotonic()
    out = config.out
    check_output(out)
    encoder = Encoder.load(config.encoder, device=config.device, precision=config.precision)
    config.states.selection.numbers(encoder.num_states)  # so should a layer there is not
    splits = _splits(config, encoder)
    task = splits["train"].task
    if task.group > 1:
        raise ConfigError(
            "run fits heads on texts read together: leave out --apart, or use finetune, which trains a head for "
            "pairs encoded apart with its encoder"
        )
    members = zoo_members(config.fit, task)  # and heads of another task
    Job(splits["train"], head=config.finetune.head)
    suited(config.states, members, task)
    config = dataclasses.replace(config, combine=task.join_how(config.combine))
    record = _Record(config, command)
    record.begin()
    results = Stages(config, encoder, splits, record.command).results()
    results["seconds"] = record.seconds or time.monotonic() - began
    record.end()
    write_json(out / "results.json", results)
    write_page(results, out / "report.html")
    return results


def _splits(config: RunConfig, encoder: Encoder) -> dict[str, Split]:
    limits = {
        "train": config.max_train_examples,
        "dev": config.max_dev_examples,
        "test": config.max_test_examples,
    }
    sources = {"train": config.train, "dev": config.dev, "test": config.test}
    for name, source in sources.items():
        if source.startswith("store:"):
            raise ConfigError(
                f"--{name} {source} has no questions to ask: name the data, `fit --train` reads stores"
            )
    splits: dict[str, Split] = {}
    for name, source in sources.items():
        if source:
            # Dev and test are read as train is: with its task, its classes and its prompts.
            splits[name] = load_split(
                source,
                encoder,
                config.windows,
                max_examples=limits[name],
                text=config.text,
                like=splits.get("train"),
            )
    return splits


class _Record:
    """config.yaml: the resolved settings as a recipe, under the command that gave them.

    It is written first only where there is none: a command that is refused because of its settings must not
    replace the record of the work that stands there. A repeated run keeps the command and the time of the first.
    """

    def __init__(self, config: RunConfig, command: str) -> None:
        self._path, self._config = config.out / "config.yaml", dataclasses.replace(config, overwrite=False)
        self.command, self.seconds = command, 0.0
        if self._path.is_file():
            first, _, rest = self._path.read_text(encoding="utf-8").partition("\n")
            if f"{first}\n{rest}" == self._text(first.removeprefix("# ")):
                self.command = first.removeprefix("# ")
                results = config.out / "results.json"
                self.seconds = read_json(results).get("seconds", 0.0) if results.is_file() else 0.0

    def _text(self, command: str) -> str:
        return dump_yaml(self._config, heading=f"{command}\nbertvision run --config {self._path}")

    def begin(self) -> None:
        if not self._path.exists():
            self.end()

    def end(self) -> None:
        write_text(self._path, self._text(self.command))
