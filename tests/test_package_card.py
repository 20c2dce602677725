"""The card of a package: the Hub's metadata as its own client reads it, scores with intervals, nothing made up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import bertvision, tree
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import EvalResult
from serve_cases import COLOUR, MOOD, save_span, save_system

from bertvision.data.load import Columns, load_data
from bertvision.data.texts import TextData
from bertvision.encoder.encoder import Encoder
from bertvision.report.intervals import head_intervals
from bertvision.report.making import file_name, plain_command
from bertvision.serve.export import CardConfig, write_package
from bertvision.serve.sources import find_sources
from bertvision.tasks.compare import mean_difference, metric_difference
from bertvision.tasks.metrics import SCORE, pearson
from bertvision.tasks.squad import per_question


def card_of(pkg: Path) -> ModelCard:
    return ModelCard.load(pkg / "README.md")


def results_of(card: ModelCard) -> list[EvalResult]:
    return card.data.eval_results or []  # type: ignore[attr-defined]


def test_the_hubs_client_reads_what_metrics_say(finished_run: Path, toy_squad: Path, tmp_path: Path) -> None:
    """Scores are those of metrics.json; the intervals are counted here once more from the answers and the data."""
    out = tmp_path / "pkg"
    outcome = bertvision(
        "export", finished_run, "--out", out, "--license", "cc-by-sa-4.0", "--datasets", "org/data"
    )
    assert outcome.code == 0, outcome.err
    card = card_of(out)
    data: Any = card.data
    assert (data.license, data.library_name, data.pipeline_tag) == (
        "cc-by-sa-4.0",
        "bertvision",
        "question-answering",
    )
    assert data.datasets == ["org/data"]
    systems = json.loads((finished_run / "results.json").read_text())["systems"]
    (folder,) = [finished_run / system["folder"] for system in systems if system["best"]]
    told = json.loads((folder / "metrics.json").read_text())["scores"]["dev"]
    answers = json.loads((folder / "dev" / "predictions.json").read_text())
    questions = load_data(str(toy_squad))
    assert not isinstance(questions, TextData)
    exact, f1 = per_question(questions, answers)
    for result, key, values in zip(results_of(card), ("tuned_exact", "tuned_f1"), (exact, f1), strict=True):
        assert result.metric_value == pytest.approx(told[key], abs=1e-4)
        assert (result.dataset_name, result.dataset_split) == (toy_squad.name, "dev")
        drawn = mean_difference([100 * values], [])
        assert result.metric_args == {"interval_95": [round(drawn.low, 4), round(drawn.high, 4)]}
    text = card.text
    assert "bertvision run --encoder bert --train toy.json" in text, "the command, without folders"
    assert f"bertvision export {finished_run.name} --out pkg" in text
    assert "`cc-by-sa-4.0`" in text
    assert str(tmp_path) not in text
    assert "missing" not in text.partition("## Scores")[2].partition("## Cost")[0]


@pytest.fixture
def mood(tiny_bert: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A head of labels that was scored on a table, and the table."""

    def make(name: str) -> Path:
        encoder = Encoder.load(str(tiny_bert))
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
            "scores": {"dev": {"accuracy": sum(right) / 40, "f1": 0.5, "log_loss": 0.6}},
            "metric": "accuracy",
            "tuning": {"temperature": 1.5, "on": str(tmp_path / "mood.csv")},
        }
        (folder / "metrics.json").write_text(json.dumps(metrics))
        return folder

    return make


def test_labels_get_an_interval_where_the_data_is_at_hand(
    mood: Callable[[str], Path], tmp_path: Path
) -> None:
    write_package(tmp_path / "pkg", find_sources([mood("mood")]))
    by_type = {result.metric_type: result for result in results_of(card_of(tmp_path / "pkg"))}
    right = np.array([("good" if i % 3 else "bad") == ("good" if i % 5 else "bad") for i in range(40)])
    drawn = mean_difference([right.astype(float)], [])
    args = by_type["accuracy"].metric_args
    assert args is not None
    assert args["interval_95"] == pytest.approx([drawn.low, drawn.high], abs=1e-4)
    assert by_type["f1"].metric_args is None, "it is not what the answers score"
    assert by_type["accuracy"].dataset_name == "mood.csv"
    text = (tmp_path / "pkg" / "README.md").read_text()
    assert "| mood | dev | F1 | 0.500 | missing |" in text
    # The package alone, without answers and data, is exported again: the interval is kept.
    (tmp_path / "mood.csv").unlink()
    write_package(tmp_path / "again", find_sources([tmp_path / "pkg"]))
    again = {result.metric_type: result for result in results_of(card_of(tmp_path / "again"))}
    assert again["accuracy"].metric_args == args


