"""What only a GPU can show: fused kernels, captured steps and captured encoders against plain computation.

python -m pytest -m gpu tests/test_gpu.py
"""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_cases import gradient_states
from transformers import BertConfig, BertModel

from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, fused, parse_head
from bertvision.heads.base import bare_batch, head_class
from bertvision.states.base import LiveStates, MemoryStates
from bertvision.states.config import Selection, StatesConfig
from bertvision.states.store import Identity, Store
from bertvision.states.stored import StoredStates, measure
from bertvision.tasks.base import Task
from bertvision.tasks.label_score import LabelTask, ScoreTask
from bertvision.tasks.span import SPAN
from bertvision.tasks.walk import head_logits
from bertvision.train.config import FitConfig
from bertvision.train.fit import FitRun
from bertvision.train.run_folder import RunFolder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class _Tokenizer:
    pad_token_id = 0


def encoder(precision: Any = "bf16", **changes: Any) -> Encoder:
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=3,
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=128,
        vocab_size=500,
        **changes,
    )
    model = BertModel(config)
    return Encoder(model, _Tokenizer(), name="toy", device=torch.device("cuda"), precision=precision)


def windows(count: int = 200) -> Windows:
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 120, count)
    total = int(lengths.sum())
    label = (rng.random(count) * (lengths - 1)).astype(np.int32)
    return Windows(
        ids=rng.integers(5, 500, total).astype(np.int32),
        types=np.zeros(total, np.uint8),
        chars=np.zeros((total, 2), np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        example=np.arange(count, dtype=np.int32),
        context=np.stack([np.full(count, 4), lengths - 1], axis=1).astype(np.int32),
        labels=np.stack([label, label], axis=1),
        null=np.zeros(count, np.int32),
        best=np.ones(total, np.bool_),
    )


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / (expected.double().norm() + 1e-12))


