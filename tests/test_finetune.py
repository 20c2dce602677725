"""Fine-tuning by policy: what moves and what stays, the cut against a plain loop, evaluation that leaves no trace."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_helpers import Killed
from torch import Tensor
from torch.nn import functional as F
from toy import save_encoder
from transformers.models.bert.modeling_bert import BertOutput
from tuning_helpers import (
    POLICIES,
    WINDOWS,
    assert_equal,
    config_of,
    dying_at,
    fixture_no_dropout,  # noqa: F401
    fixture_three_layers,  # noqa: F401
    fixture_train,  # noqa: F401
    largest_difference,
    losses,
    parameters,
    tuned,
    weights,
)

from bertvision.encoder.batch import TokenBatch, collate
from bertvision.encoder.cut import LowerEncoder
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.policy import parse_policy
from bertvision.errors import BertvisionError, ConfigError
from bertvision.heads import Geometry, load_head, parse_head
from bertvision.heads.adapter import Adapter
from bertvision.heads.digest import DigestHead
from bertvision.tasks.span.logits import SpanLogits
from bertvision.train.batching import Batching
from bertvision.train.finetune import tune
from bertvision.train.splits import Split, load_split
from bertvision.train.trained import logits_of_trained, read_trained

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
        ((_, again),) = logits_of_trained([read_trained(snapshot)], train.data)
        kept = SpanLogits.load(snapshot / "head" / "dev" / "logits.safetensors", train.fingerprint)
        assert np.allclose(again.start, kept.start, rtol=0, atol=2e-5)
        assert np.allclose(again.end, kept.end, rtol=0, atol=2e-5)
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
    kept = SpanLogits.load(
        tmp_path / "b" / "snapshot-1" / "head" / "dev" / "logits.safetensors", train.fingerprint
    )
    assert np.allclose(again.start, kept.start, rtol=0, atol=2e-5)
    first, second = (parameters(tmp_path / run / "snapshot-1" / "encoder") for run in "ab")
    for name, tensor in first.items():
        moves = name.endswith("bias") and not name.startswith("pooler.")
        assert torch.equal(tensor, second[name]) != moves, name


# ---- the cut


def plain_loop(
    source: Path, train: Split, config: Any, *, frozen: Callable[[str], bool]
) -> tuple[dict[str, Tensor], list[float]]:
    """Training of the whole model by nothing but torch: weights of model and head, and the losses."""
    encoder = Encoder.load(str(source))
    model = encoder.model
    head = parse_head("last_state").build(Geometry(encoder.num_states, encoder.hidden), seed=config.seed)
    for name, p in model.named_parameters():
        p.requires_grad_(not frozen(name))
    named = [(n, p) for m in (model, head) for n, p in m.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in named if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for n, p in named if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, eps=config.eps)
    plan = Batching(
        train.windows, batch_size=config.batch_size, tokens=0, balanced=False, seed=config.seed, epochs=2
    )
    found = []
    for batch in [*plan.epoch(0), *plan.epoch(1)]:
        tokens = collate(train.windows, batch, pad_id=encoder.pad_id, device=encoder.device)
        last = model(
            input_ids=tokens.ids, attention_mask=tokens.mask.long(), token_type_ids=tokens.types
        ).last_hidden_state
        linear = dict(head.named_parameters())
        weight, bias = (next(v for k, v in linear.items() if k.endswith(end)) for end in ("weight", "bias"))
        logits = F.linear(last, weight, bias).masked_fill(~tokens.mask[..., None], -1e30)  # (B, T, 2)
        target = torch.from_numpy(train.windows.labels[batch].astype(np.int64))
        loss = (
            F.cross_entropy(logits[..., 0], target[:, 0]) + F.cross_entropy(logits[..., 1], target[:, 1])
        ) / 2
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in named], config.clip)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    both = {f"encoder.{n}": p.detach() for n, p in model.named_parameters()}
    return both | {f"head.{n}": p.detach() for n, p in head.named_parameters()}, found


# Adam divides by the gradient's own size; a large eps keeps it from blowing rounding up.
CUT: dict[str, Any] = {"policy": "cut-1", "epochs": 2.0, "eps": 1e-2, "weight_decay": 0.1, "lr": 1e-2}


@pytest.fixture(scope="module")
def reference(train: Split, no_dropout: Path) -> tuple[dict[str, Tensor], list[float]]:
    return plain_loop(
        no_dropout, train, config_of(**CUT), frozen=lambda n: not n.startswith("encoder.layer.2.")
    )


@pytest.mark.parametrize(
    ("feed", "tolerance"),
    [({"source": "live"}, 1e-6), ({"source": "stored", "dtype": "fp32"}, 1e-6), ({"source": "memory"}, 1e-3)],
    ids=["live", "stored", "memory"],
)
def test_a_cut_trains_what_the_whole_model_trains(
    feed: dict[str, Any],
    tolerance: float,
    reference: tuple[dict[str, Tensor], list[float]],
    tmp_path: Path,
    train: Split,
    no_dropout: Path,
) -> None:
    wanted, curve = reference
    begin = {f"encoder.{n}": p for n, p in parameters(no_dropout).items()}
    stage = tuned(
        tmp_path / "run", train, no_dropout, feed=feed | {"store": str(tmp_path / "store")}, **CUT
    )  # fmt: skip
    assert stage.results["states"] == feed["source"]
    assert losses(stage) == pytest.approx(curve, rel=10 * tolerance)
    found = weights(tmp_path / "run" / "snapshot-2")
    found = {n: found[n] for n in wanted}
    assert largest_difference({n: wanted[n] for n in begin}, begin) > 50 * tolerance, "hardly moved"
    assert largest_difference(found, wanted) < tolerance
    assert_equal(
        {n: t for n, t in found.items() if n in begin and ".layer.2." not in n},
        {n: t for n, t in begin.items() if ".layer.2." not in n},
    )


def test_a_whole_run_is_the_plain_loop_too(tmp_path: Path, train: Split, no_dropout: Path) -> None:
    values: dict[str, Any] = CUT | {"policy": "layers"}
    keep = ("embeddings.", "pooler.")
    wanted, curve = plain_loop(no_dropout, train, config_of(**values), frozen=lambda n: n.startswith(keep))
    stage = tuned(tmp_path, train, no_dropout, **values)
    assert losses(stage) == pytest.approx(curve, rel=1e-5)
    found = weights(tmp_path / "snapshot-2")
    assert largest_difference({n: found[n] for n in wanted}, wanted) < 1e-5


def test_a_second_run_reads_the_store_and_encodes_nothing(
    tmp_path: Path, train: Split, no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = LowerEncoder.layer_states

    def counted(self: LowerEncoder, batch: TokenBatch) -> Any:
        calls.append(len(batch.ids))
        return real(self, batch)

    monkeypatch.setattr(LowerEncoder, "layer_states", counted)
    feed = {"source": "stored", "store": str(tmp_path / "store")}
    tuned(tmp_path / "a", train, no_dropout, feed=feed, policy="cut-1", epochs=2.0)
    assert sum(calls) == len(train.windows), "every window is encoded once, in two epochs"
    calls.clear()
    # Another seed and another top: what lies below the cut is the same.
    tuned(tmp_path / "b", train, no_dropout, feed=feed, policy="cut-1", epochs=2.0, seed=1, lr=1e-2)
    assert not calls
    tuned(tmp_path / "c", train, no_dropout, feed=feed, policy="cut-2", epochs=1.0)
    assert sum(calls) == len(train.windows), "another cut has other states"


def test_a_run_that_goes_on_encodes_what_the_whole_run_did(
    tmp_path: Path, train: Split, no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other windows in a call would pad, and round, otherwise."""
    calls: list[bytes] = []
    real = LowerEncoder.layer_states

    def seen(self: LowerEncoder, batch: TokenBatch) -> Any:
        calls.append(batch.ids.numpy().tobytes())
        return real(self, batch)

    monkeypatch.setattr(LowerEncoder, "layer_states", seen)
    values: dict[str, Any] = {"policy": "cut-1", "batch_size": 4, "epochs": 1.5, "checkpoint_seconds": 0.0}
    feed = {"source": "live", "tokens_per_call": 500}
    tuned(tmp_path / "whole", train, no_dropout, feed=feed, **values)
    whole = set(calls)
    for step in (1, 3, 8):
        out = tmp_path / str(step)
        with dying_at(step), pytest.raises(Killed):
            tuned(out, train, no_dropout, feed=feed, **values)
        calls.clear()
        tuned(out, train, no_dropout, feed=feed, **values)
        assert calls
        assert set(calls) <= whole
        assert_equal(weights(out / "snapshot-1.5"), weights(tmp_path / "whole" / "snapshot-1.5"))


