"""A zoo: several heads fitted together on one encoder's states, saved as folders.

FOLDER/stage.json, metrics.jsonl, and one folder a head: config.json (head, geometry, encoder and its
fingerprint, windows, fit, and the states it reads where that is not all of them) and model.safetensors.
"""

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from bertvision.artifacts import atomic_folder, read_json, write_json
from bertvision.config import from_mapping, to_mapping
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads.base import Head, head_class, save_head
from bertvision.heads.spec import HeadSpec, expand, for_windows, parse_head
from bertvision.states.base import States
from bertvision.states.config import EVERYTHING, Selection, StatesConfig
from bertvision.states.stored import StoredStates, choose_source, open_states
from bertvision.tasks.base import DecodeConfig, Task
from bertvision.tasks.span import SPAN
from bertvision.tasks.walk import head_logits
from bertvision.train.config import FitConfig
from bertvision.train.fit import OnEpoch, fit
from bertvision.train.group import FittedHead
from bertvision.train.job import Split, geometry_of, logits_of, null_weighted, score_logits
from bertvision.train.parallel import ALONE, Parallel
from bertvision.train.run_folder import RunFolder

# ---- which heads, and what they read


def zoo_members(
    config: FitConfig, task: Task | None = SPAN, *, tokens: int = 0, states: int = 0
) -> list[tuple[str, HeadSpec, int]]:
    """(name, spec, seed) of every head to fit, those of sets (heads/spec.py) too; the name is its folder.

    What a set names and somebody else names too is fitted once; a head written twice by itself is a mistake. Without
    a task, which is known only when the data is read, heads are refused that are wrong for every one.

    Args:
        tokens: The longest window there may be, for heads that have weights for every place.
        states: How many hidden states are read, for the set that has a head for each.
    """
    if task is not None and not task.predicts:
        raise ConfigError(f"{task.kind} tasks train an encoder and no head: use `bertvision {task.kind}`")
    members: dict[str, tuple[HeadSpec, int]] = {}
    written: set[str] = set()
    for text, of_set in expand(config.heads, task.unit if task else "token", states=states):
        spec = parse_head(for_windows(text, tokens) if tokens else text)
        for seed in config.seeds if spec.train.seed is None else (spec.train.seed,):
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
    if task is not None:
        for spec, _ in members.values():
            head_class(spec.name, task.unit)
    return [(name, spec, seed) for name, (spec, seed) in members.items()]


def suited(states: StatesConfig, members: Sequence[tuple[str, HeadSpec, int]], task: Task) -> StatesConfig:
    """What the heads read: one token of each window where none asks for more, which is a hundredth of the states."""
    wide = [s.label for _, s, _ in members if task.unit == "token" or not head_class(s.name).cls_only]
    if wide and states.positions == "cls":
        raise ConfigError(f"--states.positions cls keeps one token, and {wide[0]} reads all: leave it out")
    return states if wide or states.positions != "all" else dataclasses.replace(states, positions="cls")


# ---- the encoder, as heads name it


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


# ---- the fit


