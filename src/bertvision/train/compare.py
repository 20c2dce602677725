"""Is a policy worth it? What the table of several policies needs beside the runs themselves.

Hulburd's efficiency score weighs what a model reaches against what was trained for it:

        (F1 - 50) / log10(trainable parameters)
"""

import math
import time
from pathlib import Path
from typing import Any

import torch

from bertvision.encoder.delta import delta_folder, read_about
from bertvision.encoder.device import Precision
from bertvision.encoder.freeze import check_policy
from bertvision.encoder.load import bases_of, load_config
from bertvision.encoder.policy import parse_policy
from bertvision.errors import ConfigError
from bertvision.states.live import LiveStates
from bertvision.tasks.walk import head_logits
from bertvision.train.splits import Split
from bertvision.train.trained import load_encoder, read_trained

__all__ = ["check_policies", "efficiency", "inference_seconds"]


def efficiency(f1: float, trainable: int) -> float:
    """Hulburd's score of an F1 from 0 to 100 for so many trained parameters."""
    return (f1 - 50) / math.log10(trainable) if trainable > 1 else math.nan


def check_policies(texts: tuple[str, ...], encoder: str) -> list[str]:
    """The policies as they are written in full; all of them are refused where the encoder cannot do one."""
    from transformers import AutoModel

    with torch.device("meta"):
        model: Any = AutoModel.from_config(load_config(encoder))
    policies = [parse_policy(text) for text in texts]
    # The model made from the settings alone has no adapters that deltas bring.
    deltas = [folder for name in bases_of(encoder) if (folder := delta_folder(name)) is not None]
    adapted = any(parse_policy(read_about(folder)["policy"]).adapter for folder in deltas)
    for policy in policies:
        check_policy(model, policy, name=encoder, adapted=adapted)
    names = [str(policy) for policy in policies]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"--compare names {twice[0]} twice: name each policy once")
    return names


def inference_seconds(
    snapshot: Path, dev: Split, *, device: str = "auto", precision: Precision = "auto"
) -> float:
    """Seconds that a saved snapshot, loaded as any other is, takes for all windows of dev; the second of two walks."""
    trained = read_trained(snapshot)
    encoder = load_encoder(trained, device=device, precision=precision)
    states = LiveStates(encoder, dev.windows)
    heads = {"head": trained.heads[0].to(encoder.device)}
    seconds = 0.0
    for label in ("inference, warm-up", "inference"):
        began = time.perf_counter()
        head_logits(states, heads, dev.task, label=label)  # gives numbers on the CPU, so the device is done
        seconds = time.perf_counter() - began
    return seconds