def test_duplicates_of_balanced_sampling_come_from_every_source(
    tmp_path: Path, train: Split, no_dropout: Path
) -> None:
    values: dict[str, Any] = CUT | {"sampling": "balanced", "batch_tokens": 200, "accumulate": 2}
    curves = {}
    for source in ("live", "stored", "memory"):
        feed = {"source": source, "dtype": "fp32", "store": str(tmp_path / "store"), "tokens_per_call": 300}
        curves[source] = losses(tuned(tmp_path / source, train, no_dropout, feed=feed, **values))
    assert curves["live"] == pytest.approx(curves["stored"], rel=1e-5)
    assert curves["live"] == pytest.approx(curves["memory"], rel=1e-2)


@pytest.mark.parametrize("feed", [{"source": "live"}, {"source": "memory"}], ids=str)
def test_a_cross_layer_head_trains_with_the_top(
    feed: dict[str, Any], tmp_path: Path, train: Split, three_layers: Path
) -> None:
    values = {"policy": "cut-1", "head": "adapter:size=4", "digest": 8, "lr": 5e-3, "snapshots": (1.0,)}
    stage = tuned(tmp_path, train, three_layers, dev=train, feed=feed, epochs=12.0, **values)
    curve = losses(stage)
    per_epoch = len(curve) // 12
    assert np.mean(curve[-per_epoch:]) < 0.7 * np.mean(curve[:per_epoch])
    first, last = weights(tmp_path / "snapshot-1"), weights(tmp_path / "snapshot-12")
    moved = {n for n in first if not torch.equal(first[n], last[n])}
    assert moved == {
        n for n in first if ".layer.2." in n or (n.startswith("head.") and n not in ("head.mean", "head.components"))
    }  # fmt: skip
    assert {"head.lift.weight", "head.lift.bias"} <= moved
    head, _ = load_head(tmp_path / "snapshot-12" / "head")
    assert isinstance(head, DigestHead)
    assert (head.config.cut, head.config.size) == (2, 8)
    for name in ("snapshot-1", "snapshot-12"):
        ((_, again),) = logits_of_trained([read_trained(tmp_path / name)], train.data)
        kept = SpanLogits.load(tmp_path / name / "head" / "dev" / "logits.safetensors", train.fingerprint)
        assert np.allclose(again.start, kept.start, rtol=0, atol=2e-5)


