"""Heads beyond the papers: each against a plain loop over single tokens, and what all heads promise."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, Head, cost, load_head, parse_head, save_head

LARGE = Geometry(states=25, hidden=1024)
SMALL = Geometry(states=5, hidden=12)
SMALL_SPECS = [
    "ladder:size=4,rung=3,heads=2",
    "ladder:size=3,unshared,rung=0,heads=0,skip=false,dropout=0.1",
    "recurrent:size=4",
    "recurrent:size=3,skip=false,dropout=0.1",
    "layer_attention:size=4,heads=2",
    "head2toe",
    "head2toe:keep=0.3,select_at=0.1,lasso=0",
    "biaffine:size=3,rank=2",
    "biaffine:size=3,rank=1,skip=false,gelu=erf,dropout=0.1",
]


def inputs(geometry: Geometry = SMALL, *, windows: int = 2, tokens: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(geometry.states, windows, tokens, geometry.hidden, generator=generator)
    # Layers of an encoder differ in scale.
    states *= torch.arange(1.0, geometry.states + 1)[:, None, None, None]
    mask = torch.ones(windows, tokens, dtype=torch.bool)
    mask[1:, 2:] = False
    return states, mask


def shaken(text: str, geometry: Geometry = SMALL, seed: int = 2) -> Head:
    """A head with every parameter far from its initial value, so that none can be forgotten unseen."""
    head = parse_head(text).build(geometry, seed=0).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return head


# ---- references, for one window of real tokens: `token` is a list of L states, (H,) each


def unit(x: Tensor) -> Tensor:
    return x / x.pow(2).mean().sqrt()


def gelu(x: Tensor, kind: str = "tanh") -> Tensor:
    if kind == "erf":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def norm(x: Tensor, layer: Any) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.pow(2).mean() + layer.eps).sqrt() * layer.weight + layer.bias


def output(head: Any, features: list[Tensor]) -> Tensor:
    return head.project.weight @ torch.cat(features) + head.project.bias


def ladder(head: Any, window: list[list[Tensor]]) -> list[Tensor]:
    climbed = []
    for token in window:
        state = torch.zeros(head.config.size)
        for i, x in enumerate(token):
            down = head.down[i] if head.config.unshared else head.down
            gate = 1 / (1 + torch.exp(-head.gate_bias[i]))
            state = gate * state + (1 - gate) * (down @ unit(x) + head.down_bias[i])
            if head.config.rung:
                inside = gelu(head.rung_in.weight @ state + head.rung_in.bias)
                state = state + head.rung_out.weight @ inside + head.rung_out.bias
        climbed.append(state)
    if head.config.heads:
        n, size = head.config.heads, head.config.size
        d = size // n
        rows = [
            head.mixing.qkv.weight @ norm(x, head.mixing.norm) + head.mixing.qkv.bias for x in climbed
        ]  # (3a,) each: queries, keys, values
        mixed = []
        for i, x in enumerate(climbed):
            parts = []
            for a in range(0, size, d):
                scores = [rows[i][a : a + d] @ row[size + a : size + a + d] / math.sqrt(d) for row in rows]
                share = torch.stack(scores).exp()
                share = share / share.sum()
                values = torch.stack([row[2 * size + a : 2 * size + a + d] for row in rows])
                parts.append((share[:, None] * values).sum(0))
            mixed.append(x + head.mixing.out.weight @ torch.cat(parts) + head.mixing.out.bias)
        climbed = mixed
    skip = [[token[-1]] if head.config.skip else [] for token in window]
    return [output(head, [norm(x, head.norm), *s]) for x, s in zip(climbed, skip, strict=True)]


def recurrent(head: Any, window: list[list[Tensor]]) -> list[Tensor]:
    found = []
    for token in window:
        state = torch.zeros(head.config.size)
        for i, x in enumerate(token):
            z = head.down.weight @ unit(x) + head.down_bias[i]
            gates = head.gates_read.weight @ z + head.gates_state.weight @ state + head.gate_bias[i]
            reset, keep = torch.sigmoid(gates).split(head.config.size)
            new = torch.tanh(z + head.new.weight @ (reset * state))
            state = keep * state + (1 - keep) * new
        found.append(output(head, [state, *([token[-1]] if head.config.skip else [])]))
    return found


def layer_attention(head: Any, window: list[list[Tensor]]) -> list[Tensor]:
    n, d, C = head.config.heads, head.config.size // head.config.heads, head.geometry.outputs
    found = []
    for token in window:
        query = head.query.weight @ unit(token[-1]) + head.query.bias
        total = head.project.weight @ token[-1] + head.project.bias
        for a in range(n):
            part = slice(a * d, (a + 1) * d)
            keys = [head.key @ unit(x) + head.key_bias[i] for i, x in enumerate(token)]
            scores = [
                (query[part] @ k[part] / math.sqrt(d) + head.layer_bias[i, a]).exp()
                for i, k in enumerate(keys)
            ]
            mix = torch.stack([s * unit(x) for s, x in zip(scores, token, strict=True)]).sum(0)
            total = total + head.value[a * C : (a + 1) * C] @ mix / torch.stack(scores).sum()
        found.append(total)
    return found


def head2toe(head: Any, window: list[list[Tensor]]) -> list[Tensor]:
    wide = head.weight.permute(1, 0, 2).flatten(1) * head.mask.flatten()  # (C, L * H)
    return [wide @ torch.cat([unit(x) for x in token]) + head.bias for token in window]


def biaffine(head: Any, window: list[list[Tensor]]) -> list[Tensor]:
    found = []
    for token in window:
        reduced = torch.stack([gelu(head.down.weight @ x + head.down.bias, head.config.gelu) for x in token])
        found.append(output(head, [reduced.T.flatten(), *([token[-1]] if head.config.skip else [])]))
    return found


REFERENCES = {f.__name__: f for f in (ladder, recurrent, layer_attention, head2toe, biaffine)}


@torch.no_grad()
@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_head_is_its_formula(text: str) -> None:
    head = shaken(text)
    if "select_at=0.1" in text:
        head.at(0.1)
    states, mask = inputs()
    logits = head(states, mask)
    reference = REFERENCES[head.name.removesuffix(".v1")]
    for b, length in enumerate(mask.sum(1).tolist()):
        expected = reference(head, [list(states[:, b, t]) for t in range(length)])
        torch.testing.assert_close(logits[b, :length], torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_every_head_has_a_reference_and_a_spec() -> None:
    assert {parse_head(text).name.removesuffix(".v1") for text in SMALL_SPECS} == set(REFERENCES)


# ---- size

H, L, A = 1024, 25, 64


@pytest.mark.parametrize(
    ("text", "count"),
    [
        # down, its biases, gates; rung; query, key, value and out; two norms; output with the last state
        ("ladder", A * H + 2 * L * A + 2 * (A * A + A) + 4 * (A * A + A) + 4 * A + 2 * (A + H) + 2),
        ("ladder:rung=0,heads=0,skip=false", A * H + 2 * L * A + 2 * A + 2 * A + 2),
        ("ladder:unshared,size=16,rung=0,heads=0", L * 16 * H + 2 * L * 16 + 32 + 2 * (16 + H) + 2),
        # down, its biases; gates from the layer and from the state, their biases; candidate; output
        ("recurrent", A * H + L * A + 4 * A * A + L * 2 * A + A * A + 2 * (A + H) + 2),
        # query; key, its biases; biases of layers; values of 4 mixes; last state
        ("layer_attention", A * H + A + A * H + L * A + L * 4 + 4 * 2 * H + 2 * H + 2),
        ("head2toe", 2 * L * H + 2),
        # down; 2 + 2 * 16 outputs from all layers and the last state
        ("biaffine", A * H + A + 34 * (A * L + H + 1)),
        ("biaffine:size=16,rank=4,skip=false", 16 * H + 16 + 10 * (16 * L + 1)),
    ],
)
def test_parameter_counts(text: str, count: int) -> None:
    found = cost(parse_head(text), LARGE)
    assert found.parameters == found.total == count
    assert 50_000 < count < 500_000 or "rank" in text
    assert (found.flops_per_token or 0) > 0


# ---- what every head promises


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_pads_do_not_reach_real_tokens(text: str) -> None:
    head = shaken(text)
    states, mask = inputs()
    noisy = torch.where(mask[None, :, :, None], states, torch.full_like(states, 1e3))
    assert torch.equal(head(states, mask)[mask], head(noisy, mask)[mask])
    assert head(noisy, mask).isfinite().all()
    mask[1] = False
    assert head(torch.zeros_like(states), mask).isfinite().all()


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_every_parameter_is_trained(text: str) -> None:
    head = shaken(text)
    head(*inputs()).pow(2).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in head.parameters())


@pytest.mark.parametrize("text", SMALL_SPECS)
@pytest.mark.parametrize("states", [1, 5])
def test_one_token_of_one_window(text: str, states: int) -> None:
    geometry = Geometry(states=states, hidden=12)
    one, mask = inputs(geometry, windows=1, tokens=1)
    logits = shaken(text, geometry)(one, mask)
    width = 2 + 2 * parse_head(text).config.rank if text.startswith("biaffine") else 2
    assert logits.shape == (1, 1, width)
    assert logits.isfinite().all()


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_any_number_of_outputs(text: str) -> None:
    geometry = Geometry(states=5, hidden=12, outputs=3)
    if text.startswith("biaffine"):
        with pytest.raises(ConfigError, match="2 outputs, not 3"):
            parse_head(text).build(geometry, seed=0)
    else:
        assert shaken(text, geometry)(*inputs()).shape == (2, 4, 3)


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_half_precision_states(text: str) -> None:
    head = shaken(text).train()
    states, mask = inputs()
    exact = shaken(text)(states, mask)
    with torch.autocast("cpu", torch.bfloat16):
        logits = head(states.bfloat16(), mask)
        close = head.eval()(states.bfloat16(), mask).float()
    assert logits.isfinite().all()
    assert (close - exact).abs().max() < 0.06 * exact.abs().max()
    logits.float().pow(2).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_saved_head_comes_back_bit_by_bit(text: str, tmp_path: Path) -> None:
    head = shaken(text)
    head.at(0.9)
    save_head(head, tmp_path, about={})
    loaded, _ = load_head(tmp_path)
    assert loaded.config == head.config
    assert torch.equal(loaded(*inputs()), head(*inputs()))


@pytest.mark.parametrize("text", [text for text in SMALL_SPECS if "head2toe" not in text])
def test_stacked_heads_agree_with_single_ones(text: str) -> None:
    heads = [shaken(text, seed=seed) for seed in range(3)]
    assert all(head.stackable for head in heads)
    states, mask = inputs()
    parameters, buffers = stack_module_state(list(heads))

    def one(own: dict[str, Tensor], kept: dict[str, Tensor]) -> Tensor:
        return functional_call(heads[0], (own, kept), (states, mask)).pow(2).sum()

    losses = vmap(one)(parameters, buffers)
    losses.sum().backward()
    for i, head in enumerate(heads):
        alone = head(states, mask).pow(2).sum()
        alone.backward()
        assert losses[i].item() == pytest.approx(alone.item(), rel=1e-4)
        for name, parameter in head.named_parameters():
            assert parameter.grad is not None
            together = parameters[name].grad[i]
            scale = float(parameter.grad.abs().max())
            torch.testing.assert_close(together, parameter.grad, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ladder:size=0", "size of ladder must be at least 1"),
        ("ladder:rung=-1", "rung of ladder"),
        ("ladder:heads=-1", "heads of ladder"),
        ("ladder:size=6,heads=4", "multiple of heads, not 6 with 4"),
        ("ladder:dropout=1", "dropout of ladder"),
        ("recurrent:size=0", "size of recurrent"),
        ("recurrent:dropout=-0.1", "dropout of recurrent"),
        ("layer_attention:size=0", "size of layer_attention"),
        ("layer_attention:heads=0", "heads of layer_attention"),
        ("layer_attention:size=6,heads=4", "multiple of heads"),
        ("head2toe:keep=0", "keep of head2toe"),
        ("head2toe:select_at=1.5", "select_at of head2toe"),
        ("head2toe:lasso=-1", "lasso of head2toe"),
        ("biaffine:rank=0", "rank of biaffine"),
        ("biaffine:size=0", "size must be at least 1"),
        ("biaffine:dropout=2", "dropout of biaffine"),
    ],
)
def test_bad_options_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_head(text)
    assert "\n" not in str(caught.value)


# ---- how they begin


def test_gates_begin_with_the_mean_of_all_layers() -> None:
    """No layer vanishes: with the rung at its initial zero, the state is sum_l z_l / (L + 1)."""
    head: Any = parse_head("ladder:heads=0,skip=false").build(Geometry(25, 64), seed=0)
    states, mask = inputs(Geometry(25, 64))
    seen: list[Tensor] = []
    head.norm.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    head(states, mask)
    z = torch.stack([head.down @ unit(x) for x in states[:, 0, 0]])
    torch.testing.assert_close(seen[0][0, 0], z.sum(0) / 26, rtol=1e-4, atol=1e-5)


def test_layer_attention_begins_uniform() -> None:
    head: Any = parse_head("layer_attention:size=4,heads=1").build(SMALL, seed=0)
    states, mask = inputs()
    mean = torch.stack([unit(x) for x in states[:, 0, 0]]).mean(0)
    expected = head.value @ mean + head.project.weight @ states[-1, 0, 0]
    torch.testing.assert_close(head(states, mask)[0, 0], expected, rtol=1e-4, atol=1e-5)
    assert head.layer_weights() is None


def test_biaffine_begins_with_independent_starts_and_ends() -> None:
    logits = parse_head("biaffine:size=3,rank=2").build(SMALL, seed=0)(*inputs())
    assert logits[..., :4].abs().min() > 0
    assert not logits[..., 4:].any()


# ---- head2toe


def fitted(head: Head, optimizer: torch.optim.Optimizer, steps: range, total: int) -> None:
    """A fit of the head to numbers that only features 3 of layer 1 and 7 of layer 4 tell."""
    generator = torch.Generator().manual_seed(5)
    for step in range(steps.stop):
        states = torch.randn(5, 4, 6, 12, generator=generator)
        if step < steps.start:
            continue  # the same numbers as in a fit that was not interrupted
        head.train()
        head.at(step / total)
        scaled = states / states.pow(2).mean(-1, keepdim=True).sqrt()
        wanted = torch.stack([scaled[1, ..., 3], scaled[4, ..., 7]], dim=-1)
        loss = (head(states, torch.ones(4, 6, dtype=torch.bool)) - wanted).pow(2).mean()
        penalty = head.penalty()
        (loss if penalty is None else loss + penalty).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def test_head2toe_keeps_what_tells_something() -> None:
    head: Any = parse_head("head2toe:keep=0.1,lasso=0.001").build(SMALL, seed=0)
    assert head.layer_weights() is None
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.02, weight_decay=0.1)
    fitted(head, optimizer, range(30), 60)
    assert bool(head.mask.all())
    assert head.penalty() > 0
    fitted(head, optimizer, range(30, 31), 60)
    chosen = head.mask.clone()
    assert int(chosen.sum()) == 6  # a tenth of 5 * 12
    assert bool(chosen[1, 3] & chosen[4, 7])
    assert head.penalty() == 0
    before = head.weight.detach().clone()
    fitted(head, optimizer, range(31, 60), 60)
    assert torch.equal(head.mask, chosen), "features are selected once"
    head.eval()
    assert not head.weight.transpose(1, 2)[~chosen].any(), (
        "dropped weights stay zero whatever the optimiser does"
    )
    assert bool((head.weight != before).transpose(1, 2)[chosen].all()), "kept ones go on learning"
    shares = head.layer_weights()
    weight = head.weight.detach()
    norms = [sum(math.hypot(*weight[i, :, h].tolist()) for h in range(12) if chosen[i, h]) for i in range(5)]
    assert shares == pytest.approx([n / sum(norms) for n in norms], abs=1e-6)
    assert shares[1] + shares[4] > 0.8


def test_head2toe_momentum_does_not_bring_dropped_features_back() -> None:
    """Between the last step and the next `at` a dropped weight may have moved: it must not be read."""
    head: Any = parse_head("head2toe:keep=0.1").build(SMALL, seed=0)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.02, weight_decay=0.1)
    fitted(head, optimizer, range(31), 60)
    assert bool(head.weight.transpose(1, 2)[~head.mask].any()), (
        "momentum moved nothing: the test shows nothing"
    )
    states, mask = inputs()
    noisy = torch.where(head.mask[:, None, None], states, -states)  # dropped features changed, norms kept
    assert torch.equal(head(states, mask), head(noisy, mask))


def test_head2toe_penalty_is_the_group_lasso() -> None:
    head: Any = shaken("head2toe:lasso=0.5")
    expected = sum(math.hypot(*head.weight[i, :, h].tolist()) for i in range(5) for h in range(12))
    assert head.penalty().item() == pytest.approx(0.5 * expected, rel=1e-5)
    head.penalty().backward()
    group = head.weight[2, :, 3]
    torch.testing.assert_close(head.weight.grad[2, :, 3], 0.5 * group / group.norm())
    assert parse_head("head2toe:lasso=0").build(SMALL, seed=0).penalty() is None
    fresh: Any = parse_head("head2toe").build(SMALL, seed=0)
    fresh.penalty().backward()
    assert not fresh.weight.grad.any(), "no gradient, and none that is not a number, at zero"


@pytest.mark.parametrize("stop", [20, 45])
def test_head2toe_goes_on_where_it_was(stop: int) -> None:
    """Interrupted before or after the selection, the fit ends with the same bits."""
    spec = parse_head("head2toe:keep=0.1")
    whole: Any = spec.build(SMALL, seed=0)
    fitted(whole, torch.optim.AdamW(whole.parameters(), lr=0.02, weight_decay=0.1), range(60), 60)
    first: Any = spec.build(SMALL, seed=0)
    optimizer = torch.optim.AdamW(first.parameters(), lr=0.02, weight_decay=0.1)
    fitted(first, optimizer, range(stop), 60)
    second: Any = spec.build(SMALL, seed=1)
    second.at(0.9)  # it chose something by itself before: the loaded state decides
    second.load_state_dict(first.state_dict())
    resumed = torch.optim.AdamW(second.parameters(), lr=0.02, weight_decay=0.1)
    resumed.load_state_dict(optimizer.state_dict())
    fitted(second, resumed, range(stop, 60), 60)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_head2toe_keeps_at_least_one_feature_or_all() -> None:
    one: Any = shaken("head2toe:keep=0.001")
    one.at(0.4)
    assert bool(one.mask.all())
    one.at(0.5)
    norms = one.weight.detach().norm(dim=1)
    assert one.mask.sum() == 1
    assert one.mask.flatten().float().argmax() == norms.argmax()
    every: Any = shaken("head2toe:keep=1")
    before = every(*inputs())
    every.at(0.99)
    assert torch.equal(every(*inputs()), before)
