"""Cards of label and score heads: the Hub's block, metrics, classes, prompts, how they are called, gaps survived."""

from typing import Any

import pytest
import yaml

from bertvision.report.card import card
from bertvision.tasks.label import LabelTask
from bertvision.tasks.score import ScoreTask

LABEL = LabelTask(("negative", "positive"), metric="mcc")
SCORE = ScoreTask(shift=2.7, scale=1.5)
ASKS = LabelTask(("answer", "no answer"), merge="min", asks=True)
METRICS = {
    "scores": {
        "dev": {"accuracy": 0.81234, "f1": 0.79, "mcc": 0.61, "log_loss": 0.4, "calibration_error": 0.05},
        "test": {"accuracy": 0.8, "f1": 0.78, "mcc": 0.6, "log_loss": 0.41, "calibration_error": 0.06},
    },
    "metric": "mcc",
    "tuning": {"temperature": 1.25, "on": "/home/me/dev.tsv"},
}


def config(task: Any, **more: Any) -> dict[str, Any]:
    return {
        "label": "tenney small",
        "head": {"name": "tenney_small.v1", "config": {"order": "first"}},
        "encoder": {"name": "org/encoder", "fingerprint": "abc123"},
        "parameters": 1234,
        "task": task.config(),
        **more,
    }


def front(text: str) -> dict[str, Any]:
    return yaml.safe_load(text.split("---\n")[1])


def test_a_label_head() -> None:
    text = card(config(LABEL, states={"layers": [0, 1], "positions": "cls"}), METRICS)
    told = front(text)
    assert told["pipeline_tag"] == "text-classification"
    assert told["base_model"] == "org/encoder"
    assert told["metrics"] == ["accuracy", "f1", "matthews_correlation"]
    (model,) = told["model-index"]
    assert [result["dataset"]["split"] for result in model["results"]] == ["test", "dev"]
    values = {one["type"]: one["value"] for one in model["results"][1]["metrics"]}
    assert values == {"accuracy": 0.8123, "f1": 0.79, "matthews_correlation": 0.61}
    assert "| part | accuracy | F1 | MCC | log loss | calibration error |" in text
    assert "| dev | 0.812 | 0.790 | 0.610 | 0.400 | 0.050 |" in text
    assert "served probabilities are at 1.25" in text
    assert "Classes: negative, positive." in text
    assert "at [CLS]" in text
    assert "found.label, found.probabilities" in text
    assert "always chooses one of its classes" in text
    for word in ("span", "question", "SQuAD", "/home/me", "Percent"):
        assert word not in text


def test_a_score_head() -> None:
    text = card(
        config(SCORE),
        {
            "scores": {"dev": {"pearson": 0.871, "spearman": 0.86, "mse": 0.5, "mae": 0.6}},
            "metric": "pearson",
        },
    )
    told = front(text)
    assert told["pipeline_tag"] == "text-classification"  # whether of pairs is not known
    assert told["metrics"] == ["pearsonr", "spearmanr", "mse", "mae"]
    assert "| dev | 0.871 | 0.860 | 0.500 | 0.600 |" in text
    assert "a mean of 2.7 and a spread of 1.5" in text
    assert "found.score" in text
    assert "probabilit" not in text.partition("## Use")[2]


@pytest.mark.parametrize(
    "more",
    [
        {"reframe": {"prompt": "Are both alike?", "context": "First: {first} Second: {second}"}},
        {"task": ScoreTask(group=2).config()},
    ],
)
def test_scores_of_pairs(more: dict[str, Any]) -> None:
    text = card({**config(SCORE), **more}, {})
    assert front(text)["pipeline_tag"] == "sentence-similarity"
    assert "found = model.predict(first, second)\n" in text
    assert "Given a pair of texts it returns a score." in text
    if "reframe" in more:
        assert 'with the prompt "Are both alike?"' in text
        assert 'put into "First: {first} Second: {second}"' in text
        assert "The prompt is put in by itself." in text


def test_answerability() -> None:
    text = card(config(ASKS), METRICS)
    assert "found = model.predict(question, context)\n" in text
    assert "tells whether the text answers the question" in text
    assert "the least probability of no answer counts" in text


@pytest.mark.parametrize(
    "words",
    [
        {"task": {}},
        {"task": {"kind": "label", "classes": None, "positive": "x", "merge": 7}, "reframe": 3},
        {"task": {"kind": "score", "shift": None}, "head": None, "encoder": None},
        {
            "task": {"kind": "label", "classes": ["a | b", "<script>", "c\n---"]},
            "encoder": {"name": "/home/me/enc"},
        },
    ],
)
def test_gaps_are_survived(words: dict[str, Any]) -> None:
    text = card(words, {"scores": {"dev": {"accuracy": float("nan")}}, "metric": "nonsense", "tuning": {}})
    assert "model-index" not in front(text)
    assert "<script>" not in text
    assert "/home/me" not in text