def loss_of(snapshot: Path, train: Split) -> float:
    """Mean loss of a snapshot, as anyone would use it: all states, evaluation mode."""
    encoder, (head, _) = Encoder.load(str(snapshot / "encoder")), load_head(snapshot / "head")
    batch = collate(
        train.windows, np.arange(len(train.windows)), pad_id=encoder.pad_id, device=encoder.device
    )
    with torch.no_grad():
        logits = head.eval()(encoder.states(batch), batch.mask).masked_fill(~batch.mask[..., None], -1e30)
    target = torch.from_numpy(train.windows.labels.astype(np.int64))
    return (
        float(F.cross_entropy(logits[..., 0], target[:, 0]) + F.cross_entropy(logits[..., 1], target[:, 1]))
        / 2
    )


@pytest.mark.parametrize("policy", ["cut-1", "cut-3", "none", "full"])
def test_training_sees_the_loss_that_users_see(
    policy: str, tmp_path: Path, train: Split, no_dropout: Path
) -> None:
    """One step of all windows at a rate of nothing: its loss is that of the snapshot, read as any other is."""
    values = {"policy": policy, "head": "adapter:size=4", "batch_size": 1000, "lr": 1e-20}
    stage = tuned(tmp_path, train, no_dropout, feed={"source": "live"}, **values)
    (loss,) = losses(stage)
    assert loss == pytest.approx(loss_of(tmp_path / "snapshot-1", train), rel=1e-5)
    head, _ = load_head(tmp_path / "snapshot-1" / "head")
    assert isinstance(head, DigestHead if policy == "cut-1" else Adapter), "nothing lies below cut-3"


