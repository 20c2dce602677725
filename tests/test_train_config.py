"""Settings of training and heads of a fit: what cannot be is one sentence, what stands beside it is taken."""

import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_runner import bertvision

from bertvision.errors import ConfigError
from bertvision.heads import Head, register
from bertvision.train.config import FinetuneConfig, FitConfig, JobConfig, MultitaskConfig, OptimConfig

WRONG: list[tuple[type, dict[str, Any], str]] = [
    (OptimConfig, {"lr": 0.0}, "lr"), (OptimConfig, {"lr": math.inf}, "lr"), (OptimConfig, {"lr": math.nan}, "lr"),
    (OptimConfig, {"warmup": 1.0}, "warmup"), (OptimConfig, {"clip": -1.0}, "clip"),
    (OptimConfig, {"clip": math.nan}, "clip"), (OptimConfig, {"weight_decay": -0.1}, "--weight-decay"),
    (OptimConfig, {"seed": -1}, "seed"), *((OptimConfig, {"eps": v}, "eps") for v in (0.0, -1e-8, math.nan, math.inf)),
    (FitConfig, {"epochs": 0}, "--epochs"), (FitConfig, {"batch_size": 0}, "--batch-size"),
    (FitConfig, {"patience": -1}, "--patience"), (FitConfig, {"heads": ()}, "--heads"),
    (FitConfig, {"seeds": ()}, "--seeds"),
    (FitConfig, {"seeds": (1, 1)}, "--seeds"), (FitConfig, {"seeds": (-1,)}, "--seeds"),
    *((kind, {"null_weight": v}, "--null-weight") for kind in (FitConfig, FinetuneConfig)
      for v in (0.0, -1.0, math.nan, math.inf)),
    *((FinetuneConfig, {"epochs": v}, "--epochs") for v in (-1.0, math.nan, math.inf)),
    (FinetuneConfig, {"log_every": 0}, "--log-every"), (FinetuneConfig, {"batch_size": 0}, "--batch-size"),
    (FinetuneConfig, {"batch_tokens": -1}, "--batch-tokens"), (FinetuneConfig, {"accumulate": 17}, "--accumulate"),
    (FinetuneConfig, {"snapshots": (1.5,)}, "snapshot 1.5"), (FinetuneConfig, {"snapshots": (0.0,)}, "snapshot 0"),
    (FinetuneConfig, {"policy": "houlsby-0"}, "adapter size"), (FinetuneConfig, {"policy": "lora"}, "lora-R"),
    (FinetuneConfig, {"head": "adapter:size=4,lr=0.1"}, "trains as the encoder does"),
    (FinetuneConfig, {"head": "label"}, "label"),
    *((MultitaskConfig, {"temperature": v}, "--temperature") for v in (0.0, -1.0, math.nan)),
    *((JobConfig, {"name": "mood", "weight": v}, "weight of task mood") for v in (0.0, -1.0, math.nan, math.inf)),
    (JobConfig, {"subset": -1}, "subset"), (JobConfig, {"batch_size": -1}, "batch_size"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "problem"), WRONG, ids=str)
def test_impossible_settings_are_one_sentence(kind: type, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**values)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_beside_impossible_ones_are_taken() -> None:
    """The same fraction twice is one snapshot; with batches by tokens any number of parts goes."""
    assert FinetuneConfig(snapshots=(0.5, 0.5, 1.0, 0.123456, 0.123457)).snapshots[:2] == (0.5, 0.5)
    assert FinetuneConfig(batch_tokens=100, accumulate=17).accumulate == 17
    assert not FinetuneConfig(optimizer="adam", bias_correction=False).bias_correction


def test_what_decides_no_result_is_not_in_the_key() -> None:
    same = FinetuneConfig(checkpoint_seconds=1, track=("wandb",), log_every=3, score_every=0.5)
    assert same.identity == FinetuneConfig().identity
    assert FitConfig(checkpoint_seconds=1, track=("wandb",)).identity == FitConfig().identity
    assert FinetuneConfig(policy="TOP-1").identity["policy"] == "top-1"


def test_verbs_that_train_print_their_help_without_torch() -> None:
    script = "import bertvision.cli.flows, sys; assert not {'torch', 'transformers'} & {*sys.modules}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


# ---- heads

BAD = {
    "label head": (("tenney_small",), r"tenney_small\.v1 gives logits of whole windows"),
    "mistyped": (("adaptr",), "there is no head 'adaptr': did you mean adapter"),
    "set with options": (("papers:lr=1",), "is a set of heads and takes no options"),
    "not for this encoder": (("cacnn:variant=ctx,maps=3",), "cacnn"),
    "rate of one of many": (("last_state", "adapter:lr=nan"), "head 'adapter:lr=nan': --lr must be above 0"),
    "patience without dev": (("adapter:patience=2",), "need --dev"),
    "huge size": (("adapter:size=99999999999999",), "size of adapter must lie between 1 and 1,000,000"),
    "huge width": (("cacnn:variant=ctx,bank=99999999999999999",), "bank of cacnn must be widths"),
    "endless memory": (("last_state", "--activation-gb", "inf"), "--activation-gb must be a finite number"),
    "states": (("last_state", "--states.memory-gb", "nan"), "--states.memory-gb must not be negative"),
    "one token": (("last_state", "--states.positions", "cls"), "--states.positions cls keeps one token"),
    "no such layer": (("last_state", "--states.layers", "0,3"), "names 3, but this encoder has the states 0 to 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_wrong_use_is_one_sentence_and_writes_nothing(
    case: str, tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    heads, expected = BAD[case]
    words = ("fit", tiny_bert, "--train", toy_squad, "--max-seq-length", "96", "--out", tmp_path / "heads")
    done = bertvision(*words, "--heads", *heads)
    assert done.code == 2
    assert re.search(expected, re.sub(r"\s+", " ", done.err)), done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "heads").exists()


def test_a_config_that_can_change_is_refused() -> None:
    @dataclass
    class Loose:
        size: int = 1

    with pytest.raises(ValueError, match="must be a dataclass with frozen=True"):
        register("loose.v1", Loose)(Head)
