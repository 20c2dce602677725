"""`bertvision fit`: several heads in one pass over a frozen encoder's states."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bertvision.cli.columns import columns, terminal_width
from bertvision.cli.flags import OptionalInt
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import Precision
from bertvision.states.config import StatesConfig
from bertvision.train.fit import FitConfig
from bertvision.train.splits import TextConfig

if TYPE_CHECKING:
    from bertvision.encoder.encoder import Encoder
    from bertvision.train.parallel import Parallel
    from bertvision.train.run_folder import RunFolder
    from bertvision.train.splits import Split

__all__ = ["ARGS", "FitArgs", "main"]

_TOLD = ("accuracy", "f1", "pearson", "spearman")
"""Further metrics of labels and scores that the table shows."""


@dataclass(frozen=True)
class FitArgs:
    """Fit several heads in one pass over the states of a frozen encoder (a snapshot's folder, or any encoder).

    --heads takes heads and sets of them: papers, pooling+adapters, controls, beyond, each_layer, all. Under
    `accelerate launch` or torchrun several devices fit them together.
    """

    encoder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENCODER")]
    """A snapshot folder, a folder in Hugging Face format, a name on the Hub, or embedded."""
    train: str
    """Questions: SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT], demo:train, a saved datasets folder. Texts with labels or
    scores: glue:TASK:FILE, cs224n:SET:FILE, answerable:QUESTIONS, .csv, .tsv or .jsonl (--text.label names a column).
    Or store:KEY: the windows, labels and states of a store (`bertvision cache ls`), without their data."""
    out: Path
    """Folder for the heads, one folder each."""
    dev: str = ""
    """Heads are scored on it and their thresholds tuned; with --keep best or --patience it chooses the epoch."""
    with_encoder: bool = False
    """Keep the encoder in --out, beside its heads: one folder that can be moved. Of a snapshot with adapters, LoRA or
    tuned biases that is a few MB; the encoder it was tuned from is still needed."""
    max_train_examples: OptionalInt = None
    """Take only the first so many training questions."""
    max_dev_examples: OptionalInt = None
    """Take only the first so many dev questions."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    overwrite: bool = False
    """Replace work in --out that was done with other settings."""
    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    text: TextConfig = field(default_factory=TextConfig)
    fit: Annotated[FitConfig, tyro.conf.arg(name="")] = field(default_factory=FitConfig)
    states: StatesConfig = field(default_factory=StatesConfig)
    json: bool = False
    """Print the result as JSON."""


ARGS = FitArgs


def main(args: FitArgs) -> None:
    from bertvision.encoder.device import choose_device
    from bertvision.train.parallel import Parallel

    with Parallel.start(choose_device(args.device)) as parallel:
        _fit(args, parallel)


def _fit(args: FitArgs, parallel: "Parallel") -> None:
    from bertvision.artifacts import check_output
    from bertvision.encoder.encoder import Encoder
    from bertvision.encoder.load import check_apart
    from bertvision.errors import ConfigError
    from bertvision.train.splits import load_split
    from bertvision.train.zoo import check_heads, encoder_reference, fit_zoo, zoo_members

    check_heads(args.fit)  # a mistyped head should fail before the encoder is loaded
    if args.fit.scores_epochs and not args.dev:
        raise ConfigError("--keep best and --patience need --dev: scores on it choose the epoch")
    if args.dev.startswith("store:"):
        raise ConfigError(f"--dev {args.dev} has no questions to score: name the data")
    parallel.on_main(lambda: check_output(args.out))
    folder, about = encoder_reference(args.encoder)
    if args.overwrite:
        check_apart(folder, args.out)
    encoder = Encoder.load(folder, device=args.device, precision=args.precision)
    train = load_split(
        args.train,
        encoder,
        args.windows,
        max_examples=args.max_train_examples,
        stores=args.states.store,
        text=args.text,
    )
    zoo_members(args.fit, train.task)  # before any state is computed
    if train.store is not None:
        _check_beside_store(args, train)
    dev = None
    if args.dev:
        dev = load_split(args.dev, encoder, train.config, max_examples=args.max_dev_examples, like=train)
    stage = fit_zoo(
        encoder,
        train,
        folder=args.out,
        config=args.fit,
        encoder_about=about,
        states=args.states,
        dev=dev,
        overwrite=args.overwrite,
        parallel=parallel,
    )
    parallel.on_main(lambda: _score(args, encoder, train, dev, stage))


