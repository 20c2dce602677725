"""Deltas: what a tuned encoder is on disk, that it comes back as the same encoder, and what is refused."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_cases import gradient_states, halve, some_batch
from toy import ARCHITECTURES, save_encoder

from bertvision.artifacts import read_json, read_tensors, write_json, write_tensors
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.policy import parse_policy
from bertvision.errors import BertvisionError, ConfigError

Toy = Callable[[str], Path]
POLICIES = ("houlsby-4", "lora-2", "bitfit")
EVERY = [(one, policy) for one in ARCHITECTURES for policy in POLICIES]
EVERY.remove(("modernbert", "bitfit"))  # has no biases


def trained(folder: Path | str, policy: str, *, amount: float = 0.05) -> Encoder:
    """An encoder whose trainable parameters have moved, as training moves them."""
    encoder = Encoder.load(str(folder), device="cpu")
    encoder.tune(parse_policy(policy), seed=0)
    generator = torch.Generator().manual_seed(1)
    for parameter in encoder.model.parameters():
        if parameter.requires_grad:
            parameter.data += torch.empty(parameter.shape).normal_(0, amount, generator=generator)
    encoder.changed()
    return encoder


def saved(folder: Path | str, policy: str, target: Path) -> Path:
    trained(folder, policy).save(target)
    return target


# ---- there and back


@pytest.mark.parametrize(("architecture", "policy"), EVERY)
def test_a_delta_comes_back_as_the_same_encoder(
    architecture: str, policy: str, toy_encoder: Toy, tmp_path: Path
) -> None:
    base = Encoder.load(str(toy_encoder(architecture)), device="cpu")
    batch = some_batch(base)
    before, unmoved = base.fingerprint, base.states(batch)
    encoder = trained(toy_encoder(architecture), policy)
    states = encoder.states(batch)
    encoder.save(tmp_path / "d")
    assert sorted(file.name for file in (tmp_path / "d").iterdir()) == ["delta.json", "delta.safetensors"]
    again = Encoder.load(str(tmp_path / "d"), device="cpu")
    assert (states - unmoved).abs().max() > 0.01
    if policy == "lora-2":  # merged: the same sum in another order
        assert torch.allclose(again.states(batch), states, atol=1e-5)
        assert again.model.state_dict().keys() == base.model.state_dict().keys()
    else:
        assert torch.equal(again.states(batch), states)
    assert again.fingerprint == encoder.fingerprint != before
    again.changed()
    if policy != "lora-2":
        assert again.fingerprint == encoder.fingerprint, "read from the weights as they are"
    base.changed()
    assert base.fingerprint == before, "an encoder that shares nothing but its files"
    assert torch.equal(base.states(batch), unmoved)
    assert Encoder.load(str(toy_encoder(architecture))).fingerprint == before


def test_lora_merges_to_the_closed_formula(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tiny_bert, "lora-2", tmp_path / "d")
    monkeypatch.setitem(sys.modules, "peft", None)  # is needed to train alone
    tensors, _ = read_tensors(folder / "delta.safetensors")
    base, merged = (Encoder.load(str(place)).model.state_dict() for place in (tiny_bert, folder))
    touched = {name.partition(".lora_")[0] for name in tensors}
    assert len(tensors) == 2 * len(touched) == 2 * 2 * 6
    for name, weight in base.items():
        module, _, last = name.rpartition(".")
        if module in touched and last == "weight":
            first, second = (tensors[f"{module}.lora_{part}.default.weight"] for part in "AB")
            expected = weight + 2 * second @ first
            assert torch.allclose(merged[name], expected, atol=1e-7)
            assert not torch.equal(merged[name], weight)
        else:
            assert torch.equal(merged[name], weight), name


def test_what_stands_in_a_delta(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_bert.parent)
    folder = saved(tiny_bert.name, "houlsby-4", tmp_path / "d")
    about = read_json(folder / "delta.json")
    plain = Encoder.load(str(tiny_bert))
    assert (about["format"], about["policy"]) == (1, "houlsby-4")
    assert about["base"] == str(tiny_bert.resolve()), "found from any working folder"
    assert about["base_fingerprint"] == plain.fingerprint
    tensors, _ = read_tensors(folder / "delta.safetensors")
    norms = {name for name in plain.model.state_dict() if "LayerNorm" in name}
    assert {name for name in tensors if "houlsby" not in name} == norms
    monkeypatch.chdir(tmp_path)
    again = Encoder.load("d")
    assert (again.name, again.fingerprint) == ("d", about["fingerprint"])
    assert again.configuration == plain.configuration
    embedded = saved("embedded", "bitfit", tmp_path / "e")
    assert read_json(embedded / "delta.json")["base"] == "embedded", "a base by its name"
    assert Encoder.load(str(embedded)).num_states == 7


# ---- a delta of a delta


@pytest.mark.parametrize("first", POLICIES)
@pytest.mark.parametrize("second", ["bitfit", "top-1", "lora-2", "houlsby-2"])
def test_tuning_goes_on_from_a_delta(first: str, second: str, tiny_bert: Path, tmp_path: Path) -> None:
    folder = saved(tiny_bert, first, tmp_path / "first")
    if first == "houlsby-4" and second in ("lora-2", "houlsby-2"):
        with pytest.raises(ConfigError, match=rf"--policy {second}: .* has adapters already"):
            trained(folder, second)
        return
    encoder = trained(folder, second, amount=0.02)
    encoder.save(tmp_path / "second")
    whole = first != "houlsby-4" and second == "top-1"
    assert (tmp_path / "second" / "model.safetensors").exists() == whole
    if not whole:
        assert read_json(tmp_path / "second" / "delta.json")["base"] == str(folder.resolve())
    again = Encoder.load(str(tmp_path / "second"), device="cpu")
    assert again.fingerprint == encoder.fingerprint != Encoder.load(str(folder)).fingerprint
    assert torch.allclose(again.states(some_batch(again)), encoder.states(some_batch(encoder)), atol=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_loaded_delta_saved_again_is_the_same_delta(policy: str, tiny_bert: Path, tmp_path: Path) -> None:
    folder = saved(tiny_bert, policy, tmp_path / "d")
    Encoder.load(str(folder)).save(tmp_path / "again")
    for file in ("delta.json", "delta.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (folder / file).read_bytes()
    encoder = Encoder.load(str(folder))
    encoder.model.encoder.layer[0].output.dense.bias.data += 1
    encoder.changed()
    encoder.save(tmp_path / "changed")  # of merged matrices nothing but the whole stands for itself
    assert (tmp_path / "changed" / "model.safetensors").exists() == (policy == "lora-2")
    if policy != "houlsby-4":  # which did not train that bias
        assert Encoder.load(str(tmp_path / "changed")).fingerprint == encoder.fingerprint


# ---- copies in the middle of training


@pytest.mark.parametrize("policy", ["full", *POLICIES])
def test_a_copy_is_the_same_encoder_and_training_is_not_touched(
    policy: str, tiny_bert: Path, tmp_path: Path
) -> None:
    encoder = trained(tiny_bert, policy)
    batch = some_batch(encoder)
    encoder.model.train()
    gradient_states(encoder, batch).pow(2).sum().backward()
    places = {name: (p.data_ptr(), p.requires_grad) for name, p in encoder.model.named_parameters()}
    twin = encoder.copy()
    assert encoder.model.training
    assert {name: (p.data_ptr(), p.requires_grad) for name, p in encoder.model.named_parameters()} == places
    assert not {pointer for pointer, _ in places.values()} & {p.data_ptr() for p in twin.model.parameters()}
    assert not any(p.requires_grad for p in twin.model.parameters())
    assert twin.fingerprint == encoder.fingerprint
    states = twin.states(batch)
    twin.save(tmp_path / "twin")
    encoder.save(tmp_path / "own")
    for folder in ("twin", "own"):
        loaded = Encoder.load(str(tmp_path / folder), device="cpu")
        assert loaded.fingerprint == encoder.fingerprint
        assert torch.equal(loaded.states(batch), states), "what is evaluated is what is saved"
    for parameter in encoder.model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.5
    assert torch.equal(twin.states(batch), states)
    encoder.changed()
    assert encoder.copy().fingerprint == encoder.fingerprint != twin.fingerprint


# ---- what is refused


def _about(folder: Path, **values: Any) -> None:
    write_json(folder / "delta.json", read_json(folder / "delta.json") | values)


def _first(folder: Path, part: str, value: Any, *, honest: bool) -> None:
    """Give the first tensor whose name holds `part` another value; `honest` keeps delta.json's fingerprint right."""
    from bertvision.encoder.load import Delta

    tensors, _ = read_tensors(folder / "delta.safetensors")
    tensors[next(name for name in sorted(tensors) if part in name)] = value
    write_tensors(folder / "delta.safetensors", tensors)
    about = read_json(folder / "delta.json")
    delta = Delta(parse_policy(about["policy"]), "", about["base_fingerprint"])
    _about(folder, fingerprint=delta.fingerprint(tensors) if honest else about["fingerprint"])


