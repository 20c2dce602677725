"""Policies: what trains under each, where adapters stand, and the sentence for what cannot work."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_cases import gradient_states, some_batch
from torch import Tensor, nn
from toy import ARCHITECTURES, toy_config
from transformers import AutoModel, BertConfig, BertModel

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.freeze import adapters_of, apply_policy, count_trainable, layers_of
from bertvision.encoder.policy import parse_policy
from bertvision.errors import ConfigError, EncoderError

Toy = Callable[[str], Path]


def tuned(model: Any, text: str) -> Any:
    apply_policy(model, parse_policy(text), seed=0, name="the encoder")
    return model


# ---- counts


PUBLISHED = {
    "full": 108_311_810,
    "top-12": 108_311_810,
    "top-6": 42_548_738,
    "top-3": 21_294_338,
    "top-1": 7_124_738,
    "top-0": 39_938,
    "houlsby-64+full": 110_691_074,
    "houlsby-64+top-12": 110_691_074,
    "houlsby-64": 2_419_202,
    "houlsby-64+top-0": 2_419_202,
    "houlsby-768": 28_388_354,
    # not published; in docs/tuning.md
    "layers": 85_056_002,
    "cut-6": 42_528_770,
    "lora-16": 2_655_746,
    "bitfit": 103_682,
    "none": 1_538,
}
"""Parameters that train in BERT-base-cased with a linear head of 1,538, as printed by adapter and freezing studies."""


@pytest.mark.parametrize("text", PUBLISHED)
def test_counts_on_bert_base_cased_are_the_published_ones(text: str) -> None:
    with torch.device("meta"):  # no memory for weights
        model, head = BertModel(BertConfig(vocab_size=28996)), nn.Linear(768, 2)
    tuned(model, text)
    trainable, total = count_trainable([model, head])
    assert trainable == PUBLISHED[text]
    size = parse_policy(text).adapter
    assert count_trainable([model, head, head]) == (trainable, total), "each counted once"
    added = 0 if size is None else 24 * (2 * 768 * size + size + 768)
    assert total == 108_311_810 + (trainable - 1_538 if text == "lora-16" else added)


# ---- what trains


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "text", ["full", "layers", "top-0", "top-1", "top-2", "cut-1", "cut-2", "none", "houlsby-4"]
)
def test_gradients_reach_what_trains_and_nothing_else(architecture: str, text: str, toy_encoder: Toy) -> None:
    encoder = Encoder.load(str(toy_encoder(architecture)))
    if architecture == "albert" and text in ("top-1", "cut-1", "cut-2"):
        with pytest.raises(ConfigError, match=rf"--policy {text}: .*share their weights.*use full, layers"):
            encoder.tune(parse_policy(text), seed=0)
        return
    encoder.tune(parse_policy(text), seed=0)
    assert encoder.policy == parse_policy(text)
    states = gradient_states(encoder, some_batch(encoder))
    assert states.requires_grad == (text != "none")
    if text != "none":
        states.pow(3).sum().backward()
    got = {name for name, p in encoder.model.named_parameters() if p.grad is not None}
    marked = {name for name, p in encoder.model.named_parameters() if p.requires_grad}
    assert got == {name for name in marked if not name.startswith("pooler.")}
    assert any(name.startswith("pooler.") for name in marked) == (
        text in ("full", "top-2") and hasattr(encoder.model, "pooler")
    )
    tables = {name for name, module in encoder.model.named_modules() if isinstance(module, nn.Embedding)}
    below = {f"{name}.weight" for name in tables if name.startswith("embeddings.")}
    assert below <= marked if text in ("full", "top-2") else not below & marked
    lower = {name for name in marked if "layer.0." in name or "layers.0." in name}
    if text == "cut-1":
        assert not lower
        assert not any("embedding" in name for name in marked)
        final = [name for name in marked if name.startswith("final_norm")]
        assert bool(final) == (architecture == "modernbert")
    if text == "top-1" and architecture != "albert":
        assert lower
        assert all("norm" in name.lower() for name in lower)


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - {"modernbert"}))
def test_bitfit_trains_biases_alone(architecture: str, toy_encoder: Toy) -> None:
    encoder = Encoder.load(str(toy_encoder(architecture)))
    encoder.tune(parse_policy("bitfit"), seed=0)
    trained = {name for name, p in encoder.model.named_parameters() if p.requires_grad}
    expected = {
        f"{name}.bias"
        for name, module in encoder.model.named_modules()
        if isinstance(module, nn.Linear) or "LayerNorm" in type(module).__name__
        if getattr(module, "bias", None) is not None and not name.startswith("pooler")
    }
    if architecture == "deberta":  # its query and value have theirs apart
        expected |= {f"encoder.layer.{i}.attention.self.{part}_bias" for i in (0, 1) for part in "qv"}
    assert trained == expected


def test_lora_stands_beside_every_linear_module_of_the_layers(toy_encoder: Toy) -> None:
    encoder = Encoder.load(str(toy_encoder("bert")))
    linear = {name for name, module in encoder.model.named_modules() if isinstance(module, nn.Linear)}
    names = {name for name in linear if ".layer." in name}
    kind = type(encoder.model)
    encoder.tune(parse_policy("lora-2"), seed=0)
    assert type(encoder.model) is kind, "a Hugging Face model as before"
    trained = {name: p for name, p in encoder.model.named_parameters() if p.requires_grad}
    assert set(trained) == {f"{name}.lora_{part}.default.weight" for name in names for part in "AB"}
    for name, matrix in trained.items():
        assert bool((matrix == 0).all()) == ("lora_B" in name)


@pytest.mark.parametrize("text", ["houlsby-4", "lora-2"])
def test_one_seed_gives_one_start_and_leaves_the_common_stream_alone(text: str, tiny_bert: Path) -> None:
    def fresh(seed: int) -> tuple[str, torch.Tensor]:
        encoder = Encoder.load(str(tiny_bert))
        before = torch.get_rng_state()
        encoder.tune(parse_policy(text), seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        return encoder.fingerprint, encoder.states(some_batch(encoder))

    (first, states), (again, _), (other, _) = fresh(1), fresh(1), fresh(2)
    assert first == again != other
    plain = Encoder.load(str(tiny_bert))
    assert first != plain.fingerprint
    assert torch.allclose(states, plain.states(some_batch(plain)), atol=1e-4)


# ---- texts


def test_a_policy_is_its_text() -> None:
    for text in sorted(PUBLISHED.keys() - {"houlsby-64+top-0"}):
        policy = parse_policy(text)
        assert str(policy) == text
        assert parse_policy(f" {text.upper()} ") == policy
        assert policy.saves_delta == text.startswith(("houlsby", "lora", "bitfit"))


WRONG = {
    "ful": r"--policy ful is not known: did you mean full\?",
    "houlby-64": "did you mean houlsby-M",
    **dict.fromkeys(
        ["", "top", "top-1.5", "top-99999999999", "houlsby-4+", "top-6+houlsby-4"], "is not known"
    ),
    "houlsby--4": "adapter size must be at least 1, not -4",
    "houlsby-4+cut-2": "together with top-K and full alone",
    "lora-0": "the rank must be at least 1, not 0",
    "cut-0": "the number of layers must be at least 1, not 0",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_text_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=WRONG[text]) as caught:
        parse_policy(text)
    assert str(caught.value).startswith("--policy ")
    assert "\n" not in str(caught.value)


def test_texts_and_devices_are_read_without_torch() -> None:
    """The command line asks for both before it knows that anything is computed."""
    code = "import sys, bertvision.encoder.device, bertvision.encoder.load; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# ---- encoders that cannot


def test_what_is_refused_changes_nothing(
    tiny_bert: Path, toy_encoder: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder.load(str(tiny_bert))
    before = encoder.fingerprint, list(encoder.model.state_dict())
    monkeypatch.setitem(sys.modules, "peft", None)
    for text, words in (
        *((text, "has 2 layers, so K .* at most 2") for text in ("top-3", "cut-3", "houlsby-4+top-3")),
        ("lora-4", r"needs peft: .*pip install 'bertvision\[lora\]'"),
    ):
        with pytest.raises(ConfigError, match=f"--policy {text.replace('+', '.')}:? .*{words}"):
            encoder.tune(parse_policy(text), seed=0)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"--policy bitfit: .* has no biases; use top-0"):
        Encoder.load(str(toy_encoder("modernbert"))).tune(parse_policy("bitfit"), seed=0)
    encoder.changed()
    assert (encoder.fingerprint, list(encoder.model.state_dict())) == before
    encoder.tune(parse_policy("top-1"), seed=0)
    with pytest.raises(EncoderError, match="is being tuned with --policy top-1: load it again"):
        encoder.tune(parse_policy("full"), seed=0)


def test_an_unknown_architecture_gets_no_adapters() -> None:
    from transformers import NomicBertConfig  # pyright: ignore[reportAttributeAccessIssue]

    sizes: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
    model = AutoModel.from_config(NomicBertConfig(vocab_size=50, intermediate_size=48, **sizes))
    with pytest.raises(EncoderError, match=r"nomic_bert encoder .* works with albert, bert, .*lora-R"):
        tuned(model, "houlsby-4")
    assert count_trainable([tuned(model, "lora-2")])[0] > 0


def test_albert_with_a_module_for_every_layer_can_be_cut() -> None:
    model = AutoModel.from_config(toy_config("albert", 50, num_hidden_groups=2))
    tuned(model, "cut-1")
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all(name.startswith("encoder.albert_layer_groups.1.") for name in trained)


every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def adapted(folder: Path, *, size: int = 4, loud: bool = False) -> Encoder:
    """A toy encoder with adapters; `loud` ones are far from the identity."""
    encoder = Encoder.load(str(folder), device="cpu")
    encoder.tune(parse_policy(f"houlsby-{size}"), seed=3)
    if loud:
        generator = torch.Generator().manual_seed(5)
        for adapter in adapters_of(encoder.model).values():
            for parameter in adapter.parameters():
                parameter.data.normal_(0, 0.7, generator=generator)
        encoder.changed()
    return encoder


def by_hand(adapter: Any, x: Tensor) -> Tensor:
    """The formula in float64, written out: GELU's tanh form is 0.5 u (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3)))."""
    w1, b1, w2, b2 = (p.detach().double() for p in adapter.parameters())
    u = x.double() @ w1.T + b1
    gelu = 0.5 * u * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (u + 0.044715 * u**3)))
    return (x.double() + gelu @ w2.T + b2).to(x.dtype)


