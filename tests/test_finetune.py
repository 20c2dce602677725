"""Fine-tuning by policy: what moves and what stays, steps taken in other ways, runs that break and what they leave."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F
from toy import save_encoder
from transformers.models.bert.modeling_bert import BertOutput
from tuning_helpers import (
    POLICIES,
    PlainTuning,
    after_step,
    assert_equal,
    config_of,
    largest_difference,
    losses,
    parameters,
    snapshot_weights,
    steps_of,
    tuned,
)

from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.policy import parse_policy
from bertvision.errors import TrainingError
from bertvision.heads import load_head
from bertvision.heads.base import bare_batch
from bertvision.model.trained import logits_of_trained, read_trained
from bertvision.tasks.logits import Logits
from bertvision.tasks.span import SpanTask
from bertvision.train.finetune import tune
from bertvision.train.job import Job, Split
from bertvision.train.steps import Steps

# ---- what trains


def by_hand(policy: str, name: str) -> bool:
    """Whether the parameter `name` of a BERT of three layers moves."""
    layer, last = name.startswith("encoder.layer."), name.startswith("encoder.layer.2.")
    norm, pooler = "LayerNorm" in name, name.startswith("pooler.")
    return {
        "full": not pooler,  # it trains, but no gradient reaches it
        "none": False,
        "layers": layer,
        "top-1": last or norm,
        "cut-1": last,
        "houlsby-4": norm,
        "houlsby-4+top-1": last or norm,
        "lora-2": layer and not norm and name.endswith(".weight"),
        "bitfit": name.endswith("bias") and not pooler,
    }[policy]


def count_by_hand(policy: str, base: dict[str, Tensor]) -> int:
    """Trained parameters with a head of 32 * 2 + 2."""
    moved = [t for name, t in base.items() if by_hand(policy, name) or policy == "full"]
    # LoRA's A is 2 x inputs, its B outputs x 2.
    own = sum(2 * sum(t.shape) if policy == "lora-2" else t.numel() for t in moved)
    return own + 66 + (3 * 2 * (2 * 32 * 4 + 4 + 32) if policy.startswith("houlsby") else 0)


def snapshot_answers(snapshot: Path, train: Split) -> bool:
    """Whether a snapshot, loaded anew, answers as it was scored."""
    ((_, again),) = logits_of_trained([read_trained(snapshot)], train.data)
    kept = Logits.load(snapshot / "head" / "dev" / "logits.safetensors", train.fingerprint)
    return all(np.allclose(again[side], kept[side], rtol=0, atol=2e-5) for side in ("start", "end"))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_moves_what_it_names_and_nothing_else(
    policy: str, tmp_path: Path, train: Split, three_layers: Path
) -> None:
    encoder = Encoder.load(str(three_layers))
    config = config_of(policy=policy, snapshots=(0.5,), weight_decay=0.1)
    stage, snapshots = tune(encoder, [Job.only(train, train, config)], folder=tmp_path, config=config)
    base = parameters(three_layers)
    assert (
        [path.name for path in snapshots]
        == list(stage.results["snapshots"])
        == ["snapshot-0.5", "snapshot-1"]
    )
    for snapshot in snapshots:
        now = parameters(snapshot / "encoder")
        assert {n for n in base if not torch.equal(base[n], now[n])} == {
            n for n in base if by_hand(policy, n)
        }
        added = now.keys() - base.keys()
        assert bool(added) == policy.startswith("houlsby")
        assert all(".houlsby." in n for n in added)
        if added:
            fresh = Encoder.load(str(three_layers))
            fresh.tune(parse_policy(policy), seed=0)
            begin = dict(fresh.model.named_parameters())
            assert all(not torch.equal(begin[n], now[n]) for n in added)
        about = json.loads((snapshot / "head" / "config.json").read_text())
        assert about["encoder"]["fingerprint"] == Encoder.load(str(snapshot / "encoder")).fingerprint
        assert (snapshot / "head" / about["encoder"]["path"]).resolve() == (snapshot / "encoder").resolve()
        assert f"snapshot-{about['fraction']:g}" == snapshot.name == about["label"]
        assert snapshot_answers(snapshot, train)
    assert stage.results["trainable"] == count_by_hand(policy, base)
    assert stage.results["policy"] == policy
    delta = policy.startswith(("houlsby", "lora", "bitfit"))
    assert (tmp_path / "snapshot-1" / "encoder" / "delta.json").exists() == delta
    assert not (tmp_path / "checkpoint.safetensors").exists()
    # The encoder in memory is the last snapshot.
    batch = collate(train.windows, np.arange(3), pad_id=encoder.pad_id, device=encoder.device)
    loaded = Encoder.load(str(tmp_path / "snapshot-1" / "encoder"))
    assert encoder.fingerprint == loaded.fingerprint
    assert torch.allclose(encoder.states(batch), loaded.states(batch), atol=1e-5)
    assert not any(p.requires_grad for p in encoder.model.parameters())


@pytest.mark.parametrize("policy", ["layers", "cut-1", "top-1"])
def test_a_policy_is_the_plain_loop(policy: str, tmp_path: Path, train: Split, no_dropout: Path) -> None:
    """Losses and weights are those of a loop that freezes the same parameters, written with torch alone."""
    # Adam divides by the gradient's own size; a large eps keeps it from blowing rounding up.
    values: dict[str, Any] = {"policy": policy, "epochs": 2.0, "eps": 1e-2, "weight_decay": 0.1, "lr": 1e-2}
    job, config = Job(train, head="last_state"), config_of(**values)
    plain = PlainTuning(no_dropout, [job], config, frozen=lambda name: not by_hand(policy, name))
    for _, batch in steps_of([job], config):
        plain.step(0, batch)
    stage = tuned(tmp_path, train, no_dropout, **values)
    assert losses(stage) == pytest.approx(plain.losses, rel=1e-5)
    found, wanted = snapshot_weights(tmp_path / "snapshot-2"), plain.weights()
    assert largest_difference({n: found[n] for n in wanted}, wanted) < 1e-5


@pytest.mark.parametrize("policy", ["none", "top-0"])
def test_an_encoder_of_which_nothing_trains_is_read_without_dropout(
    policy: str, tmp_path: Path, train: Split
) -> None:
    """One step of all windows at a rate of nothing: its loss is that of the snapshot, read as any other is."""
    source = save_encoder(tmp_path / "loud", hidden_dropout_prob=0.5)
    values = {"policy": policy, "head": "learned_pooling", "batch_size": 1000, "lr": 1e-20}
    (seen,) = losses(tuned(tmp_path / "out", train, source, **values))
    encoder, (head, _) = Encoder.load(str(source)), load_head(tmp_path / "out" / "snapshot-1" / "head")
    batch = collate(
        train.windows, np.arange(len(train.windows)), pad_id=encoder.pad_id, device=encoder.device
    )
    with torch.no_grad():
        logits = head.eval()(bare_batch(encoder.states(batch), batch.mask)).masked_fill(
            ~batch.mask[..., None], -1e30
        )
    target = torch.from_numpy(train.windows.labels.astype(np.int64))
    quiet = float(sum(F.cross_entropy(logits[..., i], target[:, i]) for i in (0, 1)) / 2)
    assert (seen == pytest.approx(quiet, rel=1e-5)) == (policy == "none"), "what trains has its dropout"


# ---- ways to take the same step


@pytest.mark.parametrize(
    "values",
    [
        {"policy": "full"}, {"policy": "houlsby-4"}, {"policy": "lora-2"}, {"policy": "top-1"},
        {"policy": "cut-1", "head": "adapter:size=4"}, {"policy": "none", "head": "adapter:size=4"},
        {"policy": "full", "accumulate": 3, "sampling": "balanced"},
    ],
    ids=str,
)  # fmt: skip
def test_computing_layers_again_changes_nothing(
    values: dict[str, Any], tmp_path: Path, train: Split, three_layers: Path
) -> None:
    """Dropout included: the backward pass draws the same numbers once more."""
    calls, real = Counter[str](), BertOutput.forward
    for name, again in (("plain", False), ("again", True)):

        def counted(self: Any, *args: Any, name: str = name, **kwargs: Any) -> Any:
            calls[name] += torch.is_grad_enabled()
            return real(self, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BertOutput, "forward", counted)
            tuned(tmp_path / name, train, three_layers, checkpointing=again, **values)
    # Only layers that a gradient goes through run twice: of three none, the last, or all.
    runs = {"none": 3, "cut-1": 4}.get(values["policy"], 6)
    assert 3 * calls["again"] == runs * calls["plain"] > 0
    first, second = (snapshot_weights(tmp_path / name / "snapshot-1") for name in ("plain", "again"))
    assert largest_difference(first, second) < 1e-6


def test_parts_of_a_batch_have_noise_of_their_own_and_runs_the_same(
    tmp_path: Path, train: Split, no_dropout: Path
) -> None:
    values: dict[str, Any] = {"policy": "top-1", "head": "adapter:size=4,dropout=0.5", "accumulate": 3}
    for name in ("a", "b"):
        tuned(tmp_path / name, train, no_dropout, **values)
    assert_equal(
        snapshot_weights(tmp_path / "a" / "snapshot-1"), snapshot_weights(tmp_path / "b" / "snapshot-1")
    )
    one = tuned(tmp_path / "one", train, no_dropout, **{**values, "accumulate": 1})
    assert losses(one) != pytest.approx(losses(tuned(tmp_path / "a", train, no_dropout, **values)), rel=1e-4)


@pytest.mark.parametrize(
    "values",
    [
        {"policy": "full"}, {"policy": "houlsby-4"}, {"policy": "lora-2"},
        {"policy": "cut-1", "head": "adapter:size=4,dropout=0.2"}, {"policy": "top-1", "checkpointing": True},
    ],
    ids=str,
)  # fmt: skip
def test_looking_at_a_run_does_not_change_it(
    values: dict[str, Any], tmp_path: Path, train: Split, three_layers: Path
) -> None:
    """With dropout everywhere: snapshots and their scores take no random number and leave no mode behind."""
    quiet = tuned(tmp_path / "quiet", train, three_layers, epochs=1.5, **values)
    watched = tuned(
        tmp_path / "watched",
        train,
        three_layers,
        dev=train,
        epochs=1.5,
        snapshots=(0.2, 0.5, 1.0),
        score_every=0.4,
        **values,
    )
    assert losses(quiet) == losses(watched)
    assert_equal(*(snapshot_weights(tmp_path / name / "snapshot-1.5") for name in ("quiet", "watched")))
    assert len(watched.results["snapshots"]) == 4
    assert not quiet.results["snapshots"]


# ---- a loss that is no number, and weights that are none


@contextmanager
def loss_breaks_at(call: int, value: float = math.nan) -> Iterator[None]:
    """The loss of one window of that call, counted from 1, is `value`."""
    real, calls = SpanTask.loss, []

    def broken(task: SpanTask, logits: Tensor, batch: Any) -> Tensor:
        calls.append(1)
        found = real(task, logits, batch)
        if len(calls) == call:
            found = found * torch.tensor([1.0] * (len(found) - 1) + [value])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpanTask, "loss", broken)
        yield


def ids_of_step(train: Split, step: int) -> set[str]:
    """Questions of a step, counted from 1."""
    _, batch = steps_of([Job(train)], config_of(epochs=2.0))[step - 1]
    return {train.data.examples[train.windows.example[window]].id for window in batch}


def named(message: str) -> set[str]:
    """Questions that a message names."""
    found = re.search(r"on the examples (.*?)(?:, \.\.\.)?: lower --lr", message)
    assert found, message
    return set(found[1].split(", "))


def assert_good(folder: Path, step: int) -> None:
    """The checkpoint is of this step, and all its numbers are finite."""
    with safe_open(folder / "checkpoint.safetensors", "pt") as file:
        assert json.loads(file.metadata()["progress"])["progress"]["step"] == step
        keys = [key for key in file.keys() if key.startswith(("module/", "optimizer/"))]  # noqa: SIM118
        assert keys
        assert all(file.get_tensor(key).isfinite().all() for key in keys)


@pytest.mark.parametrize(("policy", "value"), [("full", math.nan), ("cut-1", math.inf)])
def test_step_questions_and_checkpoint_are_named(
    policy: str, value: float, tmp_path: Path, train: Split, three_layers: Path
) -> None:
    """Of a batch in two parts the second is broken."""
    values = {
        "policy": policy,
        "epochs": 2.0,
        "snapshots": (0.2, 1.0),
        "checkpoint_seconds": 0.0,
        "dev": train,
    }
    values["accumulate"] = 2
    with loss_breaks_at(6, value), pytest.raises(TrainingError, match="at step 3 of fine-tuning") as caught:
        tuned(tmp_path / "out", train, three_layers, **values)
    message = str(caught.value)
    assert "\n" not in message
    assert f"the loss became {value}" in message
    assert f"of step 2, is kept in {tmp_path / 'out'}" in message
    assert named(message) == ids_of_step(train, 3)
    assert_good(tmp_path / "out", 2)
    assert [path.name for path in (tmp_path / "out").glob("snapshot-*")] == ["snapshot-0.2"]
    written = (tmp_path / "out" / "snapshot-0.2").stat().st_mtime_ns

    # Whatever broke it is gone: the run goes on, and ends where an unbroken one does.
    stage = tuned(tmp_path / "out", train, three_layers, **values)
    assert stage.results["snapshots"].keys() == {"snapshot-0.2", "snapshot-1", "snapshot-2"}
    assert (tmp_path / "out" / "snapshot-0.2").stat().st_mtime_ns == written, "neither kept nor scored twice"
    tuned(tmp_path / "whole", train, three_layers, **values)
    for name in stage.results["snapshots"]:
        assert_equal(snapshot_weights(tmp_path / "out" / name), snapshot_weights(tmp_path / "whole" / name))


@pytest.mark.parametrize("part", ["head", "encoder"])
def test_a_step_that_breaks_the_weights_is_in_no_checkpoint_and_no_snapshot(
    part: str, tmp_path: Path, train: Split, three_layers: Path
) -> None:
    """Its own loss is a number: only the weights tell."""

    def spoil(steps: Steps) -> None:
        module = steps.heads[0] if part == "head" else steps.model
        with torch.no_grad():
            next(iter(module.parameters())).view(-1)[0] = math.nan

    third = 3 / math.ceil(len(train.windows) / 8)  # of an epoch
    for snapshots, name in (((0.2,), "the checkpoint"), ((0.2, third), f"snapshot-{third:g}")):
        values = {"epochs": 2.0, "checkpoint_seconds": 0.0, "snapshots": snapshots}
        match = f"the weights of {name} are not finite after step 3 of fine-tuning"
        out = tmp_path / name
        with after_step(3, spoil), pytest.raises(TrainingError, match=match) as caught:
            tuned(out, train, three_layers, **values)
        assert named(str(caught.value)) == ids_of_step(train, 3)
        assert_good(out, 2)
        assert [path.name for path in out.glob("snapshot-*")] == ["snapshot-0.2"]
