"""A zoo: several heads fitted together on one encoder's states, saved as folders.

FOLDER/stage.json, metrics.jsonl, and one folder a head: config.json (head, geometry, encoder and its
fingerprint, windows, fit, and the states it reads where that is not all of them) and model.safetensors.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bertvision.artifacts import atomic_folder, read_json, write_json
from bertvision.config import to_mapping
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads.base import Head, head_class, save_head
from bertvision.heads.catalogue import expand
from bertvision.heads.spec import HeadSpec, for_windows, parse_head
from bertvision.states.base import States
from bertvision.states.config import EVERYTHING, Source, StatesConfig
from bertvision.states.source import choose_source, open_states
from bertvision.states.stored import StoredStates
from bertvision.tasks.base import Task, kinds
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.span import SPAN
from bertvision.tasks.walk import head_logits
from bertvision.train.config import FitConfig
from bertvision.train.fit import FittedHead, OnEpoch, fit
from bertvision.train.parallel import ALONE, Parallel
from bertvision.train.run_folder import RunFolder
from bertvision.train.splits import Split, geometry_of, null_weighted, score_logits


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
    for text, of_set in _expanded(config, task, states):
        spec = parse_head(for_windows(text, tokens) if tokens else text)
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
    for spec, _ in members.values():  # last: the other mistakes are mistakes for every task
        head_class(spec.name, task.unit)
    return [(name, spec, seed) for name, (spec, seed) in members.items()]


def check_heads(config: FitConfig) -> None:
    """Refuse heads that are wrong whatever the task is, which is known only when the data is read."""
    errors: list[ConfigError] = []
    for task in (task for task in kinds().values() if task.predicts):
        try:
            zoo_members(config, task)
            return
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _expanded(config: FitConfig, task: Task | type[Task], states: int) -> Iterator[tuple[str, bool]]:
    """(head, whether a set named it) of all heads, with the sets of the task's unit put in full."""
    if not task.predicts:
        raise ConfigError(f"{task.kind} tasks train an encoder and no head: use `bertvision {task.kind}`")
    return expand(config.heads, task.unit, states=states)


def suited(states: StatesConfig, members: Sequence[tuple[str, HeadSpec, int]], task: Task) -> StatesConfig:
    """What the heads read: one token of each window where none asks for more, which is a hundredth of the states."""
    if task.unit == "token":
        if states.positions == "cls":
            raise ConfigError(
                f"--states.positions cls keeps one token of a window, and {task.kind} heads answer for every token: "
                "leave it out"
            )
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
    """Fit and save every head of `config`; `results["heads"]` of the folder holds what became of each.

    `on_epoch` receives the dev scores after every epoch and may end the fit. Of several processes each calls it; rank 0
    writes and measures.
    """
    train, decoding = null_weighted(train, config.null_weight), decoding or DecodeConfig()
    if config.scores_epochs and dev is None:
        raise ConfigError("--keep best and --patience need --dev: scores on it choose the epoch")
    # Dev decides only where it chooses epochs; elsewhere another dev set must not undo the work.
    scored_on = dev if config.scores_epochs else None
    members, states = _checked(encoder, train, config, train.states(states), parallel)
    selection = states.selection.resolved(encoder.num_states)
    key = {
        "encoder": encoder.fingerprint,
        "train": train.fingerprint,
        "task": train.task.config(),
        # The heads of a set by name: a set may grow.
        "fit": config.identity | {"heads": [name for name, _, _ in members]},
        "arithmetic": [encoder.device.type, encoder.precision],
        "states": {"source": states.source, "dtype": states.dtype, "store": train.store and train.store.key},
        "selection": to_mapping(selection),
        "dev": scored_on.fingerprint if scored_on else None,
        "decode": to_mapping(decoding) if scored_on else None,
    }
    run_folder = RunFolder(folder, key, overwrite=overwrite, parallel=parallel, track=config.track)
    if run_folder.done:
        return run_folder
    passes = config.epochs * len({config.order_of(spec, seed) for _, spec, seed in members})
    train_states = _training_states(encoder, train, states, run_folder, passes)
    evaluate = None
    if scored_on is not None:
        opened = train_states  # rank 0 scores, so nobody else needs the states
        source, open_dev = _dev_source(encoder, scored_on, states, run_folder, config.epochs)
        if parallel.main:
            opened = dev_states(states, source) if dev_states else open_dev()
        evaluate = partial(_dev_scores, opened, scored_on, decoding, config.activation_gb)
    fitted = fit(
        train_states, members, config, run_folder, evaluate=evaluate, task=train.task, on_epoch=on_epoch
    )
    named = _findable(encoder_about, folder) | {"fingerprint": encoder.fingerprint}
    about = train.about | {"windows": to_mapping(train.config), "encoder": named}
    about |= {} if selection == EVERYTHING else {"states": to_mapping(selection)}
    heads = parallel.on_main(
        lambda: {name: _save(one, folder / name, config, about) for name, one in fitted.items()}
    )
    run_folder.finish(
        {
            "heads": heads,
            "dropped": [name for name, _, _ in members if name not in fitted],
            "states": run_folder.choices["states"],
            "encode_seconds": train_states.times.encode,
            "profile": run_folder.profile,
        }
    )
    return run_folder


