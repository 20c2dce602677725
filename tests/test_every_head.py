"""What every registered head promises, whoever wrote it: the small specs of all files that test heads."""

import functools
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, Head, cost, head_names, load_head, parse_head, save_head
from bertvision.heads.base import head_class, run_head
from bertvision.heads.conv import BatchNorm
from bertvision.heads.cost import activation_bytes
from bertvision.heads.layers import Dropout, set_noise
from bertvision.states.batch import StateBatch

SPECS: list[str] = [
    text
    for path in sorted(Path(__file__).parent.glob("test_heads*.py"))
    for text in importlib.import_module(path.stem).SMALL_SPECS
]
SPAN = Geometry(states=3, hidden=12)
LABEL = Geometry(states=3, hidden=12, outputs=3, task="label", pooled=True)
TRIPLET = Geometry(states=3, hidden=12, outputs=1, task="triplet")

NOTHING_KEPT = {"last_state.v1", "layer_reader.v1"}
"""Heads whose backward pass needs nothing but the states and the weights."""
NO_CHANCE = {"head2toe.v1"}
"""Heads whose initial weights are all zero."""


def geometry_of(text: str) -> Geometry:
    return SPAN if "span" in head_class(parse_head(text).name).tasks else LABEL


@functools.cache
def _built(text: str, geometry: Geometry) -> Head:
    return parse_head(text).build(geometry, seed=0)


def shaken(text: str, geometry: Geometry | None = None) -> Any:
    """A head in evaluation mode whose every parameter and running statistic lies away from its initial value."""
    head = _built(text, geometry or geometry_of(text)).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.grad = None
            scale = 0.5 if parameter.ndim < 2 else max(0.1, parameter[0].numel() ** -0.5)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    for module in head.modules():
        if isinstance(module, BatchNorm):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
            module.steps.zero_()
    return head