@pytest.mark.parametrize("shape", [(13, 8, 96, 256), (7, 3, 37, 384), (3, 1, 1, 32)], ids=str)
@pytest.mark.parametrize(
    "text",
    ["adapter", "adapter:skip,gelu=erf", "adapter:size=64,unshared", "adapter:unshared,skip", "twin_adapter",
     "pooled_adapter", "pooled_adapter:pooling=average"],
)  # fmt: skip
def test_fused_kernels_are_the_formula(text: str, shape: tuple[int, int, int, int]) -> None:
    """Logits and all gradients against float64; as near as the plain bf16 operations come."""
    L, B, T, H = shape
    head = parse_head(text).build(Geometry(L, H), seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in head.parameters():
            scale = 0.5 if p.ndim == 1 else p.shape[-1] ** -0.5
            p.copy_(torch.randn(p.shape, generator=generator) * scale)
    states = torch.randn(shape, generator=generator).bfloat16().cuda()
    mask = torch.ones(B, T, dtype=torch.bool, device="cuda")
    upstream = torch.randn(B, T, 2, generator=generator).cuda()

    def run(module: torch.nn.Module, states: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        module.zero_grad()
        logits = module.train()(bare_batch(states, mask))
        (logits.to(upstream.dtype) * upstream).sum().backward()
        return logits.detach(), {
            n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None
        }

    exact = parse_head(text).build(Geometry(L, H), seed=0).double().cuda()
    exact.load_state_dict({k: v.double() for k, v in head.state_dict().items()})
    expected, expected_gradients = run(exact, states.double())
    head.cuda()
    errors: dict[str, dict[str, float]] = {}
    for name, how in (("fused", contextlib.nullcontext()), ("plain", fused.plain())):
        with how, torch.autocast("cuda", dtype=torch.bfloat16):
            assert fused.usable(states) == (name == "fused")
            logits, gradients = run(head, states)
        errors[name] = {"logits": distance(logits, expected)}
        errors[name] |= {n: distance(gradients[n], expected_gradients[n]) for n in expected_gradients}
    for name, error in errors["fused"].items():
        assert error < max(0.012, 2 * errors["plain"][name]), (name, errors)


def test_a_captured_encoder_gives_the_same_states() -> None:
    source, data = encoder(), windows()
    first = collate(data, np.arange(16), pad_id=0, device=source.device, width=128)
    other = collate(data, np.arange(16, 32), pad_id=0, device=source.device, width=128)
    eager = [source.states(batch) for batch in (first,)]
    for batch in (other, first, other, first):
        again = source.states(batch)
    assert distance(again, eager[0]) < 1e-2
    assert source._frozen is not None
    assert len(source._frozen._graphs) == 1
    wide = collate(data, np.arange(16, 32), pad_id=0, device=source.device, width=160)
    wider = [source.states(wide) for _ in range(3)][-1]
    assert len(source._frozen._graphs) == 2, "another shape has a graph of its own"
    ours, theirs = wider[:, :, :128][:, other.mask], source.states(other)[:, other.mask]
    assert distance(ours, theirs) < 2e-2


def fitted(
    states: Any, heads: tuple[str, ...], *, stack: str, graphs: bool = True, task: Task = SPAN, **values: Any
) -> FitRun:
    settings: dict[str, Any] = {"heads": heads, "batch_size": 16, "epochs": 3, "lr": 3e-3, "stack": stack}
    config = FitConfig(**(settings | values))
    run = FitRun(states, [(text, parse_head(text), 0) for text in heads], config, task=task)
    for _ in range(3):
        for member in run.fitted.values():
            member.loss_sum = 0.0
        for batch in run.batches():
            if graphs:
                run.train_batch(batch)
            else:
                _plain_step(run, batch)
        run.settle()
        run.epoch, run.walk, run.batch = run.epoch + 1, 0, 0
    return run


def _plain_step(run: FitRun, batch: Any) -> None:
    if run.order not in run.groups:
        run.regroup()
    step = run.epoch * run.steps + run.batch
    for group in run.groups[run.order]:
        group.prepare(step, run.config.epochs * run.steps)
        group.run(batch, step)
    run.batch += 1


HEADS = ("adapter:size=20", "adapter:size=20,lr=1e-3", "adapter:size=20,dropout=0.2", "learned_pooling",
         "pooled_adapter:size=12", "last_state:optimizer=sgd,schedule=linear")  # fmt: skip


def way(run: FitRun, name: str) -> torch.Tensor:
    """How far training moved the weights. A span's output bias is left out: the softmax does not see it, its
    gradient is rounding alone, and Adam makes steps of that."""
    head = run.fitted[name].head
    begun = parse_head(name).build(head.geometry, seed=0).cuda()
    moved = [(p - q).detach().flatten() for (n, p), q in zip(head.named_parameters(), begun.parameters(), strict=True)
             if n != "project.bias"]  # fmt: skip
    return torch.cat(moved)


def stored(root: Path, source: Encoder, data: Windows, dtype: Any = "fp32", **cut: Any) -> StoredStates:
    values: dict[str, Any] = {
        "encoder": "toy", "configuration": "toy", "precision": source.precision, "windows": "toy", "preprocessing": {},
        "layers": tuple(range(source.num_states)), "hidden": source.hidden, "positions": "all", "dtype": dtype,
    }  # fmt: skip
    which = Identity(**(values | cut))
    store = Store(root / which.key, which, data, encoder="toy", data="toy")
    store.shard_tokens = 2048
    return StoredStates(source, store.begin(), tokens_per_call=2048)


LABEL_HEADS = ("cls_linear", "tenney_small", "adapter_pooler:size=12", "adapter_pooler:size=12,lr=1e-3",
               "cls_mlp:width=8", "minbert:blocks=1,dropout=0", "mean_pooler", "attention_pooler")  # fmt: skip
TASKS: dict[str, Any] = {
    "span": SPAN,
    "ce": LabelTask(("a", "b", "c")),
    "bce": LabelTask(("a", "b"), objective="bce"),
    "mse": ScoreTask(shift=2.5, scale=1.5),
}
LABELS = [name for name in TASKS if name != "span"]
WHOLE = Selection()
CAPTURED = [
    (name, kind, "fp32", stack) for name in TASKS for kind in ("live", "memory") for stack in ("on", "off")
]
CAPTURED += [("span", "stored", dtype, "on") for dtype in ("fp32", "int8")]


def texts(task: Any, count: int = 200) -> Windows:
    """The windows of above, of other tasks than spans with a label each."""
    if task is SPAN:
        return windows(count)
    rng = np.random.default_rng(1)
    if task.kind == "score":
        return dataclasses.replace(windows(count), labels=(rng.random((count, 1)) * 5).astype(np.float32))
    labels = rng.integers(0, len(task.classes), (count, 1)).astype(np.int32)
    return dataclasses.replace(windows(count), labels=labels)


def lively(precision: Any) -> Encoder:
    """Its vectors differ from text to text, where those of a usual beginning hardly do."""
    return encoder(precision, initializer_range=0.2)


def states_of(
    kind: str, source: Encoder, data: Windows, root: Path, selection: Selection = WHOLE, dtype: Any = "fp32"
) -> Any:
    if kind == "stored":
        cut = {"layers": selection.numbers(source.num_states), "positions": selection.positions}
        return stored(root, source, data, dtype, **cut)
    return {"live": LiveStates, "memory": MemoryStates}[kind](
        source, data, tokens_per_call=2048, selection=selection
    )


def assert_like_plain(captured: FitRun, states: Any, heads: tuple[str, ...], **settings: Any) -> None:
    """Against steps taken one kernel at a time."""
    plain = fitted(states, heads, stack="off", graphs=False, **settings)
    assert captured.graphs is not None
    assert captured.graphs._losses, "nothing was captured"
    for name in heads:
        assert distance(way(captured, name), way(plain, name)) < 0.02, name


@pytest.mark.parametrize(("name", "kind", "dtype", "stack"), CAPTURED)
def test_captured_steps_train_like_plain_ones(
    name: str, kind: str, dtype: str, stack: str, tmp_path: Path
) -> None:
    """Of texts the pooled vectors, too, are copied to where the graphs read them."""
    task, labelled = TASKS[name], name != "span"
    source = lively("fp32") if labelled else encoder("fp32")
    heads = LABEL_HEADS if labelled else HEADS
    settings: dict[str, Any] = {"task": task} | ({"eps": 1e-4} if labelled else {})
    states = states_of(kind, source, texts(task), tmp_path, dtype=dtype)
    assert_like_plain(fitted(states, heads, stack=stack, **settings), states, heads, **settings)


@pytest.mark.parametrize(("name", "bound"), [("span", 0.02), ("ce", 0.05)])
def test_bf16_with_kernels_and_graphs_learns_as_well_as_fp32(name: str, bound: float) -> None:
    """The mean loss of the last epoch: rounding changes the way, not where it leads."""
    losses: dict[str, dict[str, float]] = {}
    make, heads = (encoder, HEADS) if name == "span" else (lively, LABEL_HEADS)
    for precision in ("fp32", "bf16"):
        kind = LiveStates if name == "span" else MemoryStates
        states = kind(make(precision), texts(TASKS[name]), tokens_per_call=2048)
        run = fitted(states, heads, stack="on", task=TASKS[name])
        losses[precision] = {head: f.loss_sum for head, f in run.fitted.items()}
    for head in heads:
        assert losses["bf16"][head] == pytest.approx(losses["fp32"][head], rel=bound), losses


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "int8"])
def test_stored_states_reach_the_device_as_they_were(precision: Any, dtype: Any, tmp_path: Path) -> None:
    source, data = encoder(precision), windows()
    states, live = stored(tmp_path, source, data, dtype), LiveStates(source, data, tokens_per_call=2048)
    bound = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 8e-3, "int8": 3e-2}[dtype] + (
        1e-2 if precision == "bf16" else 0
    )
    for epoch in (0, 1):
        pairs = zip(
            states.epoch(epoch, batch_size=16, seed=0), live.epoch(epoch, batch_size=16, seed=0), strict=True
        )
        for ours, theirs in pairs:
            assert ours.states.is_cuda
            assert torch.equal(ours.mask, theirs.mask)
            assert torch.equal(ours.targets, theirs.targets)
            assert distance(ours.states[:, ours.mask], theirs.states[:, theirs.mask]) < bound
    assert not states.store.missing()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rates_are_measured_on_the_device(precision: Any) -> None:
    encode, read, half = measure(encoder(precision), windows(), StatesConfig(tokens_per_call=2048))
    assert min(encode, read) > 0
    assert half


