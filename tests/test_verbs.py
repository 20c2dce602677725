"""What a verb does with folders that another left: decodings, thresholds, names, and work that must not be mixed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_runner import bertvision
from toy import save_encoder

FIT = ("--max-seq-length", "96", "--heads", "learned_pooling", "adapter:size=4")


def rows(*words: str | Path) -> Any:
    outcome = bertvision(*words, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, toy_squad: Path) -> Path:
    folder = tmp_path_factory.mktemp("fitted") / "heads"
    outcome = bertvision("fit", tiny_bert, "--train", toy_squad, "--dev", toy_squad, "--out", folder, *FIT)
    assert outcome.code == 0, outcome.err
    return folder


def test_fit_tunes_thresholds_on_dev(fitted: Path, toy_squad: Path) -> None:
    for head in ("learned-pooling.seed0", "adapter-4.seed0"):
        metrics = json.loads((fitted / head / "metrics.json").read_text(encoding="utf-8"))
        [row] = rows("eval", fitted / head, "--data", toy_squad)
        assert row["tuning"]["threshold"] == metrics["tuning"]["threshold"]
        assert metrics["tuning"]["on"] == str(toy_squad)
        # Tuned on these very questions, it is as good as the best there is.
        assert row["scores"]["tuned_f1"] == pytest.approx(row["oracle"])
        assert metrics["scores"]["dev"]["tuned_f1"] == pytest.approx(row["oracle"])


def test_eval_decodes_as_the_threshold_was_tuned(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (
        "run",
        "--encoder",
        tiny_bert,
        "--train",
        toy_squad,
        "--dev",
        toy_squad,
        "--decoding",
        "bertvision",
    )
    outcome = bertvision(*words, "--out", run, "--max-seq-length", "96", "--fit.heads", "adapter:size=4")
    assert outcome.code == 0, outcome.err
    head = run / "fit" / "snapshot-1" / "adapter-4.seed0"
    told = json.loads((head / "metrics.json").read_text(encoding="utf-8"))
    [stored] = rows("eval", head, "--data", toy_squad, "--out", tmp_path / "eval")
    assert stored["tuning"]["decode"]["decoding"] == "bertvision"
    for name, value in told["scores"]["dev"].items():
        assert stored["scores"][name] == pytest.approx(value)
    written = (tmp_path / "eval" / "adapter-4.seed0" / "eval" / "predictions.json").read_text(
        encoding="utf-8"
    )
    assert written == (head / "dev" / "predictions.json").read_text(encoding="utf-8")


def test_eval_scores_second_choices_and_other_encoders(fitted: Path, toy_squad: Path, tmp_path: Path) -> None:
    """Heads may read another encoder of the same size when asked to; of another size never."""
    head = fitted / "adapter-4.seed0"
    same_size = save_encoder(tmp_path / "same", "bert", seed=1)
    answers = {}
    for name, more in {
        "first": (),
        "second": ("--second-best",),
        "other": ("--encoder", same_size, "--other-encoder"),
    }.items():
        rows("eval", head, "--data", toy_squad, "--out", tmp_path / name, *more)
        answers[name] = (tmp_path / name / head.name / "eval" / "null_odds.json").read_text(encoding="utf-8")
    assert len(set(answers.values())) == 3
    for encoder, flags in (
        (same_size, ()),
        (save_encoder(tmp_path / "deeper", "bert", num_hidden_layers=3), ("--other-encoder",)),
    ):
        outcome = bertvision("eval", head, "--data", toy_squad, "--encoder", encoder, *flags)
        assert outcome.code == 2
        assert "another encoder" in outcome.err
    assert bertvision("eval", head, "--data", toy_squad, "--other-encoder").code == 2


def test_eval_keeps_heads_of_one_name_apart(fitted: Path, toy_squad: Path, tmp_path: Path) -> None:
    other = tmp_path / "others"
    shutil.copytree(fitted, other)
    found = rows("eval", fitted, other, "--data", toy_squad, "--out", tmp_path / "out")
    assert [row["system"] for row in found] == [
        "heads.adapter-4.seed0", "heads.learned-pooling.seed0",
        "others.adapter-4.seed0", "others.learned-pooling.seed0",
    ]  # fmt: skip
    assert len(list((tmp_path / "out").glob("*/eval/predictions.json"))) == 4


def test_an_ensemble_nobody_could_load_is_refused(fitted: Path, toy_squad: Path, tmp_path: Path) -> None:
    joined = tmp_path / "joined"
    assert bertvision("ensemble", fitted, "--data", toy_squad, "--out", joined).code == 0
    outcome = bertvision("ensemble", fitted, joined, "--data", toy_squad, "--out", tmp_path / "twice")
    assert outcome.code == 2
    assert "cannot be a member of another" in outcome.err
    assert not (tmp_path / "twice").exists()


def test_overwrite_does_not_delete_the_encoder_it_reads(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    out = tmp_path / "work"
    words = (
        "finetune",
        "--encoder",
        tiny_bert,
        "--train",
        toy_squad,
        "--max-seq-length",
        "96",
        "--epochs",
        "0.5",
    )
    assert bertvision(*words, "--out", out).code == 0
    snapshot = out / "snapshot-0.5"
    outcome = bertvision("fit", snapshot, "--train", toy_squad, "--out", out, "--overwrite", *FIT)
    assert outcome.code == 2
    assert "would delete the encoder" in outcome.err
    assert (snapshot / "encoder" / "model.safetensors").is_file()


def test_work_in_another_precision_is_not_mixed_in(
    fitted: Path, tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(fitted, copy)
    words = ("fit", tiny_bert, "--train", toy_squad, "--dev", toy_squad, "--out", copy, *FIT)
    assert bertvision(*words).code == 0
    outcome = bertvision(*words, "--precision", "bf16")
    assert outcome.code == 2
    assert "other settings (arithmetic)" in outcome.err
