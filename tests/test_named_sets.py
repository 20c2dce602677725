"""GLUE and CS224N: the published files against their known sizes, every mistake with its line, submissions."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bertvision.data.examples import TextData
from bertvision.data.load import load_data, write_submission
from bertvision.errors import BertvisionError, ConfigError, DataError


def load(source: str, **options: Any) -> TextData:
    data = load_data(source, **options)
    assert isinstance(data, TextData)
    return data


def write(folder: Path, *rows: str, name: str = "train.tsv") -> Path:
    path = folder / name
    path.write_text("".join(row.replace("|", "\t") + "\n" for row in rows), encoding="utf-8")
    return path


# Sizes of the benchmark's paper and of the copy on the Hub; classes counted in the files by hand. SST's shares of its
# five classes in train are published: 12.8, 26.0, 19.0, 27.2, 15.1 %.
SETS: list[tuple[str, str, int, dict[int, int]]] = [
    ("glue:CoLA", "CoLA/dev.tsv", 1_043, {1: 721}),
    ("glue:SST-2", "SST-2/dev.tsv", 872, {1: 444}),
    ("glue:MRPC", "MRPC/dev.tsv", 408, {1: 279}),
    ("glue:MRPC", "MRPC/msr_paraphrase_train.txt", 4_076, {1: 2_753}),
    ("glue:RTE", "RTE/dev.tsv", 277, {1: 131}),
    ("glue:WNLI", "WNLI/dev.tsv", 71, {1: 31}),
    ("glue:QNLI", "QNLI/dev.tsv", 5_463, {1: 2_761}),
    ("glue:QQP", "kshot16/QQP/16-13/train.tsv", 32, {1: 16}),
    ("glue:MNLI", "kshot16/MNLI/16-42/dev_matched.tsv", 48, {1: 16}),
    ("cs224n:sst", "ids-sst-train.csv", 8_544, {0: 1_092, 1: 2_218, 2: 1_624, 3: 2_322, 4: 1_288}),
    ("cs224n:cfimdb", "ids-cfimdb-dev.csv", 245, {0: 123, 1: 122}),
    ("cs224n:quora", "quora-train-small.csv", 5_000, {0: 3_144, 1: 1_856}),
    ("cs224n:quora", "quora-train-pre-left.csv", 8_507, {0: 5_332, 1: 3_175}),
    ("cs224n:quora", "quora-dev.csv", 20_212, {0: 12_627, 1: 7_585}),
]


def source(shared_data: Path, name: str, file: str) -> str:
    return f"{name}:{shared_data / name.partition(':')[0] / file}"


@pytest.mark.parametrize(("name", "file", "size", "counts"), SETS)
def test_the_published_sets(
    shared_data: Path, name: str, file: str, size: int, counts: dict[int, int]
) -> None:
    data = load(source(shared_data, name, file))
    found = Counter(e.label for e in data.examples)
    assert (len(data), {label: found[label] for label in counts}) == (size, counts)
    assert len({e.id for e in data.examples}) == size
    assert data.labelled
    assert data.positive == 1
    assert data.metric == {"CoLA": "mcc", "MRPC": "f1", "QQP": "f1"}.get(name.partition(":")[2], "accuracy")
    assert data.pairs == (name.partition(":")[2] not in ("CoLA", "SST-2", "sst", "cfimdb"))


@pytest.mark.parametrize(
    ("name", "file", "size", "mean"),
    [("glue:sts-b", "STS-B/train.tsv", 5_749, 2.701), ("glue:sts-b", "STS-B/dev.tsv", 1_500, 2.364),
     ("cs224n:STS", "sts-train.csv", 6_040, None), ("cs224n:STS", "sts-dev.csv", 863, None)],
)  # fmt: skip
def test_scores(shared_data: Path, name: str, file: str, size: int, mean: float | None) -> None:
    data = load(source(shared_data, name, file))
    assert (len(data), data.kind, data.classes, data.metric) == (size, "score", (), "pearson")
    scores = [e.label for e in data.examples if e.label is not None]
    assert (len(scores), min(scores), max(scores)) == (size, 0.0, 5.0)
    assert mean is None or sum(scores) / size == pytest.approx(mean, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "file", "size"),
    [("glue:CoLA", "CoLA/test.tsv", 1_063), ("glue:MRPC", "MRPC/test.tsv", 1_725),
     ("glue:STS-B", "STS-B/test.tsv", 1_379), ("glue:QNLI", "QNLI/test.tsv", 5_463),
     ("cs224n:sst", "ids-sst-test-student.csv", 2_210), ("cs224n:sts", "sts-test-student.csv", 1_725)],
)  # fmt: skip
def test_test_sets_have_no_labels(shared_data: Path, name: str, file: str, size: int) -> None:
    data = load(source(shared_data, name, file), answers_required=False)
    ids = [e.id for e in data.examples]
    assert len(ids) == size
    assert ids == [str(i) for i in range(size)] if "glue" in name else {len(id) for id in ids} == {25}
    assert all(e.label is None for e in data.examples)
    with pytest.raises(DataError, match=r"has no column .* can only be predicted on"):
        load_data(source(shared_data, name, file))


def test_names_in_any_case(tmp_path: Path) -> None:
    path = write(tmp_path, "sentence|label", "fine|1", "bad|0")
    for name in ("SST-2", "sst2", "Sst_2"):
        assert [e.label for e in load(f"glue:{name}:{path}").examples] == [1, 0]
    for wrong, message in (
        (f"glue:boolq:{path}", r"glue has no set 'boolq'; choose one of CoLA, SST-2"),
        ("cs224n:imdb:x", r"cs224n has no set 'imdb'; choose one of sst, cfimdb, sts, quora"),
        ("glue:RTE", "needs a file"),
        ("cs224n:sst", "needs a file"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_data(wrong)


def test_quotes_are_characters_in_glue_and_marks_in_cs224n(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes(
        b'\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\t" He said .\tHe said "\r\n'
    )
    (example,) = load(f"glue:MRPC:{path}").examples
    assert (example.id, example.first, example.second, example.label) == ("0", '" He said .', 'He said "', 1)
    path = write(tmp_path, "|id|sentence1|sentence2|is_duplicate", '7|a|"""Why"" is it?"| Why ? |1.0')
    (example,) = load(f"cs224n:quora:{path}").examples
    assert (example.first, example.second, example.label) == ('"Why" is it?', "Why ?", 1)


