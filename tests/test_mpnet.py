"""MPNet without copies from the CPU computes the same numbers, in training and in copies too."""

import copy
from typing import Any

import torch
from transformers import MPNetConfig, MPNetModel

from bertvision.encoder.mpnet import stay_on_device


def _model() -> Any:
    torch.manual_seed(0)
    config = MPNetConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return MPNetModel(config).eval()


def test_numbers_and_gradients_stay_bit_by_bit() -> None:
    plain, kept = _model(), _model()
    stay_on_device(kept)
    assert type(kept.encoder) is not type(plain.encoder)
    assert list(kept.state_dict()) == list(plain.state_dict())
    for width in (3, 40, 3, 200):  # beyond the exact buckets, and a width seen before
        ids = torch.randint(5, 50, (2, width))
        mask = torch.ones_like(ids)
        mask[1, width // 2 :] = 0
        found = [m(input_ids=ids, attention_mask=mask).last_hidden_state for m in (plain, kept)]
        assert torch.equal(*found)
        for model, states in zip((plain, kept), found, strict=True):
            model.zero_grad()
            states.square().sum().backward()
        ours, theirs = (m.encoder.relative_attention_bias.weight.grad for m in (kept, plain))
        assert ours is not None
        assert torch.equal(ours, theirs)
        assert ours.abs().sum() > 0


def test_a_copy_has_its_own_weights_and_other_models_are_left_alone() -> None:
    kept = _model()
    stay_on_device(kept)
    stay_on_device(kept)  # twice is once
    ids = torch.randint(5, 50, (1, 7))
    before = kept(input_ids=ids).last_hidden_state
    twin = copy.deepcopy(kept)
    with torch.no_grad():
        twin.encoder.relative_attention_bias.weight.add_(1e3 * torch.randn(32, 2))
    assert torch.equal(kept(input_ids=ids).last_hidden_state, before)
    assert not torch.equal(twin(input_ids=ids).last_hidden_state, before)
    other = torch.nn.Linear(2, 2)
    stay_on_device(other)
    assert type(other) is torch.nn.Linear