@pytest.mark.parametrize("kind", ["live", "memory", "stored"])
def test_a_part_of_the_states_is_cut_on_the_device(kind: str, tmp_path: Path) -> None:
    source, data = encoder("fp32"), windows()
    states = states_of(kind, source, data, tmp_path, Selection((0, -1), "cls"))
    for batch in states.epoch(1, batch_size=16, seed=0):
        for row, window in enumerate(batch.windows):
            one = collate(data, np.array([window]), pad_id=0, device=source.device)
            whole = source.states(one)[[0, 3], 0][:, :1]
            assert distance(batch.states[:, row][:, batch.mask[row]], whole) < 2e-3


def test_a_diverging_head_is_dropped_and_the_rest_is_captured_again() -> None:
    states = LiveStates(encoder("fp32"), windows(400), tokens_per_call=2048)
    heads = ("adapter:size=20", "adapter:size=20,lr=1e30,clip=0", "adapter:size=20,lr=1e-3")
    run = fitted(states, heads, stack="on")
    assert [f.status for f in run.fitted.values()] == ["fitting", "diverged", "fitting"]
    assert_like_plain(run, states, (heads[0], heads[2]))


def test_an_encoder_can_be_trained_after_its_states_were_read() -> None:
    source, data = encoder(), windows()
    batch = collate(data, np.arange(8), pad_id=0, device=source.device, width=128)
    before = source.states(batch)
    states = gradient_states(source, batch)
    assert states.is_cuda
    states.float().square().mean().backward()
    with torch.no_grad():
        for parameter in source.model.parameters():
            parameter.mul_(1.05)
    source.changed()
    assert source.states(batch).is_cuda
    assert distance(source.states(batch), before) > 1e-3


