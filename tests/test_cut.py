"""An encoder cut in two: both halves together are the whole, and only the upper one runs when it is trained."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from store_cases import extract, toy_store
from torch import Tensor, nn
from toy import save_encoder

from bertvision.data.squad import read_squad
from bertvision.data.windows import WindowConfig, Windows, make_windows
from bertvision.encoder import encoder as encoder_module
from bertvision.encoder.batch import TokenBatch, collate
from bertvision.encoder.cut import LowerEncoder, Top, check_cut, lower_encoder
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.stack import embeddings_of, layer_list
from bertvision.errors import ConfigError, EncoderError
from bertvision.states.live import LiveStates
from bertvision.states.memory import MemoryStates
from bertvision.states.stored import StoredStates

LAYERS = 4
CUTTABLE = ["bert", "roberta", "distilbert", "electra", "mpnet", "deberta", "deberta-v2", "modernbert"]
CHECKPOINTED = [name for name in CUTTABLE if name != "mpnet"]
"""Those that can compute their layers again in the backward pass."""

Fresh = Callable[[str], Encoder]


def saved(folder: Path, architecture: str, **changes: Any) -> Path:
    depth = {"n_layers" if architecture == "distilbert" else "num_hidden_layers": LAYERS}
    return save_encoder(folder, architecture, **(depth | changes))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """An encoder of four layers whose every weight is away from its initial value, loaded anew at each call."""
    made: dict[str, Path] = {}

    def load(architecture: str) -> Encoder:
        if architecture not in made:
            made[architecture] = saved(tmp_path_factory.mktemp("cut") / architecture, architecture)
        encoder = Encoder.load(str(made[architecture]), device="cpu")
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in encoder.model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        return encoder

    return load


def batch_of(encoder: Encoder, tokens: int = 14) -> TokenBatch:
    """Three windows, two of them padded, with both token types."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 60, (3, tokens), generator=generator)
    mask = torch.arange(tokens) < torch.tensor([tokens, tokens // 2, tokens - 1])[:, None]
    types = (torch.arange(tokens) >= 5).long() * mask
    return TokenBatch(ids.where(mask, encoder.pad_id), mask, types, np.arange(3))


def halves(encoder: Encoder, k: int) -> tuple[LowerEncoder, Top]:
    return lower_encoder(encoder, k), Top(encoder.model, k)


def grads(module: nn.Module) -> dict[int, Tensor | None]:
    return {id(p): None if p.grad is None else p.grad.clone() for p in module.parameters()}


# ---- the same numbers


@pytest.mark.parametrize("k", [1, 2, 3, LAYERS])
@pytest.mark.parametrize("architecture", CUTTABLE)
def test_both_halves_are_the_whole(architecture: str, k: int, fresh: Fresh) -> None:
    encoder = fresh(architecture)
    batch = batch_of(encoder)
    lower, top = halves(encoder, k)
    found = top.eval()(lower.layer_states(batch)[0], batch.mask)
    wanted = encoder.states(batch)[LAYERS - k :]  # (k + 1, B, T, H)
    assert (len(found), lower.num_states, lower.hidden) == (k + 1, 1, encoder.hidden)
    assert lower.layer_states(batch)[0].shape == wanted.shape[1:]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one[batch.mask], other[batch.mask], rtol=0, atol=1e-6)
    assert len({float(state.detach().sum()) for state in found}) == k + 1, "states that differ are compared"


@pytest.mark.parametrize("order", ["whole first", "halves first"])
def test_nothing_is_recorded_twice(order: str, fresh: Fresh) -> None:
    """transformers records states by hooks it puts on layers, which the halves share with the whole."""
    encoder = fresh("bert")
    batch = batch_of(encoder)
    wanted = fresh("bert").states(batch)
    if order == "halves first":
        lower, top = LowerEncoder(encoder, 2), Top(encoder.model, 2)
        top(lower.layer_states(batch)[0], batch.mask)
    assert torch.equal(encoder.states(batch), wanted)
    lower, top = halves(encoder, 2)
    top(lower.layer_states(batch)[0], batch.mask)
    assert torch.equal(encoder.states(batch), wanted)


@pytest.mark.parametrize("architecture", CUTTABLE)
def test_gradients_are_those_of_the_whole(architecture: str, fresh: Fresh) -> None:
    """Only layers above the cut train; all states above it, and the one at it, are in the loss."""
    encoder, k = fresh(architecture), 2
    batch = batch_of(encoder)
    lower, top = halves(encoder, k)
    own = {id(p) for p in top.parameters()}
    assert own < {id(p) for p in encoder.model.parameters()}, "no parameter of its own"
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(k + 1, *batch.ids.shape, encoder.hidden, generator=generator)

    def loss(states: Tensor) -> Tensor:
        return (states * weights)[:, batch.mask].sum()

    encoder.model.eval()
    for parameter in encoder.model.parameters():
        parameter.requires_grad_(id(parameter) in own)
    loss(encoder.trainable_states(batch)[-k - 1 :]).backward()
    wanted = grads(encoder.model)
    encoder.model.zero_grad(set_to_none=True)
    encoder.model.requires_grad_(True)  # nothing below may get a gradient even where it could
    loss(torch.stack(top(lower.layer_states(batch)[0], batch.mask))).backward()
    found = grads(encoder.model)
    assert {key for key, grad in found.items() if grad is not None} == own
    for key, grad in found.items():
        if grad is not None:
            torch.testing.assert_close(grad, wanted[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("architecture", CHECKPOINTED)
def test_layers_computed_again_give_the_same_gradients(architecture: str, fresh: Fresh) -> None:
    encoder = fresh(architecture)
    batch = batch_of(encoder)
    lower, top = halves(encoder, 2)
    state = lower.layer_states(batch)[0]
    runs: list[int] = []
    layers = layer_list(encoder.model)
    assert layers is not None
    attention = next(m for name, m in layers[-1].named_modules() if "attention" in name or "attn" in name)
    attention.register_forward_pre_hook(lambda *_: runs.append(1))
    found = []
    for again in (False, True):
        if again:
            encoder.checkpoint_gradients()
        top.zero_grad()
        runs.clear()
        torch.manual_seed(5)
        states = torch.stack(top.train()(state, batch.mask))
        states[:, batch.mask].square().sum().backward()
        found.append(
            (len(runs), states.detach(), [p.grad.clone() for p in top.parameters() if p.grad is not None])
        )
    assert [times for times, _, _ in found] == [1, 2]
    assert torch.equal(found[0][1], found[1][1])
    assert len(found[0][2]) == len(list(top.parameters()))
    assert all(torch.allclose(one, other) for one, other in zip(found[0][2], found[1][2], strict=True))


# ---- what runs, and in which mode


@pytest.mark.parametrize("architecture", CUTTABLE)
def test_no_half_runs_what_belongs_to_the_other(architecture: str, fresh: Fresh) -> None:
    encoder, k = fresh(architecture), 1
    batch = batch_of(encoder)
    lower, top = halves(encoder, k)
    layers = layer_list(encoder.model)
    assert layers is not None
    ran: list[int] = []
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, number=number: ran.append(number))
    embeddings_of(encoder.model).register_forward_pre_hook(lambda *_: ran.append(-1))
    state = lower.layer_states(batch)[0]
    assert ran == [-1, 0, 1, 2]
    ran.clear()
    top(state, batch.mask)
    assert ran == [3]


@pytest.mark.parametrize("architecture", CUTTABLE)
def test_dropout_is_in_the_top_alone(architecture: str, fresh: Fresh) -> None:
    encoder = fresh(architecture)
    for part in encoder.model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.3
        for name in ("attention_dropout", "attention_probs_dropout_prob", "dropout_prob"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.3)
    batch = batch_of(encoder)
    lower, top = halves(encoder, 2)
    encoder.model.train()
    top.train()
    states = [lower.layer_states(batch)[0] for _ in range(2)]
    assert torch.equal(states[0], states[1])
    assert all(part.training for part in top.modules()), (
        "the lower half was used and left the upper one alone"
    )
    one, two = (top(states[0], batch.mask)[-1] for _ in range(2))
    assert not torch.equal(one, two)
    top.eval()
    assert embeddings_of(encoder.model).training is False
    one, two = (top(states[0], batch.mask)[-1] for _ in range(2))
    assert torch.equal(one, two)


def test_the_check_leaves_the_mode_and_the_random_stream_alone(fresh: Fresh) -> None:
    encoder = fresh("bert")
    encoder.model.train()
    embeddings_of(encoder.model).eval()
    before = [part.training for part in encoder.model.modules()]
    stream = torch.get_rng_state()
    check_cut(encoder, 2)
    assert [part.training for part in encoder.model.modules()] == before
    assert torch.equal(torch.get_rng_state(), stream)


# ---- training, copies, precision


def test_training_the_top_trains_the_model_in_place(fresh: Fresh) -> None:
    encoder = fresh("mpnet")
    batch = batch_of(encoder)
    lower, top = halves(encoder, 2)
    before = {name: tensor.clone() for name, tensor in encoder.model.state_dict().items()}
    state, marks = lower.layer_states(batch)[0], (lower.fingerprint, encoder.fingerprint)
    optimizer = torch.optim.SGD(top.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        top(state, batch.mask)[-1][batch.mask].square().sum().backward()
        optimizer.step()
    changed = {
        name for name, tensor in encoder.model.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert changed
    assert all(name.startswith(("encoder.layer.2.", "encoder.layer.3.")) for name in changed)
    encoder.changed()
    lower.changed()
    assert (lower.fingerprint == marks[0], encoder.fingerprint == marks[1]) == (True, False)
    assert torch.equal(encoder.states(batch)[2], state)
    torch.testing.assert_close(
        encoder.states(batch)[-1], top.eval()(state, batch.mask)[-1], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("architecture", CUTTABLE)
def test_a_deep_copy_is_independent_and_can_change_its_precision(architecture: str, fresh: Fresh) -> None:
    encoder = fresh(architecture)
    batch = batch_of(encoder)
    lower, top = halves(encoder, 2)
    state = lower.layer_states(batch)[0]
    wanted = [found.detach() for found in top.eval()(state, batch.mask)]
    twin = copy.deepcopy(top)
    assert all(torch.equal(one, other) for one, other in zip(twin(state, batch.mask), wanted, strict=True))
    assert not {t.data_ptr() for t in twin.state_dict().values()} & {
        t.data_ptr() for t in encoder.model.state_dict().values()
    }
    half = copy.deepcopy(top).to(torch.bfloat16)
    assert all(t.dtype == torch.bfloat16 for t in half.state_dict().values() if t.is_floating_point())
    rounded = half(state.bfloat16(), batch.mask)[-1]
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded[batch.mask].float(), wanted[-1][batch.mask], rtol=0.1, atol=0.2)
    with torch.no_grad():
        for parameter in top.parameters():
            parameter.zero_()
    assert all(torch.equal(one, other) for one, other in zip(twin(state, batch.mask), wanted, strict=True))
    assert not torch.equal(top(state, batch.mask)[-1], wanted[-1])


def test_on_a_gpu_the_lower_half_is_cast_once_and_the_encoder_stays(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frozen copy in half precision, without the graphs that only a GPU has."""
    encoder = fresh("mpnet")
    batch = batch_of(encoder)
    wanted = encoder.states(batch)[2][batch.mask]
    lower = lower_encoder(encoder, 2)
    monkeypatch.setattr(LowerEncoder, "state_dtype", torch.bfloat16)
    monkeypatch.setattr(encoder_module, "CapturedForward", lambda forward: forward)
    before = {name: (p.data_ptr(), p.dtype) for name, p in encoder.model.named_parameters()}
    (found,) = lower.layer_states(batch)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found[batch.mask].float(), wanted, rtol=0.1, atol=0.2)
    assert {name: (p.data_ptr(), p.dtype) for name, p in encoder.model.named_parameters()} == before
    with torch.no_grad():
        encoder.model.embeddings.word_embeddings.weight += torch.randn(encoder.hidden)
    assert torch.equal(lower.layer_states(batch)[0], found)
    lower.changed()
    assert not torch.equal(lower.layer_states(batch)[0], found)


def test_the_lower_half_has_no_weights_of_its_own(fresh: Fresh) -> None:
    encoder = fresh("modernbert")
    lower, top = halves(encoder, 2)
    below, above = ({id(p) for p in module.parameters()} for module in (lower.model, top))
    everything = {id(p) for p in encoder.model.parameters()}
    assert below | above == everything
    assert not below & above
    assert (lower.pad_id, lower.max_tokens) == (encoder.pad_id, encoder.max_tokens)
    assert (lower.state_dtype, lower.device) == (encoder.state_dtype, encoder.device)


def test_the_fingerprint_tells_cuts_and_weights_apart(fresh: Fresh) -> None:
    encoder, other = fresh("modernbert"), fresh("modernbert")
    marks = {lower_encoder(encoder, k).fingerprint for k in (1, 2, 3)}
    assert len(marks) == 3
    assert encoder.fingerprint not in marks
    assert len({lower_encoder(encoder, k).configuration for k in (1, 2, 3)}) == 3
    assert lower_encoder(other, 2).fingerprint in marks, "the same weights, loaded again"
    with torch.no_grad():
        other.model.final_norm.weight += 1
        other.model.layers[3].mlp.Wi.weight += 1
    assert lower_encoder(other, 2).fingerprint in marks, "nothing below the cut changed"
    with torch.no_grad():
        other.model.layers[0].mlp.Wi.weight += 1
    assert lower_encoder(other, 2).fingerprint not in marks


# ---- feeds


@pytest.fixture(scope="module")
def windows(fresh: Fresh, toy_squad: Path) -> Windows:
    config = WindowConfig(max_seq_length=48, max_query_length=16, doc_stride=16)
    return make_windows(read_squad(toy_squad), fresh("bert").tokenizer, config)


@pytest.mark.parametrize("source", ["live", "memory", "stored"])
def test_feeds_hand_out_the_state_at_the_cut(
    source: str, fresh: Fresh, windows: Windows, tmp_path: Path
) -> None:
    encoder = fresh("bert")
    lower = lower_encoder(encoder, 3)
    if source == "live":
        states = LiveStates(lower, windows, tokens_per_call=200)
    elif source == "memory":
        states = MemoryStates(lower, windows, tokens_per_call=200)
    else:
        store = toy_store(tmp_path, lower, windows)
        extract(store, lower)
        states = StoredStates(lower, store, tokens_per_call=200)
    seen = 0
    for batch in states.epoch(0, batch_size=4, seed=0):
        tokens = collate(windows, batch.windows, pad_id=encoder.pad_id, device=encoder.device)
        wanted = encoder.states(tokens)[1][tokens.mask]
        assert batch.states.shape[0] == 1
        state, numbers = lower.parts(batch.states)
        assert numbers is None
        rough = 1e-2 if source == "memory" else 1e-5  # memory keeps half precision
        torch.testing.assert_close(state[batch.mask], wanted, rtol=0, atol=rough)
        seen += len(batch.windows)
    assert seen == len(windows)


# ---- refusals


@pytest.mark.parametrize("k", [-1, 0, LAYERS + 1])
def test_more_layers_than_there_are(k: int, fresh: Fresh) -> None:
    for make in (lower_encoder, lambda encoder, k: Top(encoder.model, k)):
        with pytest.raises(ConfigError, match=f"--policy cut-{k} .* has 4: use cut-1 to cut-4"):
            make(fresh("bert"), k)


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("albert", {}, "its layers share their weights; use --policy"),
        ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}, "use --policy top-2 instead"),
    ],
)
def test_encoders_that_cannot_be_cut(
    architecture: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    encoder = Encoder.load(str(saved(tmp_path / architecture, architecture, **changes)), device="cpu")
    with pytest.raises(EncoderError, match=f"cannot be cut.*{words}") as caught:
        lower_encoder(encoder, 2)
    assert "\n" not in str(caught.value)
