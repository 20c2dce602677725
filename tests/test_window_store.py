"""Windows on disk: found again, never confused, never trusted when damaged."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertvision.data import cutting
from bertvision.data.cutting import default_cache_dir, make_windows, windows_for
from bertvision.data.examples import Answer, Example, SpanData, TextData, TextExample, answerable
from bertvision.data.windows import WindowConfig, Windows, pack_windows
from bertvision.encoder.load import load_tokenizer

SPANS = SpanData(
    ["The mill was built by Nora Lind in 1820. " * 5, "It burned."],
    [Example("a", "Who built it?", 0, (Answer("Nora Lind", 22),)), Example("b", "Who sold it?", 1)],
)
LABELS = TextData(
    [TextExample("a", "mill " * 60, None, 1), TextExample("b", "x", None, 0)], "label", ("n", "y")
)
SCORES = TextData([TextExample("a", "mill", "road " * 60, 2.5), TextExample("b", "x", "y", None)], "score")
DATA: dict[str, SpanData | TextData] = {
    "spans": SPANS, "labels": LABELS, "scores": SCORES, "answerable": answerable(SPANS),
}  # fmt: skip
CONFIG = WindowConfig(40, 16, 10)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the data whose windows were really made."""
    names: list[str] = []

    def count(data: Any, *args: Any) -> Windows:
        names.append(data.name)
        return make_windows(data, *args)

    monkeypatch.setattr(cutting, "make_windows", count)
    return names


def get(cache_dir: Path | None, data: SpanData | TextData = SPANS) -> bytes:
    tokenizer = load_tokenizer("embedded")
    return pack_windows(
        windows_for(data, tokenizer, CONFIG, tokenizer_fingerprint="t", cache_dir=cache_dir)[0]
    )


@pytest.mark.parametrize("kind", DATA)
def test_the_second_time_they_are_read(tmp_path: Path, made: list[str], kind: str) -> None:
    first = get(tmp_path, DATA[kind])
    # A new object under another name: only the content counts.
    assert get(tmp_path, replace(DATA[kind], name="other")) == first
    assert len(made) == 1
    assert [f.suffix for f in (tmp_path / "windows").iterdir()] == [".safetensors"]
    get(None, DATA[kind])
    assert len(made) == 2, "nothing is kept without a folder"


def test_whatever_decides_the_windows_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer("embedded")

    def key(data: SpanData | TextData = SPANS, config: WindowConfig = CONFIG, name: str = "t") -> str:
        return windows_for(data, tokenizer, config, tokenizer_fingerprint=name, cache_dir=None)[1]

    renamed = replace(SPANS.examples[1], question="Who sold?")
    changed: dict[str, Any] = {
        "max_seq_length": 41, "max_query_length": 17, "doc_stride": 11, "stride": "overlap", "segments": False,
        "apart": True,
    }  # fmt: skip
    keys = [
        *map(key, DATA.values()),
        key(name="u"),
        key(SpanData(SPANS.paragraphs, [SPANS.examples[0], renamed])),
        key(SpanData([*SPANS.paragraphs[:1], "It burnt."], SPANS.examples)),
        key(SPANS.take([1, 0])),
        key(replace(LABELS, examples=[replace(e, label=1) for e in LABELS.examples])),
        key(replace(LABELS, classes=("a", "b"))),
        *(key(LABELS, replace(CONFIG, **{name: value})) for name, value in changed.items()),
    ]
    monkeypatch.setattr(tokenizer, "model_input_names", ["input_ids"])
    keys.append(key())
    monkeypatch.undo()
    monkeypatch.setattr(cutting, "SCHEMA", -1)
    keys.append(key())
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("harm", ["cut", "empty", "flip", "text", "header"])
def test_a_damaged_file_is_made_again(
    tmp_path: Path, made: list[str], harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = get(tmp_path)
    (path,) = (tmp_path / "windows").iterdir()
    whole = path.read_bytes()
    path.write_bytes({
        "cut": whole[:-100], "empty": b"", "flip": whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        "text": b"not a tensor file", "header": whole.replace(b"crc32", b"crc31"),
    }[harm])  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert get(tmp_path) == first
    assert "is damaged" in caplog.text
    assert get(tmp_path) == first
    assert len(made) == 2


def test_a_folder_that_cannot_be_written_only_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        assert get(tmp_path / "file") == get(None)
    assert "are not kept" in caplog.text
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("BERTVISION_CACHE")
    assert default_cache_dir() == Path.home() / ".cache" / "bertvision"
