"""Fine-tuning on texts with labels or scores: the same as a plain loop over the tokenizer's own output, and what is
kept of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_tuning import (
    PlainTuning,
    fixture_lively,  # noqa: F401
    label_texts,
    score_texts,
    snapshot_weights,
    split_of,
    steps_of,
)
from toy import save_encoder
from tuning_helpers import (
    assert_equal,
    config_of,
    fixture_no_dropout,  # noqa: F401
    fixture_three_layers,  # noqa: F401
    largest_difference,
    losses,
    tuned,
)

from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError, OutputError
from bertvision.heads import load_head
from bertvision.model.trained import logits_of_trained, read_trained
from bertvision.train.job import Job, Split
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


def run_both(
    tmp_path: Path, source: Path, case: str, *, frozen: Any = lambda _: False, **values: Any
) -> tuple[PlainTuning, Any]:
    data, text, head = CASES[case]
    split = split_of(data, source, **text)
    values = SETTINGS | {"head": head} | values
    job = Job(split, head=head)
    plain = PlainTuning(source, [job], config_of(**values), frozen=frozen)
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


@pytest.mark.parametrize("case", ["ce of three classes", "scores of pairs joint", "pairs apart"])
@pytest.mark.parametrize("policy", ["top-1", "cut-1"])
def test_policies_are_the_plain_loop_too(policy: str, case: str, tmp_path: Path, lively: Path) -> None:
    def frozen(name: str) -> bool:
        last = name.startswith("encoder.layer.2.")
        return not (last or (policy == "top-1" and "LayerNorm" in name))

    plain, stage = run_both(tmp_path, lively, case, frozen=frozen, policy=policy, accumulate=2)
    assert_same(plain, stage, tmp_path / "snapshot-2")
    before = begun(plain)
    still = {n: t for n, t in before.items() if frozen(n.removeprefix("encoder/"))}
    assert {"encoder/pooler.dense.weight", "encoder/embeddings.word_embeddings.weight"} <= still.keys()
    found = snapshot_weights(tmp_path / "snapshot-2")
    assert_equal({n: found[n] for n in still}, still)


@pytest.mark.parametrize("head", ["tenney_small", "adapter_pooler:size=4", "mean_pooler", "attention_pooler"])
@pytest.mark.parametrize("policy", ["cut-1", "full"])
def test_a_label_head_over_all_layers_trains_with_the_encoder(
    policy: str, head: str, tmp_path: Path, lively: Path
) -> None:
    """Its snapshot answers as it was scored."""
    data = label_texts(40, 2)
    split = split_of(data, lively)
    values = {"policy": policy, "head": head, "epochs": 12.0, "lr": 5e-3}
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


def test_scores_on_the_way_stand_in_the_log_and_change_nothing(tmp_path: Path, three_layers: Path) -> None:
    """With dropout: looking takes no random number."""
    split = split_of(label_texts(40, 2), three_layers)
    quiet = tuned(tmp_path / "quiet", split, three_layers, epochs=2.0)
    watched = tuned(tmp_path / "out", split, three_layers, dev=split, epochs=2.0, score_every=0.5)
    assert losses(quiet) == losses(watched)
    assert_equal(*(snapshot_weights(tmp_path / name / "snapshot-2") for name in ("quiet", "out")))
    records = [r for r in read_metrics(watched.metrics) if "accuracy" in r]
    assert [r["step"] for r in records] == [2, 5, 8, 10], "5 steps an epoch; halves are rounded to even"
    assert [r.get("snapshot") for r in records] == [None, None, None, "snapshot-2"]
    assert records[-1]["accuracy"] == watched.results["snapshots"]["snapshot-2"]["accuracy"]
    # Another interval is the same work: nothing is trained again.
    again = tuned(tmp_path / "out", split, three_layers, dev=split, epochs=2.0, score_every=1.0)
    assert again.results == watched.results


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