# ---- the start


@every_architecture
def test_fresh_adapters_are_near_the_identity(architecture: str, toy_encoder: Toy) -> None:
    plain, encoder = Encoder.load(str(toy_encoder(architecture))), adapted(toy_encoder(architecture))
    batch = some_batch(encoder)
    before, after = plain.states(batch), encoder.states(batch)
    assert torch.allclose(before, after, atol=1e-4)
    assert not torch.equal(before[1:], after[1:]), "they are in use all the same"
    modules = {id(layer) for layer in layers_of(encoder.model)}
    assert len(adapters_of(encoder.model)) == 2 * len(modules)
    assert (len(modules) == 1) == (architecture == "albert"), "shared layers share adapters"
    own = set(plain.model.state_dict())
    assert own == {name for name in encoder.model.state_dict() if "houlsby" not in name}


def test_the_start_is_a_truncated_normal(tiny_bert: Path) -> None:
    weights, biases = [], []
    for adapter in adapters_of(adapted(tiny_bert, size=600).model).values():
        weights += [adapter.down.weight, adapter.up.weight]
        biases += [adapter.down.bias, adapter.up.bias]
        assert sum(p.numel() for p in adapter.parameters()) == 2 * 32 * 600 + 600 + 32
    drawn = torch.cat([weight.flatten() for weight in weights])
    assert drawn.abs().max() <= 2e-3
    # A normal cut at two sigmas keeps 0.8796 of its sigma.
    assert drawn.std().item() == pytest.approx(0.8796e-3, rel=0.01)
    assert drawn.mean().item() == pytest.approx(0, abs=1e-5)
    assert len({round(weight.flatten()[0].item(), 9) for weight in weights}) == 8, "each its own numbers"
    assert not torch.cat(biases).any()


