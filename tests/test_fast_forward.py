"""The short forward pass gives the states of transformers' own code, and leaves alone whatever it does not know."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy import save_encoder
from transformers import AutoConfig, AutoModel

from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig, make_windows
from bertvision.encoder.batch import TokenBatch
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.policy import parse_policy
from bertvision.feed.reading import EVERYTHING
from bertvision.heads import Geometry, parse_head
from bertvision.serve import packed as module
from bertvision.serve import walk as walk_module
from bertvision.serve.fast_known import known_parts
from bertvision.serve.fast_workers import in_order
from bertvision.serve.packed import is_fast, last_alone, packed
from bertvision.serve.walk import Reader, _equal_calls, walk
from bertvision.tasks.kinds import SPAN

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")

Toy = Callable[[str], Path]
LENGTHS = ([1], [9], [17, 17, 17], [23, 16, 16, 5, 1], [3, 30, 3])


def loud(model: Any) -> Any:
    """Every weight drawn anew: a fresh model has no biases, and norms that do nothing."""
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.2)
    return model


def encoder_of(folder: Path) -> Encoder:
    encoder = Encoder.load(str(folder), device="cpu", precision="fp32")
    loud(encoder.model)
    encoder.changed()
    return encoder


def tokens(encoder: Encoder, lengths: list[int]) -> TokenBatch:
    draw = torch.Generator().manual_seed(sum(lengths))
    ids = torch.randint(5, encoder.model.config.vocab_size, (len(lengths), max(lengths)), generator=draw)
    ids[:, 2::6] = encoder.pad_id  # a text may hold the pad's name: RoBERTa counts no position there
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    types = (torch.arange(max(lengths)) > 4).long().expand_as(ids) * mask
    return TokenBatch(torch.where(mask, ids, encoder.pad_id), mask, types, np.arange(len(lengths)))


def same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], mask: Tensor) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one[mask], other[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "electra", "mpnet"])
def test_states_are_those_of_transformers(architecture: str, toy_encoder: Toy) -> None:
    encoder = encoder_of(toy_encoder(architecture))
    fast = packed(encoder)
    assert is_fast(fast)
    for lengths in LENGTHS:
        batch = tokens(encoder, lengths)
        found = fast.layer_states(batch)
        same(found, encoder.layer_states(batch), batch.mask)
        assert all(not state[~batch.mask].any() for state in found), "pads"
        *others, last = last_alone(fast).layer_states(batch)
        assert others == [None] * (encoder.num_states - 1)
        assert torch.equal(last, found[-1])
        if encoder.has_pooler:
            torch.testing.assert_close(fast.pooled(last), encoder.pooled(last))
    assert fast.fingerprint == encoder.fingerprint


def test_other_names_of_roberta_and_a_table_as_wide_as_the_layers() -> None:
    small = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 24, "max_position_embeddings": 40}  # fmt: skip
    changes: dict[str, dict[str, Any]] = {
        "xlm-roberta": {"type_vocab_size": 3},
        "electra": {"embedding_size": 32},
    }
    for architecture, change in changes.items():
        model = loud(AutoModel.from_config(AutoConfig.for_model(architecture, **small | change)).eval())
        parts = known_parts(model)
        assert parts is not None
        ids, mask = torch.arange(24).view(2, 12), torch.arange(12) < torch.tensor([[12], [7]])
        types = torch.ones_like(ids)
        theirs = model(ids, mask.long(), token_type_ids=types, output_hidden_states=True).hidden_states
        found = module.FastForward(parts)(ids, mask, types)
        assert found is not None
        same(found, theirs, mask)  # pyright: ignore[reportArgumentType]


def test_real_tokens_that_do_not_stand_in_front_are_left_to_the_model(tiny_bert: Path) -> None:
    encoder = encoder_of(tiny_bert)
    batch = tokens(encoder, [9, 9])
    batch.mask[1, :3] = False
    fast = packed(encoder)
    assert is_fast(fast)
    same(fast.layer_states(batch), encoder.layer_states(batch), batch.mask)


def test_what_others_made_torchs_default_changes_nothing(tiny_bert: Path) -> None:
    encoder = encoder_of(tiny_bert)
    fast, batch = packed(encoder), tokens(encoder, [20, 9, 8])  # the second looks past its end, masked
    expected = encoder.layer_states(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(fast.layer_states(batch), expected, batch.mask)
    with torch.device("meta"):
        same(fast.layer_states(batch), expected, batch.mask)
    torch.set_default_dtype(torch.float64)
    try:
        same(fast.layer_states(batch), expected, batch.mask)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_narrower_bias_of_another_thread_is_not_taken(toy_encoder: Toy) -> None:
    class Raced(module.FastForward):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "_bias" and value is not None:
                value = value[..., :8, :8]  # as if the other thread had been last
            super().__setattr__(name, value)

    encoder = encoder_of(toy_encoder("mpnet"))
    parts = known_parts(encoder.model)
    assert parts is not None
    batch = tokens(encoder, [23, 16])
    with torch.no_grad():
        found: Any = Raced(parts)(batch.ids, batch.mask, None)
    same(found, encoder.layer_states(batch), batch.mask)


# ---- what is not known


class OwnOutput(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def hooked(model: Any) -> None:
    model.encoder.layer[1].register_forward_hook(lambda _, __, output: output + 1)


def hooked_before(model: Any) -> None:
    model.embeddings.LayerNorm.register_forward_pre_hook(lambda _, given: (given[0] + 1,))


def replaced(model: Any) -> None:
    dense = model.encoder.layer[0].output.dense
    model.encoder.layer[0].output.dense = OwnOutput(dense.in_features, dense.out_features)


def overridden(model: Any) -> None:
    dense = model.encoder.layer[0].output.dense
    own = dense.forward
    dense.forward = lambda x: own(x) * 2


def another_weight(model: Any) -> None:
    model.encoder.layer[0].output.extra = nn.Linear(2, 2)


def another_buffer(model: Any) -> None:
    model.embeddings.register_buffer("shift", torch.ones(1))


def another_activation(model: Any) -> None:
    model.encoder.layer[1].intermediate.intermediate_act_fn = nn.Tanh()


def derived(model: Any) -> None:
    model.__class__ = type("OwnModel", (type(model),), {})


def one_half(model: Any) -> None:
    model.encoder.layer[0].output.dense.to(torch.bfloat16)


def other_attention(model: Any) -> None:
    model.config._attn_implementation = "flex_attention"


def decoder(model: Any) -> None:
    model.config.is_decoder = True


def causal(model: Any) -> None:
    model.encoder.layer[1].attention.self.is_causal = True


CHANGES = (hooked, hooked_before, replaced, overridden, another_weight, another_buffer, another_activation, derived,
           one_half, other_attention, decoder, causal)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whatever_was_changed_makes_it_unknown(change: Callable[[Any], None], tiny_bert: Path) -> None:
    model = Encoder.load(str(tiny_bert), device="cpu", precision="fp32").model
    model(torch.arange(6)[None], output_hidden_states=True)  # leaves transformers' hooks that record states
    assert known_parts(model) is not None
    change(model)
    assert known_parts(model) is None


@pytest.mark.parametrize("policy", ["houlsby-4", "lora-2"])
def test_adapters_answer_by_the_models_code(policy: str, tiny_bert: Path) -> None:
    encoder = Encoder.load(str(tiny_bert), device="cpu", precision="fp32")
    encoder.tune(parse_policy(policy), seed=0)
    loud(encoder.model)
    encoder.changed()
    fast = packed(encoder)
    assert not is_fast(fast)
    batch = tokens(encoder, [9, 4])
    same(fast.layer_states(batch), encoder.layer_states(batch), batch.mask)


@pytest.mark.parametrize("architecture", ["albert", "deberta", "modernbert"])
def test_other_architectures_are_not_taken_for_known(architecture: str, toy_encoder: Toy) -> None:
    assert not is_fast(packed(Encoder.load(str(toy_encoder(architecture)), device="cpu", precision="fp32")))


def test_another_activation_in_the_settings(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "relu", "bert", hidden_act="relu")
    assert not is_fast(packed(Encoder.load(str(folder), device="cpu", precision="fp32")))


def test_fewer_positions_than_the_first_try_has(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "short", "bert", max_position_embeddings=5)
    encoder = Encoder.load(str(folder), device="cpu", precision="fp32")
    assert packed(encoder) is encoder


def test_a_pass_that_gives_something_else_is_not_used(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of(tiny_bert)
    assert is_fast(packed(encoder))
    wrong = known_parts(encoder.model)
    assert wrong is not None
    object.__setattr__(wrong, "heads", 4)
    monkeypatch.setattr(module, "known_parts", lambda _: wrong)
    assert not is_fast(packed(encoder))


# ---- threads


def test_calls_are_equal_and_complete() -> None:
    tokens = np.random.default_rng(0).integers(5, 384, 300)
    for workers in (1, 2, 3):
        calls = _equal_calls(tokens, workers)
        assert sorted(np.concatenate(calls).tolist()) == list(range(300))
        sums = [int(tokens[call].sum()) for call in calls]
        assert max(sums) <= 1024 + 384
        assert len(calls) % workers == 0
        assert max(sums) - min(sums) <= 2 * 384
    assert [len(call) for call in _equal_calls(np.array([2000, 2000]), 1)] == [1, 1]
    assert len(_equal_calls(np.array([7]), 1)) == 1


def test_threads_keep_the_order_and_are_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert list(in_order(lambda i: (i, torch.get_num_threads()), range(20), 2)) == [
            (i, 1) for i in range(20)
        ]
        assert torch.get_num_threads() == 2

        def fail(i: int) -> int:
            if i == 3:
                raise ValueError("three")
            return i

        with pytest.raises(ValueError, match="three"):
            list(in_order(fail, range(20), 2))
        assert torch.get_num_threads() == 2
        taken = in_order(lambda i: i, range(20), 2)
        assert next(taken) == 0
        taken.close()  # type: ignore[attr-defined]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_thread_that_starts_meanwhile_has_all_cores() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        taken = in_order(lambda _: torch.get_num_threads(), range(20), 2)
        assert next(taken) == 2
        with ThreadPoolExecutor(1) as other:
            assert other.submit(torch.get_num_threads).result() == 4
        assert set(taken) == {2}
    finally:
        torch.set_num_threads(before)


def test_threads_change_no_logit(tiny_bert: Path, toy_squad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = encoder_of(tiny_bert)
    windows = make_windows(load_span_data(str(toy_squad)), plain.tokenizer, WindowConfig(64, 16, 16))
    head = parse_head("last_state").build(Geometry(plain.num_states, plain.hidden), seed=0)
    readers = {"span": Reader(head, EVERYTHING, SPAN)}
    used: list[int] = []

    def watched(work: Any, items: Any, workers: int) -> Any:
        used.append(workers)
        return in_order(work, items, workers)

    monkeypatch.setattr(walk_module, "in_order", watched)
    before, fast = torch.get_num_threads(), packed(plain)
    expected: Any = walk(plain, windows, readers)["span"]
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found: Any = walk(fast, windows, readers)["span"]
            np.testing.assert_allclose(found.start, expected.start, atol=1e-4)
            np.testing.assert_allclose(found.end, expected.end, atol=1e-4)
        first = windows.take(np.flatnonzero(windows.example == windows.example[-1]))
        walk(fast, first, readers)
    finally:
        torch.set_num_threads(before)
    assert used == [1, 1, 2, 1], "its own code; one thread; two; one example alone"
