"""What every head promises, whoever wrote it; the formulas stand in test_heads_formulas.py and test_heads_conv.py."""

from pathlib import Path
from typing import Any

import pytest
import torch
from head_cases import CASES, IDS, TOKEN, WINDOW, batch_of, cast, changed, real, shaken
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, Head, StateBatch, cost, head_names, load_head, parse_head, save_head
from bertvision.heads.base import head_class
from bertvision.heads.costs import activation_bytes
from bertvision.heads.layers import Dropout, set_noise
from bertvision.heads.papers.conv import BatchNorm

every_head = pytest.mark.parametrize(("text", "geometry"), CASES, ids=IDS)
NOTHING_KEPT = {"last_state.v1", "layer_reader.v1"}
"""Heads whose backward pass needs nothing but the states and the weights."""
LARGE = {"xception.v1", "xception_mod.v1", "inception.v1"}


def loss_and_gradients(head: Head, batch: StateBatch) -> list[Tensor]:
    """Logits, buffers and gradients of one training pass."""
    head.zero_grad()
    logits = real(head(batch), batch)
    logits.float().pow(2).sum().backward()
    return [logits.detach(), *head.buffers(), *(p.grad for p in head.parameters() if p.grad is not None)]


def test_every_registered_head_is_in_the_list() -> None:
    units = {(parse_head(text).name, geometry.unit) for text, geometry in CASES}
    assert units == {(name, unit) for name in head_names() for unit in head_class(name).units}
    assert len(set(IDS)) == len(IDS)


@every_head
def test_shapes(text: str, geometry: Geometry) -> None:
    """Any numbers of windows, tokens, states and outputs, with and without a pooler; finite at pads, too."""
    only_pairs = text.startswith(("biaffine", "cacnn"))  # these have exactly a start and an end
    bare = Geometry(1, 12, 2 if only_pairs else 1, geometry.unit)
    if text.startswith("layer_reader"):
        bare = Geometry(2, 12, 1, geometry.unit)
    for shape in (geometry, bare):
        head = shaken(text, shape)
        width = 2 + 2 * head.config.rank if text.startswith("biaffine") else shape.outputs
        for examples, tokens in ((1, 1), (3, 5)):
            batch = batch_of(shape, examples * head.windows, tokens)
            for mode in (True, False):
                logits = head.train(mode)(batch)
                assert logits.shape == (
                    (examples, tokens, width) if shape.unit == "token" else (examples, width)
                )
                assert bool(logits.isfinite().all())


