"""What `cache extract` keeps, a fit reads: by the same settings, by the flags it names, by the store's key alone."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_runner import WINDOWS, answered, as_json, forbid_encoding
from cli_runner import bertvision
from safetensors.numpy import load_file
from text_tables import write_labels

from bertvision.data.windows import unpack_windows

Source = tuple[str | Path, ...]


@pytest.fixture(scope="module")
def source(tiny_bert: Path, toy_squad: Path) -> Source:
    return (tiny_bert, "--data", toy_squad, *WINDOWS)


def fitted(out: Path, *words: str | Path) -> str:
    """Where a fit found its states."""
    done = bertvision("fit", *words, "--epochs", "2", "--out", out, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)["states"]


@pytest.mark.parametrize("how", ["stored", "auto"])
@pytest.mark.parametrize("flags", [(), ("layers", "0,2", "dtype", "int8", "positions", "context")])
def test_a_fit_after_an_extraction_does_not_encode(
    how: str, flags: tuple[str, ...], source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, _, data, *windows = source
    own = [f"--{word}" if i % 2 == 0 else word for i, word in enumerate(flags)]
    theirs = [f"--states.{word}" if i % 2 == 0 else word for i, word in enumerate(flags)]
    answered("extract", *source, "--store", tmp_path / "stores", "--max-examples", "20", *own)
    forbid_encoding(monkeypatch)
    fit = (encoder, "--train", data, *windows, "--heads", "learned_pooling", *theirs,
           "--states.store", tmp_path / "stores", "--states.source", how)  # fmt: skip
    assert fitted(tmp_path / "fit", *fit, "--max-train-examples", "20") == "stored"
    assert len(list((tmp_path / "stores").iterdir())) == 1
    with pytest.raises(AssertionError, match="the encoder was asked"):  # other data, another store
        fitted(tmp_path / "other", *fit, "--max-train-examples", "21")


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-examples", "7", "--precision", "fp32"),
        ("--precision", "bf16"),
        ("--dtype", "int8", "--layers=-1,0", "--positions", "context"),
    ],
)
def test_the_flags_it_names_lead_to_its_store(
    flags: tuple[str, ...], source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = as_json("extract", *source, *flags, "--store", tmp_path / "stores")
    forbid_encoding(monkeypatch)
    found = fitted(
        tmp_path / "h", source[0], "--train", source[2], "--heads", "last_state", *result["flags"].split()
    )
    assert found == "stored"


def test_a_store_is_fitted_on_without_its_data(
    tiny_bert: Path, toy_squad: Path, toy_encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same heads as from the data, which is gone by then; states of other settings are found by the key alone."""
    data = shutil.copy(toy_squad, tmp_path / "data.json")
    stores = tmp_path / "stores"
    cut = ("--dtype", "fp32", "--layers", "0,2", "--store", stores)
    made = as_json("extract", tiny_bert, "--data", data, *WINDOWS, *cut)
    flags = ("--heads", "last_state", "--states.store", stores)
    fitted(tmp_path / "a", tiny_bert, "--train", data, *flags, *made["flags"].split())
    Path(data).unlink()
    for words, said in (
        ((toy_encoder("roberta"),), "name the encoder it was made with"),
        ((tiny_bert, "--max-train-examples", "3"), "--max-train-examples"),
        ((tiny_bert, "--max-seq-length", "48"), "has windows of its own"),
        ((tiny_bert, "--states.layers", "0"), "has layers and positions of its own"),
        ((tiny_bert, "--dev", f"store:{made['key']}"), "has no examples to score"),
    ):
        fit = ("fit", *words, "--train", f"store:{made['key']}", *flags, "--out", tmp_path / "h")
        done = bertvision(*fit)
        assert done.code == 2
        assert said in done.err
        assert not (tmp_path / "h").exists()
    forbid_encoding(monkeypatch)
    for number, name in enumerate((made["key"][:8], made["store"])):
        out = tmp_path / f"b{number}"
        fitted(out, tiny_bert, "--train", f"store:{name}", *flags)
        for file in ("config.json", "model.safetensors"):
            head = "last-state.seed0"
            assert (out / head / file).read_bytes() == (tmp_path / "a" / head / file).read_bytes()


# ---- texts


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labels(tmp_path_factory.mktemp("data") / "train.csv", 0)


def heads(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: load_file(path) for path in folder.glob("*/model.safetensors")}


def test_the_flags_of_texts_lead_to_their_store(
    tiny_bert: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt with quotes, no segment ids; the heads are those of states that were never stored."""
    asked = ("--no-segments", "--text.prompt", 'Is it "so", or isn\'t it?', "--max-seq-length", "64")
    fit = (tiny_bert, "--train", table, "--heads", "mean_pooler", "tenney_small")
    fitted(tmp_path / "live", *fit, *asked, "--states.source", "live")
    made = as_json(
        "extract", tiny_bert, "--data", table, *asked, "--store", tmp_path / "stores", "--dtype", "fp32"
    )
    forbid_encoding(monkeypatch)
    assert fitted(tmp_path / "stored", *fit, *shlex.split(made["flags"])) == "stored"
    first, second = heads(tmp_path / "live"), heads(tmp_path / "stored")
    assert first.keys() == second.keys() == {"mean-pooler.seed0", "tenney-small.seed0"}
    for name, tensors in first.items():
        for key, tensor in tensors.items():
            assert np.abs(tensor - second[name][key]).max() < 1e-6, (name, key)


def test_stores_of_texts(
    tiny_bert: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[CLS] alone is enough for heads that read no more; labels have no meaning without the data."""
    extract = ("extract", tiny_bert, "--data", table, *WINDOWS, "--store", tmp_path / "stores")
    small, whole = as_json(*extract, "--positions", "cls"), as_json(*extract)
    assert small["bytes"] < whole["bytes"] / 4
    assert "store:" not in answered(*extract).out
    assert unpack_windows((Path(whole["store"]) / "windows.safetensors").read_bytes()) is not None
    done = bertvision(
        "fit", tiny_bert, "--train", f"store:{whole['key']}", "--heads", "tenney_small", "--states.store",
        tmp_path / "stores", "--out", tmp_path / "h",
    )  # fmt: skip
    assert done.code == 2
    assert "name the data instead" in done.err
    forbid_encoding(monkeypatch)
    fit = (tiny_bert, "--train", table, *WINDOWS, "--states.source", "stored", "--states.store")
    for head in ("adapter_pooler:size=4", "mean_pooler"):
        fitted(tmp_path / head.partition(":")[0], *fit, tmp_path / "stores", "--heads", head)
