"""A zoo: several heads fitted together on one encoder's states, saved as folders.

FOLDER/stage.json, metrics.jsonl, and one folder a head: config.json (head, geometry, encoder and its
fingerprint, windows, fit, and the states it reads where that is not all of them) and model.safetensors.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from bertvision.artifacts import atomic_folder, read_json, write_json
from bertvision.config import to_mapping
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, check_unit, head_class
from bertvision.heads.catalogue import expand
from bertvision.heads.files import save_head
from bertvision.heads.options import Unit
from bertvision.heads.spec import HeadSpec, for_windows, parse_head
from bertvision.states.base import States
from bertvision.states.config import EVERYTHING, Source, StatesConfig
from bertvision.states.source import choose_source, open_states
from bertvision.tasks.base import Task, kinds
from bertvision.tasks.logits import Logits
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.span import SPAN
from bertvision.tasks.walk import head_logits
from bertvision.train.config import FitConfig
from bertvision.train.fit import Evaluate, FittedHead, OnEpoch, fit
from bertvision.train.parallel import ALONE, Parallel
from bertvision.train.run_folder import RunFolder
from bertvision.train.scoring import score_logits
from bertvision.train.splits import Split, null_weighted
from bertvision.train.states import check_source, training_states

__all__ = ["check_heads", "encoder_reference", "fit_zoo", "keep_encoder", "suited", "zoo_members"]


def zoo_members(
    config: FitConfig, task: Task | type[Task] = SPAN, *, tokens: int = 0, states: int = 0
) -> list[tuple[str, HeadSpec, int]]:
    """(name, spec, seed) of every head to fit; the name is its folder.

    `tokens` is the longest window there may be, for heads that have weights for every place; `states` how many hidden
    states are read, for the set that has a head for each.

    Sets of heads (`papers`, see heads/catalogue.py) are put in full. What a set names and somebody else names too
    is fitted once; a head written twice by itself is a mistake.
    """
    members: dict[str, tuple[HeadSpec, int]] = {}
    written: set[str] = set()
    for text, of_set in expand(config.heads, _unit(task), states=states):
        spec = parse_head(for_windows(text, tokens) if tokens else text)
        check_unit(head_class(spec.name), _unit(task))
        seeds = config.seeds if spec.train.seed is None else (spec.train.seed,)
        for seed in seeds:
            try:  # settings that cannot work should fail before anything is trained
                config.optim(spec, seed)
            except ConfigError as error:
                raise ConfigError(f"head {text!r}: {error}") from error
            name = f"{spec.label}.seed{seed}"
            if not of_set and name in written:
                raise ConfigError(f"--heads names {name} twice: remove one or give it another seed")
            if not of_set:
                written.add(name)
            members.setdefault(name, (spec, seed))
    return [(name, spec, seed) for name, (spec, seed) in members.items()]


def check_heads(config: FitConfig) -> None:
    """Refuse heads that are wrong whatever the task is, which is known only when the data is read."""
    errors: list[ConfigError] = []
    fitted = [task for task in kinds().values() if task.predicts]
    for task in fitted:
        try:
            zoo_members(config, task)
        except ConfigError as error:
            errors.append(error)
    if len(errors) == len(fitted):
        raise errors[0]


def _unit(task: Task | type[Task]) -> Unit:
    if not task.predicts:
        raise ConfigError(f"{task.kind} tasks train an encoder and no head: use `bertvision {task.kind}`")
    return task.unit


def suited(states: StatesConfig, members: Sequence[tuple[str, HeadSpec, int]], task: Task) -> StatesConfig:
    """What the heads read: one token of each window where none asks for more, which is a hundredth of the states."""
    task.check_selection(states.selection)
    if task.unit == "token":
        return states
    wide = [spec.label for _, spec, _ in members if not head_class(spec.name).cls_only]
    if wide and states.positions == "cls":
        raise ConfigError(f"--states.positions cls keeps one token, and {wide[0]} reads all: leave it out")
    return states if wide or states.positions != "all" else dataclasses.replace(states, positions="cls")


def encoder_reference(name: str) -> tuple[str, dict[str, Any]]:
    """What to load for an encoder as the user names it (a snapshot's folder, too), and what a head keeps of it."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return name, {"name": name}
    if not (folder / "config.json").exists() and (folder / "encoder").is_dir():
        folder = folder / "encoder"
    return str(folder), {"name": folder.name, "path": str(folder.resolve())}


def keep_encoder(encoder: Encoder, folder: Path, heads: Iterable[str]) -> None:
    """Put the encoder (of a delta its few numbers) beside its heads: one folder that can be moved as a whole."""
    if not (folder / "encoder").is_dir():
        with atomic_folder(folder / "encoder") as temporary:
            encoder.save(temporary)
    for name in heads:
        file = folder / name / "config.json"
        config = read_json(file)
        config["encoder"]["path"] = "../encoder"
        write_json(file, config)


def _findable(about: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A local folder by its whole path: heads, in folders of their own in `folder`, may be used from anywhere."""
    place = Path(about["name"]).expanduser()
    if "path" not in about and place.is_dir():
        about = about | {"path": str(place.resolve())}
    path = Path(about.get("path", ""))
    if path.is_absolute() and path.is_relative_to(folder.resolve().parent):
        # Beside its heads' folders: the folder above is a package, which may be moved as a whole.
        about = about | {"path": os.path.relpath(path, folder.resolve() / "head")}
    return about


def _dev_scorer(states: States, dev: Split, config: DecodeConfig, activation_gb: float) -> Evaluate:
    """The metric that systems are chosen by, on dev, of all heads in one walk."""

    def evaluate(heads: Any) -> dict[str, float]:
        logits = head_logits(states, heads, dev.task, label="score on dev", activation_gb=activation_gb)
        return {name: _dev_score(values, dev, config) for name, values in logits.items()}

    return evaluate


def _dev_score(logits: Logits, dev: Split, config: DecodeConfig) -> float:
    """NaN where the logits are not finite."""
    return score_logits(logits, dev, config)[dev.task.metric] if logits.finite else math.nan


def _save(one: FittedHead, folder: Path, config: FitConfig, about: dict[str, Any]) -> dict[str, Any]:
    """Write a head's folder; returns what the stage remembers of it."""
    training = dataclasses.asdict(one.config) | {
        name: getattr(config, name) for name in ("epochs", "batch_size", "null_weight")
    }
    with atomic_folder(folder) as temporary:
        save_head(one.head, temporary, about=about | {"label": one.spec.label, "fit": training})
    told = ("seed", "seconds", "best_epoch", "status", "history")
    return {"label": one.spec.label} | {name: getattr(one, name) for name in told}


def fit_zoo(
    encoder: Encoder,
    train: Split,
    *,
    folder: Path,
    config: FitConfig,
    encoder_about: dict[str, Any],
    states: StatesConfig,
    dev: Split | None = None,
    dev_states: Callable[[StatesConfig, Source], States] | None = None,
    decoding: DecodeConfig | None = None,
    overwrite: bool = False,
    parallel: Parallel = ALONE,
    on_epoch: OnEpoch | None = None,
) -> RunFolder:
    """Fit and save every head of `config`; `stage.results["heads"]` tells what became of each.

    `on_epoch` is told the dev scores after every epoch and may end the fit. Of several processes each calls it; rank 0
    writes and measures.
    """
    train = null_weighted(train, config.null_weight)
    task = train.task
    config_states = train.states(states)
    num_states = len(config_states.selection.numbers(encoder.num_states))
    members = zoo_members(config, task, tokens=train.config.max_seq_length, states=num_states)
    if task.group > 1:
        raise ConfigError(
            "heads on pairs encoded apart train with their encoder: use finetune, or leave out --apart"
        )
    config_states = suited(config_states, members, task)
    selection = config_states.selection.resolved(encoder.num_states)
    cut = {} if selection == EVERYTHING else to_mapping(selection)
    settings = config.identity
    # A set may grow in another version.
    settings["heads"] = [text for text, _ in expand(config.heads, _unit(task), states=num_states)]
    key = {
        "encoder": encoder.fingerprint,
        "train": train.fingerprint,
        "task": task.config(),
        "fit": settings,
        "arithmetic": [encoder.device.type, encoder.precision],
        "states": {"source": config_states.source, "dtype": config_states.dtype}
        | ({"store": train.store.key} if train.store else {}),
        # Dev decides only where it chooses epochs; elsewhere another dev set must not undo the work.
        "dev": dev.fingerprint if dev and config.scores_epochs else None,
        "decode": to_mapping(decoding or DecodeConfig()) if config.scores_epochs else None,
    } | ({"selection": cut} if cut else {})
    check_source(config_states, parallel)
    if config.scores_epochs and dev is None:
        raise ConfigError("--keep best and --patience need --dev: scores on it choose the epoch")
    layers = selection.numbers(encoder.num_states)
    pooled = task.unit == "window" and encoder.has_pooler and encoder.num_states - 1 in layers
    geometry = Geometry(len(layers), encoder.hidden, task.outputs, task.unit, pooled)
    with torch.device(
        "meta"
    ):  # a head that does not suit this encoder should fail before anything is written
        for _, spec, seed in members:
            spec.build(geometry, seed=seed)
    stage = RunFolder(folder, key, overwrite=overwrite, parallel=parallel, track=config.track)
    if stage.done:
        return stage
    passes = config.epochs * len({config.order_of(spec, seed) for _, spec, seed in members})
    train_states, chosen_train = training_states(
        encoder, train, config_states, stage, choice="states", label="states of train", passes=passes
    )
    evaluate = None
    if dev is not None and config.scores_epochs:
        # Once an epoch, and once more for the final scores.
        opening: dict[str, Any] = {
            "label": "states of dev",
            "passes": config.epochs + 1,
            "origin": dev.origin,
        }
        chosen = stage.choose(
            "dev states", lambda: choose_source(encoder, dev.windows, config_states, **opening)
        )

        def scored() -> States:
            if dev_states is not None:
                return dev_states(config_states, chosen)
            return open_states(encoder, dev.windows, config_states, **opening, source=chosen)

        # Rank 0 scores, so nobody else needs the states.
        scorer_states = scored() if parallel.main else train_states
        evaluate = _dev_scorer(scorer_states, dev, decoding or DecodeConfig(), config.activation_gb)
    fitted = fit(
        train_states,
        members,
        config,
        stage,
        evaluate=evaluate,
        task=task,
        on_epoch=on_epoch,
    )
    about = (
        train.about
        | {
            "windows": to_mapping(train.config),
            "encoder": _findable(encoder_about, folder) | {"fingerprint": encoder.fingerprint},
        }
        | ({"states": cut} if cut else {})
    )
    heads = parallel.on_main(
        lambda: {name: _save(one, folder / name, config, about) for name, one in fitted.items()}
    )
    dropped = [name for name, _, _ in members if name not in fitted]
    stage.finish(
        {
            "heads": heads,
            "dropped": dropped,
            "states": chosen_train,
            "encode_seconds": train_states.times.encode,
            "profile": stage.profile,
        }
    )
    return stage
