"""`bertvision eval HEAD ... --data FILE`: official scores of trained heads; all metrics of labels and scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bertvision.cli.flags import OptionalInt, OptionalPath, OptionalText
from bertvision.data.columns import Columns
from bertvision.encoder.device import Precision
from bertvision.errors import ConfigError
from bertvision.states.config import SourceConfig
from bertvision.tasks.span.decode import DecodeConfig

if TYPE_CHECKING:
    from bertvision.train.trained import Trained

__all__ = ["ARGS", "EvalArgs", "decoding", "main", "members", "of_texts", "show", "unique_names"]


@dataclass(frozen=True)
class EvalArgs:
    """Score trained heads, ensembles or runs on a data set: spans at threshold 0 and at the threshold stored with each,
    labels and scores by all metrics of their task."""

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FOLDER ...")]
    """What fit, finetune, ensemble or run wrote (of a fit, all its heads); those on one encoder share one pass."""
    data: str
    """SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:test or a saved datasets folder; for labels and scores
    glue:TASK:FILE, cs224n:SET:FILE, .csv, .tsv, .jsonl or hub:NAME[:SPLIT] with columns of texts and labels."""
    out: OptionalPath = None
    """Write predictions.json (at the stored threshold), nbest_predictions.json, null_odds.json and metrics.json
    here, a folder a head; of labels and scores metrics.json, and predictions and probabilities in the folder eval."""
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
    from bertvision.artifacts import check_output, write_json
    from bertvision.data.load import load_span_data
    from bertvision.encoder.load import load_tokenizer, token_ids
    from bertvision.tasks.span import answer_ids, decode, score_wordpiece, second_best, write_answers
    from bertvision.train.scoring import score_answers
    from bertvision.train.trained import logits_of_trained, read_trained

    if not args.folders:
        raise ConfigError("eval needs at least one folder that fit, finetune, ensemble or run wrote")
    if args.other_encoder and args.encoder is None:
        raise ConfigError("--other-encoder needs --encoder: name the encoder to read")
    systems = [read_trained(folder) for folder in members(args.folders)]
    names = unique_names(systems)
    if args.out is not None:
        check_output(args.out)
    if of_texts(systems):
        from bertvision.cli.eval_texts import eval_texts

        eval_texts(args, names, systems)
        return
    if args.text_merge != "stored":
        raise ConfigError("--text-merge is for labels and scores: spans are merged by their --decoding")
    data = load_span_data(args.data, max_examples=args.max_examples)
    results = logits_of_trained(
        systems,
        data,
        encoder=args.encoder,
        other_encoder=args.other_encoder,
        device=args.device,
        precision=args.precision,
        states=args.states,
    )
    rows = []
    for name, system, (split, logits) in zip(names, systems, results, strict=True):
        if args.second_best:
            logits = second_best(split.windows, logits)
        answers = decode(split.windows, logits, data, decoding(args.decode, system))
        row = {"system": name, **score_answers(answers, system.threshold)}
        if args.scorer == "wordpiece":
            tokenize = token_ids(load_tokenizer(args.encoder or system.encoder))
            row["wordpiece"] = score_wordpiece(data, answer_ids(answers), tokenize=tokenize)
        if args.out is not None:
            write_answers(args.out / name, answers, threshold=system.threshold)
            write_json(args.out / name / "metrics.json", row)
        rows.append(row)
    show(rows, as_json=args.json)


def of_texts(systems: "Sequence[Trained]") -> bool:
    """Whether these are systems of labels or scores; some of each kind are refused."""
    from bertvision.tasks.text.task import TextTask

    texts = [isinstance(system.task, TextTask) for system in systems]
    if any(texts) and not all(texts):
        raise ConfigError(
            f"{systems[texts.index(True)].folder} gives a label or a score and {systems[texts.index(False)].folder} "
            "finds spans: name those of one kind"
        )
    return all(texts)


def decoding(asked: DecodeConfig, system: "Trained") -> DecodeConfig:
    """What the flags say; where they say nothing, the decoding the system's threshold was tuned with."""
    return system.decode if asked == DecodeConfig() else asked


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
    from bertvision.train.trained import members_of

    found: list[Path] = []
    for folder in folders:
        parts = members_of(folder) if (folder / "stage.json").is_file() else []
        if not parts and (heads := _heads_of_tasks(folder)):
            raise ConfigError(
                f"{folder} holds heads of several tasks: name one of {', '.join(map(str, heads))}"
            )
        found += parts or [folder]
    return found


def _heads_of_tasks(folder: Path) -> list[Path]:
    """The heads in the snapshots that `multitask` wrote."""
    if (folder / "config.json").exists() or (folder / "results.json").exists():
        return []
    return sorted(file.parent for file in folder.glob("snapshot-*/heads/*/config.json"))


def show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Scores of several systems, as JSON or as a table."""
    from bertvision import console

    if as_json:
        console.emit_json(rows)
        return
    columns = ["system", "EM", "F1", "EM stored", "F1 stored", "threshold", "F1 oracle"]
    cells = [
        [
            row["system"],
            *(f"{row[at][metric]:.2f}" for at in ("zero", "stored") for metric in ("exact", "f1")),
            f"{row['stored']['threshold']:.2f}",
            f"{row['oracle']['f1']:.2f}",
        ]
        for row in rows
    ]
    console.table(
        "the decoding's threshold, the one stored with the head, the best on this very data", columns, cells
    )
    for row in rows:
        if "wordpiece" in row:
            scores = "  ".join(f"{key} {value:.2f}" for key, value in row["wordpiece"].items())
            console.emit(f"{row['system']} on word pieces: {scores}")
