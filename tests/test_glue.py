"""GLUE: the published files against their known sizes, both forms of them, every mistake with its line, submissions."""

import json
import logging
from collections import Counter
from pathlib import Path

import pytest

from bertvision.data.glue import write_submission
from bertvision.data.glue_tasks import GLUE
from bertvision.data.load import load_data
from bertvision.data.texts import TextData
from bertvision.errors import BertvisionError, ConfigError, DataError


def load(source: str, **options: object) -> TextData:
    data = load_data(source, **options)  # pyright: ignore[reportArgumentType]
    assert isinstance(data, TextData)
    return data


def tsv(folder: Path, *rows: str, name: str = "train.tsv") -> Path:
    path = folder / name
    path.write_text("".join(row.replace("|", "\t") + "\n" for row in rows), encoding="utf-8")
    return path


# Sizes of the benchmark's paper and of the copy on the Hub; positive examples counted in the files by hand.
SETS = [
    ("CoLA", "CoLA/train.tsv", 8_551, 6_023),
    ("CoLA", "CoLA/dev.tsv", 1_043, 721),
    ("SST-2", "SST-2/train.tsv", 67_349, 37_569),
    ("SST-2", "SST-2/dev.tsv", 872, 444),
    ("MRPC", "MRPC/train.tsv", 3_668, 2_474),
    ("MRPC", "MRPC/dev.tsv", 408, 279),
    ("MRPC", "MRPC/msr_paraphrase_train.txt", 4_076, 2_753),
    ("RTE", "RTE/train.tsv", 2_490, 1_241),
    ("RTE", "RTE/dev.tsv", 277, 131),
    ("WNLI", "WNLI/train.tsv", 635, 312),
    ("WNLI", "WNLI/dev.tsv", 71, 31),
    ("QNLI", "QNLI/dev.tsv", 5_463, 2_761),
    ("QNLI", "sample10k/QNLI/train.json", 8_999, 4_476),
    ("QQP", "sample10k/QQP/train.json", 8_999, 3_252),
    ("QQP", "sample10k/QQP/dev.json", 1_000, 377),
    ("QQP", "kshot16/QQP/16-13/train.tsv", 32, 16),
    ("MNLI", "sample10k/MNLI/dev.json", 1_000, 333),
    ("MNLI", "kshot16/MNLI/16-42/dev_matched.tsv", 48, 16),
    ("MNLI", "kshot16/MNLI/16-42/train.tsv", 48, 16),
]


@pytest.mark.parametrize(("task", "file", "size", "ones"), SETS)
def test_the_published_sets(shared_data: Path, task: str, file: str, size: int, ones: int) -> None:
    data = load(f"glue:{task}:{shared_data / 'glue' / file}")
    assert len(data) == size
    assert Counter(e.label for e in data.examples)[1] == ones
    assert data.labelled
    assert all(e.first for e in data.examples)
    assert data.pairs == (task not in ("CoLA", "SST-2"))


@pytest.mark.parametrize(("part", "size", "mean"), [("train", 5_749, 2.701), ("dev", 1_500, 2.364)])
def test_scores(shared_data: Path, part: str, size: int, mean: float) -> None:
    data = load(f"glue:sts-b:{shared_data / 'glue' / 'STS-B' / part}.tsv")
    assert (len(data), data.kind, data.classes, data.metric) == (size, "score", (), "pearson")
    scores = [e.label for e in data.examples if e.label is not None]
    assert (min(scores), max(scores)) == (0.0, 5.0)
    assert sum(scores) / size == pytest.approx(mean, abs=5e-4)


@pytest.mark.parametrize(
    ("task", "size"),
    [("CoLA", 1_063), ("SST-2", 1_821), ("MRPC", 1_725), ("STS-B", 1_379), ("QNLI", 5_463), ("RTE", 3_000)],
)
def test_test_sets_have_no_labels_and_are_numbered(shared_data: Path, task: str, size: int) -> None:
    source = f"glue:{task}:{shared_data / 'glue' / task / 'test.tsv'}"
    data = load(source, answers_required=False)
    assert [e.id for e in data.examples] == [str(i) for i in range(size)]
    assert all(e.label is None for e in data.examples)
    if task != "STS-B":
        assert len(data.classes) == 2
    with pytest.raises(DataError, match=r"test\.tsv:1 has no column .* can only be predicted on"):
        load_data(source)