@every_head
def test_pads_change_nothing(text: str, geometry: Geometry) -> None:
    """Neither what stands at pads nor how many there are, in evaluation and in training."""
    batch = batch_of(geometry)
    assert not batch.mask.all()
    noisy = changed(batch, states=torch.where(batch.mask[None, :, :, None], batch.states, 1e3))
    for training in (False, True):
        found = []
        for one in (batch, noisy):
            head = shaken(text, geometry).train(training)
            set_noise(head, 1)
            found.append([t.clone() for t in loss_and_gradients(head, one)])
            assert all(bool(t.isfinite().all()) for t in found[-1])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    wider = changed(
        batch, states=F.pad(batch.states, (0, 0, 0, 3), value=7.0), mask=F.pad(batch.mask, (0, 3))
    )
    with torch.no_grad():
        head = shaken(text, geometry)
        torch.testing.assert_close(real(head(wider), wider), real(head(batch), batch), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@every_head
def test_a_head_reads_what_it_says(text: str, geometry: Geometry) -> None:
    """`cls_only`, `last_only` and `reads_context` decide what is kept and handed out at all."""
    head, batch = shaken(text, geometry), batch_of(geometry)
    expected = head(batch)

    def unchanged(**fields: Any) -> bool:
        return torch.equal(head(changed(batch, **fields)), expected)

    states = batch.states * 2 + 1
    states[:, :, 0] = batch.states[:, :, 0]
    assert unchanged(states=states) == head.cls_only
    states = batch.states * 2 + 1
    states[-1] = batch.states[-1]
    assert unchanged(states=states) or not head.last_only
    assert unchanged(bounds=torch.zeros_like(batch.bounds)) != head.reads_context
    if head.cls_only:  # the classification token, wherever it stands
        last = batch.mask.sum(1) - 1
        states = torch.zeros_like(batch.states)
        states[:, torch.arange(len(last)), last] = batch.states[:, :, 0]
        assert unchanged(states=states, cls=last)


@every_head
def test_every_parameter_is_trained(text: str, geometry: Geometry) -> None:
    head, batch = shaken(text, geometry).train(), batch_of(geometry)
    set_noise(head, 3)
    loss_and_gradients(head, batch)
    idle = [n for n, p in head.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    assert idle == []
    assert all(p.requires_grad for p in head.parameters())


@torch.no_grad()
@every_head
def test_a_saved_head_comes_back_bit_by_bit(text: str, geometry: Geometry, tmp_path: Path) -> None:
    head, batch = shaken(text, geometry), batch_of(geometry)
    save_head(head, tmp_path, about={"label": "mine"})
    loaded, config = load_head(tmp_path)
    assert (loaded.config, loaded.geometry) == (head.config, head.geometry)
    assert (config["label"], config["parameters"]) == ("mine", head.num_parameters)
    assert not loaded.training
    ours, theirs = head.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(head(batch), loaded(batch))
    assert loaded.layer_weights() == head.layer_weights()
    assert sum(head.layer_weights() or [1.0]) == pytest.approx(1)


@every_head
def test_costs_are_those_of_the_real_head(text: str, geometry: Geometry) -> None:
    """Parameters exactly; memory is counted where packing copies nothing, so half more is allowed."""
    head, spec = shaken(text, geometry).train(), parse_head(text)
    counted = cost(spec, geometry, tokens=6)
    assert counted.parameters == head.num_parameters == sum(p.numel() for p in head.parameters())
    running = [t for m in head.modules() if isinstance(m, BatchNorm) for t in (m.running_mean, m.running_var)]
    assert counted.total == head.num_total == counted.parameters + sum(t.numel() for t in running)
    assert (counted.flops_per_token or 0) > 0
    batch = batch_of(geometry, head.windows)
    own = {p.untyped_storage().data_ptr() for p in (batch.states, *head.parameters())}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no address is given twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        head(batch)
    really, counted = sum(s.nbytes() for s in kept.values()), activation_bytes(spec, geometry, tokens=6)
    assert (counted > 0) == (spec.name not in NOTHING_KEPT)
    assert counted / 1.5 - 600 <= really <= 1.5 * counted + 600


@every_head
def test_half_precision_is_close_to_float32(text: str, geometry: Geometry) -> None:
    head, batch = shaken(text, geometry), batch_of(geometry)
    expected = real(head(batch), batch).detach()
    with torch.autocast("cpu", torch.bfloat16):
        logits = real(head(cast(batch, torch.bfloat16)), batch)
    assert (logits - expected).abs().max() < 0.08 * expected.abs().max()
    logits.float().pow(2).mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in head.parameters())


@torch.no_grad()
@every_head
def test_training_is_a_pure_function_of_the_key(text: str, geometry: Geometry) -> None:
    """No random stream is read: the same key gives the same logits, another one others where there is dropout."""
    batch, found = batch_of(geometry), []
    for stream, key in ((0, 5), (1, 5), (0, 6)):
        head = shaken(text, geometry).train()
        torch.manual_seed(stream)
        set_noise(head, key, 0)
        found.append(real(head(batch), batch))
    noisy = any(isinstance(m, Dropout) and m.active for m in head.modules())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2]) != noisy
    assert not any(isinstance(m, nn.modules.dropout._DropoutNd) for m in head.modules())


@every_head
def test_weights_come_from_the_seed_alone(text: str, geometry: Geometry) -> None:
    spec, found = parse_head(text), []
    for i, seed in enumerate((7, 7) if spec.name in LARGE else (7, 7, 8)):
        state = torch.manual_seed(i).get_state()
        found.append(spec.build(geometry, seed=seed).state_dict())
        assert torch.equal(torch.get_rng_state(), state), "the global stream goes on as if nothing was built"
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    other = found[2] if len(found) > 2 else shaken(text, geometry).state_dict()
    assert not all(torch.equal(value, other[name]) for name, value in found[0].items())


@pytest.mark.parametrize(
    ("text", "geometry"), [case for case in CASES if head_class(parse_head(case[0]).name).stackable]
)
def test_stacked_heads_are_the_heads(text: str, geometry: Geometry) -> None:
    """Three heads as one batched computation, dropout included, against each alone: logits and gradients."""
    heads = [parse_head(text).build(geometry, seed=seed).train() for seed in range(3)]
    for i, head in enumerate(heads):
        set_noise(head, i)
    parameters, buffers = stack_module_state(heads)  # pyright: ignore[reportArgumentType]
    batch = batch_of(geometry)

    stacked = vmap(lambda p, b: functional_call(heads[0], (p, b), (batch,)))(parameters, buffers)
    stacked.pow(2).sum().backward()
    for i, head in enumerate(heads):
        alone = head(batch)
        torch.testing.assert_close(stacked[i], alone, rtol=1e-4, atol=1e-4)
        alone.pow(2).sum().backward()
        for name, parameter in head.named_parameters():
            assert parameter.grad is not None
            together, scale = parameters[name].grad[i], float(parameter.grad.abs().max())
            torch.testing.assert_close(together, parameter.grad, rtol=1e-3, atol=1e-3 * scale + 1e-6)


@pytest.mark.parametrize("name", [name for name in head_names() if len(head_class(name).units) == 1])
def test_another_unit_is_refused(name: str) -> None:
    spec = parse_head(name)
    other = TOKEN if head_class(name).units == ("window",) else WINDOW
    for make in (lambda: spec.build(other, seed=0), lambda: cost(spec, other)):
        with pytest.raises(ConfigError, match="use one of") as caught:
            make()
        listed = str(caught.value).partition("use one of ")[2].split(", ")
        assert set(listed) == {name for name in head_names() if other.unit in head_class(name).units}