def test_no_interval_is_made_up(mood: Callable[[str], Path], tmp_path: Path) -> None:
    """Other examples, or examples that score otherwise than was told, give none."""
    folder = mood("mood")
    metrics = json.loads((folder / "metrics.json").read_text())["scores"]
    source, table = str(tmp_path / "mood.csv"), tmp_path / "mood.csv"
    assert "dev" in head_intervals(folder, MOOD, metrics, [source], columns=Columns())
    assert not head_intervals(folder, MOOD, metrics, ["gone.csv", "glue:RTE:gone.tsv"], columns=Columns())
    assert not head_intervals(folder, COLOUR, metrics, [source], columns=Columns()), "other classes"
    whole = table.read_text()
    table.write_text("\n".join(whole.splitlines()[:-1]) + "\n")
    assert not head_intervals(folder, MOOD, metrics, [source], columns=Columns()), "an example less"
    table.write_text(whole.replace("text 4,good", "text 4,bad"))
    assert not head_intervals(folder, MOOD, metrics, [source], columns=Columns()), "another label"
    table.write_text(whole.replace("label", "verdict", 1))
    assert not head_intervals(folder, MOOD, metrics, [source], columns=Columns())
    named = Columns(label="verdict")
    assert "dev" in head_intervals(folder, MOOD, metrics, [source], columns=named)
    write_package(tmp_path / "pkg", find_sources([folder]), card=CardConfig(columns=named))
    assert any(result.metric_args for result in results_of(card_of(tmp_path / "pkg")))


def test_an_interval_of_scores_covers_the_value() -> None:
    random = np.random.default_rng(0)
    right = random.normal(size=200)
    values = right + random.normal(size=200)
    found = metric_difference(SCORE["pearson"], right, [values], [])
    # Fisher's transform is the textbook's interval of a correlation of normal numbers.
    centre, spread = np.arctanh(pearson(right, values)), 1.96 / np.sqrt(197)
    assert found.low == pytest.approx(np.tanh(centre - spread), abs=0.03)
    assert found.high == pytest.approx(np.tanh(centre + spread), abs=0.03)


def test_several_heads_are_told_apart(tiny_bert: Path, mood: Callable[[str], Path], tmp_path: Path) -> None:
    """Their results do not run into each other, and hostile names stay out of the markup."""
    encoder = Encoder.load(str(tiny_bert))
    qa = save_span(tmp_path / "qa", encoder, "adapter:size=4")
    config = json.loads((qa / "config.json").read_text())
    config["label"] = "evil | <script>\n# head"
    (qa / "config.json").write_text(json.dumps(config))
    scores = {"exact": 1.0, "f1": 2.0, "tuned_exact": 30.0, "tuned_f1": 40.0}
    (qa / "metrics.json").write_text(
        json.dumps({"scores": {"dev": scores, "test": scores | {"tuned_f1": 39.0}}})
    )
    write_package(tmp_path / "pkg", find_sources([qa, mood("mood"), mood("mood2")]))
    card = card_of(tmp_path / "pkg")
    told = {(r.metric_name, r.dataset_split): r.metric_value for r in results_of(card)}
    assert told["F1 of qa", "test"] == 39.0
    assert told["F1 of qa", "dev"] == 40.0
    assert told["accuracy of mood", "dev"] == told["accuracy of mood2", "dev"]
    assert len(told) == 8
    data: Any = card.data
    assert data.license is None
    assert data.base_model is None, "a folder on somebody's disk is nobody's base model"
    assert "No licence is set" in card.text
    assert "evil script # head" in " ".join(card.text.split())
    parameters = config["parameters"]
    assert f"| qa | {parameters:,} | {100 * parameters / encoder.num_parameters:.3f} % |" in card.text
    assert "its data was not recorded" in card.text


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
    command = "bertvision fit /home/me/enc --train '/my data/a.csv' --out=/tmp/x --heads adapter:size=4"
    assert plain_command(command) == "bertvision fit enc --train a.csv --out=x --heads adapter:size=4"
    relative = (
        "bertvision fit clients/acme/enc --train sst=glue:RTE:data/dev.tsv hub:org/name:test --out=runs/x/"
    )
    plain = "bertvision fit enc --train sst=glue:RTE:dev.tsv hub:org/name:test --out=x"
    assert plain_command(relative) == plain
    assert plain_command(plain) == plain
    hub = "bertvision export pkg --datasets org/data --push org/name"
    assert plain_command(f"{hub} --out clients/acme/pkg") == f"{hub} --out pkg"
    above = "bertvision fit ../me/enc --train ~/a.csv answerable:/b/c.json"
    assert plain_command(above) == "bertvision fit enc --train a.csv answerable:c.json"
    assert plain_command("bertvision 'unclosed") == ""


