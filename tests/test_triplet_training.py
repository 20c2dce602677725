"""Pre-training on triplets: the same as a plain loop over the texts, fewer violations on texts held out, and rows of a
triplet that nothing parts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import bertvision
from killing import finish, run_together
from plain_tuning import (
    WINDOWS,
    PlainTuning,
    distances,
    fixture_lively,  # noqa: F401
    label_texts,
    snapshot_weights,
    steps_of,
    triplet_loss,
    write_table,
)
from tuning_helpers import (
    assert_same_tuning,
    config_of,
    largest_difference,
    losses,
    tuned,
)

from bertvision.data.examples import TextData, TextExample
from bertvision.data.triplets import TripletData, mine_triplets
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError, TrainingError
from bertvision.tasks.triplet import TripletTask
from bertvision.train.finetune import tune
from bertvision.train.job import Job, Split, window_split
from bertvision.train.run_folder import read_metrics

SETTINGS: dict[str, Any] = {"epochs": 1.0, "eps": 1e-2, "weight_decay": 0.1, "lr": 3e-3, "batch_size": 4}


def paraphrases(count: int) -> TextData:
    """Pairs of questions, of which every other one is a paraphrase: its words in another order."""
    random = np.random.default_rng(3)
    words = "who built the old mill near road where is cold bridge tower sold barn".split()  # noqa: SIM905
    made = []
    for i in range(count):
        first, other = (random.permutation(words)[: random.integers(4, 9)].tolist() for _ in range(2))
        second = random.permutation(first).tolist() if i % 2 else other
        made.append(TextExample(f"q{i}", f"{' '.join(first)} {i}?", f"{' '.join(second)} {i}?", i % 2))
    return TextData(made, "label", ("no", "yes"), name="questions")


@pytest.fixture(scope="module")
def mined() -> TripletData:
    """Of two sets: a row has an anchor, a positive and four negatives."""
    found = mine_triplets({"sst": label_texts(40, 2), "quora": paraphrases(30)}, seed=0)
    assert found.groups.shape[1] == 6
    return found.take(np.random.default_rng(0).permutation(len(found)))


def split_of(data: TripletData, source: Path, **task: Any) -> Split:
    how = TripletTask(group=2 + data.negatives, **task)
    return window_split(data, Encoder.load(str(source)), WINDOWS, keep=False, task=how)


@pytest.mark.parametrize(
    "values",
    [{}, {"accumulate": 3}, {"form": "paper", "margin": 9.0}, {"policy": "cut-1"}, {"batch_tokens": 300}],
    ids=str,
)
def test_triplets_are_trained_as_in_a_plain_loop(
    values: dict[str, Any], mined: TripletData, lively: Path, tmp_path: Path
) -> None:
    task = {"form": values.pop("form", "softmin"), "margin": values.pop("margin", 1.0)}
    split, config = split_of(mined.take(np.arange(14)), lively, **task), config_of(**SETTINGS, **values)
    cut = "policy" in values
    frozen = lambda name: cut and not name.startswith("encoder.layer.2.")  # noqa: E731
    plain = PlainTuning(lively, [Job(split)], config, frozen=frozen)
    for _, batch in steps_of([Job(split)], config):
        rows = batch[::6] // 6
        assert (batch.reshape(-1, 6) == rows[:, None] * 6 + np.arange(6)).all(), "a triplet was parted"
        plain.step(0, rows)
    assert max(plain.losses) > 0.1, "nothing to learn"
    stage = tuned(tmp_path, split, lively, **SETTINGS, **values)
    assert losses(stage) == pytest.approx(plain.losses, rel=1e-4, abs=1e-5)
    found, wanted = snapshot_weights(tmp_path / "snapshot-1"), plain.weights()
    assert largest_difference({n: found[n] for n in wanted}, wanted) < 2e-5
    assert [path.name for path in (tmp_path / "snapshot-1").iterdir()] == ["encoder"], (
        "it has no head to keep"
    )


def test_fewer_held_out_triplets_are_violated(mined: TripletData, lively: Path, tmp_path: Path) -> None:
    held, rest = mined.take(np.arange(15)), mined.take(np.arange(15, len(mined)))
    train, dev = (split_of(data, lively, margin=1.0) for data in (rest, held))
    values = SETTINGS | {"epochs": 8.0, "snapshots": (0.01,), "score_every": 2.0, "eps": 1e-8, "lr": 1e-3}
    stage = tuned(tmp_path, train, lively, dev=dev, **values)
    first, last = stage.results["snapshots"].values()
    assert last["violation_rate"] < 0.6 * first["violation_rate"]
    assert last["softmin_loss"] < 0.6 * first["softmin_loss"]
    told = [r for r in read_metrics(stage.metrics) if "violation_rate" in r]
    assert [round(r["epoch"]) for r in told] == [0, 2, 4, 6, 8]
    names = {"positive_distance", "negative_distance", "violation_rate", "paper_loss", "softmin_loss"}
    assert all(names <= r.keys() for r in told)
    # The snapshot is an encoder, and its distances are those that were told.
    encoder = Encoder.load(str(tmp_path / "snapshot-8" / "encoder"))
    with torch.no_grad():
        model = encoder.model.eval()
        found = torch.stack([distances(model, encoder.tokenizer, held, i) for i in range(15)])
    assert last["violation_rate"] == pytest.approx(
        (found[:, 1:] < found[:, :1]).any(1).double().mean().item()
    )
    assert last["positive_distance"] == pytest.approx(found[:, 0].mean().item(), rel=1e-4)
    for form in ("paper", "softmin"):
        mean = torch.stack([triplet_loss(row, form, 0.0) for row in found]).mean().item()
        assert last[f"{form}_loss"] == pytest.approx(mean, rel=1e-4, abs=1e-6)


def test_triplets_train_beside_other_tasks(mined: TripletData, lively: Path, tmp_path: Path) -> None:
    from plain_tuning import split_of as split_texts

    triplets = split_of(mined.take(np.arange(14)), lively, margin=1.0)
    labels = split_texts(label_texts(20, 2), lively)
    jobs = [Job(triplets, triplets, name="near"), Job(labels, labels, name="mood")]
    stage, (folder,) = tune(Encoder.load(str(lively)), jobs, folder=tmp_path, config=config_of(**SETTINGS))
    assert [path.name for path in (folder / "heads").iterdir()] == ["mood"]
    scores = stage.results["snapshots"]["snapshot-1"]
    assert scores.keys() == {"near", "mood"}
    assert "violation_rate" in scores["near"]


# ---- mistakes


def test_what_triplets_cannot_do_is_one_sentence(mined: TripletData, lively: Path, tmp_path: Path) -> None:
    split = split_of(mined.take(np.arange(6)), lively)
    with pytest.raises(ConfigError, match="not for a triplet task"):
        tuned(tmp_path / "out", split, lively, sampling="balanced")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="--form cubic is unknown: choose softmin or paper"):
        TripletTask(form="cubic")  # type: ignore[arg-type]
    wide = replace(split, task=TripletTask(group=3))
    with pytest.raises(TrainingError, match=r"on the examples number \d"):
        tuned(tmp_path / "broken", wide, lively, lr=1e36, clip=0.0, epochs=3.0, batch_size=1)


# ---- the verb


@pytest.fixture
def words(tmp_path: Path, lively: Path) -> Any:
    write_table(tmp_path / "mood.tsv", label_texts(40, 2))
    write_table(tmp_path / "pairs.tsv", paraphrases(30))

    def make(out: str, *more: Any) -> list[str]:
        told = ["triplet", "--sst", tmp_path / "mood.tsv", "--quora", tmp_path / "pairs.tsv", "--encoder", lively,
                "--out", tmp_path / out, "--max-seq-length", "64", "--batch-size", "4", "--lr", "1e-3", "--log-every",
                "1", "--held-out", "0.2", *more]  # fmt: skip
        return [str(word) for word in told]

    return make


def test_the_verb_trains_and_tells(words: Any, tmp_path: Path) -> None:
    done = bertvision(*words("out", "--max-examples", "40", "--epochs", "2", "--score-every", "1"))
    assert done.code == 0, done.err
    assert "32 triplets to train on, 8 held out" in done.out + done.err
    assert "violation rate" in done.out
    told = json.loads(bertvision(*words("out", "--max-examples", "40", "--epochs", "2", "--json")).out)
    assert told["scores"]["snapshot-2"].keys() >= {"violation_rate", "paper_loss", "softmin_loss"}
    assert Encoder.load(told["snapshots"][0] + "/encoder").hidden == 32
    assert bertvision("finetune", "--train", tmp_path / "mood.tsv", "--encoder", told["snapshots"][0], "--out",
                      tmp_path / "tuned", "--max-seq-length", "64", "--max-train-examples", "8").code == 0  # fmt: skip


def test_two_processes_train_what_one_does(words: Any, tmp_path: Path) -> None:
    """Five triplets a batch and two ranks, so that one has more of them; in two parts."""
    more = "--max-examples 30 --batch-size 5 --accumulate 2 --eps 1e-2 --device cpu".split()  # noqa: SIM905
    run_together(words("two", *more), tmp_path)
    assert finish(words("one", *more), tmp_path / "one.log") == 0, (tmp_path / "one.log").read_text()
    assert_same_tuning(tmp_path / "two", tmp_path / "one")