BROKEN: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "cut tensors": ("bitfit", lambda f: halve(f / "delta.safetensors"), r"delta\.safetensors is damaged"),
    "cut about": ("bitfit", lambda f: halve(f / "delta.json"), r"delta\.json is not valid JSON"),
    "another format": ("bitfit", lambda f: _about(f, format=2), "not a delta of format 1.*the bertvision that wrote"),
    "no base": ("bitfit", lambda f: _about(f, base=None), "or not a whole one"),
    "other tensors": ("bitfit", lambda f: _first(f, "bias", torch.zeros(32), honest=False), "do not belong together"),
    "other shape": ("bitfit", lambda f: _first(f, "bias", torch.zeros(7), honest=True), "does not fit"),
    "thin lora": ("lora-2", lambda f: _first(f, "lora_A", torch.ones(2, 1), honest=True), "does not fit"),
    "gone base": (
        "bitfit", lambda f: _about(f, base="/no/such/encoder"),
        r"there is no encoder folder '/no/such/encoder': .* is a delta of it: .* correct \"base\" in delta\.json",
    ),
    "its own base": ("bitfit", lambda f: _about(f, base=str(f)), "is a delta of itself"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_delta_is_one_sentence(case: str, tiny_bert: Path, tmp_path: Path) -> None:
    policy, spoil, words = BROKEN[case]
    folder = saved(tiny_bert, policy, tmp_path / "d")
    Encoder.load(str(folder))
    spoil(folder)
    with pytest.raises(BertvisionError, match=words) as caught:
        Encoder.load(str(folder))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_another_base_is_refused_and_both_are_named(tiny_bert: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_bert, base)
    folder = saved(base, "houlsby-4", tmp_path / "d")
    right = Encoder.load(str(folder)).fingerprint
    shutil.rmtree(base)
    save_encoder(base, "bert", seed=9)
    other = Encoder.load(str(base)).fingerprint
    own = Encoder.load(str(tiny_bert)).fingerprint
    words = rf"fingerprint {own[:12]}, but .*base has {other[:12]}: put the base back, or correct \"base\" in"
    with pytest.raises(BertvisionError, match=words):
        Encoder.load(str(folder))
    _about(folder, base=str(tiny_bert))
    assert Encoder.load(str(folder)).fingerprint == right, "the way out works"
    # Another tokenizer makes another base.
    shutil.copytree(tiny_bert, base, dirs_exist_ok=True)
    _about(folder, base=str(base))
    Encoder.load(str(folder))
    file = base / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"built"', '"bilt"'), encoding="utf-8")
    with pytest.raises(BertvisionError, match="put the base back"):
        Encoder.load(str(folder))