def test_no_file_tells_folders_of_commands(
    mood: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told from the working folder, by the run that made a head and by the export."""
    head = mood("clients/acme")
    run = {"systems": [], "command": "bertvision run clients/acme/enc --out clients/acme/mood"}
    (head.parent / "results.json").write_text(json.dumps(run))
    monkeypatch.chdir(tmp_path)
    place = head.resolve().relative_to(tmp_path.resolve())
    outcome = bertvision("export", place, "--out", "clients/pkg")
    assert outcome.code == 0, outcome.err
    assert "bertvision run enc --out mood" in (tmp_path / "clients" / "pkg" / "README.md").read_text()
    for name, content in tree(tmp_path / "clients" / "pkg").items():
        assert content is None or b"clients" not in content, name


def test_stages_tell_how_a_head_was_made(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuned, fitted and joined, each by its own command: the card has them all in this order, their data, and an
    interval of the ensemble that is counted here once more."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions").mkdir()
    data = tmp_path / "questions" / "toy.json"
    data.write_bytes(toy_squad.read_bytes())
    given = ("--train", "questions/toy.json", "--dev", data, "--max-seq-length", "96")
    small = ("--max-train-examples", "8", "--epochs", "0.5")
    for words in (
        ("finetune", "--encoder", tiny_bert, *given, "--out", "work/tuned", *small),
        ("fit", "work/tuned/snapshot-0.5", *given, "--out", "work/heads", "--heads", "last_state", "adapter:size=2"),
        ("ensemble", "work/heads", "--data", data, "--out", "work/both"),
        ("export", "work/both", "--out", "pkg"),
    ):  # fmt: skip
        outcome = bertvision(*words)
        assert outcome.code == 0, outcome.err
    card = card_of(tmp_path / "pkg")
    made = card.text.partition("## How it was made")[2]
    assert "data: train toy.json, dev toy.json" in made
    told = [line.split()[1] for line in made.splitlines() if line.startswith("bertvision ")]
    assert told == ["finetune", "fit", "ensemble", "export"]
    assert "bertvision fit snapshot-0.5 --train toy.json --dev toy.json" in made
    for name, content in tree(tmp_path / "pkg").items():
        for place in (b"questions/", b"work/", bytes(tmp_path)):
            assert content is None or place not in content, name
    questions = load_data(str(data))
    assert not isinstance(questions, TextData)
    answers = json.loads((tmp_path / "work" / "both" / "dev" / "predictions.json").read_text())
    for result, values in zip(results_of(card), per_question(questions, answers), strict=True):
        drawn = mean_difference([100 * values], [])
        assert result.metric_value == pytest.approx(drawn.difference, abs=1e-4)
        assert result.metric_args == {"interval_95": [round(drawn.low, 4), round(drawn.high, 4)]}
    # A head of the fit alone tells what made it and not the ensemble.
    write_package(tmp_path / "one", find_sources([tmp_path / "work" / "heads" / "last-state.seed0"]))
    text = (tmp_path / "one" / "README.md").read_text()
    assert "bertvision finetune" in text
    assert "bertvision fit" in text
    assert "bertvision ensemble" not in text
