"""`bertvision ensemble HEAD HEAD ... --data FILE`: several heads joined into one system."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from bertvision.cli.flags import OptionalInt, OptionalPath, OptionalText
from bertvision.encoder.encoder import Precision
from bertvision.feed.batches import SourceConfig
from bertvision.tasks.span.decode import DecodeConfig
from bertvision.tasks.span.ensemble import Combination

__all__ = ["ARGS", "EnsembleArgs", "main"]


@dataclass(frozen=True)
class EnsembleArgs:
    """Join the probabilities of several heads, score the result and its members, and tune its threshold."""

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FOLDER ...")]
    """Heads or snapshots that fit, finetune or run wrote (of a fit, all its heads); they must read the same windows."""
    data: str
    """Data to score on; with --out the threshold stored with the ensemble is tuned on it, so give dev."""
    out: OptionalPath = None
    """Write the ensemble here, to be used by eval and predict."""
    how: Combination = "max"
    """Element-wise max of the probabilities (the paper's), their mean or their product."""
    encoder: OptionalText = None
    """Where the encoder lies now, if it moved."""
    max_examples: OptionalInt = None
    """Take only the first so many questions."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    decode: Annotated[DecodeConfig, tyro.conf.arg(name="")] = field(default_factory=DecodeConfig)
    feed: SourceConfig = field(default_factory=SourceConfig)
    json: bool = False
    """Print the result as JSON."""


ARGS = EnsembleArgs


def main(args: EnsembleArgs) -> None:
    from bertvision._version import __version__
    from bertvision.artifacts import atomic_folder, check_output, write_json
    from bertvision.cli.eval import decoding, members, show, unique_names
    from bertvision.config import to_mapping
    from bertvision.data.load import load_span_data
    from bertvision.errors import ConfigError, OutputError
    from bertvision.tasks.span import combine, decode, write_answers
    from bertvision.train.scoring import score_answers
    from bertvision.train.trained import logits_of_trained, read_trained

    folders = members(args.folders)
    if len(folders) < 2:
        raise ConfigError("ensemble needs at least two folders that fit, finetune or run wrote")
    if args.out is not None:
        check_output(args.out.parent)
        if args.out.exists() and not (args.out / "config.json").exists():
            raise OutputError(f"--out {args.out} exists and is not an ensemble: choose another folder")
    systems = [read_trained(folder) for folder in folders]
    names = unique_names(systems)
    if len({system.decode for system in systems}) > 1 and args.decode == DecodeConfig():
        raise ConfigError("these heads were tuned with different decodings: name one with --decoding")
    if args.out is not None and len({system.fingerprint for system in systems}) > 1:
        raise ConfigError(
            "these heads read different encoders: score them without --out, nothing could load it"
        )
    if args.out is not None and any(len(system.heads) > 1 for system in systems):
        raise ConfigError("an ensemble cannot be a member of another with --out: name its heads instead")
    settings = decoding(args.decode, systems[0])
    data = load_span_data(args.data, max_examples=args.max_examples)
    results = logits_of_trained(
        systems, data, encoder=args.encoder, device=args.device, precision=args.precision, feed=args.feed
    )
    if len({split.fingerprint for split, _ in results}) > 1:
        raise ConfigError(
            "these heads read different windows (tokenizer or window settings): they cannot be joined"
        )
    windows = results[0][0].windows
    joined = combine([logits for _, logits in results], windows, how=args.how)
    answers = decode(windows, joined, data, settings)
    threshold = score_answers(answers, 0.0)["oracle"]["threshold"]
    rows = [
        {"system": name, **score_answers(decode(windows, logits, data, settings), system.threshold)}
        for name, system, (_, logits) in zip(names, systems, results, strict=True)
    ]
    rows.append({"system": f"{args.how} of {len(systems)}", **score_answers(answers, threshold)})
    if args.out is not None:
        with atomic_folder(args.out) as temporary:
            parts = [os.path.relpath(system.folder.resolve(), args.out.resolve()) for system in systems]
            write_json(
                temporary / "config.json",
                {"bertvision": __version__, "ensemble": {"how": args.how, "members": parts}},
            )
            tuned = {"value": threshold, "tuned_on": data.name}
            write_json(
                temporary / "metrics.json",
                {"threshold": tuned, "decode": to_mapping(settings), data.name: rows[-1]},
            )
            write_answers(temporary, answers, threshold=threshold)
    show(rows, as_json=args.json)
