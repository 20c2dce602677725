"""Fine-tuning on texts with labels or scores, and on triplets: the same as a plain loop over the tokenizer's own
output, and what is kept of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import answered, as_json
from killing import finish, run_together
from toy import save_encoder
from tuning_helpers import (
    WINDOWS,
    PlainTuning,
    assert_same_tuning,
    config_of,
    distances,
    label_texts,
    largest_difference,
    losses,
    score_texts,
    snapshot_weights,
    split_of,
    steps_of,
    triplet_loss,
    tuned,
    write_table,
)

from bertvision.data.examples import TextData, TextExample
from bertvision.data.triplets import TripletData, mine_triplets
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError, OutputError, TrainingError
from bertvision.heads import load_head
from bertvision.model.trained import logits_of_trained, read_trained
from bertvision.tasks.triplet import TripletTask
from bertvision.train.finetune import tune
from bertvision.train.job import Job, Split, window_split
from bertvision.train.parallel import ALONE
from bertvision.train.run_folder import read_metrics
from bertvision.train.steps import Steps, TokenSource

# Adam divides by the gradient's own size; a large eps keeps it from blowing rounding up.
SETTINGS: dict[str, Any] = {"epochs": 2.0, "eps": 1e-2, "weight_decay": 0.1, "lr": 1e-2}

CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "ce of three classes": (label_texts(), {}, "cls_linear"),
    "ce of two": (label_texts(classes=2), {"loss": "ce"}, ""),
    "bce": (label_texts(classes=2), {"loss": "bce"}, "minbert:dropout=0,blocks=2"),
    "score": (score_texts(pairs=False), {}, ""),
    "pairs joint": (label_texts(classes=2, pairs=True), {}, "minbert:dropout=0,blocks=1"),
    "scores of pairs joint": (score_texts(), {}, ""),
    "pairs apart": (label_texts(classes=2, pairs=True), {"apart": True, "loss": "bce"}, "minbert:vectors=2,dropout=0"),
    "scores of pairs apart": (score_texts(), {"apart": True}, "minbert:vectors=2,dropout=0,blocks=1"),
}  # fmt: skip


def run_both(tmp_path: Path, source: Path, case: str, **values: Any) -> tuple[PlainTuning, Any]:
    data, text, head = CASES[case]
    split = split_of(data, source, **text)
    values = SETTINGS | {"head": head} | values
    job = Job(split, head=head)
    plain = PlainTuning(source, [job], config_of(**values))
    for _, batch in steps_of([job], config_of(**values)):
        units = batch[:: job.task.group]
        neighbours = units[:, None] + np.arange(job.task.group)
        assert batch.tolist() == neighbours.ravel().tolist(), "neighbours stay together"
        assert len(units) <= 8
        plain.step(0, units // job.task.group)
    stage = tuned(tmp_path, split, source, **values)
    return plain, stage


def begun(plain: PlainTuning) -> dict[str, torch.Tensor]:
    fresh = Encoder.load(plain.encoder.name).model
    return {f"encoder/{n}": p.detach() for n, p in fresh.named_parameters()}


def assert_same(plain: PlainTuning, stage: Any, snapshot: Path) -> None:
    assert losses(stage) == pytest.approx(plain.losses, rel=5e-5, abs=2e-6)
    wanted, found = plain.weights(), snapshot_weights(snapshot)
    begin = begun(plain)
    moved = max(float((wanted[n] - begin[n]).abs().max()) for n in begin)
    assert moved > 1e-3, "hardly moved"
    assert largest_difference({n: found[n] for n in wanted}, wanted) < 1e-5


@pytest.mark.parametrize(
    ("case", "accumulate"), [*((c, 1) for c in CASES), ("bce", 2), ("score", 3), ("pairs apart", 2)]
)
def test_fine_tuning_is_the_plain_loop(case: str, accumulate: int, tmp_path: Path, lively: Path) -> None:
    plain, stage = run_both(tmp_path, lively, case, accumulate=accumulate)
    assert_same(plain, stage, tmp_path / "snapshot-2")
    pooler = "encoder/pooler.dense.weight"
    assert not torch.equal(plain.weights()[pooler], begun(plain)[pooler]), (
        "the pooler trains with the encoder"
    )


@pytest.mark.parametrize("head", ["tenney_small", "adapter_pooler:size=4", "mean_pooler", "attention_pooler"])
def test_a_label_head_over_all_layers_trains_with_the_encoder(
    head: str, tmp_path: Path, lively: Path
) -> None:
    """Its snapshot answers as it was scored."""
    data = label_texts(40, 2)
    split = split_of(data, lively)
    values = {"policy": "cut-1", "head": head, "epochs": 12.0, "lr": 5e-3}
    stage = tuned(tmp_path, split, lively, dev=split, **values)
    curve = losses(stage)
    assert np.mean(curve[-5:]) < 0.8 * np.mean(curve[:5])
    made, about = load_head(tmp_path / "snapshot-12" / "head")
    assert made.name == f"{head.split(':')[0]}.v1"
    assert about["task"]["classes"] == ["poor", "fair"]
    ((_, again),) = logits_of_trained([read_trained(tmp_path / "snapshot-12")], data)
    told = stage.results["snapshots"]["snapshot-12"]["accuracy"]
    right = (again["values"].argmax(axis=1) == [e.label for e in data.examples]).mean()
    assert right == pytest.approx(told)


def test_the_pooler_reads_the_classification_token_wherever_it_stands(lively: Path) -> None:
    encoder, split = Encoder.load(str(lively)), split_of(label_texts(), lively)
    steps = Steps(encoder, [Job(split, head="cls_linear")], config_of(), ALONE)
    inputs = TokenSource(encoder, split.windows).batch(np.arange(5))
    assert "cls" not in inputs, "here it is the first token"
    last = inputs["cls"] = inputs["mask"].sum(1) - 1
    assert len(set(last.tolist())) > 1
    with torch.no_grad():
        (states,), pooled = steps._states(inputs)
        wanted = torch.tanh(encoder.model.pooler.dense(states[torch.arange(5), last]))
    assert pooled is not None
    torch.testing.assert_close(pooled, wanted)


@pytest.mark.parametrize("architecture", ["mpnet", "albert", "distilbert", "electra", "modernbert"])
def test_every_kind_of_encoder_learns_labels(architecture: str, tmp_path: Path) -> None:
    """With a pooler of its own shape, or none: then the head reads [CLS] of the last state."""
    source = save_encoder(tmp_path / "encoder", architecture)
    split = split_of(label_texts(40, 2), source)
    stage = tuned(tmp_path / "out", split, source, dev=split, epochs=8.0, lr=3e-3)
    curve = losses(stage)
    assert np.mean(curve[-5:]) < 0.8 * np.mean(curve[:5])
    head, _ = load_head(tmp_path / "out" / "snapshot-8" / "head")
    assert head.geometry.pooled == (architecture in ("mpnet", "albert"))


# ---- what is kept and told


@pytest.mark.parametrize(
    ("case", "head", "words"),
    [
        ("pairs apart", "cls_linear", "reads 1 window of .*, and .* has 2 side by side: name one that does"),
        ("pairs joint", "minbert:vectors=2", "reads 2 windows of .*, and .* 1 side by side: give it --apart"),
        ("score", "last_state", "last_state.v1 gives logits of each token"),
    ],
)
def test_a_head_that_does_not_suit_is_one_sentence(
    case: str, head: str, words: str, tmp_path: Path, no_dropout: Path
) -> None:
    data, text, _ = CASES[case]
    split = split_of(data, no_dropout, **text)
    with pytest.raises(ConfigError, match=words) as caught:
        tuned(tmp_path / "out", split, no_dropout, head=head)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_task_is_kept_with_the_head_and_decides_the_work(tmp_path: Path, no_dropout: Path) -> None:
    data = score_texts()
    split = split_of(data, no_dropout)
    tuned(tmp_path / "out", split, no_dropout)
    config = json.loads((tmp_path / "out" / "snapshot-1" / "head" / "config.json").read_text())
    values = np.array([e.label for e in data.examples])
    assert config["task"]["shift"] == pytest.approx(values.mean())
    assert config["task"]["scale"] == pytest.approx(values.std())
    two = label_texts(classes=2)
    tuned(tmp_path / "b", split_of(two, no_dropout), no_dropout)
    other: Split = split_of(two, no_dropout, loss="bce")
    with pytest.raises(OutputError, match=r"other settings \(task\.objective\)"):
        tuned(tmp_path / "b", other, no_dropout)


# ---- triplets

TRIPLET_SETTINGS: dict[str, Any] = {
    "epochs": 1.0,
    "eps": 1e-2,
    "weight_decay": 0.1,
    "lr": 3e-3,
    "batch_size": 4,
}


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


def triplets_of(data: TripletData, source: Path, **task: Any) -> Split:
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
    split, config = (
        triplets_of(mined.take(np.arange(14)), lively, **task),
        config_of(**TRIPLET_SETTINGS, **values),
    )
    cut = "policy" in values
    frozen = lambda name: cut and not name.startswith("encoder.layer.2.")  # noqa: E731
    plain = PlainTuning(lively, [Job(split)], config, frozen=frozen)
    for _, batch in steps_of([Job(split)], config):
        rows = batch[::6] // 6
        assert (batch.reshape(-1, 6) == rows[:, None] * 6 + np.arange(6)).all(), "a triplet was parted"
        plain.step(0, rows)
    assert max(plain.losses) > 0.1, "nothing to learn"
    stage = tuned(tmp_path, split, lively, **TRIPLET_SETTINGS, **values)
    assert losses(stage) == pytest.approx(plain.losses, rel=1e-4, abs=1e-5)
    found, wanted = snapshot_weights(tmp_path / "snapshot-1"), plain.weights()
    assert largest_difference({n: found[n] for n in wanted}, wanted) < 2e-5
    assert [path.name for path in (tmp_path / "snapshot-1").iterdir()] == ["encoder"], (
        "it has no head to keep"
    )


def test_fewer_held_out_triplets_are_violated(mined: TripletData, lively: Path, tmp_path: Path) -> None:
    held, rest = mined.take(np.arange(15)), mined.take(np.arange(15, len(mined)))
    train, dev = (triplets_of(data, lively, margin=1.0) for data in (rest, held))
    values = TRIPLET_SETTINGS | {
        "epochs": 8.0,
        "snapshots": (0.01,),
        "score_every": 2.0,
        "eps": 1e-8,
        "lr": 1e-3,
    }
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
    triplets = triplets_of(mined.take(np.arange(14)), lively, margin=1.0)
    labels = split_of(label_texts(20, 2), lively)
    jobs = [Job(triplets, triplets, name="near"), Job(labels, labels, name="mood")]
    stage, (folder,) = tune(
        Encoder.load(str(lively)), jobs, folder=tmp_path, config=config_of(**TRIPLET_SETTINGS)
    )
    assert [path.name for path in (folder / "heads").iterdir()] == ["mood"]
    scores = stage.results["snapshots"]["snapshot-1"]
    assert scores.keys() == {"near", "mood"}
    assert "violation_rate" in scores["near"]


# ---- triplets: mistakes and the verb


def test_what_triplets_cannot_do_is_one_sentence(mined: TripletData, lively: Path, tmp_path: Path) -> None:
    split = triplets_of(mined.take(np.arange(6)), lively)
    with pytest.raises(ConfigError, match="not for a triplet task"):
        tuned(tmp_path / "out", split, lively, sampling="balanced")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="--form cubic is unknown: choose softmin or paper"):
        TripletTask(form="cubic")  # type: ignore[arg-type]
    wide = replace(split, task=TripletTask(group=3))
    with pytest.raises(TrainingError, match=r"on the examples number \d"):
        tuned(tmp_path / "broken", wide, lively, lr=1e36, clip=0.0, epochs=3.0, batch_size=1)


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
    done = answered(*words("out", "--max-examples", "40", "--epochs", "2", "--score-every", "1"))
    assert "32 triplets to train on, 8 held out" in done.out + done.err
    assert "violation rate" in done.out
    told = as_json(*words("out", "--max-examples", "40", "--epochs", "2"))
    assert told["scores"]["snapshot-2"].keys() >= {"violation_rate", "paper_loss", "softmin_loss"}
    assert Encoder.load(told["snapshots"][0] + "/encoder").hidden == 32
    answered("finetune", "--train", tmp_path / "mood.tsv", "--encoder", told["snapshots"][0], "--out",
                      tmp_path / "tuned", "--max-seq-length", "64", "--max-train-examples", "8")  # fmt: skip


def test_two_processes_train_what_one_does(words: Any, tmp_path: Path) -> None:
    """Five triplets a batch and two ranks, so that one has more of them; in two parts."""
    more = "--max-examples 30 --batch-size 5 --accumulate 2 --eps 1e-2 --device cpu".split()  # noqa: SIM905
    run_together(words("two", *more), tmp_path)
    assert finish(words("one", *more), tmp_path / "one.log") == 0, (tmp_path / "one.log").read_text()
    assert_same_tuning(tmp_path / "two", tmp_path / "one")
