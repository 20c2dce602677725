"""`bertvision eval HEAD ... --data FILE`: official scores of trained heads; all metrics of labels and scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bertvision.cli.flags import OptionalInt, OptionalPath, OptionalText, command_line
from bertvision.data.columns import Columns
from bertvision.encoder.device import Precision
from bertvision.errors import ConfigError
from bertvision.states.config import SourceConfig
from bertvision.tasks.settings import DecodeConfig

if TYPE_CHECKING:
    from bertvision.cli.ensemble import EnsembleArgs
    from bertvision.model.trained import Trained
    from bertvision.pipeline.evaluate import Scoring

__all__ = ["ARGS", "EvalArgs", "main", "members", "scoring", "show", "unique_names"]


@dataclass(frozen=True)
class EvalArgs:
    """Score trained heads, ensembles or runs on a dataset by all metrics of their task; spans at threshold 0 and at
    the threshold stored with each."""

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FOLDER ...")]
    """What fit, finetune, ensemble or run wrote (of a fit, all its heads); those on one encoder share one pass."""
    data: str
    """SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:test or a saved datasets folder; for labels and scores
    glue:TASK:FILE, cs224n:SET:FILE, .csv, .tsv, .jsonl or hub:NAME[:SPLIT] with columns of texts and labels."""
    out: OptionalPath = None
    """Write metrics.json, and the answers and logits in the folder eval, here, a folder a head."""
    encoder: OptionalText = None
    """Where the encoder lies now, if it moved."""
    other_encoder: bool = False
    """Read --encoder even if the heads were fitted on other weights of the same size (a later snapshot, say)."""
    second_best: bool = False
    """Of spans: score each head's second choice, with its first start and its first end in every window ruled out."""
    scorer: Literal["official", "wordpiece"] = "official"
    """wordpiece = the paper's scores on word pieces, which are not official SQuAD scores."""
    text_merge: Literal["stored", "mean", "min", "max", "any_null"] = "stored"
    """How the windows of long texts become one answer: as the head says, or another way (any_null: the papers')."""
    max_examples: OptionalInt = None
    """Take only the first so many questions."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    decode: Annotated[DecodeConfig, tyro.conf.arg(name="")] = field(default_factory=DecodeConfig)
    text: Columns = field(default_factory=Columns)
    states: SourceConfig = field(default_factory=SourceConfig)
    json: bool = False
    """Print the result as JSON."""


ARGS = EvalArgs


def main(args: EvalArgs) -> None:
    from bertvision.artifacts import check_output
    from bertvision.model.trained import read_trained
    from bertvision.pipeline.evaluate import score_systems

    if not args.folders:
        raise ConfigError("eval needs at least one folder that fit, finetune, ensemble or run wrote")
    if args.other_encoder and args.encoder is None:
        raise ConfigError("--other-encoder needs --encoder: name the encoder to read")
    systems = [read_trained(folder) for folder in members(args.folders)]
    named = dict(zip(unique_names(systems), systems, strict=True))
    if args.out is not None:
        check_output(args.out)
    how = replace(
        scoring(args),
        merge="" if args.text_merge == "stored" else args.text_merge,
        wordpiece=args.scorer == "wordpiece",
        second_best=args.second_best,
        other_encoder=args.other_encoder,
    )
    show(score_systems(named, how, args.out), systems, as_json=args.json)


def scoring(args: "EvalArgs | EnsembleArgs") -> "Scoring":
    """The flags that eval and ensemble share."""
    from bertvision.pipeline.evaluate import Scoring

    return Scoring(
        args.data,
        columns=args.text,
        max_examples=args.max_examples,
        encoder=args.encoder,
        device=args.device,
        precision=args.precision,
        states=args.states,
        decode=None if args.decode == DecodeConfig() else args.decode,
        command=command_line(),
    )


def unique_names(systems: "Sequence[Trained]") -> list[str]:
    """Short names; those that several systems share get the folder above in front."""
    names = [system.name for system in systems]
    names = [
        f"{_above(system.folder)}.{name}" if names.count(name) > 1 else name
        for name, system in zip(names, systems, strict=True)
    ]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigError(f"two of the folders go by the name {twice}: score them one at a time")
    return names


def _above(folder: Path) -> str:
    """The name of the folder that holds a head, or the snapshot that a head belongs to."""
    folder = folder.resolve()
    return folder.parent.parent.name if folder.name == "head" else folder.parent.name


def members(folders: Sequence[Path]) -> list[Path]:
    """The folders as given; a whole fit or fine-tuning stands for all its heads or snapshots. Of a fine-tuning for
    several tasks one head must be named: no data is for all of them."""
    from bertvision.model.folders import heads_below

    found: list[Path] = []
    for folder in folders:
        if heads := _heads_of_tasks(folder):
            raise ConfigError(
                f"{folder} holds heads of several tasks: name one of {', '.join(map(str, heads))}"
            )
        found += (heads_below(folder) if (folder / "stage.json").is_file() else []) or [folder]
    return found


def _heads_of_tasks(folder: Path) -> list[Path]:
    """The heads in the snapshots that `multitask` wrote."""
    if (folder / "config.json").exists() or (folder / "results.json").exists():
        return []
    return sorted(file.parent for file in folder.glob("snapshot-*/heads/*/config.json"))


def show(rows: list[dict[str, Any]], systems: "Sequence[Trained]", *, as_json: bool) -> None:
    """Scores of several systems, as JSON or as a table; an asterisk marks what a task is judged by."""
    from bertvision import console

    if as_json:
        console.emit_json(rows)
        return
    tasks = [system.task for system in systems] + [systems[0].task] * (len(rows) - len(systems))
    cells = []
    for row, task in zip(rows, tasks, strict=True):
        scores = {
            task.title(name) + " *" * (name == task.metric): task.metrics[name].text(row["scores"][name])
            for name in dict.fromkeys((*task.selecting, *task.metrics))
            if name in row["scores"]
        }
        if row["oracle"] != row["scores"][task.metric]:
            scores[f"best {task.title(task.metric)}"] = task.metrics[task.metric].text(row["oracle"])
        cells.append({"system": row["system"]} | scores)
    columns = list(dict.fromkeys(name for row in cells for name in row))
    table = [[row.get(name, "") for name in columns] for row in cells]
    title = f"{rows[0]['examples']:,} examples; * what the task is judged by"
    if any(name.startswith("best ") for name in columns):
        title += "; best: with the tuning that suits this very data best"
    console.table(title, columns, table)
    for row in rows:
        if "wordpiece" in row:
            scores = "  ".join(f"{key} {value:.2f}" for key, value in row["wordpiece"].items())
            console.emit(f"{row['system']} on word pieces: {scores}")