# ---- the place


def plain_norm(x: Tensor) -> Tensor:
    """What the norms of a fresh toy encoder do: their weights are 1, their biases 0."""
    return nn.functional.layer_norm(x, x.shape[-1:], eps=1e-12)


@every_architecture
def test_adapters_stand_between_sub_layer_and_residual_sum(architecture: str, toy_encoder: Toy) -> None:
    """Called twice a layer, attention's first; and what a norm is given next is residual plus adapter's output.

    The residual is the layer's input for the first adapter. For the second it is the first sum, through the norm
    where the architecture normalises after the sum.
    """
    encoder = adapted(toy_encoder(architecture), loud=True)
    adapters = list(adapters_of(encoder.model).values())
    calls: list[tuple[Tensor, Tensor]] = []
    given: list[Tensor] = []
    for adapter in adapters:
        adapter.register_forward_hook(lambda _, args, output: calls.append((args[0].clone(), output.clone())))
    for module in encoder.model.modules():
        if "LayerNorm" in type(module).__name__:
            module.register_forward_pre_hook(lambda _, args: given.append(args[0].clone()))
    states = encoder.states(some_batch(encoder))
    assert len(calls) == 2 * (encoder.num_states - 1)
    residual = states[0]
    for i, (x, y) in enumerate(calls):
        assert torch.allclose(by_hand(adapters[i % len(adapters)], x), y, atol=1e-4)
        norm_first = architecture == "modernbert"
        if i % 2 == 0 and not norm_first:
            residual = states[i // 2]
        same = [torch.allclose(one, residual + y, atol=1e-4) for one in given if one.shape == y.shape]
        without = [torch.allclose(one, residual + x, atol=1e-4) for one in given if one.shape == y.shape]
        assert any(same), f"no norm is given the sum with adapter {i}"
        assert not any(without)
        residual = residual + y if norm_first else plain_norm(residual + y)


@every_architecture
def test_dropout_comes_before_the_adapter_where_there_is_one(architecture: str, toy_encoder: Toy) -> None:
    """In training an adapter is given exact zeros, which only dropout makes.

    The dropouts of ALBERT and ModernBERT are off by default, and DistilBERT has none behind its attention.
    """
    encoder = adapted(toy_encoder(architecture))
    given: list[Tensor] = []
    for adapter in adapters_of(encoder.model).values():
        adapter.register_forward_hook(lambda _, args, __: given.append(args[0]))
    encoder.model.train()
    torch.manual_seed(0)
    gradient_states(encoder, some_batch(encoder))
    dropped = [bool((x == 0).any()) for x in given]
    attention, feed_forward = {
        "distilbert": (False, True), "albert": (False, False), "modernbert": (False, False),
    }.get(architecture, (True, True))  # fmt: skip
    assert dropped == [attention, feed_forward] * 2


# ---- gradient checkpointing


@every_architecture
@pytest.mark.parametrize("text", ["full", "houlsby-4", "cut-1", "lora-2"])
def test_recomputed_layers_give_the_same_states_and_gradients(
    architecture: str, text: str, toy_encoder: Toy
) -> None:
    def gradients(again: bool) -> tuple[Tensor, dict[str, Tensor]]:
        encoder = Encoder.load(str(toy_encoder(architecture)), device="cpu")
        encoder.tune(parse_policy(text), seed=0)
        encoder.model.train()
        if again:
            encoder.checkpoint_gradients()
        torch.manual_seed(7)  # dropout
        states = gradient_states(encoder, some_batch(encoder))
        states.pow(3).sum().backward()
        named = encoder.model.named_parameters()
        return states.detach(), {name: p.grad for name, p in named if p.grad is not None}

    if architecture in ("albert", "mpnet"):
        if (architecture, text) != ("albert", "cut-1"):  # has no cut
            with pytest.raises(EncoderError, match=rf"\({architecture}\) cannot .*leave out --checkpointing"):
                gradients(again=True)
        return
    (states, plain), (again, recomputed) = gradients(again=False), gradients(again=True)
    assert torch.equal(states, again)
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        assert torch.allclose(gradient, recomputed[name], atol=1e-4, rtol=1e-4), name


def test_checkpointing_lets_no_gradient_below_the_cut(tiny_bert: Path) -> None:
    encoder = Encoder.load(str(tiny_bert), device="cpu")
    encoder.tune(parse_policy("cut-1"), seed=0)
    encoder.model.train()
    encoder.checkpoint_gradients()
    seen: list[bool] = []
    encoder.model.encoder.layer[1].register_forward_pre_hook(
        lambda _, args: seen.append(args[0].requires_grad)
    )
    assert gradient_states(encoder, some_batch(encoder)).requires_grad
    assert seen == [False]
