"""Windows on disk: found again, never confused, never trusted when damaged."""

import json
import logging
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save

from bertvision.data import window_store
from bertvision.data.examples import Answer, Example, SpanData
from bertvision.data.window_store import default_cache_dir, windows_fingerprint, windows_for
from bertvision.data.windows import WindowConfig, Windows, make_windows
from bertvision.encoder.load import load_tokenizer

DATA = SpanData(
    ["The mill was built by Nora Lind in 1820. " * 5, "It burned."],
    [Example("a", "Who built it?", 0, (Answer("Nora Lind", 22),)), Example("b", "Who sold it?", 1)],
)
CONFIG = WindowConfig(40, 16, 10)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("embedded")


class Counter:
    """Counts how often windows are really made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        monkeypatch.setattr(window_store, "make_windows_of", self)

    def __call__(self, *args: Any) -> Windows:
        self.calls += 1
        return make_windows(*args)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


def get(tokenizer: Any, cache_dir: Path | None, data: SpanData = DATA) -> Windows:
    return windows_for(data, tokenizer, CONFIG, tokenizer_fingerprint="t", cache_dir=cache_dir)


def test_the_second_time_they_are_read(tokenizer: Any, tmp_path: Path, counter: Counter) -> None:
    made = get(tokenizer, tmp_path)
    # A new object under another name: only the content counts.
    read = get(tokenizer, tmp_path, SpanData(list(DATA.paragraphs), list(DATA.examples), name="other"))
    assert counter.calls == 1
    assert read.equals(made)
    assert read.best.dtype == made.best.dtype
    assert read.offsets.dtype == made.offsets.dtype
    assert [f.suffix for f in (tmp_path / "windows").iterdir()] == [".safetensors"]


def test_nothing_is_kept_without_a_folder(tokenizer: Any, counter: Counter) -> None:
    assert get(tokenizer, None).equals(get(tokenizer, None))
    assert counter.calls == 2


def test_whatever_decides_the_windows_changes_the_fingerprint(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(data: SpanData = DATA, config: WindowConfig = CONFIG, name: str = "t") -> str:
        return windows_fingerprint(data, tokenizer, config, tokenizer_fingerprint=name)

    renamed = replace(DATA.examples[1], question="Who sold?")
    keys = [
        key(),
        key(name="u"),
        key(SpanData(DATA.paragraphs, [DATA.examples[0], renamed])),
        key(SpanData([*DATA.paragraphs[:1], "It burnt."], DATA.examples)),
        key(DATA.take([1, 0])),
        key(config=replace(CONFIG, max_seq_length=41)),
        key(config=replace(CONFIG, max_query_length=17)),
        key(config=replace(CONFIG, doc_stride=11)),
        key(config=replace(CONFIG, stride="overlap")),
    ]
    monkeypatch.setattr(tokenizer, "model_input_names", ["input_ids"])
    keys.append(key())
    monkeypatch.undo()
    monkeypatch.setattr(window_store, "SCHEMA", -1)
    keys.append(key())
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("harm", ["cut", "empty", "flip", "text"])
def test_a_damaged_file_is_made_anew(
    tokenizer: Any, tmp_path: Path, counter: Counter, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = get(tokenizer, tmp_path)
    (path,) = (tmp_path / "windows").iterdir()
    whole = path.read_bytes()
    flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    path.write_bytes({"cut": whole[:-100], "empty": b"", "flip": flipped, "text": b"not a tensor file"}[harm])
    with caplog.at_level(logging.WARNING):
        assert get(tokenizer, tmp_path).equals(made)
    assert "made anew" in caplog.text
    assert get(tokenizer, tmp_path).equals(made)
    assert counter.calls == 2


@pytest.mark.parametrize("form", ["one entry", "an entry for each array"])
@pytest.mark.parametrize("right", [True, False])
def test_checksums_of_both_forms_are_read(
    tokenizer: Any, tmp_path: Path, counter: Counter, form: str, right: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = get(tokenizer, tmp_path)
    (path,) = (tmp_path / "windows").iterdir()
    arrays = {field.name: getattr(made, field.name) for field in fields(made)}
    sums = {name: zlib.crc32(array.tobytes()) for name, array in arrays.items()}
    sums["labels"] += not right
    each = {name: str(value) for name, value in sums.items()}
    path.write_bytes(save(arrays, metadata={"crc32": json.dumps(sums)} if form == "one entry" else each))
    with caplog.at_level(logging.WARNING):
        assert get(tokenizer, tmp_path).equals(made)
    assert ("damaged" not in caplog.text) == right
    assert counter.calls == (1 if right else 2)


def test_a_folder_that_cannot_be_written_only_warns(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        assert len(get(tokenizer, tmp_path / "file")) > 2
    assert "are not kept" in caplog.text


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("BERTVISION_CACHE")
    assert default_cache_dir() == Path.home() / ".cache" / "bertvision"