def test_what_each_task_is_judged_by() -> None:
    metrics = {task.name: task.metric for task in GLUE.values()}
    assert metrics == {
        "CoLA": "mcc", "SST-2": "accuracy", "MRPC": "f1", "QQP": "f1", "STS-B": "pearson", "MNLI": "accuracy",
        "QNLI": "accuracy", "RTE": "accuracy", "WNLI": "accuracy", "AX": "accuracy",
    }  # fmt: skip


def test_names_in_any_case(tmp_path: Path) -> None:
    path = tsv(tmp_path, "sentence|label", "fine|1", "bad|0")
    for name in ("SST-2", "sst2", "Sst_2"):
        assert [e.label for e in load(f"glue:{name}:{path}").examples] == [1, 0]
    with pytest.raises(ConfigError, match=r"no task 'boolq'; choose one of CoLA, SST-2"):
        load_data(f"glue:boolq:{path}")
    with pytest.raises(ConfigError, match="needs a file"):
        load_data("glue:RTE")


def test_quotes_are_characters_and_marks_in_front_are_not(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes(
        b'\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\t" He said .\tHe said "\r\n'
    )
    (example,) = load(f"glue:MRPC:{path}").examples
    assert (example.id, example.first, example.second, example.label) == ("0", '" He said .', 'He said "', 1)


def test_cola_with_and_without_header(tmp_path: Path) -> None:
    bare = tsv(tmp_path, "gj04|1||They left.", "gj04|0|*|Them left.")
    assert [(e.first, e.label) for e in load(f"glue:cola:{bare}").examples] == [
        ("They left.", 1),
        ("Them left.", 0),
    ]
    headed = tsv(tmp_path, "index|sentence", "7|They left.", name="test.tsv")
    (example,) = load(f"glue:cola:{headed}", answers_required=False).examples
    assert (example.id, example.first) == ("7", "They left.")


def test_mnli_has_two_dev_sets(tmp_path: Path) -> None:
    header = "index|promptID|sentence1|sentence2|label1|gold_label"
    for part in ("matched", "mismatched"):
        path = tsv(tmp_path, header, "0|3|A|B|neutral|contradiction", name=f"dev_{part}.tsv")
        (example,) = load(f"glue:MNLI:{path}").examples
        assert (example.first, example.second, example.label) == ("A", "B", 2)


def test_rows_of_qqp_that_were_cut_are_left_out_with_their_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    header = "id|qid1|qid2|question1|question2|is_duplicate"
    path = tsv(tmp_path, header, "1|2|3|a|b|1", "4|5|6|only", "7|8|9|c|d|", "8|8|9|e|f|0")
    with caplog.at_level(logging.WARNING):
        data = load(f"glue:qqp:{path}")
    assert [(e.id, e.label) for e in data.examples] == [("1", 1), ("8", 0)]
    assert caplog.messages == [
        f"{path}: 1 row without the 6 cells of the header is left out (line 3)",
        f"{path}: 1 row without a label is left out (line 4)",
    ]


def test_to_predict_on_rows_of_qqp_need_no_label(tmp_path: Path) -> None:
    header = "id|qid1|qid2|question1|question2|is_duplicate"
    path = tsv(tmp_path, header, "1|2|3|a|b|1", "7|8|9|c|d|")
    data = load(f"glue:qqp:{path}", answers_required=False)
    assert [(e.id, e.label) for e in data.examples] == [("1", 1), ("7", None)]


@pytest.mark.parametrize(
    ("row", "told"),
    [("1|only", "2 cells where the header has 3; write those it lacks"),
     ("1|a|b|c", "4 cells where the header has 3; write spaces for the tabs in its texts")],
)  # fmt: skip
def test_no_row_of_a_test_set_is_left_out(tmp_path: Path, row: str, told: str) -> None:
    """The submission would lack it."""
    path = tsv(tmp_path, "id|question1|question2", "0|a|b", row, name="test.tsv")
    with pytest.raises(DataError, match=rf"test\.tsv:3 has {told}$"):
        load_data(f"glue:qqp:{path}", answers_required=False)


def test_samples_of_pairs_are_pairs_in_every_row(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    whole = {"text_a": "A", "text_b": "B", "label": "entailment"}
    for broken, told in (
        ({**whole, "text_b": ""}, "the text is empty; remove the row or write the text"),
        ({**whole, "text_b": None}, "has no text_b; bring it into the form of the other rows"),
        ({"text_a": "A", "label": "entailment"}, "has no text_b"),
    ):
        path.write_text(json.dumps({"0": whole, "1": broken}))
        with pytest.raises(DataError, match=rf"train\.json: row '1':? {told}"):
            load_data(f"glue:RTE:{path}")
    path.write_text(
        json.dumps({"0": {"text_a": "A", "label": "1"}, "1": {"text_a": "B", "text_b": "", "label": "0"}})
    )
    assert [(e.first, e.second) for e in load(f"glue:SST-2:{path}").examples] == [("A", None), ("B", None)]


RTE = "index|sentence1|sentence2|label"
MISTAKES = {
    "empty": ([], r"train\.tsv is empty; give a file of GLUE's RTE"),
    "only a header": ([RTE], r"train\.tsv: there is no text in it"),
    "other columns": (["a|b|c", "1|2|3"], r"train\.tsv:1 has no column sentence1 and .* \(it has a, b, c\); is it"),
    "a cell too few": ([RTE, "0|A|B|entailment", "1|A|B"], r"train\.tsv:3 has 3 cells .* header has 4; write those"),
    "a cell too many": ([RTE, "0|A|B|C|entailment"], r"train\.tsv:2 has 5 cells where the header has 4; write spaces"),
    "unknown label": ([RTE, "0|A|B|maybe"], r"train\.tsv:2: the label 'maybe' is none of entailment, not_entailment"),
    "no label": ([RTE, "0|A|B|entailment", "", "1|A|B|"], r"train\.tsv:4: there is no label; write it or remove"),
    "same index twice": ([RTE, "0|A|B|entailment", "0|A|B|entailment"], r"train\.tsv:3: the id was already used"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_one_sentence_with_its_line(tmp_path: Path, mistake: str) -> None:
    rows, message = MISTAKES[mistake]
    path = tsv(tmp_path, *rows)
    with pytest.raises(DataError, match=message) as told:
        load_data(f"glue:RTE:{path}")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("score", ["high", "nan", "inf", ""])
def test_a_score_must_be_a_number(tmp_path: Path, score: str) -> None:
    path = tsv(tmp_path, "index|sentence1|sentence2|score", "0|A|B|3.5", f"1|A|B|{score}")
    with pytest.raises(DataError, match=r"train\.tsv:3: (a score must be a number|there is no label)"):
        load_data(f"glue:STS-B:{path}")


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.tsv does not exist"):
        load_data(f"glue:RTE:{tmp_path / 'none.tsv'}")
    with pytest.raises(DataError, match="is a folder; name a file in it"):
        load_data(f"glue:RTE:{tmp_path}")
    (tmp_path / "bytes.tsv").write_bytes(b"index\t\xff\xfe")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        load_data(f"glue:RTE:{tmp_path / 'bytes.tsv'}")
    (tmp_path / "cut.json").write_text('{"0": {"text_a": "A"')
    with pytest.raises(DataError, match=r"cut\.json:1 is not valid JSON"):
        load_data(f"glue:RTE:{tmp_path / 'cut.json'}")
    (tmp_path / "odd.json").write_text(json.dumps({"0": {"text": "A"}}))
    with pytest.raises(DataError, match=r"odd\.json: row '0' has no text_a"):
        load_data(f"glue:RTE:{tmp_path / 'odd.json'}")


def test_classes_of_the_training_set_decide_the_numbers(tmp_path: Path) -> None:
    path = tsv(tmp_path, RTE, "0|A|B|entailment", "1|A|B|not_entailment")
    turned = load(f"glue:RTE:{path}", classes=("not_entailment", "entailment"))
    assert [e.label for e in turned.examples] == [1, 0]
    with pytest.raises(
        DataError,
        match=r"train\.tsv:3: the label 'not_entailment' is none of the classes entailment, neutral",
    ):
        load_data(f"glue:RTE:{path}", classes=("entailment", "neutral"))


def test_a_task_that_is_known_is_not_asked_for(tmp_path: Path) -> None:
    path = tsv(tmp_path, RTE, "0|A|B|entailment")
    assert load(f"glue:RTE:{path}", task="label").kind == "label"
    for task in ("score", "span"):
        with pytest.raises(ConfigError, match=f"is a label task, not {task}"):
            load_data(f"glue:RTE:{path}", task=task)


def test_max_examples(tmp_path: Path) -> None:
    path = tsv(tmp_path, RTE, *(f"{i}|A|B|entailment" for i in range(5)))
    assert [e.id for e in load(f"glue:RTE:{path}", max_examples=2).examples] == ["0", "1"]
    with pytest.raises(BertvisionError, match="at least 1"):
        load_data(f"glue:RTE:{path}", max_examples=0)


# ---- submissions


def test_submissions_have_the_official_form(tmp_path: Path) -> None:
    test = tsv(tmp_path, "index|sentence1|sentence2", "0|A|B", "1|A|B", "2|A|B", name="test.tsv")
    wanted = {
        "RTE": ([0, 1, 1], ["entailment", "not_entailment", "not_entailment"]),
        "WNLI": ([0, 1, 1], ["0", "1", "1"]),
        "STS-B": ([-0.2, 2.34567, 5.3], ["0.000", "2.346", "5.000"]),
    }
    for task, (predicted, lines) in wanted.items():
        data = load(f"glue:{task}:{test}", answers_required=False)
        path = write_submission(task.lower(), data, predicted, tmp_path / "out")
        assert path == tmp_path / "out" / f"{task}.tsv"
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        assert rows == [["index", "prediction"], *([str(i), line] for i, line in enumerate(lines))]


def test_mnli_is_two_files_and_the_diagnostics_a_third(tmp_path: Path) -> None:
    for name, task, file in (
        ("test_matched", "MNLI", "MNLI-m"),
        ("test_mismatched", "mnli", "MNLI-mm"),
        ("other", "MNLI-mm", "MNLI-mm"),
        ("diagnostic", "AX", "AX"),
    ):
        test = tsv(tmp_path, "index|sentence1|sentence2", "4|A|B", "5|A|B", name=f"{name}.tsv")
        source = "AX" if task == "AX" else "MNLI"
        data = load(f"glue:{source}:{test}", answers_required=False)
        path = write_submission(task, data, [1, 2], tmp_path)
        assert path.name == f"{file}.tsv"
        assert path.read_text() == "index\tprediction\n4\tneutral\n5\tcontradiction\n"


def test_a_submission_speaks_in_names_and_not_in_numbers(tmp_path: Path) -> None:
    test = tsv(tmp_path, "index|sentence", "0|A", "1|B", name="test.tsv")
    turned = load(f"glue:SST-2:{test}", answers_required=False, classes=("positive", "negative"))
    assert write_submission("SST-2", turned, [0, 1], tmp_path).read_text().split() == [
        "index", "prediction", "0", "1", "1", "0",
    ]  # fmt: skip
    other = load(f"glue:SST-2:{test}", answers_required=False, classes=("up", "down"))
    with pytest.raises(DataError, match="'up' is no class of GLUE's SST-2"):
        write_submission("SST-2", other, [0, 1], tmp_path)


def test_a_submission_needs_numbered_rows(tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    path.write_text("text,label\nfine,positive\nbad,negative\n")
    with pytest.raises(DataError, match="'row-2' has no number a submission could name"):
        write_submission("SST-2", load(str(path)), [0, 1], tmp_path)
    assert not (tmp_path / "SST-2.tsv").exists()


def test_the_real_test_sets_give_whole_submissions(shared_data: Path, tmp_path: Path) -> None:
    data = load(f"glue:QNLI:{shared_data / 'glue/QNLI/test.tsv'}", answers_required=False)
    lines = (
        write_submission("QNLI", data, [i % 2 for i in range(len(data))], tmp_path).read_text().splitlines()
    )
    assert (len(lines), lines[0], lines[-1]) == (5_464, "index\tprediction", "5462\tentailment")
