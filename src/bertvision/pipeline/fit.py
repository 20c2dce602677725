"""Fit heads on a frozen encoder's states, score them and keep their records: `bertvision fit` and `bv.fit`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bertvision.artifacts import check_output, read_json
from bertvision.data.windows import WindowConfig
from bertvision.encoder.device import Precision
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import check_apart
from bertvision.errors import ConfigError
from bertvision.heads.base import Head
from bertvision.heads.costs import cost
from bertvision.heads.files import load_head
from bertvision.model.record import Made, record
from bertvision.model.trained import selection_of
from bertvision.states.config import StatesConfig
from bertvision.states.source import open_states
from bertvision.tasks.base import Task
from bertvision.tasks.settings import TextConfig
from bertvision.train.config import FitConfig
from bertvision.train.parallel import ALONE, Parallel
from bertvision.train.run_folder import RunFolder
from bertvision.train.scoring import logits_of
from bertvision.train.splits import Split, load_split
from bertvision.train.zoo import check_heads, encoder_reference, fit_zoo, keep_encoder, zoo_members

__all__ = ["FitJob", "Fitted", "fit", "fit_heads"]


@dataclass(frozen=True)
class FitJob:
    """What `bertvision fit` is asked for."""

    train: str
    out: Path
    dev: str = ""
    with_encoder: bool = False
    max_train_examples: int | None = None
    max_dev_examples: int | None = None
    device: str = "auto"
    precision: Precision = "auto"
    overwrite: bool = False
    windows: WindowConfig = field(default_factory=WindowConfig)
    text: TextConfig = field(default_factory=TextConfig)
    fit: FitConfig = field(default_factory=FitConfig)
    states: StatesConfig = field(default_factory=StatesConfig)
    command: str = ""


@dataclass(frozen=True)
class Fitted:
    task: Task
    stage: RunFolder
    rows: list[dict[str, Any]]
    """One a head, best first."""


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
    config = FitConfig(
        heads=tuple(heads), seeds=(seed,), epochs=epochs, lr=lr, batch_size=batch_size, seed=seed, keep=keep
    )
    job = FitJob(
        train, Path(out), dev or "", overwrite=overwrite, windows=WindowConfig(max_seq_length=max_seq_length),
        text=text or TextConfig(), fit=config, states=states or StatesConfig(),
    )  # fmt: skip
    fitted = fit_heads(encoder, job)
    return [fitted.stage.folder / name for name in fitted.stage.results["heads"]]


def fit_heads(encoder: str | Encoder, job: FitJob, parallel: Parallel = ALONE) -> Fitted:
    """Fit the heads of a job; every process of several calls it, rank 0 scores and writes."""
    check_heads(job.fit)  # a mistyped head should fail before the encoder is loaded
    if job.fit.scores_epochs and not job.dev:
        raise ConfigError("--keep best and --patience need --dev: scores on it choose the epoch")
    if job.dev.startswith("store:"):
        raise ConfigError(f"--dev {job.dev} has no examples to score: name the data")
    parallel.on_main(lambda: check_output(job.out))
    if isinstance(encoder, Encoder):
        source, about = encoder, {"name": encoder.name}
    else:
        folder, about = encoder_reference(encoder)
        if job.overwrite:
            check_apart(folder, job.out)
        source = Encoder.load(folder, device=job.device, precision=job.precision)
    train = load_split(
        job.train, source, job.windows, max_examples=job.max_train_examples, stores=job.states.store, text=job.text
    )  # fmt: skip
    zoo_members(job.fit, train.task)  # before any state is computed
    if train.store is not None:
        _check_beside_store(job, train)
    dev = None
    if job.dev:
        dev = load_split(job.dev, source, train.config, max_examples=job.max_dev_examples, like=train)
    stage = fit_zoo(
        source,
        train,
        folder=job.out,
        config=job.fit,
        encoder_about=about,
        states=job.states,
        dev=dev,
        overwrite=job.overwrite,
        parallel=parallel,
    )
    rows = parallel.on_main(lambda: _record(source, job, train, dev, stage))
    return Fitted(train.task, stage, rows)


def _record(
    encoder: Encoder, job: FitJob, train: Split, dev: Split | None, stage: RunFolder
) -> list[dict[str, Any]]:
    """Scores, records and costs of the heads, best first."""
    if job.with_encoder:
        keep_encoder(encoder, job.out, stage.results["heads"])
    heads: dict[Path, Head] = {
        job.out / name: load_head(job.out / name)[0].to(encoder.device) for name in stage.results["heads"]
    }
    logits = {}
    if dev is not None:
        opening: dict[str, Any] = {"label": "states of dev", "passes": 1, "origin": dev.origin, "keep": False}
        opening["source"] = stage.choices.get("dev states")  # in the rounding the fit has read them in
        selection = selection_of(read_json(next(iter(heads)) / "config.json"))
        states = StatesConfig.of(job.states, selection)
        logits = logits_of(heads, dev, "dev", partial(open_states, encoder, dev.windows, states, **opening))
    made = Made(job.command, {"train": train.name, "dev": "" if dev is None else dev.name})
    rows, tokens = [], max(1, round(float(train.windows.lengths.mean())))
    for path, info in zip(heads, stage.results["heads"].values(), strict=True):
        found = {} if dev is None else {"dev": (dev, logits[path])}
        kept = record(path, found, made)
        epoch = info["best_epoch"] if job.fit.keep == "best" else len(info["history"])
        price = cost(heads[path], heads[path].geometry, tokens=tokens)
        row = {"head": path.name, "folder": str(path), "parameters": price.parameters, "total": price.total}
        row |= {"flops_per_token": price.flops_per_token, "epoch": epoch}
        row |= {"loss": info["history"][epoch - 1]["loss"], "seconds": info["seconds"]}
        rows.append(row | {"scores": {} if kept is None else kept.scores["dev"]})
    metric = train.task.metric
    sign = -1 if train.task.metrics[metric].higher else 1
    return sorted(rows, key=lambda row: (sign * row["scores"].get(metric, 0.0), row["loss"]))


def _check_beside_store(job: FitJob, train: Split) -> None:
    """A store has windows, layers and positions of its own: others cannot be asked of it."""
    if job.windows not in (WindowConfig(), train.config):
        raise ConfigError(
            f"--train {job.train} has windows of its own: leave out --max-seq-length and the like"
        )
    if job.states.selection not in (StatesConfig().selection, train.states(job.states).selection):
        raise ConfigError(
            f"--train {job.train} has layers and positions of its own: leave out --states.layers and "
            "--states.positions"
        )