def test_without_anything_to_train_the_encoder_is_read_without_dropout(tmp_path: Path, train: Split) -> None:
    loud = save_encoder(tmp_path / "loud", hidden_dropout_prob=0.5)
    values = {"batch_size": 1000, "lr": 1e-20, "head": "learned_pooling"}
    seen = {}
    for policy in ("none", "top-0", "cut-1"):
        feed = {"source": "live"}
        stage = tuned(tmp_path / policy, train, loud, feed=feed, policy=policy, **values)
        seen[policy] = losses(stage)[0]
    quiet = loss_of(tmp_path / "none" / "snapshot-1", train)
    assert seen["none"] == pytest.approx(quiet, rel=1e-5)
    assert abs(seen["top-0"] - quiet) > 1e-3, "what trains has its dropout"


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
    # Under `none` nothing is computed backwards. Elsewhere every layer that a gradient goes through runs twice.
    assert calls["again"] == (1 if values["policy"] == "none" else 2) * calls["plain"] > 0
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


def test_states_of_another_rounding_are_not_mixed_in(tmp_path: Path, train: Split, no_dropout: Path) -> None:
    feed = {"source": "stored", "store": str(tmp_path / "store"), "dtype": "fp32"}
    values: dict[str, Any] = {"policy": "cut-1", "checkpoint_seconds": 0.0}
    with dying_at(2), pytest.raises(Killed):
        tuned(tmp_path / "out", train, no_dropout, feed=feed, **values)
    for other in ({"dtype": "int8"}, {"source": "memory"}):
        with pytest.raises(BertvisionError, match=r"other settings \(states\."):
            tuned(tmp_path / "out", train, no_dropout, feed=feed | other, **values)
    # Whole models read tokens, wherever states might come from.
    tuned(tmp_path / "top", train, no_dropout, feed=feed, policy="top-1")
    assert tuned(tmp_path / "top", train, no_dropout, feed={"source": "live"}, policy="top-1").done


@pytest.mark.parametrize(
    ("architecture", "values", "words"),
    [
        ("mpnet", {"checkpointing": True}, "leave out --checkpointing"),
        ("albert", {"policy": "cut-1"}, "share their weights"),
        ("albert", {"policy": "top-1"}, "share their weights"),
        ("bert", {"policy": "top-9"}, "has 2 layers"),
        ("bert", {"policy": "cut-3"}, "has 2 layers"),
        ("bert", {"epochs": 0.0}, "--epochs 0"),
    ],
)
def test_what_an_encoder_cannot_do_is_told_before_anything_is_written(
    architecture: str, values: dict[str, Any], words: str, tmp_path: Path, toy_encoder: Any, toy_squad: Path
) -> None:
    source = toy_encoder(architecture)
    split = load_split(str(toy_squad), Encoder.load(str(source)), WINDOWS)
    with pytest.raises(BertvisionError, match=words) as caught:
        tuned(tmp_path / "out", split, source, **values)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_adapters_without_a_place_are_told_before_anything_is_written(
    tmp_path: Path, train: Split, no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertvision.encoder import houlsby

    monkeypatch.setattr(houlsby, "PLACES", {})
    with pytest.raises(BertvisionError, match="does not know where"):
        tuned(tmp_path / "out", train, no_dropout, policy="houlsby-4")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"digest": 0}, "--digest must be from 1 to 64"), ({"digest": 65}, "--digest must be from 1 to 64"),
        ({"policy": "houlsby-0"}, "adapter size must be at least 1"), ({"policy": "lora"}, "lora-16"),
        ({"policy": "cut-2", "shard": True}, "cannot go together"), ({"batch_tokens": -1}, "--batch-tokens"),
        ({"head": "digest"}, "digest"), ({"head": "adapter:size=4,lr=0.1"}, "trains as the encoder does"),
        ({"head": "label"}, "label"),
    ],
    ids=str,
)  # fmt: skip
def test_impossible_settings_are_one_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        config_of(**values)
    assert "\n" not in str(caught.value)
