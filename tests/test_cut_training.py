"""Training above a cut: the same as a plain loop over the whole model, from whatever source its states come."""

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
from tuning_helpers import (
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
from bertvision.errors import BertvisionError
from bertvision.heads import Geometry, load_head, parse_head
from bertvision.heads.adapter import Adapter
from bertvision.heads.digest import DigestHead
from bertvision.tasks.span.logits import SpanLogits
from bertvision.train.batching import Batching
from bertvision.train.splits import Split
from bertvision.train.trained import logits_of_trained, read_trained


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
    ("states", "tolerance"),
    [({"source": "live"}, 1e-6), ({"source": "stored", "dtype": "fp32"}, 1e-6), ({"source": "memory"}, 1e-3)],
    ids=["live", "stored", "memory"],
)
def test_a_cut_trains_what_the_whole_model_trains(
    states: dict[str, Any],
    tolerance: float,
    reference: tuple[dict[str, Tensor], list[float]],
    tmp_path: Path,
    train: Split,
    no_dropout: Path,
) -> None:
    wanted, curve = reference
    begin = {f"encoder.{n}": p for n, p in parameters(no_dropout).items()}
    stage = tuned(
        tmp_path / "run", train, no_dropout, states=states | {"store": str(tmp_path / "store")}, **CUT
    )  # fmt: skip
    assert stage.results["states"] == states["source"]
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
    states = {"source": "stored", "store": str(tmp_path / "store")}
    tuned(tmp_path / "a", train, no_dropout, states=states, policy="cut-1", epochs=2.0)
    assert sum(calls) == len(train.windows), "every window is encoded once, in two epochs"
    calls.clear()
    # Another seed and another top: what lies below the cut is the same.
    tuned(tmp_path / "b", train, no_dropout, states=states, policy="cut-1", epochs=2.0, seed=1, lr=1e-2)
    assert not calls
    tuned(tmp_path / "c", train, no_dropout, states=states, policy="cut-2", epochs=1.0)
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
    states = {"source": "live", "tokens_per_call": 500}
    tuned(tmp_path / "whole", train, no_dropout, states=states, **values)
    whole = set(calls)
    for step in (1, 3, 8):
        out = tmp_path / str(step)
        with dying_at(step), pytest.raises(Killed):
            tuned(out, train, no_dropout, states=states, **values)
        calls.clear()
        tuned(out, train, no_dropout, states=states, **values)
        assert calls
        assert set(calls) <= whole
        assert_equal(weights(out / "snapshot-1.5"), weights(tmp_path / "whole" / "snapshot-1.5"))


def test_duplicates_of_balanced_sampling_come_from_every_source(
    tmp_path: Path, train: Split, no_dropout: Path
) -> None:
    values: dict[str, Any] = CUT | {"sampling": "balanced", "batch_tokens": 200, "accumulate": 2}
    curves = {}
    for source in ("live", "stored", "memory"):
        states = {"source": source, "dtype": "fp32", "store": str(tmp_path / "store"), "tokens_per_call": 300}
        curves[source] = losses(tuned(tmp_path / source, train, no_dropout, states=states, **values))
    assert curves["live"] == pytest.approx(curves["stored"], rel=1e-5)
    assert curves["live"] == pytest.approx(curves["memory"], rel=1e-2)


@pytest.mark.parametrize("states", [{"source": "live"}, {"source": "memory"}], ids=str)
def test_a_cross_layer_head_trains_with_the_top(
    states: dict[str, Any], tmp_path: Path, train: Split, three_layers: Path
) -> None:
    values = {"policy": "cut-1", "head": "adapter:size=4", "digest": 8, "lr": 5e-3, "snapshots": (1.0,)}
    stage = tuned(tmp_path, train, three_layers, dev=train, states=states, epochs=12.0, **values)
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
        ((_, again),) = logits_of_trained([read_trained(tmp_path / name)], train.spans)
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
    stage = tuned(tmp_path, train, no_dropout, states={"source": "live"}, **values)
    (loss,) = losses(stage)
    assert loss == pytest.approx(loss_of(tmp_path / "snapshot-1", train), rel=1e-5)
    head, _ = load_head(tmp_path / "snapshot-1" / "head")
    assert isinstance(head, DigestHead if policy == "cut-1" else Adapter), "nothing lies below cut-3"


def test_without_anything_to_train_the_encoder_is_read_without_dropout(tmp_path: Path, train: Split) -> None:
    loud = save_encoder(tmp_path / "loud", hidden_dropout_prob=0.5)
    values = {"batch_size": 1000, "lr": 1e-20, "head": "learned_pooling"}
    seen = {}
    for policy in ("none", "top-0", "cut-1"):
        states = {"source": "live"}
        stage = tuned(tmp_path / policy, train, loud, states=states, policy=policy, **values)
        seen[policy] = losses(stage)[0]
    quiet = loss_of(tmp_path / "none" / "snapshot-1", train)
    assert seen["none"] == pytest.approx(quiet, rel=1e-5)
    assert abs(seen["top-0"] - quiet) > 1e-3, "what trains has its dropout"


def test_states_of_another_rounding_are_not_mixed_in(tmp_path: Path, train: Split, no_dropout: Path) -> None:
    states = {"source": "stored", "store": str(tmp_path / "store"), "dtype": "fp32"}
    values: dict[str, Any] = {"policy": "cut-1", "checkpoint_seconds": 0.0}
    with dying_at(2), pytest.raises(Killed):
        tuned(tmp_path / "out", train, no_dropout, states=states, **values)
    for other in ({"dtype": "int8"}, {"source": "memory"}):
        with pytest.raises(BertvisionError, match=r"other settings \(states\."):
            tuned(tmp_path / "out", train, no_dropout, states=states | other, **values)
    # Whole models read tokens, wherever states might come from.
    tuned(tmp_path / "top", train, no_dropout, states=states, policy="top-1")
    assert tuned(tmp_path / "top", train, no_dropout, states={"source": "live"}, policy="top-1").done
