"""Is a policy worth it? What the table of several policies needs beside the runs themselves.

Hulburd's efficiency score weighs what a model reaches against what was trained for it:

        (F1 - 50) / log10(trainable parameters)
"""

import math
from typing import Any

import torch

from bertvision.encoder.delta import delta_folder, read_about
from bertvision.encoder.freeze import check_policy
from bertvision.encoder.load import bases_of, load_config
from bertvision.encoder.policy import parse_policy
from bertvision.errors import ConfigError

__all__ = ["check_policies", "efficiency"]


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
