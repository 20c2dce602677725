"""`bv.load(folder).predict(...)`: every kind of folder, long documents, and the wrong encoder."""

import dataclasses
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import save_encoder, squad_json

import bertvision as bv
from bertvision.cli import main
from bertvision.data.load import load_span_data
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, DataError, EncoderError
from bertvision.heads import Geometry, parse_head, save_head
from bertvision.model.trained import load_encoder, read_trained

WINDOWS = ["--max-seq-length", "48", "--max-query-length", "16", "--doc-stride", "16"]
MILL = "The mill in Arden was built by Ada Holt in 1871."


@pytest.fixture(scope="module")
def home(tiny_bert: Path, toy_squad: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a snapshot and two heads, and an ensemble of both; made once by the command line itself."""
    home = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(home / "cache"))
        shutil.copytree(tiny_bert, home / "encoder")
        main(["run", "--encoder", str(home / "encoder"), "--train", str(toy_squad), "--dev", str(toy_squad),
              "--out", str(home / "run"), *WINDOWS, "--finetune.epochs", "1", "--finetune.lr", "1e-3",
              "--fit.heads", "last_state", "adapter:size=8", "--fit.epochs", "3", "--fit.lr", "1e-2"])  # fmt: skip
        heads = [
            str(home / "run" / "fit" / "snapshot-1" / name)
            for name in ("last-state.seed0", "adapter-8.seed0")
        ]
        main(["ensemble", *heads, "--data", str(toy_squad), "--out", str(home / "both"), "--how", "mean"])
    return home


def adapter(home: Path) -> Path:
    return home / "run" / "fit" / "snapshot-1" / "adapter-8.seed0"


def keen(folder: Path, **options: Any) -> bv.Model:
    """A model that always answers: the toy heads would often rather not."""
    model = bv.load(folder, **options)
    model.set_threshold(1e6)
    return model


# ---- what can be loaded


@pytest.mark.parametrize(
    "folder",
    [
        "run/fit/snapshot-1/adapter-8.seed0",
        "run/finetune/snapshot-1",
        "run/finetune/snapshot-1/head",
        "both",
        "run",
    ],
)
def test_every_kind_of_folder_answers(home: Path, folder: str) -> None:
    found = keen(home / folder).predict("Who built the mill?", MILL)
    assert found.text
    assert found.text == MILL[found.start : found.end]
    assert 0 <= found.probability <= 1
    assert 0 <= found.no_answer_probability <= 1


def test_a_run_loads_its_best_head_at_its_threshold(home: Path) -> None:
    results = json.loads((home / "run" / "results.json").read_text())
    (best,) = [system for system in results["systems"] if system["best"]]
    trained = read_trained(home / "run")
    assert trained.folder == home / "run" / best["folder"]
    stored = json.loads((trained.folder / "metrics.json").read_text())
    assert trained.tuning.threshold == stored["tuning"]["threshold"]
    (loaded,) = bv.load(home / "run").systems.values()
    assert loaded.tuning == trained.tuning
    assert stored["scores"]["dev"]["tuned_f1"] == best["scores"]["dev"]["tuned_f1"]["mean"]


def test_an_ensemble_joins_its_members(home: Path) -> None:
    """The mean of two heads' probabilities, one window, computed from their own logits."""
    from bertvision.model.trained import logits_of_trained

    members = [
        read_trained(home / "run" / "fit" / "snapshot-1" / n) for n in ("last-state.seed0", "adapter-8.seed0")
    ]
    whole = read_trained(home / "both")
    assert whole.how == "mean"
    assert len(whole.heads) == 2
    data = load_span_data("demo:dev", max_examples=1)
    short = dataclasses.replace(whole.windows, max_seq_length=96)
    (split, joined), (_, a), (_, b) = logits_of_trained(
        [dataclasses.replace(one, windows=short) for one in (whole, *members)], data
    )
    for name in ("start", "end"):
        for begin, end in pairwise(split.windows.offsets):
            parts = [torch.tensor(one[name][begin:end]).softmax(0) for one in (a, b)]
            expected = (parts[0] + parts[1]) / 2
            assert torch.allclose(torch.tensor(joined[name][begin:end]).exp(), expected, atol=1e-6)
    assert members[0].join([a], split.windows) is a


def test_a_predictor_equals_the_runs_own_predictions(home: Path, toy_squad: Path) -> None:
    model = bv.load(adapter(home))
    data = load_span_data(str(toy_squad))
    found = model.predict([e.question for e in data.examples], [data.context(e) for e in data.examples])
    written = json.loads((adapter(home) / "dev" / "predictions.json").read_text())
    assert {e.id: p.text for e, p in zip(data.examples, found, strict=True)} == written


# ---- predict


def test_one_or_many(home: Path) -> None:
    model = keen(adapter(home))
    questions = ["Who built the mill?", "Where is the mill?"]
    one = [model.predict(question, MILL) for question in questions]
    many = model.predict(questions, [MILL, MILL])
    shared = model.predict(questions, MILL)
    for alone, a, b in zip(one, many, shared, strict=True):
        assert (alone.text, alone.start, alone.end) == (a.text, a.start, a.end)
        assert a == b
        assert alone.probability == pytest.approx(a.probability, rel=1e-4)
    assert model.predict([], []) == []
    assert model.predict(tuple(questions), MILL) == shared


def test_long_documents_are_read_to_the_end(home: Path) -> None:
    """A document of many windows: answers carry offsets into the whole, and any part of it can be one."""
    model = keen(adapter(home))
    context = " ".join(
        p["context"] for article in squad_json()["data"] for p in article["paragraphs"]
    )  # some 250 words, 48 tokens a window
    starts = set()
    for thing in ("mill", "bridge", "tower", "market"):
        for text in (context, context[200:], context[400:] + " " + context[:300]):
            found = model.predict(f"Who built the {thing}?", text)
            assert found.text == text[found.start : found.end] != ""
            starts.add(found.start * 4 // len(text))
    assert len(starts) > 1


def test_no_answer_has_no_place(home: Path) -> None:
    model = bv.load(adapter(home))
    model.set_threshold(-1e6)
    found = model.predict("Who built the mill?", MILL)
    assert (found.text, found.start, found.end) == ("", -1, -1)


@pytest.mark.parametrize(
    ("question", "context", "words"),
    [
        ("", MILL, "question 1: the question is empty"),
        ("Who?", "  ", "question 1: the context is empty"),
        (["Who?", "\n"], MILL, "question 2: the question is empty"),
        (["Who?"], [MILL, MILL], "1 first texts but 2 second ones"),
        ("Who?", "half a \ud83d pair", "question 1: the context holds half a character"),
        (["Who?"], [7], "question 1: the context must be a string"),
    ],
)
def test_bad_questions_are_one_sentence(home: Path, question: Any, context: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        bv.load(adapter(home)).predict(question, context)


def test_odd_texts_are_answered(home: Path) -> None:
    """Characters the tokenizer drops, emoji, tabs: offsets still cut the text itself."""
    model = keen(adapter(home))
    for context in ("a", "🚄 東京 — naïve\tcafé\u200b.", MILL.upper(), "x " * 300, "\u200b ok"):
        found = model.predict("Who?", context)
        assert found.text == (context[found.start : found.end] if found.start >= 0 else "")


# ---- the encoder


def test_another_encoder_is_refused(home: Path, tmp_path: Path) -> None:
    other = save_encoder(tmp_path / "other", seed=1)
    with pytest.raises(
        ArtifactError, match=r"was fitted on another encoder \(fingerprint \w{12}\).*--encoder"
    ):
        bv.load(adapter(home), encoder=str(other))
    with pytest.raises(ArtifactError, match="another encoder"):
        bv.load(adapter(home), encoder=Encoder.load(str(home / "encoder")))  # untuned


def test_a_moved_encoder_is_named_and_checked(home: Path, tmp_path: Path) -> None:
    lone = tmp_path / "head"
    shutil.copytree(adapter(home), lone)  # the relative path to its encoder leads nowhere from here
    with pytest.raises(EncoderError, match=r"is not at .* any more: name it with --encoder"):
        bv.load(lone)
    moved = tmp_path / "moved"
    shutil.copytree(home / "run" / "finetune" / "snapshot-1" / "encoder", moved)
    question = ("Who built the mill?", MILL)
    expected = keen(adapter(home)).predict(*question)
    assert keen(lone, encoder=str(moved)).predict(*question) == expected
    assert keen(lone, encoder=Encoder.load(str(moved))).predict(*question) == expected


def test_a_whole_run_can_be_moved(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run", tmp_path / "elsewhere")
    trained = read_trained(tmp_path / "elsewhere")
    assert Path(trained.encoder).is_relative_to(tmp_path)
    assert load_encoder(trained).fingerprint == trained.fingerprint


# ---- what is wrong with a folder


def _edit(path: Path, change: Any) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_folders_that_cannot_be_loaded(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no folder"):
        bv.load(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match=r"holds neither a package nor a head"):
        bv.load(tmp_path / "empty")
    with pytest.raises(ArtifactError, match=r"several heads \(adapter-8\.seed0, last-state\.seed0\)"):
        bv.load(home / "run" / "fit" / "snapshot-1")
    with pytest.raises(ArtifactError, match="does not describe a bertvision head"):
        bv.load(home / "encoder")
    save_head(parse_head("last_state").build(Geometry(3, 32), seed=0), tmp_path / "bare", about={})
    with pytest.raises(ArtifactError, match="does not say which encoder"):
        bv.load(tmp_path / "bare")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "config.json").write_text("[]")
    with pytest.raises(ArtifactError, match="does not describe"):
        bv.load(tmp_path / "list")


def test_window_settings_of_another_version_are_named(home: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter(home), tmp_path / "head")
    _edit(tmp_path / "head" / "config.json", lambda c: c["windows"].update(colour="red"))
    with pytest.raises(ConfigError, match=r"config\.json sets colour"):
        bv.load(tmp_path / "head")


def test_members_of_two_encoders_are_refused(home: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(adapter(home), tmp_path / name)
    _edit(tmp_path / "b" / "config.json", lambda c: c["encoder"].update(fingerprint="f" * 32))
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "config.json").write_text(
        json.dumps({"ensemble": {"how": "max", "members": ["../a", "../b"]}})
    )
    with pytest.raises(ArtifactError, match="read 2 encoders"):
        bv.load(tmp_path / "both")


def test_a_folder_a_kill_left_aside_comes_back(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "both", tmp_path / ".both.old")
    _edit(
        tmp_path / ".both.old" / "config.json",
        lambda c: c["ensemble"].update(members=[str(adapter(home)), str(adapter(home))]),
    )
    assert bv.load(tmp_path / "both").predict("Who built the mill?", MILL)