def test_cola_with_and_without_header(tmp_path: Path) -> None:
    bare = write(tmp_path, "gj04|1||They left.", "gj04|0|*|Them left.")
    found = [(e.first, e.label) for e in load(f"glue:cola:{bare}").examples]
    assert found == [("They left.", 1), ("Them left.", 0)]
    headed = write(tmp_path, "index|sentence", "7|They left.", name="test.tsv")
    (example,) = load(f"glue:cola:{headed}", answers_required=False).examples
    assert (example.id, example.first) == ("7", "They left.")


def test_broken_rows_of_quora_are_left_out_with_their_lines(
    tmp_path: Path, shared_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    header = "id|qid1|qid2|question1|question2|is_duplicate"
    path = write(tmp_path, header, "1|2|3|a|b|1", "4|5|6|only", "7|8|9|c|d|", "8|8|9|e|f|0")
    with caplog.at_level(logging.WARNING):
        assert [(e.id, e.label) for e in load(f"glue:qqp:{path}").examples] == [("1", 1), ("8", 0)]
        load(source(shared_data, "cs224n:quora", "quora-dev.csv"))
    assert [text.partition(": ")[2] for text in caplog.messages] == [
        "2 rows are left out: they lack cells or a label (lines 3, 4)",
        "2 rows are left out: they lack cells or a label (lines 2577, 14222)",
    ]
    # To predict on, a row needs no label; a test set is read whole, because the submission names every row.
    whole = write(tmp_path, header, "1|2|3|a|b|1", "7|8|9|c|d|")
    found = [(e.id, e.label) for e in load(f"glue:qqp:{whole}", answers_required=False).examples]
    assert found == [("1", 1), ("7", None)]
    for row in ("1|only", "1|a|b|c"):
        test = write(tmp_path, "id|question1|question2", "0|a|b", row, name="test.tsv")
        with pytest.raises(DataError, match=r"test\.tsv:3 has . cells where the header has 3"):
            load_data(f"glue:qqp:{test}", answers_required=False)


RTE = "index|sentence1|sentence2|label"
MISTAKES: list[tuple[str, list[str], str]] = [
    ("glue:RTE", [], r"train\.tsv has no column sentence1 and sentence2; is it a file of RTE"),
    ("glue:RTE", [RTE, "0|A|B|entailment", "1|A|B"], r":3 has 3 cells .* has 4; write those"),
    ("glue:RTE", [RTE, "0|A|B|maybe"], r":2: the label 'maybe' is none of entailment, not_ent"),
    ("cs224n:sst", ["id|body", "1|x"], "has no column sentence; is it"),
    ("cs224n:sst", ["|id|sentence|sentiment", "0|a|good|5"], r":2: the label '5' is none of 0, 1, 2, 3, 4"),
]


@pytest.mark.parametrize(("name", "rows", "message"), MISTAKES)
def test_a_mistake_is_one_sentence_with_its_line(
    tmp_path: Path, name: str, rows: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message) as error:
        load_data(f"{name}:{write(tmp_path, *rows)}")
    assert "\n" not in str(error.value)


def test_options_of_a_known_set(tmp_path: Path) -> None:
    from bertvision.data.texts import Columns

    path = write(tmp_path, RTE, *(f"{i}|A|B|entailment" for i in range(5)), "5|A|B|not_entailment")
    name = f"glue:RTE:{path}"
    turned = load(name, classes=("not_entailment", "entailment"))
    assert [e.label for e in turned.examples] == [1] * 5 + [0]
    assert [e.id for e in load(name, max_examples=2).examples] == ["0", "1"]
    assert load(name, task="label").kind == "label"
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"classes": ("entailment", "neutral")}, ":7: the label 'not_entailment' is none of the classes"),
        ({"task": "score"}, "is a label task, not score"),
        ({"task": "span"}, "is a label task, not span"),
        ({"max_examples": 0}, "at least 1"),
        ({"columns": Columns(text="a")}, r"glue: knows its columns; leave out --text\.text"),
    ]
    for options, message in refusals:
        with pytest.raises(BertvisionError, match=message):
            load_data(name, **options)