def _checked(
    encoder: Encoder, train: Split, config: FitConfig, states: StatesConfig, parallel: Parallel
) -> tuple[list[tuple[str, HeadSpec, int]], StatesConfig]:
    """The heads, and the states they read; refuses, before anything is written, what cannot be fitted."""
    task = train.task
    if task.group > 1:
        raise ConfigError(
            "heads on pairs encoded apart train with their encoder: use finetune, or leave out --apart"
        )
    if states.source == "memory" and not parallel.alone:
        raise ConfigError(
            f"--states.source memory would keep all states in each of {parallel.world} processes: use live or stored"
        )
    layers = states.selection.numbers(encoder.num_states)
    members = zoo_members(config, task, tokens=train.config.max_seq_length, states=len(layers))
    states = suited(states, members, task)
    geometry = geometry_of(encoder, task, layers)
    with torch.device("meta"):  # shapes alone: some heads do not suit every encoder
        for _, spec, seed in members:
            spec.build(geometry, seed=seed)
    return members, states


def _dev_source(
    encoder: Encoder, dev: Split, states: StatesConfig, folder: RunFolder, epochs: int
) -> tuple[Source, Callable[[], States]]:
    """Where the states of dev come from, which is written down, and how they are opened."""
    # Once an epoch, and once more for the final scores.
    opening: dict[str, Any] = {"label": "states of dev", "passes": epochs + 1, "origin": dev.origin}
    source = folder.choose("dev states", lambda: choose_source(encoder, dev.windows, states, **opening))
    return source, partial(open_states, encoder, dev.windows, states, **opening, source=source)


def _training_states(
    encoder: Encoder, train: Split, states: StatesConfig, folder: RunFolder, passes: int
) -> States:
    """The states of `train`, the same for one process and for several.

    The source is chosen once, by rank 0, and kept: whoever continues the work must read states of the same rounding.
    Several processes would each keep a copy of all states in memory, so they do not; a store is filled by rank 0 while
    the others wait.
    """
    parallel = folder.parallel
    opening: dict[str, Any] = {"label": "states of train", "passes": passes, "origin": train.origin}
    opening["store"] = train.store
    possible = states if parallel.alone else dataclasses.replace(states, memory_gb=0.0)
    source = folder.choose("states", lambda: choose_source(encoder, train.windows, possible, **opening))

    def open_() -> States:
        return open_states(encoder, train.windows, states, **opening, source=source)

    def fill() -> None:
        stored = open_()
        if isinstance(stored, StoredStates):
            stored.fill(opening["label"])

    if source == "stored" and not parallel.alone:
        parallel.on_main(fill)
    return open_()


def _dev_scores(
    states: States, dev: Split, config: DecodeConfig, activation_gb: float, heads: Mapping[str, Head]
) -> dict[str, float]:
    """The metric that systems are chosen by, of all heads in one walk; NaN where logits are not finite."""
    logits = head_logits(states, heads, dev.task, label="score on dev", activation_gb=activation_gb)
    metric = dev.task.metric
    return {
        name: score_logits(own, dev, config)[metric] if own.finite else math.nan
        for name, own in logits.items()
    }


def _save(one: FittedHead, folder: Path, config: FitConfig, about: dict[str, Any]) -> dict[str, Any]:
    """Write a head's folder; returns what the results hold of it."""
    more = {name: getattr(config, name) for name in ("epochs", "batch_size", "null_weight")}
    with atomic_folder(folder) as temporary:
        fit = dataclasses.asdict(one.config) | more
        save_head(one.head, temporary, about=about | {"label": one.spec.label, "fit": fit})
    kept = ("seed", "seconds", "best_epoch", "status", "history")
    return {"label": one.spec.label} | {name: getattr(one, name) for name in kept}
