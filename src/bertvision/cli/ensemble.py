"""`bertvision ensemble HEAD HEAD ... --data FILE`: several heads joined into one system."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from bertvision.cli.flags import OptionalInt, OptionalPath, OptionalText
from bertvision.data.columns import Columns
from bertvision.encoder.device import Precision
from bertvision.states.config import SourceConfig
from bertvision.tasks.settings import DecodeConfig

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
    from bertvision.cli.eval import members, scoring, show, unique_names
    from bertvision.errors import ConfigError, OutputError
    from bertvision.model.trained import read_trained
    from bertvision.pipeline.evaluate import join_systems

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
    rows = join_systems(dict(zip(names, systems, strict=True)), scoring(args), how=args.how, out=args.out)
    show(rows, systems, as_json=args.json)