def _score(
    args: FitArgs, encoder: "Encoder", train: "Split", dev: "Split | None", stage: "RunFolder"
) -> None:
    """Dev scores, cards and the table of what was fitted."""
    from bertvision import console
    from bertvision.artifacts import read_json, write_text
    from bertvision.heads.costs import cost
    from bertvision.heads.files import load_head
    from bertvision.report.card import card
    from bertvision.report.making import keep_making
    from bertvision.report.results import card_inputs, write_head_results
    from bertvision.report.text_heads import write_text_results
    from bertvision.states.config import StatesConfig
    from bertvision.states.source import open_states
    from bertvision.tasks.kinds import SpanTask
    from bertvision.tasks.span.decode import DecodeConfig
    from bertvision.train.profile import profile_text
    from bertvision.train.scoring import logits_of, score_system
    from bertvision.train.trained import selection_of
    from bertvision.train.zoo import keep_encoder

    if args.with_encoder:
        keep_encoder(encoder, args.out, stage.results["heads"])
    heads = {
        args.out / name: load_head(args.out / name)[0].to(encoder.device) for name in stage.results["heads"]
    }
    scores = {}
    if dev is not None:
        opening = {"label": "states of dev", "passes": 1, "origin": dev.origin, "keep": False}
        opening["source"] = stage.choices.get("dev states")  # in the rounding the fit has read them in
        selection = StatesConfig.of(args.states, selection_of(read_json(next(iter(heads)) / "config.json")))
        states = partial(open_states, encoder, dev.windows, selection, **opening)
        for path, logits in logits_of(heads, dev, "dev", states).items():
            if isinstance(dev.task, SpanTask):
                found = score_system([logits], dev, DecodeConfig())
                write_head_results(path, {"dev": (found, 0)}, dev=dev.data.name, decode=DecodeConfig())
                scores[path] = found.members[0]
            else:
                scores[path] = write_text_results(path, {"dev": (dev, logits)})["dev"]
    rows = []
    tokens = max(1, round(float(train.windows.lengths.mean())))
    for path, info in zip(heads, stage.results["heads"].values(), strict=True):
        keep_making(path, {"train": train.name, "dev": "" if dev is None else dev.name})
        write_text(path / "README.md", card(*card_inputs(path)))
        kept = info["best_epoch"] if args.fit.keep == "best" else len(info["history"])
        price = cost(heads[path], heads[path].geometry, tokens=tokens)
        row = {"head": path.name, "folder": str(path), "parameters": price.parameters, "total": price.total}
        row |= {"flops_per_token": price.flops_per_token, "epoch": kept}
        row["loss"] = info["history"][kept - 1]["loss"]
        rows.append(row | scores.get(path, {}) | {"seconds": info["seconds"]})
    metric = "tuned_f1" if isinstance(train.task, SpanTask) else train.task.metric
    rows.sort(key=lambda row: (-row.get(metric, 0.0), row["loss"]))  # best first
    if args.json:
        console.emit_json(
            {
                "heads": rows,
                "dropped": stage.results["dropped"],
                "states": stage.results["states"],
                "profile": stage.results["profile"],
            }
        )
        return
    _tell(rows, stage.results["dropped"], args.out, metric)
    console.emit(profile_text(stage.results["profile"]))


def _check_beside_store(args: FitArgs, train: "Split") -> None:
    """A store has windows, layers and positions of its own: others cannot be asked of it."""
    from bertvision.errors import ConfigError
    from bertvision.states.config import StatesConfig

    if args.windows not in (WindowConfig(), train.config):
        raise ConfigError(
            f"--train {args.train} has windows of its own: leave out --max-seq-length and the like"
        )
    if args.states.selection not in (StatesConfig().selection, train.states(args.states).selection):
        raise ConfigError(
            f"--train {args.train} has layers and positions of its own: leave out --states.layers, --states.positions"
        )


def _tell(rows: list[dict[str, Any]], dropped: list[str], out: Path, metric: str) -> None:
    """The heads as a table, best first, and below it those that diverged."""
    from bertvision import console
    from bertvision.report import words

    scored, spans = metric in rows[0], metric == "tuned_f1"

    def told(row: dict[str, Any]) -> dict[str, str]:
        if not scored:
            return {}
        if spans:
            return {"dev F1": f"{row['f1']:.1f}", "tuned": f"{row['tuned_f1']:.1f}"}
        return {name: f"{row[name]:.4f}" for name in dict.fromkeys((metric, *_TOLD)) if name in row}

    cells = [
        {"head": row["head"], "parameters": f"{row['parameters']:,}"}
        | {"FLOPs/token": words.compact(row["flops_per_token"]), "epoch": f"{row['epoch']}"}
        | {"loss": f"{row['loss']:.4f}"}
        | told(row)
        | {"seconds": f"{row['seconds']:.1f}"}
        for row in rows
    ]
    for line in columns(
        cells, terminal_width(), texts=("head",), optional=("epoch", "FLOPs/token", "dev F1", "loss")
    ):
        console.emit(line)
    if dropped:
        console.emit(f"dropped, because they diverged: {', '.join(dropped)}")
    by = "training loss" if not scored else "tuned dev F1" if spans else f"dev {metric}"
    console.emit(f"{len(rows)} heads in {out}, best first by {by}")
