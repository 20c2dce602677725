"""The packed encoder gives the same states as torch's own, and leaves the encoder it was made from alone."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from serve_cases import MOOD, save_system
from torch import nn
from transformers import AutoConfig, AutoModel

from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig, make_windows
from bertvision.encoder.batch import TokenBatch, collate
from bertvision.encoder.encoder import Encoder
from bertvision.serve import packed as module
from bertvision.serve.bundle import Bundle
from bertvision.serve.packed import PackedLinear, last_alone, packed
from bertvision.train.trained import read_trained

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load("embedded", device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def tokens(encoder: Encoder) -> TokenBatch:
    """Windows of different lengths in one padded batch."""
    windows = make_windows(load_span_data("demo:dev", max_examples=4), encoder.tokenizer, WindowConfig())
    return collate(windows, np.arange(len(windows)), pad_id=encoder.pad_id, device=torch.device("cpu"))


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no encoder had a forward pass of its own (tests/test_fast_forward.py)."""
    monkeypatch.setattr(module, "known_parts", lambda _: None)


@pytest.mark.usefixtures("unknown")
def test_states_are_the_same(encoder: Encoder, tokens: TokenBatch) -> None:
    before = {name: value.clone() for name, value in encoder.model.state_dict().items()}
    fast = packed(encoder)
    assert fast is not encoder
    count = sum(isinstance(part, PackedLinear) for part in fast.model.modules())
    assert count == sum(isinstance(part, nn.Linear) for part in encoder.model.modules()) > 30
    expected, found = encoder.layer_states(tokens), fast.layer_states(tokens)
    real = tokens.mask
    for ours, theirs in zip(expected, found, strict=True):
        assert torch.allclose(ours[real], theirs[real], atol=2e-5)
    (last,) = [state for state in last_alone(fast).layer_states(tokens) if state is not None]
    assert torch.equal(last, found[-1])
    assert fast.fingerprint == encoder.fingerprint
    assert all(torch.equal(before[name], value) for name, value in encoder.model.state_dict().items())
    assert not any(isinstance(part, PackedLinear) for part in encoder.model.modules())


@pytest.mark.usefixtures("unknown")
def test_what_cannot_be_packed_stays_as_it_is(
    encoder: Encoder, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = Encoder.load(str(tiny_bert), device="cpu", precision="bf16")
    assert packed(half) is half
    assert last_alone(encoder) is encoder
    monkeypatch.setattr(module, "_same", lambda *_, **__: False)
    assert packed(encoder) is encoder, "a layer that computes something else"


def test_a_layer_with_a_hook_keeps_it(tiny_bert: Path, tokens: TokenBatch) -> None:
    """Adapters are hooks on the layers they follow."""
    plain = Encoder.load(str(tiny_bert), device="cpu", precision="fp32")
    layer = next(part for part in plain.model.modules() if isinstance(part, nn.Linear))
    layer.register_forward_hook(lambda _, __, output: torch.add(output, 1))  # pyright: ignore[reportArgumentType, reportCallIssue]
    fast = packed(plain)
    ids = torch.arange(5, 17)[None]
    batch = TokenBatch(ids, torch.ones_like(ids).bool(), torch.zeros_like(ids), np.arange(1))
    for ours, theirs in zip(plain.layer_states(batch), fast.layer_states(batch), strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5)


def test_the_first_try_leaves_no_trace() -> None:
    """BigBird attends in another way for good once it has read a short window, which the try does."""
    small = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 8, "max_position_embeddings": 64, "block_size": 2,
             "num_random_blocks": 1}  # fmt: skip
    model = AutoModel.from_config(AutoConfig.for_model("big_bird", **small)).eval()
    tokenizer = SimpleNamespace(pad_token_id=0)
    encoder = Encoder(model, tokenizer, name="toy", device=torch.device("cpu"), precision="fp32")
    encoder._fingerprint = "toy"
    fast = packed(encoder)
    assert fast is not encoder
    assert fast.model.attention_type == encoder.model.attention_type == "block_sparse"


def test_a_bundle_packs_an_encoder_that_was_trained_anew(tiny_bert: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(str(tiny_bert), device="cpu", precision="fp32")
    bundle = Bundle([read_trained(save_system(tmp_path / "mood", encoder, "mean_pooler", MOOD))], encoder)
    assert bundle._serving() is bundle._serving()
    with torch.no_grad():
        for parameter in encoder.model.parameters():
            parameter.mul_(1.1)
    encoder.changed()
    ids = torch.arange(5, 14)[None]
    batch = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids), np.arange(1))
    for ours, theirs in zip(bundle._serving().layer_states(batch), encoder.layer_states(batch), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
