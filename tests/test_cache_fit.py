"""What `cache extract` keeps, a fit reads: by the same settings, by the flags it names, by the store's key alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cache_runner import WINDOWS, answered, as_json, forbid_encoding
from cli_runner import bertvision


@pytest.fixture
def source(tiny_bert: Path, toy_squad: Path) -> tuple[str | Path, ...]:
    return (tiny_bert, "--data", toy_squad, *WINDOWS)


@pytest.mark.parametrize("how", ["stored", "auto"])
@pytest.mark.parametrize("flags", [(), ("layers", "0,2", "dtype", "int8", "positions", "context")])
def test_a_fit_after_an_extraction_does_not_encode(
    how: str, flags: tuple[str, ...], source: tuple[str | Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    encoder, _, data, *windows = source
    own = [f"--{word}" if i % 2 == 0 else word for i, word in enumerate(flags)]
    theirs = [f"--states.{word}" if i % 2 == 0 else word for i, word in enumerate(flags)]
    answered("extract", *source, "--store", tmp_path / "stores", "--max-examples", "20", *own)
    forbid_encoding(monkeypatch)
    fit = ("fit", encoder, "--train", data, *windows, "--heads", "learned_pooling", "--epochs", "2",
           "--states.store", tmp_path / "stores", "--states.source", how, "--json", *theirs)  # fmt: skip
    outcome = bertvision(*fit, "--max-train-examples", "20", "--out", tmp_path / "fit")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["states"] == "stored"
    assert len(list((tmp_path / "stores").iterdir())) == 1
    with pytest.raises(AssertionError, match="the encoder was asked"):  # other data, another store
        bertvision(*fit, "--max-train-examples", "21", "--out", tmp_path / "other")


def test_the_flags_it_names_lead_to_its_store(
    source: tuple[str | Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = ("--dtype", "int8", "--layers=-1,0", "--positions", "context", "--store", tmp_path / "stores")
    flags = as_json("extract", *source, *cut)["flags"].split()
    forbid_encoding(monkeypatch)
    fitted = bertvision(
        "fit", source[0], "--train", source[2], "--heads", "last_state", "--out", tmp_path / "h", *flags
    )
    assert fitted.code == 0, fitted.err


def test_a_store_is_fitted_on_without_its_data(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same heads as from the data, which is gone by then; states of other settings are found by the key alone."""
    data = shutil.copy(toy_squad, tmp_path / "data.json")
    cut = ("--dtype", "fp32", "--layers", "0,2", "--store", tmp_path / "stores")
    made = as_json("extract", tiny_bert, "--data", data, *WINDOWS, *cut)
    flags = ("--heads", "last_state", "--epochs", "2", "--states.store", tmp_path / "stores")
    first = bertvision(
        "fit", tiny_bert, "--train", data, *flags, "--out", tmp_path / "a", *made["flags"].split()
    )
    assert first.code == 0, first.err
    Path(data).unlink()
    forbid_encoding(monkeypatch)
    for number, name in enumerate((made["key"][:8], made["store"])):
        out = tmp_path / f"b{number}"
        second = bertvision("fit", tiny_bert, "--train", f"store:{name}", *flags, "--out", out)
        assert second.code == 0, second.err
        for file in ("config.json", "model.safetensors"):
            head = "last-state.seed0"
            assert (out / head / file).read_bytes() == (tmp_path / "a" / head / file).read_bytes()


def test_states_of_another_encoder_are_refused(
    source: tuple[str | Path, ...], toy_encoder: Any, tmp_path: Path
) -> None:
    root = tmp_path / "stores"
    key = as_json("extract", *source, "--store", root)["key"]
    fit = (
        "fit",
        toy_encoder("roberta"),
        "--heads",
        "last_state",
        "--out",
        tmp_path / "h",
        "--states.store",
        root,
    )
    other = bertvision(*fit, "--train", f"store:{key}")
    assert other.code == 2
    assert "name the encoder it was made with" in other.err
    some = bertvision(*fit, "--train", f"store:{key}", "--max-train-examples", "3")
    assert some.code == 2
    assert "--max-train-examples" in some.err
    assert not (tmp_path / "h").exists()


def test_what_a_store_cannot_give_is_refused_at_once(
    source: tuple[str | Path, ...], toy_squad: Path, tmp_path: Path
) -> None:
    key = as_json("extract", *source, "--store", tmp_path / "stores")["key"]
    fit = ("fit", source[0], "--train", f"store:{key}", "--heads", "last_state", "--out", tmp_path / "h",
           "--states.store", tmp_path / "stores")  # fmt: skip
    for flags, words in (
        (("--max-seq-length", "48"), "has windows of its own"),
        (("--states.layers", "0"), "has layers and positions of its own"),
        (("--dev", f"store:{key}"), "has no questions to score"),
    ):
        done = bertvision(*fit, *flags)
        assert done.code == 2
        assert words in done.err
    run = bertvision(
        "run", "--encoder", source[0], "--train", f"store:{key}", "--dev", toy_squad, "--out", tmp_path / "r"
    )
    assert run.code == 2
    assert "has no questions to ask" in run.err
    assert not (tmp_path / "h").exists()
    assert not (tmp_path / "r").exists()
