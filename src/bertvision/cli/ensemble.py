"""`bertvision ensemble HEAD HEAD ... --data FILE`: several heads joined into one system."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bertvision.cli.flags import OptionalInt, OptionalPath, OptionalText
from bertvision.data.columns import Columns
from bertvision.encoder.device import Precision
from bertvision.states.config import SourceConfig
from bertvision.tasks.span.decode import DecodeConfig

if TYPE_CHECKING:
    from bertvision.train.trained import Trained

__all__ = ["ARGS", "EnsembleArgs", "main"]


@dataclass(frozen=True)
class EnsembleArgs:
    """Join the probabilities (or scores) of several heads, score the result and its members, and tune its threshold."""

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FOLDER ...")]
    """Heads or snapshots that fit, finetune or run wrote (of a fit, all its heads); they must read the same windows."""
    data: str
    """Data to score on; with --out the threshold stored with the ensemble is tuned on it, so give dev."""
    out: OptionalPath = None
    """Write the ensemble here, to be used by eval and predict."""
    how: Literal["auto", "max", "mean", "product"] = "auto"
    """Element-wise max of the probabilities (the paper's), their mean or their product; auto: max for spans, mean for
    labels and scores, which know no other."""
    encoder: OptionalText = None
    """Where the encoder lies now, if it moved."""
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


ARGS = EnsembleArgs


def main(args: EnsembleArgs) -> None:
    from bertvision.artifacts import check_output
    from bertvision.cli.eval import members, of_texts, unique_names
    from bertvision.errors import ConfigError, OutputError
    from bertvision.train.trained import read_trained

    folders = members(args.folders)
    if len(folders) < 2:
        raise ConfigError("ensemble needs at least two folders that fit, finetune or run wrote")
    if args.out is not None:
        check_output(args.out.parent)
        if args.out.exists() and not (args.out / "config.json").exists():
            raise OutputError(f"--out {args.out} exists and is not an ensemble: choose another folder")
    systems = [read_trained(folder) for folder in folders]
    names = unique_names(systems)
    if args.out is not None and len({system.fingerprint for system in systems}) > 1:
        raise ConfigError(
            "these heads read different encoders: score them without --out, nothing could load it"
        )
    if args.out is not None and any(len(system.heads) > 1 for system in systems):
        raise ConfigError("an ensemble cannot be a member of another with --out: name its heads instead")
    (_join_texts if of_texts(systems) else _join_spans)(args, names, systems)


def _logits(args: EnsembleArgs, systems: "list[Trained]", data: Any) -> list[tuple[Any, Any]]:
    """Logits of every member; all must be on the same windows."""
    from bertvision.errors import ConfigError
    from bertvision.train.trained import logits_of_trained

    results = logits_of_trained(
        systems, data, encoder=args.encoder, device=args.device, precision=args.precision, states=args.states
    )
    if len({split.fingerprint for split, _ in results}) > 1:
        raise ConfigError(
            "these heads read different windows (tokenizer, window settings or prompts): they cannot be joined"
        )
    return results


def _write_config(folder: Path, args: EnsembleArgs, systems: "list[Trained]", how: str) -> None:
    from bertvision._version import __version__
    from bertvision.artifacts import write_json

    assert args.out is not None
    parts = [os.path.relpath(system.folder.resolve(), args.out.resolve()) for system in systems]
    write_json(
        folder / "config.json", {"bertvision": __version__, "ensemble": {"how": how, "members": parts}}
    )


def _join_texts(args: EnsembleArgs, names: list[str], systems: "list[Trained]") -> None:
    from bertvision.artifacts import atomic_folder
    from bertvision.cli.eval_texts import load_labelled, row_of, show_texts, text_task
    from bertvision.errors import ConfigError
    from bertvision.report.making import keep_making
    from bertvision.report.text_heads import write_text_results
    from bertvision.tasks.text.answers import joined_logits

    if args.how not in ("auto", "mean"):
        raise ConfigError(f"--how {args.how} is for spans: labels and scores are joined by their mean")
    task = text_task(systems[0])
    if other := next((system for system in systems if system.task != task), None):
        raise ConfigError(
            f"{systems[0].folder} and {other.folder} are for different tasks (classes, scale of scores, loss): "
            "they cannot be joined"
        )
    data = load_labelled(args.data, task, columns=args.text, max_examples=args.max_examples)
    results = _logits(args, systems, data)
    rows = [row_of(name, split, logits) for name, (split, logits) in zip(names, results, strict=True)]
    split = results[0][0]
    joined = joined_logits([logits for _, logits in results], task)
    rows.append(row_of(f"mean of {len(systems)}", split, joined))
    if args.out is not None:
        with atomic_folder(args.out) as temporary:
            _write_config(temporary, args, systems, "mean")
            # As dev, because a temperature that is stored with the ensemble is fitted on it.
            write_text_results(temporary, {"dev": (split, joined)})
            keep_making(temporary, {"dev": data.name})
    show_texts(rows, as_json=args.json)


def _join_spans(args: EnsembleArgs, names: list[str], systems: "list[Trained]") -> None:
    from bertvision.artifacts import atomic_folder, write_json
    from bertvision.cli.eval import decoding, show
    from bertvision.config import to_mapping
    from bertvision.data.load import load_span_data
    from bertvision.errors import ConfigError
    from bertvision.report.making import keep_making
    from bertvision.tasks.span import combine, decode, write_answers
    from bertvision.tasks.span.calibration import no_answer_of
    from bertvision.train.scoring import score_answers

    how = "max" if args.how == "auto" else args.how
    if len({system.decode for system in systems}) > 1 and args.decode == DecodeConfig():
        raise ConfigError("these heads were tuned with different decodings: name one with --decoding")
    settings = decoding(args.decode, systems[0])
    data = load_span_data(args.data, max_examples=args.max_examples)
    results = _logits(args, systems, data)
    windows = results[0][0].windows
    joined = combine([logits for _, logits in results], windows, how=how)
    answers = decode(windows, joined, data, settings)
    threshold = score_answers(answers, 0.0)["oracle"]["threshold"]
    rows = [
        {"system": name, **score_answers(decode(windows, logits, data, settings), system.threshold)}
        for name, system, (_, logits) in zip(names, systems, results, strict=True)
    ]
    rows.append({"system": f"{how} of {len(systems)}", **score_answers(answers, threshold)})
    if args.out is not None:
        with atomic_folder(args.out) as temporary:
            _write_config(temporary, args, systems, how)
            metrics: dict[str, Any] = {"threshold": {"value": threshold, "tuned_on": data.name}}
            calibration = no_answer_of(answers)
            if calibration is not None:
                metrics["no_answer"] = asdict(calibration) | {"tuned_on": data.name}
            metrics |= {"decode": to_mapping(settings), data.name: rows[-1]}
            write_json(temporary / "metrics.json", metrics)
            write_answers(temporary, answers, threshold=threshold)
            keep_making(temporary, {"dev": data.name})
    show(rows, as_json=args.json)
