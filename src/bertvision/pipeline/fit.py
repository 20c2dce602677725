"""Fit heads on a frozen encoder's states, score them and write their records: `bertvision fit` and `bv.fit`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertvision.artifacts import check_output
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import choose_device
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import check_apart
from bertvision.errors import ConfigError
from bertvision.heads.base import cost, load_head
from bertvision.model.record import record
from bertvision.pipeline.config import FinetuneArgs, FitArgs, RunArgs, SweepArgs
from bertvision.states.config import StatesConfig
from bertvision.tasks.base import Task, TextConfig
from bertvision.train.config import FitConfig
from bertvision.train.parallel import Parallel
from bertvision.train.run_folder import RunFolder
from bertvision.train.splits import Split, load_split, logits_of
from bertvision.train.zoo import encoder_reference, fit_zoo, keep_encoder, states_for, zoo_members


@dataclass(frozen=True)
class Fitted:
    """Fitted heads."""

    task: Task
    results: dict[str, Any]
    """What the folder's stage.json says: heads, those that diverged, where the states came from, the profile."""
    rows: list[dict[str, Any]]
    """One per head, best first: folder, size, loss and scores on dev."""

    def to_json(self) -> dict[str, Any]:
        return {"heads": self.rows} | {name: self.results[name] for name in ("dropped", "states", "profile")}


def fit(
    train: str,
    *,
    out: str | Path,
    encoder: str | Encoder = "embedded",
    heads: Sequence[str] = ("default",),
    dev: str | None = None,
    epochs: int = 1,
    lr: float = 1e-3,
    batch_size: int = 16,
    max_seq_length: int = 384,
    seed: int = 0,
    keep: Literal["last", "best"] = "last",
    states: StatesConfig | None = None,
    text: TextConfig | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Fit `heads` on the states of a frozen encoder; returns their folders, as `bertvision fit` writes them.

    Args:
        dev: Heads are scored and tuned on it; with `keep="best"` it chooses the epoch.
        states: Where the states come from and which of them heads read (layers, positions).
        text: How texts with labels or scores are read.

    Example:
        >>> bv.fit("train.json", out="heads", encoder="my-encoder", heads=["adapter:size=64", "learned_pooling"])
    """
    args = FitArgs(
        train=train,
        dev=dev or "",
        out=Path(out),
        encoder=encoder.name if isinstance(encoder, Encoder) else encoder,
        overwrite=overwrite,
        windows=WindowConfig(max_seq_length=max_seq_length),
        text=text or TextConfig(),
        fit=FitConfig(
            heads=tuple(heads),
            seeds=(seed,),
            epochs=epochs,
            lr=lr,
            batch_size=batch_size,
            seed=seed,
            keep=keep,
        ),
        states=states or StatesConfig(),
    )
    fitted = fit_heads(args, encoder=encoder if isinstance(encoder, Encoder) else None)
    return [args.out / name for name in fitted.results["heads"]]


def fit_heads(args: FitArgs, *, encoder: Encoder | None = None, command: str = "") -> Fitted:
    """Fit the heads of `args` on `args.encoder`, or on `encoder` if it is loaded already."""
    with Parallel.start(choose_device(args.device)) as parallel:
        return _fit(args, encoder, command, parallel)


def load_splits(args: FitArgs | SweepArgs | FinetuneArgs | RunArgs, encoder: Encoder) -> dict[str, Split]:
    """The datasets that are named, in windows; dev and test are read like train: its task, classes and prompts."""
    splits: dict[str, Split] = {}
    for name in ("train", "dev", "test"):
        if source := getattr(args, name, ""):
            most, like = getattr(args, f"max_{name}_examples"), splits.get("train")
            splits[name] = load_split(
                source, encoder, args.windows, max_examples=most, text=args.text, like=like
            )
    return splits


def open_encoder(args: FitArgs | SweepArgs) -> tuple[Encoder, dict[str, Any]]:
    """The encoder of a fit or a sweep, and what its heads keep of it."""
    folder, about = encoder_reference(args.encoder)
    if args.overwrite:
        check_apart(folder, args.out)
    return Encoder.load(folder, device=args.device, precision=args.precision), about


def _fit(args: FitArgs, encoder: Encoder | None, command: str, parallel: Parallel) -> Fitted:
    """Every process of several calls it; rank 0 scores and writes."""
    zoo_members(args.fit, None)  # a mistyped head should fail before the encoder is loaded
    if args.fit.scores_epochs and not args.dev:
        raise ConfigError("--keep best and --patience need --dev: scores on it choose the epoch")
    parallel.on_main(lambda: check_output(args.out))
    encoder, about = (encoder, {"name": encoder.name}) if encoder else open_encoder(args)
    splits = load_splits(args, encoder)
    train, dev = splits["train"], splits.get("dev")
    stage = fit_zoo(
        encoder, train, folder=args.out, config=args.fit, encoder_about=about, states=args.states, dev=dev,
        overwrite=args.overwrite, parallel=parallel,
    )  # fmt: skip
    rows = parallel.on_main(lambda: _record(encoder, args, splits, stage, command))
    return Fitted(train.task, stage.results, rows)


def _record(
    encoder: Encoder, args: FitArgs, splits: dict[str, Split], stage: RunFolder, command: str
) -> list[dict[str, Any]]:
    """Score the heads, write their records and return their rows, best first."""
    infos, train, dev = stage.results["heads"], splits["train"], splits.get("dev")
    if args.with_encoder:
        keep_encoder(encoder, args.out, infos)
    heads = {args.out / name: load_head(args.out / name)[0] for name in infos}
    logits = {}
    if dev is not None:
        logits = logits_of(heads, dev, "dev", lambda: states_for(stage, encoder, dev, "dev", args.states))
    data = {"train": train.name, "dev": dev.name if dev else ""}
    rows, tokens = [], max(1, round(float(train.windows.lengths.mean())))
    for (path, head), info in zip(heads.items(), infos.values(), strict=True):
        kept = record(path, {"dev": (dev, logits[path])} if dev else {}, command, data)
        epoch = info["best_epoch"] if args.fit.keep == "best" else len(info["history"])
        price = cost(head, head.geometry, tokens=tokens)
        rows.append(
            {
                "head": path.name,
                "folder": str(path),
                "parameters": price.parameters,
                "total": price.total,
                "flops_per_token": price.flops_per_token,
                "epoch": epoch,
                "loss": info["history"][epoch - 1]["loss"],
                "seconds": info["seconds"],
                "scores": kept.scores["dev"] if kept else {},
            }
        )
    task = train.task
    sign = -1 if task.metrics[task.metric].higher else 1
    return sorted(rows, key=lambda row: (sign * row["scores"].get(task.metric, 0.0), row["loss"]))
