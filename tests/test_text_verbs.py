"""predict, eval and ensemble on heads of labels and scores, as the command line gives them."""

import csv
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_runner import answered, as_json, refused
from serve_cases import ALIKE, COLOUR, MOOD, save_span, save_system
from serve_cases import ANSWERABLE as QUESTIONS

from bertvision.encoder.encoder import Encoder
from bertvision.model.trained import read_trained

ANSWERABLE = replace(QUESTIONS, pairs=True)
PAIRED = replace(ALIKE, pairs=True)

MILL = "The mill in Arden was built by Ada Holt in 1871."
ROWS = [
    ("0", MILL, "bad"),
    ("1", "The bridge is old.", "good"),
    ("2", "A market in Arden", "good"),
    ("3", "Who built the old tower? " * 12, "bad"),
    ("4", "The tower was built in 1871.", "good"),
]


def write_table(path: Path, rows: list[tuple[str, ...]], names: str) -> Path:
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([names.split(), *rows])
    return path


@pytest.fixture(scope="module")
def home(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of several tasks on one encoder, and data for them."""
    home = tmp_path_factory.mktemp("texts")
    encoder = Encoder.load(str(tiny_bert))
    save_system(home / "mood" / "a", encoder, "tenney_small", MOOD, temperature=2.0)
    save_system(home / "mood" / "b", encoder, "mean_pooler", MOOD, seed=1)
    save_system(home / "alike", encoder, "cls_linear", PAIRED, seed=2)
    save_system(home / "colour", encoder, "cls_linear", COLOUR, seed=3)
    save_system(home / "sure", encoder, "tenney_small", ANSWERABLE, seed=4)
    save_span(home / "span", encoder)
    save_system(home / "package" / "mood", encoder, "tenney_small", MOOD)
    save_system(home / "package" / "alike", encoder, "cls_linear", ALIKE, seed=2)
    save_system(home / "asking" / "sure", encoder, "tenney_small", ANSWERABLE, seed=4)
    save_span(home / "asking" / "span", encoder)
    write_table(home / "mood.csv", ROWS, "id text label")
    scores = [(i, a, MILL, f"{len(a) % 6}") for i, a, _ in ROWS]
    write_table(home / "alike.csv", scores, "id text pair score")
    write_table(home / "bare.csv", [row[:2] for row in ROWS], "id text")
    write_table(home / "own.tsv", [(text, id) for id, text, _ in ROWS], "utterance number")
    (home / "questions.jsonl").write_text('{"question": "Who?", "context": "Nora."}\n')
    save_system(home / "all" / "mood", encoder, "cls_linear", MOOD)  # questions and texts in one package
    save_system(home / "all" / "sure", encoder, "cls_linear", ANSWERABLE)
    save_span(home / "all" / "span", encoder)
    return home


# ---- predict


def test_a_text_gets_its_label_and_a_pair_its_score(home: Path) -> None:
    words = ("predict", home / "mood" / "a", "--text", MILL)
    found = as_json(*words)
    assert found["text"] == MILL
    assert found["label"] in MOOD.classes
    assert sum(found["probabilities"].values()) == pytest.approx(1)
    assert answered(*words).out == f"{MILL}\n  {found['label']}  p={found['probability']:.3f}\n"
    words = ("predict", home / "alike", "--text", MILL, "--pair", "The bridge is old.")
    found = as_json(*words)
    assert found["pair"] == "The bridge is old."
    assert answered(*words).out == f"{MILL} | The bridge is old.\n  {found['score']:.3f}\n"


def test_several_tasks_answer_together(home: Path) -> None:
    words = ("predict", home / "package", "--text", MILL)
    found = as_json(*words)["tasks"]
    assert found.keys() == {"alike", "mood"}
    alone = as_json("predict", home / "package" / "mood", "--text", MILL)
    assert found["mood"]["label"] == alone["label"] == as_json(*words, "--tasks", "mood")["label"]
    assert re.search(r"^  alike: -?\d\.\d{3}$", answered(*words).out, re.M)


def test_questions_of_several_tasks(home: Path, toy_squad: Path, tmp_path: Path) -> None:
    words = ("--question", "Who built the mill?", "--context", MILL)
    found = as_json("predict", home / "asking", *words)["tasks"]
    alone = as_json("predict", home / "span", *words)
    assert found["span"]["start"] == alone["start"]
    assert found["sure"]["label"] in ANSWERABLE.classes
    assert as_json("predict", home / "sure", *words)["label"] == found["sure"]["label"]
    rows = as_json("predict", home / "asking", "--data", f"answerable:{toy_squad}", "--out", tmp_path)
    assert len(rows) == 24
    for name in ("sure", "span"):
        predictions = json.loads((tmp_path / name / "predictions.json").read_text())
        assert len(predictions) == 24
    assert (tmp_path / "sure" / "probabilities.json").exists()
    assert (tmp_path / "span" / "null_odds.json").exists()


def test_a_file_is_predicted_with_or_without_labels(home: Path, tmp_path: Path) -> None:
    """The same predictions as text by text, and the file's own labels play no part."""
    head = home / "mood" / "a"
    with_labels = as_json("predict", head, "--data", home / "mood.csv", "--out", tmp_path / "a")
    bare = as_json("predict", head, "--data", home / "bare.csv", "--out", tmp_path / "b")
    assert with_labels == bare
    assert [row["id"] for row in bare] == [row[0] for row in ROWS]
    for name in ("predictions.json", "probabilities.json"):
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()
    written = json.loads((tmp_path / "a" / "predictions.json").read_text())
    assert written == {row["id"]: row["label"] for row in bare}
    for row in bare:
        alone = as_json("predict", head, "--text", row["text"])
        assert alone["probability"] == pytest.approx(row["probability"], abs=1e-6)
    other = write_table(tmp_path / "odd.csv", [(i, t, "neither") for i, t, _ in ROWS], "id text label")
    assert as_json("predict", head, "--data", other) == bare
    scored = write_table(tmp_path / "half.csv", [(i, t, "0.5") for i, t, _ in ROWS], "id text label")
    assert as_json("predict", head, "--data", scored) == bare
    score = home / "package" / "alike"
    worded = as_json("predict", score, "--data", other)
    assert worded == as_json("predict", score, "--data", home / "bare.csv")
    short = as_json("predict", head, "--data", home / "bare.csv", "--max-examples", "2")
    assert len(short) == 2
    both = as_json("predict", home / "package", "--data", home / "bare.csv", "--out", tmp_path / "c")
    assert [row["tasks"].keys() for row in both] == [{"mood", "alike"}] * len(ROWS)
    assert (tmp_path / "c" / "alike" / "predictions.json").exists()


def test_named_columns(home: Path) -> None:
    words = ("--columns.text", "utterance", "--columns.id", "number")
    rows = as_json("predict", home / "mood" / "a", "--data", home / "own.tsv", *words)
    assert [row["text"] for row in rows] == [text for _, text, _ in ROWS]


def test_a_glue_submission(home: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """The official file: header, index, and what the benchmark writes for each class."""
    encoder = Encoder.load(str(tiny_bert))
    task = replace(MOOD, classes=("negative", "positive"))
    head = save_system(tmp_path / "sst", encoder, "tenney_small", task)
    test = write_table(tmp_path / "test.tsv", [(i, t) for i, t, _ in ROWS], "index sentence")
    out = tmp_path / "out"
    rows = as_json("predict", head, "--data", f"glue:SST-2:{test}", "--out", out, "--glue", "sst-2")
    lines = (out / "SST-2.tsv").read_text().splitlines()
    numbers = {"negative": "0", "positive": "1"}
    assert lines == ["index\tprediction", *(f"{row['id']}\t{numbers[row['label']]}" for row in rows)]


@pytest.mark.parametrize(
    ("classes", "rows", "told"),
    [
        (("bad", "good"), "0 1", "--glue SST-2 wants the classes negative, positive, and this head gives bad, good"),
        (("negative", "neutral", "positive"), "0 1", "this head gives negative, neutral, positive: name the task"),
        (("positive", "negative"), "0 one", "the row 'one' has no number"),
    ],
)  # fmt: skip
def test_a_submission_that_cannot_be_is_refused_before_anything_is_written(
    tiny_bert: Path, tmp_path: Path, classes: tuple[str, ...], rows: str, told: str
) -> None:
    head = save_system(
        tmp_path / "sst", Encoder.load(str(tiny_bert)), "cls_linear", replace(MOOD, classes=classes)
    )
    test = write_table(tmp_path / "test.tsv", [(i, MILL) for i in rows.split()], "index sentence")
    out = tmp_path / "out"
    assert told in refused("predict", head, "--data", f"glue:SST-2:{test}", "--out", out, "--glue", "SST-2")
    assert not out.exists()


REFUSED = {
    "predict mood/a": "give --question together with --context, or --text, or --data",
    "predict mood/a --text a --data x.csv": "give --question together with --context, or --text, or --data",
    "predict mood/a --pair a": "--pair goes with --text",
    "predict mood/a --text a --context b": "give --question together with --context",
    "predict mood/a --text a --out x": "--out goes with --data",
    "predict mood/a --text a --glue RTE": "--glue goes with --data",
    "predict mood/a --data a.csv --glue RTE": "--glue needs --out",
    "predict mood/a --text a --threshold 1": "--threshold is for spans",
    "predict mood/a --question a --context b": "give --text, for pairs with --pair",
    "predict mood/a --text ' '": "--text is empty: write it",
    "predict mood/a --data demo:dev": "demo:dev can only hold questions over paragraphs",
    "predict span --text a": "give --question and --context",
    "predict sure --text a": "sure reads two texts, and one is given",
    "predict package --text a --tasks moot": "--tasks names 'moot': did you mean mood?",
    "predict all --data demo:dev": "of these tasks span, sure read questions and the others texts",
    "predict alike --data bare.csv --out x --glue SST-2": "--glue SST-2 wants a label of each text",
    "predict mood/a --data bare.csv --out x --glue STS-B": "wants a score of each text, and this head gives a label",
    "predict mood/a --data bare.csv --out x --glue SST-9": "glue has no set 'SST-9'",
    "predict package --data bare.csv --out x --glue SST-2": "name it with --tasks",
    "predict mood/a --data own.tsv":
        "has no column of texts (it has 'utterance', 'number'); name it with --columns.text",
    "predict mood/a --data own.tsv --columns.text uterance": "has no column 'uterance'",
    "predict mood/a --data glue:RTE:x.tsv --columns.id number": "leave out --columns.text",
    "predict mood/a --data questions.jsonl": "has no column of texts",
    "eval mood/a span --data mood.csv": "mood.csv",
    "eval mood/a --data mood.csv --scorer wordpiece": "not for a label task: leave it out",
    "eval colour --data mood.csv": "mood.csv:2: the label 'bad' is none of the classes red, green, blue",
    "eval mood/a --data squad.json": "can only hold questions",
    "ensemble mood/a mood/b --data mood.csv --out x --how max": "joined by mean",
    "ensemble mood/a colour --data mood.csv --out x": "are for different tasks",
    "ensemble mood/a span --data mood.csv --out x": "are for different tasks",
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_use_is_one_sentence(
    words: str, home: Path, toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages name the flags of their verb, and nothing is written."""
    for place in home.iterdir():
        (tmp_path / place.name).symlink_to(place)
    (tmp_path / "squad.json").symlink_to(toy_squad)
    monkeypatch.chdir(tmp_path)
    message = refused(*shlex.split(words))
    assert REFUSED[words] in message
    assert "column" not in REFUSED[words] or "--text" not in message
    assert not (tmp_path / "x").exists()


# ---- eval


def test_eval_gives_all_metrics_and_the_confusion(home: Path, tmp_path: Path) -> None:
    heads = (home / "mood" / "a", home / "mood" / "b")
    rows = as_json("eval", *heads, "--data", home / "mood.csv", "--out", tmp_path)
    assert [row["system"] for row in rows] == ["a", "b"]
    truth = {i: label for i, _, label in ROWS}
    for row in rows:
        predicted = json.loads((tmp_path / row["system"] / "eval" / "predictions.json").read_text())
        right = sum(predicted[i] == label for i, label in truth.items())
        assert row["scores"]["accuracy"] == pytest.approx(right / len(ROWS))
        table = np.zeros((2, 2), int)
        for i, label in truth.items():
            table[MOOD.classes.index(label), MOOD.classes.index(predicted[i])] += 1
        assert row["details"]["confusion"] == table.tolist()
        metrics = json.loads((tmp_path / row["system"] / "metrics.json").read_text())
        assert metrics["metric"] == "accuracy"
        assert metrics["scores"]["eval"] == row["scores"]
        assert list(row["scores"]) == ["accuracy", "f1", "mcc", "log_loss", "calibration_error"]


def test_answerability_is_scored_with_and_without_its_prefix(home: Path, toy_squad: Path) -> None:
    (bare,) = as_json("eval", home / "sure", "--data", toy_squad)
    (named,) = as_json("eval", home / "sure", "--data", f"answerable:{toy_squad}")
    assert bare == named
    assert bare["examples"] == 24
    assert sum(bare["details"]["confusion"][1]) == 8


def test_eval_merges_windows_as_asked(home: Path, toy_squad: Path) -> None:
    """One window that says no answer decides by the papers' vote, and every window must say it by `min`."""
    told = {
        how: as_json("eval", home / "sure", "--data", toy_squad, "--text-merge", how)[0]["details"][
            "confusion"
        ]
        for how in ("stored", "min", "any_null")
    }
    assert told["stored"] == told["min"]
    nos = {how: sum(row[1] for row in table) for how, table in told.items()}
    assert nos["any_null"] >= nos["min"]


def test_eval_of_several_tasks_names_their_heads(home: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """In the folders as `multitask` lays them out."""
    encoder = Encoder.load(str(tiny_bert))
    heads = [tmp_path / f"snapshot-{i}" / "heads" / name for i in (1, 2) for name in ("colour", "mood")]
    for head in heads:
        save_system(head, encoder, "cls_linear", MOOD if head.name == "mood" else COLOUR)
    (tmp_path / "stage.json").write_text("{}")
    data = ("--data", home / "mood.csv")
    said = refused("eval", tmp_path, *data)
    named = said.removeprefix(f"error: {tmp_path} holds heads of several tasks: name one of ").split(", ")
    assert named == [str(head) for head in heads]
    (row,) = as_json("eval", named[1], *data)
    assert row["system"] == "mood"


# ---- ensemble


def test_an_ensemble_of_labels_is_the_mean_of_probabilities(home: Path, tmp_path: Path) -> None:
    heads = (home / "mood" / "a", home / "mood" / "b")
    out = tmp_path / "both"
    rows = as_json("ensemble", *heads, "--data", home / "mood.csv", "--out", out)
    assert [row["system"] for row in rows] == ["a", "b", "mean of 2"]
    as_json("eval", *heads, "--data", home / "mood.csv", "--out", tmp_path / "parts")
    parts = [
        json.loads((tmp_path / "parts" / name / "eval" / "probabilities.json").read_text())
        for name in ("a", "b")
    ]
    joined = json.loads((out / "dev" / "probabilities.json").read_text())
    for i, row in joined.items():
        for name, value in row.items():
            assert value == pytest.approx((parts[0][i][name] + parts[1][i][name]) / 2, abs=1e-6)
    whole = read_trained(out)
    assert (whole.how, len(whole.heads), whole.task) == ("mean", 2, MOOD)
    (again,) = as_json("eval", out, "--data", home / "mood.csv")
    for name in ("accuracy", "log_loss"):
        assert again["scores"][name] == pytest.approx(rows[-1]["scores"][name], abs=1e-6)
    assert json.loads((out / "metrics.json").read_text())["tuning"]["temperature"] > 0
    assert as_json("predict", out, "--text", MILL)["label"] in MOOD.classes
