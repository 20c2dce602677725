"""Policies: their texts, exactly what trains under each, and the sentence for each that cannot work."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_cases import gradient_states, some_batch
from torch import nn
from toy import ARCHITECTURES, toy_config
from transformers import AutoModel, BertConfig, BertModel

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.freeze import apply_policy, count_trainable
from bertvision.encoder.policy import counts_text, parse_policy
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
    added = 0 if size is None else 24 * (2 * 768 * size + size + 768)
    assert total == 108_311_810 + (trainable - 1_538 if text == "lora-16" else added)


def test_counts_are_one_line() -> None:
    assert counts_text(2_419_202, 110_691_074) == "trainable 2.42 M of 110.7 M (2.2 %)"
    assert counts_text(39_938, 108_311_810) == "trainable 39.9 k of 108.3 M (0.037 %)"
    assert counts_text(108_311_810, 108_311_810) == "trainable 108.3 M of 108.3 M (100 %)"
    assert counts_text(0, 8) == "trainable 0 of 8 (0 %)"
    shared = nn.Linear(9, 1)
    assert count_trainable([shared, nn.Sequential(shared)]) == (10, 10), "counted once"


# ---- what trains


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("text", ["full", "layers", "top-0", "top-1", "top-2", "cut-1", "cut-2", "none"])
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
    "frobnicate": "known: full, none, layers, top-K",
    **dict.fromkeys(["", "top", "top-1.5", "top-99999999999", "houlsby", "houlsby-4+"], "is not known"),
    **dict.fromkeys(["top-6+houlsby-4", "houlsby-4+houlsby-4", "full-3+houlsby-4"], "is not known"),
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
