"""What the tests of fits share: the toy data as a feed, and short ways to fit, to be killed and to compare."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.heads import parse_head
from bertvision.states.base import MemoryStates, States
from bertvision.train import fit as fit_module
from bertvision.train.config import FitConfig
from bertvision.train.fit import FitRun, FittedHead, fit
from bertvision.train.group import Group
from bertvision.train.job import Split, load_split
from bertvision.train.run_folder import RunFolder
from bertvision.train.zoo import zoo_members

WINDOWS = WindowConfig(max_seq_length=64, max_query_length=16, doc_stride=24)

# Fixtures, imported by conftest.py.


@pytest.fixture(scope="module", name="encoder")
def fixture_encoder(tiny_bert: Path) -> Encoder:
    return Encoder.load(str(tiny_bert))


@pytest.fixture(scope="module", name="train")
def fixture_train(encoder: Encoder, toy_squad: Path) -> Split:
    return load_split(str(toy_squad), encoder, WINDOWS)


@pytest.fixture(scope="module", name="states")
def fixture_states(encoder: Encoder, train: Split) -> MemoryStates:
    return MemoryStates(encoder, train.windows, tokens_per_call=2000)


def fit_config(*heads: str, **values: Any) -> FitConfig:
    return FitConfig(**({"heads": heads, "epochs": 1, "batch_size": 8, "lr": 3e-3, "stack": "on"} | values))


def fitted(
    states: States, folder: Path, *heads: str, evaluate: Any = None, **values: Any
) -> dict[str, FittedHead]:
    config = fit_config(*heads, **values)
    return fit(states, zoo_members(config), config, RunFolder(folder, {}), evaluate=evaluate)


def run_of(states: States, *heads: str, **values: Any) -> FitRun:
    config = fit_config(*heads, **values)
    return FitRun(states, zoo_members(config), config)


def groups_of(run: FitRun) -> list[Group]:
    run.regroup()
    return run.groups[run.order]


def without_dropout(text: str) -> str:
    """The spec with its own dropout, where it has one, set to zero."""
    name, _, options = text.partition(":")
    kept = [option for option in options.split(",") if option and not option.startswith("dropout=")]
    if hasattr(parse_head(text).config, "dropout"):
        kept.append("dropout=0")
    return f"{name}:{','.join(kept)}"


def state(one: FittedHead) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in one.head.state_dict().items()}


def equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class Killed(BaseException):
    """Not an error that anyone could catch by its kind."""


def killed_after(
    states: States, folder: Path, steps: int, *heads: str, evaluate: Any = None, **values: Any
) -> None:
    """Fit with a checkpoint after every batch and die before batch `steps` is trained on."""
    with pytest.MonkeyPatch.context() as patch:
        real, done = FitRun.train_batch, []

        def train_batch(self: FitRun, batch: Any) -> None:
            if len(done) == steps:
                raise Killed
            done.append(1)
            real(self, batch)

        patch.setattr(fit_module.FitRun, "train_batch", train_batch)
        with pytest.raises(Killed):
            fitted(states, folder, *heads, evaluate=evaluate, checkpoint_seconds=0.0, **values)
