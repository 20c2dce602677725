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
from bertvision.heads.base import Head, cost, load_head
from bertvision.model.record import record
from bertvision.pipeline.config import FitArgs
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
    """Fit `heads` on the states of a frozen encoder and return their folders, ready for `bv.load`.

    The folders hold what `bertvision fit` writes: with `dev` scores, tuning and answers too.

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


def _fit(args: FitArgs, encoder: Encoder | None, command: str, parallel: Parallel) -> Fitted:
    """Every process of several calls it; rank 0 scores and writes."""
    zoo_members(args.fit, None)  # a mistyped head should fail before the encoder is loaded
    if args.fit.scores_epochs and not args.dev:
        raise ConfigError("--keep best and --patience need --dev: scores on it choose the epoch")
    if args.dev.startswith("store:"):
        raise ConfigError(f"--dev {args.dev} has no examples to score: name the data")
    parallel.on_main(lambda: check_output(args.out))
    if encoder is None:
        folder, about = encoder_reference(args.encoder)
        if args.overwrite:
            check_apart(folder, args.out)
        encoder = Encoder.load(folder, device=args.device, precision=args.precision)
    else:
        about = {"name": encoder.name}
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
    rows = parallel.on_main(lambda: _record(encoder, args, train, dev, stage, command))
    return Fitted(train.task, stage.results, rows)


def _record(
    encoder: Encoder, args: FitArgs, train: Split, dev: Split | None, stage: RunFolder, command: str
) -> list[dict[str, Any]]:
    """Score the heads, write their records and return their rows, best first."""
    infos = stage.results["heads"]
    if args.with_encoder:
        keep_encoder(encoder, args.out, infos)
    heads: dict[Path, Head] = {
        args.out / name: load_head(args.out / name)[0].to(encoder.device) for name in infos
    }
    logits = {}
    if dev is not None:
        logits = logits_of(heads, dev, "dev", lambda: states_for(stage, encoder, dev, "dev", args.states))
    data = {"train": train.name, "dev": "" if dev is None else dev.name}
    rows, tokens = [], max(1, round(float(train.windows.lengths.mean())))
    for path, info in zip(heads, infos.values(), strict=True):
        kept = record(path, {} if dev is None else {"dev": (dev, logits[path])}, command, data)
        epoch = info["best_epoch"] if args.fit.keep == "best" else len(info["history"])
        price = cost(heads[path], heads[path].geometry, tokens=tokens)
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
                "scores": {} if kept is None else kept.scores["dev"],
            }
        )
    task = train.task
    sign = -1 if task.metrics[task.metric].higher else 1
    return sorted(rows, key=lambda row: (sign * row["scores"].get(task.metric, 0.0), row["loss"]))


def _check_beside_store(args: FitArgs, train: Split) -> None:
    """Refuse windows, layers and positions other than those of the store."""
    if args.windows not in (WindowConfig(), train.config):
        raise ConfigError(
            f"--train {args.train} has windows of its own: leave out --max-seq-length and the like"
        )
    if args.states.selection not in (StatesConfig().selection, train.states(args.states).selection):
        raise ConfigError(
            f"--train {args.train} has layers and positions of its own: leave out --states.layers and "
            "--states.positions"
        )