def batch_of(head: Head, windows: int = 3, tokens: int = 5) -> StateBatch:
    """`windows` examples; every second window is as short as it can be, the paragraph begins at token 2."""
    generator = torch.Generator().manual_seed(1)
    geometry, rows = head.geometry, windows * head.windows
    lengths = torch.tensor([tokens if i % 2 == 0 else (tokens + 1) // 2 for i in range(rows)])
    pooled = torch.randn(rows, geometry.hidden, generator=generator).tanh()
    return StateBatch(
        states=torch.randn(geometry.states, rows, tokens, geometry.hidden, generator=generator),
        mask=torch.arange(tokens) < lengths[:, None],
        targets=torch.zeros(rows, 2, dtype=torch.long),
        windows=np.arange(rows),
        bounds=torch.stack([torch.full((rows,), min(2, tokens - 1)), lengths], dim=1),
        pooled=pooled if geometry.pooled else None,
    )


def changed(batch: StateBatch, states: Tensor, pooled: Tensor | None = None) -> StateBatch:
    return StateBatch(states, batch.mask, batch.targets, batch.windows, batch.bounds, pooled)


def real(logits: Tensor, batch: StateBatch) -> Tensor:
    return logits[batch.mask] if logits.ndim == 3 else logits


def width(head: Any) -> int:
    return 2 + 2 * head.config.rank if head.name == "biaffine.v1" else head.geometry.outputs


def test_every_registered_head_is_in_the_list() -> None:
    assert {parse_head(text).name for text in SPECS} == set(head_names())
    assert len(set(SPECS)) == len(SPECS)


@pytest.mark.parametrize("text", SPECS)
def test_shapes(text: str) -> None:
    head = shaken(text)
    for windows in (1, 3):
        for tokens in (1, 5):
            batch = batch_of(head, windows, tokens)
            shape = (windows, tokens, width(head)) if geometry_of(text) is SPAN else (windows, width(head))
            for mode in (True, False):
                logits = run_head(head.train(mode), batch)
                assert logits.shape == shape
                assert bool(logits.isfinite().all()), "pads included"


@torch.no_grad()
@pytest.mark.parametrize("text", SPECS)
def test_pads_do_not_leak(text: str) -> None:
    head = shaken(text)
    batch = batch_of(head)
    noisy = torch.where(batch.mask[None, :, :, None], batch.states, 1e3)
    found = [run_head(head, changed(batch, states, batch.pooled)) for states in (batch.states, noisy)]
    assert not batch.mask.all()
    assert torch.equal(real(found[0], batch), real(found[1], batch))
    assert bool(found[1].isfinite().all())


@torch.no_grad()
@pytest.mark.parametrize("text", SPECS)
def test_a_head_reads_what_it_says(text: str) -> None:
    """`cls_only` and `last_only` decide which states are kept at all."""
    head = shaken(text)
    batch = batch_of(head)
    found = run_head(head, batch)
    same = []
    for kept in (np.s_[:, :, 0], np.s_[-1]):
        states = batch.states * 2 + 1
        states[kept] = batch.states[kept]
        same.append(torch.equal(run_head(head, changed(batch, states, batch.pooled)), found))
    assert same[0] == head.cls_only
    assert same[1] or not head.last_only


@pytest.mark.parametrize("text", SPECS)
def test_every_parameter_is_trained(text: str) -> None:
    head = shaken(text).train()
    set_noise(head, 3)
    batch = batch_of(head)
    real(run_head(head, batch), batch).pow(2).sum().backward()
    idle = [n for n, p in head.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    assert idle == []
    assert all(p.requires_grad for p in head.parameters())


@torch.no_grad()
@pytest.mark.parametrize("text", SPECS)
def test_a_saved_head_comes_back(text: str, tmp_path: Path) -> None:
    head = shaken(text)
    batch = batch_of(head)
    save_head(head, tmp_path, about={})
    loaded, config = load_head(tmp_path)
    assert (loaded.config, loaded.geometry) == (head.config, head.geometry)
    assert config["parameters"] == head.num_parameters
    ours, theirs = dict(head.named_buffers()), dict(loaded.named_buffers())
    saved = head.state_dict().keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if name in saved)
    assert torch.equal(run_head(head, batch), run_head(loaded, batch))


@pytest.mark.parametrize("text", SPECS)
def test_cost_is_that_of_the_real_head(text: str) -> None:
    head, spec, geometry = shaken(text), parse_head(text), geometry_of(text)
    counted = cost(spec, geometry, tokens=5)
    assert counted.parameters == head.num_parameters == sum(p.numel() for p in head.parameters())
    running = [t for m in head.modules() if isinstance(m, BatchNorm) for t in (m.running_mean, m.running_var)]
    assert counted.total == head.num_total == counted.parameters + sum(t.numel() for t in running)
    assert (counted.flops_per_token or 0) > 0
    assert cost(head, geometry, tokens=5) == counted
    assert (activation_bytes(spec, geometry, tokens=5) > 0) == (spec.name not in NOTHING_KEPT)


@pytest.mark.parametrize("text", SPECS)
def test_what_is_really_kept_is_what_was_counted(text: str) -> None:
    """The memory of a step is counted on the meta device, where packing tokens copies nothing: half more is allowed."""
    spec, geometry = parse_head(text), geometry_of(text)
    head = shaken(text).train()
    batch = batch_of(head, windows=1)
    own = {p.untyped_storage().data_ptr() for p in (batch.states, *head.parameters())}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no address is given twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run_head(head, batch)
    really, counted = sum(s.nbytes() for s in kept.values()), activation_bytes(spec, geometry, tokens=5)
    assert counted / 1.5 - 512 <= really <= 1.5 * counted + 512


@pytest.mark.parametrize("text", SPECS)
def test_half_precision(text: str) -> None:
    head = shaken(text).train()
    batch = batch_of(head)
    half = changed(batch, batch.states.bfloat16(), None if batch.pooled is None else batch.pooled.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        logits = run_head(head, half)
    assert bool(logits.isfinite().all())
    real(logits.float(), batch).pow(2).mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in head.parameters())


@torch.no_grad()
@pytest.mark.parametrize("text", SPECS)
def test_training_is_a_pure_function_of_the_key(text: str) -> None:
    """No stream is drawn from: the same key gives the same logits, and another one others where there is dropout."""
    head = shaken(text).train()
    batch = batch_of(head)
    found = []
    for stream, key in ((0, 5), (1, 5), (0, 6)):
        torch.manual_seed(stream)
        set_noise(head, key, 0)
        found.append(real(run_head(head, batch), batch))
    noisy = any(isinstance(m, Dropout) and m.active for m in head.modules())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2]) != noisy
    assert not any(isinstance(m, nn.modules.dropout._DropoutNd) for m in head.modules())


@pytest.mark.parametrize("text", SPECS)
def test_another_task_is_refused_in_one_sentence(text: str) -> None:
    tasks = head_class(parse_head(text).name).tasks
    other = next(one for one in (SPAN, LABEL, TRIPLET) if one.task not in tasks)
    for make in (lambda: parse_head(text).build(other, seed=0), lambda: cost(parse_head(text), other)):
        with pytest.raises(ConfigError, match=f"not for {other.task}: use one of") as caught:
            make()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", SPECS)
def test_weights_come_from_the_seed_alone(text: str) -> None:
    if parse_head(text).name in {"xception.v1", "xception_mod.v1", "inception.v1"}:
        seeds = (7, 7)  # large: one further head is enough
    else:
        seeds = (7, 7, 8)
    found = []
    for i, seed in enumerate(seeds):
        torch.manual_seed(i)
        found.append(parse_head(text).build(geometry_of(text), seed=seed).state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    other = found[2] if len(found) > 2 else _built(text, geometry_of(text)).state_dict()
    same = all(torch.equal(value, other[name]) for name, value in found[0].items())
    assert same == (parse_head(text).name in NO_CHANCE)


@pytest.mark.parametrize("text", SPECS)
def test_a_single_state_is_enough(text: str) -> None:
    """An encoder may be cut down to its embedding."""
    geometry = geometry_of(text)
    one = Geometry(1, geometry.hidden, geometry.outputs, geometry.task, pooled=False)
    head = shaken(text, one)
    assert bool(run_head(head, batch_of(head)).isfinite().all())
