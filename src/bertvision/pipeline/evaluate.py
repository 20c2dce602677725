"""Score trained systems on a dataset, and join several into one: what `bertvision eval` and `ensemble` do."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertvision._version import __version__
from bertvision.artifacts import atomic_folder, read_json, write_json
from bertvision.config import to_mapping
from bertvision.data.columns import Columns
from bertvision.encoder.device import Precision
from bertvision.encoder.load import load_tokenizer, token_ids
from bertvision.errors import ConfigError
from bertvision.model.folders import ensemble_of
from bertvision.model.record import Made, Record, evaluate, record
from bertvision.model.trained import Trained, logits_of_trained
from bertvision.states.config import SourceConfig
from bertvision.tasks.logits import Logits
from bertvision.tasks.settings import DecodeConfig
from bertvision.train.splits import Split

__all__ = ["Scoring", "join_systems", "score_systems"]


@dataclass(frozen=True)
class Scoring:
    """What systems are scored on, and how."""

    data: str
    columns: Columns = field(default_factory=Columns)
    max_examples: int | None = None
    encoder: str | None = None
    """Where the encoder lies now, if it moved."""
    device: str = "auto"
    precision: Precision = "auto"
    states: SourceConfig = field(default_factory=SourceConfig)
    decode: DecodeConfig | None = None
    """How spans are found; by default as each system's threshold was tuned."""
    merge: str = ""
    """How the windows of a text are merged; by default as each system's task says."""
    other_encoder: bool = False
    """Read `encoder` even if the heads were fitted on other weights of the same size."""
    second_best: bool = False
    """Score every head's second choice."""
    wordpiece: bool = False
    """Add the paper's scores on word pieces."""
    command: str = ""

    def logits(self, systems: Sequence[Trained]) -> list[tuple[Split, Logits]]:
        """Logits of every system on the data, which is loaded once for each task."""
        found: dict[int, tuple[Split, Logits]] = {}
        tasks = dict.fromkeys(system.task for system in systems)
        sets = [task.load(self.data, columns=self.columns, max_examples=self.max_examples) for task in tasks]
        for task, data in zip(tasks, sets, strict=True):
            own = [i for i, system in enumerate(systems) if system.task == task]
            results = logits_of_trained(
                [systems[i] for i in own],
                data,
                encoder=self.encoder,
                other_encoder=self.other_encoder,
                device=self.device,
                precision=self.precision,
                states=self.states,
            )
            if self.second_best:
                results = [(split, task.second_best(split.windows, logits)) for split, logits in results]
            found |= dict(zip(own, results, strict=True))
        return [found[i] for i in range(len(systems))]

    def adjusted(self, system: Trained) -> Trained:
        """The system with the settings that were asked for."""
        for asked, flag in ((self.wordpiece, "--scorer wordpiece"), (self.second_best, "--second-best")):
            if asked:
                system.task.check_papers(flag)
        if self.merge:
            system = replace(system, task=system.task.merged_by(self.merge))
        if self.decode is not None:
            system = replace(system, tuning=system.task.decoded_by(system.tuning, self.decode))
        return system


def score_systems(
    systems: Mapping[str, Trained], scoring: Scoring, out: Path | None = None
) -> list[dict[str, Any]]:
    """One row of scores a system, at the tuning stored with each; `out` gets answers and metrics, a folder a system."""
    adjusted = [scoring.adjusted(system) for system in systems.values()]
    rows = []
    for name, system, (split, logits) in zip(systems, adjusted, scoring.logits(adjusted), strict=True):
        found = {"eval": (split, logits)}
        own = evaluate(found, tuning=system.tuning, tuned_on=system.tuned_on)
        if out is not None:
            record(out / name, found, Made(scoring.command, {"eval": split.name}), evaluated=own)
        row = _row(name, own, "eval")
        if scoring.wordpiece:
            tokenize = token_ids(load_tokenizer(scoring.encoder or system.encoder))
            row["wordpiece"] = system.task.wordpiece(own.answers["eval"], tokenize)
        rows.append(row)
    return rows


def join_systems(
    systems: Mapping[str, Trained], scoring: Scoring, *, how: str = "auto", out: Path | None = None
) -> list[dict[str, Any]]:
    """Rows of the members and of the ensemble, which is tuned on the data; `out` gets it as a system of its own."""
    members = [scoring.adjusted(system) for system in systems.values()]
    first = members[0]
    how = first.task.join_how(how)
    if other := next((system for system in members if system.task != first.task), None):
        raise ConfigError(
            f"{first.folder} and {other.folder} are for different tasks (classes, scale of scores, loss): "
            "they cannot be joined"
        )
    decode = scoring.decode or first.task.common_decode([system.tuning for system in members])
    results = scoring.logits(members)
    if len({split.fingerprint for split, _ in results}) > 1:
        raise ConfigError(
            "these heads read different windows (tokenizer, window settings or prompts): they cannot be joined"
        )
    rows = []
    for name, system, (split, logits) in zip(systems, members, results, strict=True):
        rows.append(_row(name, evaluate({"eval": (split, logits)}, tuning=system.tuning), "eval"))
    split = results[0][0]
    joined = first.task.join([logits for _, logits in results], split.windows, how)
    # As dev, because what is stored with the ensemble is tuned on it.
    found = {"dev": (split, joined)}
    own = evaluate(found, decode=decode)
    rows.append(_row(f"{how} of {len(members)}", own, "dev"))
    if out is not None:
        parts = [os.path.relpath(system.folder.resolve(), out.resolve()) for system in members]
        with atomic_folder(out) as temporary:
            about = {"bertvision": __version__, "ensemble": {"how": how, "members": parts}}
            write_json(temporary / "config.json", about)
            config = read_json(ensemble_of(first.folder)[1][0] / "config.json")
            size = sum(head.num_parameters for system in members for head in system.heads)
            label = config.get("label") or config["head"]["name"]
            config |= {"label": f"{how} of {len(members)}, the first of them {label}", "parameters": size}
            made = Made(scoring.command, {"dev": split.name})
            record(temporary, found, made, evaluated=own, config=config)
    return rows


def _row(name: str, own: Record, split: str) -> dict[str, Any]:
    """Scores at the tuning and, where it matters, at the best one for this very data."""
    answers = own.answers[split]
    return {
        "system": name,
        "metric": own.task.metric,
        "examples": len(answers),
        "scores": own.scores[split],
        "oracle": own.task.score(answers)[own.task.metric],
        "tuning": to_mapping(own.tuning),
        "details": own.task.details(answers, own.tuning),
    }