# ---- submissions


def test_submissions_have_the_official_form(tmp_path: Path) -> None:
    test = write(tmp_path, "index|sentence1|sentence2", "0|A|B", "1|A|B", "2|A|B", name="test.tsv")
    for task, predicted, lines in (
        ("RTE", [0, 1, 1], ["entailment", "not_entailment", "not_entailment"]),
        ("WNLI", [0, 1, 1], ["0", "1", "1"]),
        ("STS-B", [-0.2, 2.34567, 5.3], ["0.000", "2.346", "5.000"]),
    ):
        data = load(f"glue:{task}:{test}", answers_required=False)
        path = write_submission(task.lower(), data, predicted, tmp_path / "out")
        assert path == tmp_path / "out" / f"{task}.tsv"
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        assert rows == [["index", "prediction"], *([str(i), line] for i, line in enumerate(lines))]


@pytest.mark.parametrize(
    ("name", "task", "file"),
    [("test_matched", "MNLI", "MNLI-m"), ("test_mismatched", "mnli", "MNLI-mm"), ("other", "MNLI-mm", "MNLI-mm"),
     ("diagnostic", "AX", "AX")],
)  # fmt: skip
def test_mnli_is_two_files_and_the_diagnostics_a_third(
    tmp_path: Path, name: str, task: str, file: str
) -> None:
    test = write(tmp_path, "index|sentence1|sentence2", "4|A|B", "5|A|B", name=f"{name}.tsv")
    data = load(f"glue:{'AX' if task == 'AX' else 'MNLI'}:{test}", answers_required=False)
    path = write_submission(task, data, [1, 2], tmp_path)
    assert path.name == f"{file}.tsv"
    assert path.read_text() == "index\tprediction\n4\tneutral\n5\tcontradiction\n"


def test_a_submission_goes_by_names_of_classes_and_numbers_of_rows(tmp_path: Path) -> None:
    test = write(tmp_path, "index|sentence", "0|A", "1|B", name="test.tsv")
    turned = load(f"glue:SST-2:{test}", answers_required=False, classes=("positive", "negative"))
    written = write_submission("SST-2", turned, [0, 1], tmp_path).read_text().split()
    assert written == ["index", "prediction", "0", "1", "1", "0"]
    other = load(f"glue:SST-2:{test}", answers_required=False, classes=("up", "down"))
    (tmp_path / "set.csv").write_text("text,label\nfine,positive\nbad,negative\n")
    unnumbered = load(str(tmp_path / "set.csv"))
    for data, message in ((other, "'up' is no class of SST-2"), (unnumbered, "'row-2' has no number")):
        with pytest.raises(DataError, match=message):
            write_submission("SST-2", data, [0, 1], tmp_path / "new")
    assert not (tmp_path / "new").exists()
