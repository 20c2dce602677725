"""The demo: what it was measured to give stays far above guessing, and the flow runs on the real encoder."""

import json
from pathlib import Path

import pytest
from cli_runner import bertvision

from bertvision.data.demo import demo_data, overlap_answers
from bertvision.tasks.span_answers import score

MEASURED = Path(__file__).parents[1] / "docs" / "results" / "demo.json"


def guessing_f1(split: str) -> float:
    """The best of both trivial baselines on a part, its abstention tuned on that very part: a generous bound."""
    data = demo_data(split)
    answers = overlap_answers(data)
    cuts = sorted({2.0, *(sure for _, sure in answers)})  # 2: always no answer
    tries = [[text if sure >= cut else "" for text, sure in answers] for cut in cuts]
    ids = [example.id for example in data.examples]
    return max(float(score(data, dict(zip(ids, texts, strict=True)))["f1"]) for texts in tries)


def test_measured_heads_are_far_above_guessing() -> None:
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    assert len(measured["runs"]) == 3
    for run in measured["runs"]:
        assert run["best head"]["tuned"] > guessing_f1("test") + 15
        assert run["test fingerprint"] == demo_data("test").fingerprint, "the set changed: measure again"


def test_the_flow_on_the_real_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few steps of the demo itself: the embedded encoder, tuned for three steps, with two heads."""
    flags = ["--max-train-examples", "24", "--max-dev-examples", "8", "--max-test-examples", "8", "--json"]
    heads = ["--fit.heads", "last_state", "adapter:size=8", "--fit.seeds", "0", "--fit.epochs", "2"]
    bertvision("run", "--out", str(tmp_path / "run"), *flags, *heads)
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    losses = [record["loss"] for record in results["curves"]["fit"]["snapshot-1/adapter-8"]]
    assert losses[-1] < losses[0]
    assert results["encoder"]["parameters"] == 22_713_216
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_demo_head_beats_guessing(tmp_path: Path) -> None:
    """The whole demo, minutes long: the best head on dev is far above guessing on test."""
    bertvision("run", "--out", str(tmp_path / "run"))
    systems = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["systems"]
    best = next(system for system in systems if system["best"])
    assert best["scores"]["test"]["tuned_f1"]["mean"] > guessing_f1("test") + 15