def test_a_killed_fit_goes_on_with_captured_steps(tmp_path: Path) -> None:
    """Rates and step counts live on the device; a checkpoint brings them back."""
    states = LiveStates(encoder("fp32"), windows(), tokens_per_call=2048)
    config = FitConfig(heads=HEADS, batch_size=16, epochs=2, schedule="linear", checkpoint_seconds=0.0)
    specs = [(text, parse_head(text), 0) for text in HEADS]
    whole, stage = FitRun(states, specs, config), RunFolder(tmp_path, {})
    for i, batch in enumerate(whole.batches()):
        whole.train_batch(batch)
        if i == 7:
            whole.save(stage)
    whole.settle()
    again = FitRun(states, specs, config)
    again.resume(stage)
    for batch in again.batches():
        again.train_batch(batch)
    again.settle()
    for name in HEADS:
        assert distance(way(again, name), way(whole, name)) < 0.02, name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["live", "memory", "stored"])
@pytest.mark.parametrize("selection", [Selection(), Selection(positions="cls")], ids=str)
def test_pooled_vectors_are_the_model_s_own(
    selection: Selection, kind: str, precision: Any, tmp_path: Path
) -> None:
    source, data = lively(precision), texts(TASKS["ce"], 60)
    exact = lively("fp32")
    batch = collate(data, np.arange(60), pad_id=0, device=source.device)
    with torch.no_grad():
        out = exact.model.eval()(input_ids=batch.ids, attention_mask=batch.mask.long())
    states = states_of(kind, source, data, tmp_path, selection)
    for found in (*states.epoch(0, batch_size=16, seed=0), *states.walk()):
        assert found.pooled.is_cuda
        assert found.pooled.shape == (len(found.windows), 64)
        bound = 0.08 if precision == "bf16" else 5e-3
        assert distance(found.pooled, out.pooler_output[found.windows]) < bound


@pytest.mark.parametrize("name", LABELS)
def test_captured_heads_on_cls_alone_are_those_on_all_tokens(name: str, tmp_path: Path) -> None:
    task, source = TASKS[name], lively("fp32")
    data = texts(task)
    heads = tuple(text for text in LABEL_HEADS if head_class(parse_head(text).name).cls_only)
    assert len(heads) == 6
    runs = {
        positions: fitted(
            states_of("memory", source, data, tmp_path, Selection(positions=positions)),  # type: ignore[arg-type]
            heads, stack="on", task=task, eps=1e-4,
        )
        for positions in ("all", "cls")
    }  # fmt: skip
    graphs = runs["cls"].graphs
    assert graphs is not None
    assert {shape[2] for _, shape in graphs._losses} == {1}, "one token a window"
    for head in heads:
        assert distance(way(runs["cls"], head), way(runs["all"], head)) < 0.02, head
    made = {head: runs["cls"].fitted[head].head for head in heads}
    narrow, wide = (head_logits(run.states, made, TASKS["ce"]) for run in (runs["cls"], runs["all"]))
    for head in heads:
        ours, theirs = (torch.from_numpy(found[head]["values"]) for found in (narrow, wide))
        assert distance(ours, theirs) < 1e-3, head
