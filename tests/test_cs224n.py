"""CS224N's sets: the files against their known sizes, the rows without labels, every mistake with its line."""

import logging
from collections import Counter
from pathlib import Path

import pytest

from bertvision.data.load import load_data
from bertvision.data.texts import TextData
from bertvision.errors import ConfigError, DataError


def load(source: str, **options: object) -> TextData:
    data = load_data(source, **options)  # pyright: ignore[reportArgumentType]
    assert isinstance(data, TextData)
    return data


# SST's shares of its five classes in train are published: 12.8, 26.0, 19.0, 27.2, 15.1 %.
SETS = [
    ("sst", "ids-sst-train", 8_544, [1_092, 2_218, 1_624, 2_322, 1_288]),
    ("sst", "ids-sst-dev", 1_101, [139, 289, 229, 279, 165]),
    ("cfimdb", "ids-cfimdb-train", 1_707, [856, 851]),
    ("cfimdb", "ids-cfimdb-dev", 245, [123, 122]),
    ("quora", "quora-train-small", 5_000, [3_144, 1_856]),
    ("quora", "quora-train-pre-left", 8_507, [5_332, 3_175]),
    ("quora", "quora-dev", 20_212, [12_627, 7_585]),
]


@pytest.mark.parametrize(("name", "file", "size", "counts"), SETS)
def test_the_sets(shared_data: Path, name: str, file: str, size: int, counts: list[int]) -> None:
    data = load(f"cs224n:{name}:{shared_data / 'cs224n' / file}.csv")
    found = Counter(e.label for e in data.examples)
    assert (len(data), [found[i] for i in range(len(data.classes))]) == (size, counts)
    assert data.pairs == (name == "quora")
    assert data.metric == "accuracy"
    assert len({e.id for e in data.examples}) == size


@pytest.mark.parametrize(("part", "size"), [("train", 6_040), ("dev", 863)])
def test_scores(shared_data: Path, part: str, size: int) -> None:
    data = load(f"cs224n:STS:{shared_data / 'cs224n'}/sts-{part}.csv")
    assert (len(data), data.kind, data.metric) == (size, "score", "pearson")
    assert {type(e.label) for e in data.examples} == {float}
    assert all(0 <= e.label <= 5 for e in data.examples if e.label is not None)


@pytest.mark.parametrize(
    ("name", "file", "size"),
    [("sst", "ids-sst", 2_210), ("cfimdb", "ids-cfimdb", 488), ("sts", "sts", 1_725)],
)
def test_test_files_have_one_more_column_and_no_labels(
    shared_data: Path, name: str, file: str, size: int
) -> None:
    source = f"cs224n:{name}:{shared_data / 'cs224n' / file}-test-student.csv"
    data = load(source, answers_required=False)
    assert len(data) == size
    assert {len(e.id) for e in data.examples} == {25}
    assert all(e.label is None for e in data.examples)
    with pytest.raises(DataError, match="can only be predicted on"):
        load_data(source)


def test_rows_without_a_label_are_named(shared_data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(f"cs224n:quora:{shared_data / 'cs224n/quora-dev.csv'}")
    assert "2 rows without a label are left out (line 2577, 14222)" in caplog.text


def test_quoras_training_set_in_two_files(shared_data: Path) -> None:
    folder = shared_data / "cs224n"
    files = [folder / "quora-train-small.csv", folder / "quora-train-pre-left.csv"]
    both = load(f"cs224n:quora:{files[0]},{files[1]}")
    assert len(both) == 13_507
    apart = [load(f"cs224n:quora:{file}").examples for file in files]
    assert both.examples == [*apart[0], *apart[1]]


def write(folder: Path, *rows: str) -> Path:
    path = folder / "set.csv"
    path.write_text("".join(row.replace("|", "\t") + "\n" for row in rows), encoding="utf-8")
    return path


def test_cells_in_quotes(tmp_path: Path) -> None:
    path = write(tmp_path, "|id|sentence1|sentence2|is_duplicate", '7|a|"""Why"" is it?"| Why ? |1.0')
    (example,) = load(f"cs224n:quora:{path}").examples
    assert (example.first, example.second, example.label) == ('"Why" is it?', "Why ?", 1)


SST = "|id|sentence|sentiment"
MISTAKES = {
    "empty": ([], r"set\.csv is empty; give a file of CS224N's sst"),
    "only a header": ([SST], r"set\.csv: there is no text in it"),
    "other columns": (
        ["id|body", "1|x"],
        r"set\.csv:1 has no column sentence and sentiment \(it has id, body\); is it",
    ),
    "a cell too few": ([SST, "0|a|good|3", "1|b|bad"], r"set\.csv:3 has 3 cells where the header has 4"),
    "unknown label": ([SST, "0|a|good|5"], r"set\.csv:2: the label '5' is none of 0, 1, 2, 3, 4"),
    "no label": ([SST, "0|a|good|"], r"set\.csv:2: there is no label"),
    "same id twice": ([SST, "0|a|good|3", "1|a|bad|1"], r"set\.csv:3: the id was already used"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_one_sentence_with_its_line(tmp_path: Path, mistake: str) -> None:
    rows, message = MISTAKES[mistake]
    with pytest.raises(DataError, match=message) as told:
        load_data(f"cs224n:sst:{write(tmp_path, *rows)}")
    assert "\n" not in str(told.value)


def test_unknown_sets() -> None:
    with pytest.raises(ConfigError, match=r"CS224N has no set 'imdb'; choose one of sst, cfimdb, sts, quora"):
        load_data("cs224n:imdb:x.csv")
    with pytest.raises(ConfigError, match="needs a file"):
        load_data("cs224n:sst")