def fit_zoo(
    encoder: Encoder,
    train: Split,
    *,
    folder: Path,
    config: FitConfig,
    encoder_about: dict[str, Any],
    states: StatesConfig,
    dev: Split | None = None,
    decoding: DecodeConfig | None = None,
    overwrite: bool = False,
    parallel: Parallel = ALONE,
    on_epoch: OnEpoch | None = None,
) -> RunFolder:
    """Fit and save every head of `config`; `results["heads"]` of the folder holds what became of each."""
    train, decoding = null_weighted(train, config.null_weight), decoding or DecodeConfig()
    # Dev decides only where it chooses epochs; elsewhere another dev set must not undo the work.
    scored_on = dev if config.scores_epochs else None
    members, states = _checked(encoder, train, config, states, parallel)
    selection = states.selection.resolved(encoder.num_states)
    key = {
        "encoder": encoder.fingerprint,
        "train": train.fingerprint,
        "task": train.task.config(),
        # The heads of a set by name: a set may grow.
        "fit": config.identity | {"heads": [name for name, _, _ in members]},
        "arithmetic": [encoder.device.type, encoder.precision],
        "states": {"source": states.source, "dtype": states.dtype},
        "selection": to_mapping(selection),
        "dev": scored_on.fingerprint if scored_on else None,
        "decode": to_mapping(decoding) if scored_on else None,
    }
    stage = RunFolder(folder, key, overwrite=overwrite, parallel=parallel, track=config.track)
    if stage.done:
        return stage
    passes = config.epochs * len({config.order_of(spec, seed) for _, spec, seed in members})
    train_states = _training_states(encoder, train, states, stage, passes)
    evaluate, opened = None, train_states
    if scored_on is not None:
        how: dict[str, Any] = {"label": "states of dev", "passes": config.epochs + 1}
        how["origin"] = scored_on.origin
        stage.choose("dev states", lambda: choose_source(encoder, scored_on.windows, states, **how))
        if parallel.main:  # which alone scores, so nobody else needs the states
            opened = states_for(stage, encoder, scored_on, "dev", states)
        evaluate = partial(_dev_scores, opened, scored_on, decoding, config.activation_gb)
    fitted = fit(train_states, members, config, stage, evaluate=evaluate, task=train.task, on_epoch=on_epoch)
    named = _findable(encoder_about, folder) | {"fingerprint": encoder.fingerprint}
    about = train.about | {"windows": to_mapping(train.config), "encoder": named}
    about |= {} if selection == EVERYTHING else {"states": to_mapping(selection)}
    heads = parallel.on_main(
        lambda: {name: _save(one, folder / name, config, about) for name, one in fitted.items()}
    )
    if scored_on is not None and parallel.main:  # while its states are open
        logits_of({folder / name: one.head for name, one in fitted.items()}, scored_on, "dev", lambda: opened)
    stage.finish(
        {
            "heads": heads,
            "dropped": [name for name, _, _ in members if name not in fitted],
            "states": stage.choices["states"],
            "encode_seconds": train_states.times.encode,
            "profile": stage.profile,
        }
    )
    return stage


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
    geometry = geometry_of(encoder, task, layers)
    with torch.device("meta"):  # shapes alone: some heads do not suit every encoder
        for _, spec, seed in members:
            spec.build(geometry, seed=seed)
    return members, suited(states, members, task)


def _training_states(
    encoder: Encoder, train: Split, states: StatesConfig, stage: RunFolder, passes: int
) -> States:
    """The states of `train`.

    The source is chosen once, by rank 0, and kept: whoever continues the work must read states of the same rounding.
    Of several processes none keeps a copy of all states in memory; a store is filled by rank 0 while the others wait.
    """
    how: dict[str, Any] = {"label": "states of train", "origin": train.origin}
    possible = states if stage.parallel.alone else dataclasses.replace(states, memory_gb=0.0)
    source = stage.choose(
        "states", lambda: choose_source(encoder, train.windows, possible, passes=passes, **how)
    )
    open_ = partial(open_states, encoder, train.windows, states, source=source, **how)
    if source == "stored" and not stage.parallel.alone:
        stage.parallel.on_main(lambda: cast(StoredStates, open_()).fill(how["label"]))
    return open_()


def selection_of_fit(stage: RunFolder) -> Selection:
    """Which states the heads of a fit read."""
    return from_mapping(Selection, stage.key["selection"], source="stage.json")


def states_for(stage: RunFolder, encoder: Encoder, split: Split, name: str, config: StatesConfig) -> States:
    """States of dev or test for the heads of a fit; those that chose its epochs keep their rounding."""
    return open_states(
        encoder, split.windows, StatesConfig.of(config, selection_of_fit(stage)), label=f"states of {name}",
        passes=1, origin=split.origin, keep=False, source=stage.choices.get(f"{name} states"),
    )  # fmt: skip


def _dev_scores(
    states: States, dev: Split, config: DecodeConfig, activation_gb: float, heads: Mapping[str, Head]
) -> dict[str, float]:
    """The metric that systems are chosen by, of all heads in one walk; NaN where logits are not finite."""
    logits = head_logits(states, heads, dev.task, label="score on dev", activation_gb=activation_gb)
    found = {name: score_logits(own, dev, config) for name, own in logits.items() if own.finite}
    return {name: found[name][dev.task.metric] if name in found else math.nan for name in logits}


def _save(one: FittedHead, folder: Path, config: FitConfig, about: dict[str, Any]) -> dict[str, Any]:
    more = {name: getattr(config, name) for name in ("epochs", "batch_size", "null_weight")}
    with atomic_folder(folder) as temporary:
        fit = dataclasses.asdict(one.config) | more
        save_head(one.head, temporary, about=about | {"label": one.spec.label, "fit": fit})
    kept = ("seed", "seconds", "best_epoch", "status", "history")
    return {"label": one.spec.label} | {name: getattr(one, name) for name in kept}
