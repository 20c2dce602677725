"""Fine-tuning by policy: what moves and what stays, steps taken in other ways, evaluation that leaves no trace."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_tuning import PlainTuning, snapshot_weights, steps_of
from torch import Tensor
from torch.nn import functional as F
from toy import save_encoder
from transformers.models.bert.modeling_bert import BertOutput
from tuning_helpers import (
    POLICIES,
    assert_equal,
    config_of,
    fixture_no_dropout,  # noqa: F401
    fixture_three_layers,  # noqa: F401
    fixture_train,  # noqa: F401
    largest_difference,
    losses,
    parameters,
    tuned,
    weights,
)

from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.policy import parse_policy
from bertvision.errors import BertvisionError
from bertvision.heads import load_head
from bertvision.heads.base import bare_batch
from bertvision.model.trained import logits_of_trained, read_trained
from bertvision.tasks.logits import Logits
from bertvision.train.finetune import tune
from bertvision.train.job import Job
from bertvision.train.splits import Split

# ---- what trains


def by_hand(policy: str, name: str) -> bool:
    """Whether the parameter `name` of a BERT of three layers moves."""
    layer, last = name.startswith("encoder.layer."), name.startswith("encoder.layer.2.")
    norm, pooler = "LayerNorm" in name, name.startswith("pooler.")
    dense = layer and not norm and name.endswith(".weight")
    return {
        "full": not pooler,  # it trains, but no gradient reaches it
        "none": False,
        "layers": layer,
        "top-1": last or norm,
        "cut-1": last,
        "houlsby-4": norm,
        "houlsby-4+top-1": last or norm,
        "lora-2": dense,
        "bitfit": name.endswith("bias") and not pooler,
    }[policy]


def count_by_hand(policy: str, base: dict[str, Tensor]) -> int:
    """Trained parameters with a head of 32 * 2 + 2."""
    head, adapters = 66, 3 * 2 * (2 * 32 * 4 + 4 + 32)
    own = sum(t.numel() for name, t in base.items() if by_hand(policy, name))
    if policy == "full":
        own += sum(t.numel() for name, t in base.items() if name.startswith("pooler."))
    if policy == "lora-2":  # A is 2 x inputs, B outputs x 2
        own = sum(2 * sum(t.shape) for name, t in base.items() if by_hand(policy, name))
    return own + head + (adapters if policy.startswith("houlsby") else 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_moves_what_it_names_and_nothing_else(
    policy: str, tmp_path: Path, train: Split, three_layers: Path
) -> None:
    stage = tuned(tmp_path, train, three_layers, dev=train, policy=policy, snapshots=(0.5,), weight_decay=0.1)
    base = parameters(three_layers)
    for name in ("snapshot-0.5", "snapshot-1"):
        snapshot = tmp_path / name
        now = parameters(snapshot / "encoder")
        moved = {n for n in base if not torch.equal(base[n], now[n])}
        assert moved == {n for n in base if by_hand(policy, n)}
        added = now.keys() - base.keys()
        assert bool(added) == policy.startswith("houlsby")
        assert all(".houlsby." in n for n in added)
        if added:
            fresh = Encoder.load(str(three_layers))
            fresh.tune(parse_policy(policy), seed=0)
            begin = dict(fresh.model.named_parameters())
            assert all(not torch.equal(begin[n], now[n]) for n in added)

        config = json.loads((snapshot / "head" / "config.json").read_text())
        assert config["encoder"]["fingerprint"] == Encoder.load(str(snapshot / "encoder")).fingerprint
        assert (snapshot / "head" / config["encoder"]["path"]).resolve() == (snapshot / "encoder").resolve()
        assert f"snapshot-{config['fraction']:g}" == snapshot.name == config["label"]
        ((_, again),) = logits_of_trained([read_trained(snapshot)], train.data)
        kept = Logits.load(snapshot / "head" / "dev" / "logits.safetensors", train.fingerprint)
        assert np.allclose(again["start"], kept["start"], rtol=0, atol=2e-5)
        assert np.allclose(again["end"], kept["end"], rtol=0, atol=2e-5)
    assert stage.results["trainable"] == count_by_hand(policy, base)
    assert stage.results["policy"] == policy
    assert stage.results["snapshots"].keys() == {"snapshot-0.5", "snapshot-1"}
    delta = policy.startswith(("houlsby", "lora", "bitfit"))
    assert (tmp_path / "snapshot-1" / "encoder" / "delta.json").exists() == delta
    assert not (tmp_path / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("policy", ["top-1", "houlsby-4", "lora-2", "cut-1"])
def test_the_encoder_in_memory_is_the_last_snapshot(
    policy: str, tmp_path: Path, train: Split, three_layers: Path
) -> None:
    encoder = Encoder.load(str(three_layers))
    batch = collate(train.windows, np.arange(3), pad_id=encoder.pad_id, device=encoder.device)
    before = encoder.states(batch).clone()
    tune(encoder, train, folder=tmp_path, config=config_of(policy=policy))
    loaded = Encoder.load(str(tmp_path / "snapshot-1" / "encoder"))
    assert encoder.fingerprint == loaded.fingerprint
    mine = encoder.states(batch)
    assert torch.allclose(mine, loaded.states(batch), atol=1e-5)
    assert not torch.allclose(mine[-1], before[-1], atol=1e-3)
    assert not any(p.requires_grad for p in encoder.model.parameters())


def test_training_of_a_tuned_encoder_goes_on(tmp_path: Path, train: Split, three_layers: Path) -> None:
    """A delta of a delta: both are found, and the second begins where the first ended."""
    tuned(tmp_path / "a", train, three_layers, policy="houlsby-4")
    tuned(tmp_path / "b", train, tmp_path / "a" / "snapshot-1" / "encoder", policy="bitfit", dev=train)
    ((_, again),) = logits_of_trained([read_trained(tmp_path / "b" / "snapshot-1")], train.data)
    kept = Logits.load(
        tmp_path / "b" / "snapshot-1" / "head" / "dev" / "logits.safetensors", train.fingerprint
    )
    assert np.allclose(again["start"], kept["start"], rtol=0, atol=2e-5)
    first, second = (parameters(tmp_path / run / "snapshot-1" / "encoder") for run in "ab")
    for name, tensor in first.items():
        moves = name.endswith("bias") and not name.startswith("pooler.")
        assert torch.equal(tensor, second[name]) != moves, name


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
    first, second = (weights(tmp_path / name / "snapshot-1") for name in ("plain", "again"))
    assert largest_difference(first, second) < 1e-6


@pytest.mark.parametrize("policy", ["full", "cut-1"])
def test_parts_of_a_batch_are_one_step(policy: str, tmp_path: Path, train: Split, no_dropout: Path) -> None:
    values = {"policy": policy, "head": "adapter:size=4,dropout=0", "eps": 1e-2, "lr": 1e-2}
    runs = {n: tuned(tmp_path / str(n), train, no_dropout, accumulate=n, **values) for n in (1, 3, 8)}
    for n in (3, 8):
        assert losses(runs[n]) == pytest.approx(losses(runs[1]), rel=1e-5)
        first, second = (weights(tmp_path / str(i) / "snapshot-1") for i in (1, n))
        assert largest_difference(first, second) < 1e-5


def test_parts_of_a_batch_have_noise_of_their_own_and_runs_the_same(
    tmp_path: Path, train: Split, no_dropout: Path
) -> None:
    values: dict[str, Any] = {"policy": "top-1", "head": "adapter:size=4,dropout=0.5", "accumulate": 3}
    for name in ("a", "b"):
        tuned(tmp_path / name, train, no_dropout, **values)
    assert_equal(weights(tmp_path / "a" / "snapshot-1"), weights(tmp_path / "b" / "snapshot-1"))
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
        tmp_path / "watched", train, three_layers, dev=train, epochs=1.5, snapshots=(0.2, 0.5, 1.0), **values
    )
    assert losses(quiet) == losses(watched)
    assert_equal(*(weights(tmp_path / name / "snapshot-1.5") for name in ("quiet", "watched")))
    assert len(watched.results["snapshots"]) == 4
    assert not quiet.results["snapshots"]


def test_checkpointing_is_silent(
    tmp_path: Path, train: Split, three_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers has a word to say about caches that no encoder has."""
    from transformers.utils import generic

    said: list[str] = []
    monkeypatch.setattr(generic.logger, "warning_once", said.append)
    for policy in ("top-1", "cut-1"):
        tuned(tmp_path / policy, train, three_layers, policy=policy, checkpointing=True)
    assert not said


# ---- what cannot be


def test_adapters_without_a_place_are_told_before_anything_is_written(
    tmp_path: Path, train: Split, no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertvision.encoder import freeze

    monkeypatch.setattr(freeze, "PLACES", {})
    with pytest.raises(BertvisionError, match="does not know where"):
        tuned(tmp_path / "out", train, no_dropout, policy="houlsby-4")
    assert not (tmp_path / "out").exists()
