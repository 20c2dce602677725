"""Model cards: metadata as the Hub's client reads it, every score with its interval, no gap fatal, no place named."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import bertvision, tree
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import EvalResult
from serve_cases import ALIKE, ANSWERABLE, COLOUR, MOOD, SAME, save_span, save_system

import bertvision as bv
from bertvision.data.examples import TextData
from bertvision.data.load import load_data
from bertvision.data.texts import Columns
from bertvision.encoder.encoder import Encoder
from bertvision.model import CardConfig
from bertvision.model.card import file_name, head_card, plain_command
from bertvision.model.export import head_intervals
from bertvision.tasks.base import Task
from bertvision.tasks.metrics import mean_difference
from bertvision.tasks.span import SPAN
from bertvision.tasks.squad import per_question


def card_of(pkg: Path) -> ModelCard:
    return ModelCard.load(pkg / "README.md")


def results_of(card: ModelCard) -> list[EvalResult]:
    return card.data.eval_results or []  # type: ignore[attr-defined]


def by_title(card: ModelCard) -> dict[str, EvalResult]:
    return {str(result.metric_name).partition(" of ")[0]: result for result in results_of(card)}


# ---- a head by itself


def config(task: Task, **more: Any) -> dict[str, Any]:
    return {
        "label": "tenney small",
        "head": {"name": "tenney_small.v1", "config": {"order": "first"}},
        "encoder": {"name": "org/encoder", "fingerprint": "abc123"},
        "parameters": 1234,
        "fit": {"lr": 1e-3, "epochs": 8},
        "task": task.config(),
    } | more


@pytest.mark.parametrize(
    ("task", "tag", "call"),
    [
        (SPAN, "question-answering", '"question", "context"'),
        (MOOD, "text-classification", '"text"'),
        (SAME, "text-classification", '"first", "second"'),
        (ANSWERABLE, "text-classification", '"question", "context"'),
        (ALIKE, "text-classification", '"text"'),
        (type(ALIKE)(pairs=True), "sentence-similarity", '"first", "second"'),
    ],
)
def test_the_card_of_a_head(task: Task, tag: str, call: str) -> None:
    """All metrics of the task in the table, those that the Hub knows in its block, test first."""
    scores = {
        split: {name: 0.8123456 + i for name in task.metrics} for i, split in enumerate(("dev", "test"))
    }
    tuning = {"on": "/home/me/dev.json", "threshold": -0.25}
    metrics = {
        "scores": scores,
        "tuning": tuning,
        "made": {"data": {"dev": "dev.json"}, "commands": ["bertvision x"]},
    }
    card = ModelCard(head_card(config(task, states={"layers": [0, 1], "positions": "cls"}), metrics))
    data: Any = card.data
    assert (data.library_name, data.pipeline_tag, data.base_model) == ("bertvision", tag, "org/encoder")
    known = [metric.hub for metric in task.metrics.values() if metric.hub]
    found = [(r.dataset_split, r.dataset_name, r.metric_type, r.metric_value) for r in results_of(card)]
    assert found == [("test", "test", name, 1.8123) for name in known] + [
        ("dev", "dev.json", name, 0.8123) for name in known
    ]
    rows = [line for line in card.text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(task.metrics)
    shown = "1.8 | 0.8" if next(iter(task.metrics.values())).percent else "1.812 | 0.812"
    assert all(shown in row for row in rows[1:])
    said = f"model.predict({call})|lr 0.001, epochs 8|order first|layers 0, 1|threshold -0.25|abc123|bertvision x|1,234"
    assert [text for text in said.split("|") if text not in card.text] == []
    assert all(name in card.text for name in task.classes)
    assert "/home/me" not in str(card)


@pytest.mark.parametrize(
    ("more", "metrics"),
    [
        ({"label": None, "encoder": None, "fit": None}, {}),
        ({"label": "a | b\n---\n<script>", "encoder": {"name": "/home/me/enc"}}, {"scores": {"dev": {}}}),
        (
            {"encoder": {"name": "org/encoder", "path": "../../tuned"}},
            {"scores": {"dev": {"accuracy": math.nan}}},
        ),
    ],
)
def test_gaps_are_survived_and_no_path_is_named(more: dict[str, Any], metrics: dict[str, Any]) -> None:
    text = head_card(config(MOOD, **more), metrics)
    card = ModelCard(text)
    assert not results_of(card)
    assert "/home/me" not in text
    assert "<script>" not in card.text
    assert "on the Hub." not in card.text, "no encoder of these is found by its name"


# ---- packages


def test_the_hubs_client_reads_what_metrics_say(finished_run: Path, toy_squad: Path, tmp_path: Path) -> None:
    """Scores are those of metrics.json; the intervals are computed here once more from the answers and the data."""
    out = tmp_path / "pkg"
    outcome = bertvision(
        "export", finished_run, "--out", out, "--license", "cc-by-sa-4.0", "--datasets", "org/data"
    )
    assert outcome.code == 0, outcome.err
    card = card_of(out)
    data: Any = card.data
    assert (data.license, data.library_name) == ("cc-by-sa-4.0", "bertvision")
    assert (data.datasets, data.pipeline_tag) == (["org/data"], "question-answering")
    systems = json.loads((finished_run / "results.json").read_text())["systems"]
    (folder,) = [finished_run / system["folder"] for system in systems if system["best"]]
    scores = json.loads((folder / "metrics.json").read_text())["scores"]["dev"]
    answers = json.loads((folder / "dev" / "predictions.json").read_text())
    questions = load_data(str(toy_squad))
    assert not isinstance(questions, TextData)
    judged = dict(zip(("tuned_exact", "tuned_f1"), per_question(questions, answers), strict=True))
    found = by_title(card)
    for name in ("exact", "f1", "tuned_exact", "tuned_f1"):
        result = found[SPAN.title(name)]
        assert result.metric_value == pytest.approx(scores[name], abs=1e-4)
        assert (result.dataset_name, result.dataset_split) == (toy_squad.name, "dev")
        if name in judged:
            drawn = mean_difference([100 * judged[name]], [])
            assert result.metric_args == {"interval_95": [round(drawn.low, 4), round(drawn.high, 4)]}
    text = card.text
    assert "bertvision run --encoder bert --train toy.json" in text, "the command, without folders"
    assert f"bertvision export {finished_run.name} --out pkg" in text
    assert "`cc-by-sa-4.0`" in text
    assert str(tmp_path) not in text


@pytest.fixture
def mood(encoder: Encoder, tmp_path: Path) -> Callable[[str], Path]:
    """A head of labels that was scored on a table, and the table."""

    def make(name: str) -> Path:
        folder = save_system(tmp_path / name, encoder, "mean_pooler", MOOD)
        table, said = ["id,text,label"], {}
        for i in range(40):
            table.append(f"{i},text {i},{'good' if i % 3 else 'bad'}")
            said[str(i)] = "good" if i % 5 else "bad"
        (tmp_path / "mood.csv").write_text("\n".join(table) + "\n")
        right = [("good" if i % 3 else "bad") == said[str(i)] for i in range(40)]
        (folder / "dev").mkdir()
        (folder / "dev" / "predictions.json").write_text(json.dumps(said))
        metrics = {
            "metric": "accuracy",
            "scores": {"dev": {"accuracy": sum(right) / 40, "f1": 0.5, "log_loss": 0.6}},
            "tuning": {"on": str(tmp_path / "mood.csv"), "temperature": 1.5},
        }
        (folder / "metrics.json").write_text(json.dumps(metrics))
        return folder

    return make


def test_labels_get_an_interval_where_the_data_is_at_hand(
    mood: Callable[[str], Path], tmp_path: Path
) -> None:
    bv.load(mood("mood")).save(tmp_path / "pkg")
    by_type = {result.metric_type: result for result in results_of(card_of(tmp_path / "pkg"))}
    right = np.array([("good" if i % 3 else "bad") == ("good" if i % 5 else "bad") for i in range(40)])
    drawn = mean_difference([right.astype(float)], [])
    args = by_type["accuracy"].metric_args
    assert args is not None
    assert args["interval_95"] == pytest.approx([drawn.low, drawn.high], abs=1e-4)
    assert by_type["f1"].metric_args is None, "it is not what the answers score"
    assert by_type["accuracy"].dataset_name == "mood.csv"
    text = (tmp_path / "pkg" / "README.md").read_text()
    assert f"| accuracy | {right.mean():.3f} ({drawn.low:.3f} … {drawn.high:.3f}) |" in text
    # The package alone, without answers and data, is exported again: the interval is kept.
    (tmp_path / "mood.csv").unlink()
    bv.load(tmp_path / "pkg").save(tmp_path / "again")
    again = {result.metric_type: result for result in results_of(card_of(tmp_path / "again"))}
    assert again["accuracy"].metric_args == args


def test_no_interval_is_made_up(mood: Callable[[str], Path], tmp_path: Path) -> None:
    """Other examples, or examples that score otherwise than metrics.json says, give none."""
    folder = mood("mood")
    scores = json.loads((folder / "metrics.json").read_text())["scores"]
    source, table = str(tmp_path / "mood.csv"), tmp_path / "mood.csv"

    def found(*sources: str, task: Task = MOOD, label: str | None = None) -> bool:
        columns = Columns() if label is None else Columns(label=label)
        return "dev" in head_intervals(folder, task, scores, sources, columns=columns)

    assert found(source)
    assert not found("gone.csv", "glue:RTE:gone.tsv")
    assert not found(source, task=COLOUR), "other classes"
    whole = table.read_text()
    table.write_text("\n".join(whole.splitlines()[:-1]) + "\n")
    assert not found(source), "an example less"
    table.write_text(whole.replace("text 4,good", "text 4,bad"))
    assert not found(source), "another label"
    table.write_text(whole.replace("label", "verdict", 1))
    assert not found(source)
    assert found(source, label="verdict")
    bv.load(folder).save(tmp_path / "pkg", card=CardConfig(text=Columns(label="verdict")))
    assert any(result.metric_args for result in results_of(card_of(tmp_path / "pkg")))


def test_several_heads_are_kept_apart(encoder: Encoder, mood: Callable[[str], Path], tmp_path: Path) -> None:
    """Their results do not run into each other, and hostile names stay out of the markup."""
    qa = save_span(tmp_path / "qa", encoder, "adapter:size=4")
    own = json.loads((qa / "config.json").read_text())
    own["label"] = "evil | <script>\n# head"
    (qa / "config.json").write_text(json.dumps(own))
    scores = {"exact": 1.0, "f1": 2.0, "tuned_exact": 30.0, "tuned_f1": 40.0}
    metrics = {"scores": {"dev": scores, "test": scores | {"tuned_f1": 39.0}}}
    (qa / "metrics.json").write_text(json.dumps(metrics))
    heads = {"qa": qa, "mood": mood("mood"), "mood2": mood("mood2")}
    bv.load(heads).save(tmp_path / "pkg")
    card = card_of(tmp_path / "pkg")
    found = {(r.metric_name, r.dataset_split): r.metric_value for r in results_of(card)}
    assert found["tuned F1 of qa", "test"] == 39.0
    assert found["tuned F1 of qa", "dev"] == 40.0
    assert found["accuracy of mood", "dev"] == found["accuracy of mood2", "dev"]
    assert len(found) == 2 * len(scores) + 2 * 2
    data: Any = card.data
    assert data.license is None
    assert data.base_model is None, "a folder on somebody's disk is nobody's base model"
    assert "No licence is set" in card.text
    assert "evil script # head" in " ".join(card.text.split())
    size = own["parameters"]
    assert f"| qa | {size:,} | {100 * size / encoder.num_parameters:.3f} % |" in card.text
    assert "its data was not recorded" in card.text


# ---- commands and data without places


def test_names_lose_their_folders() -> None:
    for name, plain in {
        "/home/me/dev.json": "dev.json",
        "demo:dev": "demo:dev",
        "hub:org/name:test": "hub:org/name:test",
        "glue:RTE:/data/RTE/dev.tsv": "glue:RTE:dev.tsv",
        "answerable:/data/dev.json": "answerable:dev.json",
        "data.csv": "data.csv",
    }.items():
        assert file_name(name) == plain
    hub = "bertvision export pkg --datasets org/data --push org/name"
    for command, plain in {
        "bertvision fit /home/me/enc --train '/my data/a.csv' --out=/tmp/x --heads adapter:size=4":
            "bertvision fit enc --train a.csv --out=x --heads adapter:size=4",
        "bertvision fit clients/acme/enc --train sst=glue:RTE:data/dev.tsv hub:org/name:test --out=runs/x/":
            "bertvision fit enc --train sst=glue:RTE:dev.tsv hub:org/name:test --out=x",
        f"{hub} --out clients/acme/pkg": f"{hub} --out pkg",
        "bertvision fit ../me/enc --train ~/a.csv answerable:/b/c.json":
            "bertvision fit enc --train a.csv answerable:c.json",
        "bertvision 'unclosed": "",
    }.items():  # fmt: skip
        assert plain_command(command) == plain
        assert plain_command(plain) == plain


def test_the_card_names_every_command_that_made_a_head(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuned, fitted and joined, each by its own command, in this order; no folder is named anywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions").mkdir()
    data = tmp_path / "questions" / "toy.json"
    data.write_bytes(toy_squad.read_bytes())
    given = ("--train", "questions/toy.json", "--dev", data, "--max-seq-length", "96")
    small = ("--max-train-examples", "8", "--epochs", "0.5")
    for command in (
        ("finetune", "--encoder", tiny_bert, *given, "--out", "work/tuned", *small),
        ("fit", "work/tuned/snapshot-0.5", *given, "--out", "work/heads", "--heads", "last_state", "adapter:size=2"),
        ("ensemble", "work/heads", "--data", data, "--out", "work/both"),
        ("export", "work/both", "--out", "pkg"),
    ):  # fmt: skip
        outcome = bertvision(*command)
        assert outcome.code == 0, outcome.err
    card = card_of(tmp_path / "pkg")
    made = card.text.partition("## How it was made")[2]
    assert "data: train toy.json, dev toy.json" in made
    verbs = [line.split()[1] for line in made.splitlines() if line.startswith("bertvision ")]
    assert verbs == ["finetune", "fit", "ensemble", "export"]
    assert "bertvision fit snapshot-0.5 --train toy.json --dev toy.json" in made
    for name, content in tree(tmp_path / "pkg").items():
        for place in (b"questions/", b"work/", bytes(tmp_path)):
            assert content is None or place not in content, name
    # A head of the fit alone names what made it and not the ensemble.
    bv.load(tmp_path / "work" / "heads" / "last-state.seed0").save(tmp_path / "one")
    text = (tmp_path / "one" / "README.md").read_text()
    assert "bertvision finetune" in text
    assert "bertvision fit" in text
    assert "bertvision ensemble" not in text
