"""The packed encoder gives the same states as torch's own, and leaves the encoder it was made from alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig, make_windows
from bertvision.encoder.batch import TokenBatch, collate
from bertvision.encoder.encoder import Encoder
from bertvision.serve import packed as module
from bertvision.serve.packed import PackedLinear, last_alone, packed

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
