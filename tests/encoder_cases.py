"""What the tests of encoders share: batches of toy tokens, states with gradients, files spoilt on purpose."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.encoder.batch import TokenBatch, read_tokens
from bertvision.encoder.encoder import Encoder


def some_batch(encoder: Encoder, *, length: int = 9) -> TokenBatch:
    """Two windows, the second one shorter."""
    ids = torch.arange(2 * length).view(2, length) % 20 + len(encoder.tokenizer.all_special_ids)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, -3:] = False
    return TokenBatch(ids.masked_fill(~mask, encoder.pad_id), mask, torch.zeros_like(ids), np.arange(2))


def row(encoder: Encoder, length: int) -> TokenBatch:
    """One window of `length` copies of a word that is no special token."""
    ids = torch.full((1, length), len(encoder.tokenizer.all_special_ids) + 3)
    return TokenBatch(ids, ids > 0, torch.zeros_like(ids), np.zeros(1, np.int64))


def gradient_states(encoder: Encoder, batch: TokenBatch) -> Tensor:
    """(L, B, T, H) with gradients, in whatever mode the model is."""
    encoder.model.to(encoder.device)
    types = batch.types if encoder.passes_types else None
    with encoder.autocast():
        return torch.stack(read_tokens(encoder.model, batch.ids, batch.mask, types))


def copy_without(source: Path, target: Path, part: str) -> Path:
    """A copy of the encoder in `source` without the weights whose names hold `part`."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if part not in name}
    assert len(kept) < len(weights)
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target


def set_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def halve(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
