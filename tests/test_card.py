"""Model cards: metadata as the Hub's client reads it, every score, no gap fatal, no place named."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from cli_runner import bertvision, tree
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import EvalResult
from serve_cases import ALIKE, ANSWERABLE, MOOD, SAME, save_span, save_system

import bertvision as bv
from bertvision.encoder.encoder import Encoder
from bertvision.model.card import file_name, head_card, plain_command
from bertvision.tasks.base import Task
from bertvision.tasks.span import SPAN


def card_of(pkg: Path) -> ModelCard:
    return ModelCard.load(pkg / "README.md")


def results_of(card: ModelCard) -> list[EvalResult]:
    return card.data.eval_results or []  # type: ignore[attr-defined]


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
    found = {str(result.metric_name).partition(" of ")[0]: result for result in results_of(card)}
    for name in ("exact", "f1", "tuned_exact", "tuned_f1"):
        result = found[SPAN.title(name)]
        assert result.metric_value == pytest.approx(scores[name], abs=1e-4)
        assert (result.dataset_name, result.dataset_split) == (toy_squad.name, "dev")
    text = card.text
    assert "bertvision run --encoder bert --train toy.json" in text, "the command, without folders"
    assert f"bertvision export {finished_run.name} --out pkg" in text
    assert "`cc-by-sa-4.0`" in text
    assert str(tmp_path) not in text


def test_several_heads_are_kept_apart(encoder: Encoder, tmp_path: Path) -> None:
    """Their results do not run into each other, and hostile names stay out of the markup."""
    qa = save_span(tmp_path / "qa", encoder, "adapter:size=4")
    own = json.loads((qa / "config.json").read_text())
    own["label"] = "evil | <script>\n# head"
    (qa / "config.json").write_text(json.dumps(own))
    scores = {"exact": 1.0, "f1": 2.0, "tuned_exact": 30.0, "tuned_f1": 40.0}
    metrics = {"scores": {"dev": scores, "test": scores | {"tuned_f1": 39.0}}}
    (qa / "metrics.json").write_text(json.dumps(metrics))
    heads = {"qa": qa}
    for name in ("mood", "mood2"):
        heads[name] = save_system(tmp_path / name, encoder, "mean_pooler", MOOD)
        labels = {"scores": {"dev": {"accuracy": 0.75, "f1": 0.5, "log_loss": 0.6}}}
        (heads[name] / "metrics.json").write_text(json.dumps(labels))
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
