"""Heads without convolutions against their formulas, written once more for single tokens and windows without pads."""

import math
from typing import Any

import pytest
import torch
from head_cases import CASES, CONV, TOKEN, WINDOW, batch_of, cast, changed, real, shaken
from torch import Tensor

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, StateBatch, cost, parse_head
from bertvision.heads.base import bare_batch
from bertvision.heads.readouts import channels, layer_of

LARGE = Geometry(states=25, hidden=1024)
DENSE = [case for case in CASES if case not in CONV]


# ---- parts


def gelu(x: Tensor, kind: str = "tanh") -> Tensor:
    if kind == "erf":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def dense(layer: Any, *parts: Tensor) -> Tensor:
    return layer.weight @ torch.cat(parts) + layer.bias


def unit(x: Tensor) -> Tensor:
    return x / x.pow(2).mean().sqrt()


def norm(x: Tensor, layer: Any) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.pow(2).mean() + layer.eps).sqrt() * layer.weight + layer.bias


def softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum(0)


def mixed(head: Any, layers: Tensor) -> Tensor:
    """(L, H) -> (H,): gamma * softmax(w), or the mean."""
    if getattr(head.config, "pooling", "learned") == "average":
        return layers.mean(0)
    return head.mix.gamma * (softmax(head.mix.w) @ layers)


def flat(head: Any, token: Tensor) -> Tensor:
    """Every layer reduced, feature-major and layer-minor."""
    weight, bias = head.down.weight, head.down.bias
    own = [(weight[i], bias[i]) if weight.ndim == 3 else (weight, bias) for i in range(len(token))]
    reduced = [gelu(w @ x + b, head.config.gelu) for x, (w, b) in zip(token, own, strict=True)]
    return torch.stack(reduced, 1).flatten()


# ---- token heads: `token` is (L, H)


def with_last(head: Any, x: Tensor, token: Tensor) -> Tensor:
    return dense(head.project, x, *([token[-1]] if head.config.skip else []))


def last_state(head: Any, token: Tensor) -> Tensor:
    return dense(head.project, token[-1])


def last_state_mlp(head: Any, token: Tensor) -> Tensor:
    hidden = dense(head.down, token[-1])
    return dense(head.project, hidden if head.config.activation == "none" else gelu(hidden))


def average_pooling(head: Any, token: Tensor) -> Tensor:
    return dense(head.project, (token[[0, -1]] if head.config.of == "first-last" else token).mean(0))


def learned_pooling(head: Any, token: Tensor) -> Tensor:
    return dense(head.project, mixed(head, token))


def adapter(head: Any, token: Tensor) -> Tensor:
    return with_last(head, flat(head, token), token)


def pooled_adapter(head: Any, token: Tensor) -> Tensor:
    return with_last(head, gelu(dense(head.down, mixed(head, token)), head.config.gelu), token)


def twin_adapter(head: Any, token: Tensor) -> Tensor:
    own = gelu(dense(head.pooled_down, mixed(head, token)), head.config.gelu)
    return dense(head.project, flat(head, token), own)


biaffine = adapter


def recurrent(head: Any, token: Tensor) -> Tensor:
    state = torch.zeros(head.config.size, dtype=token.dtype)
    for i, x in enumerate(token):
        z = head.down.weight @ unit(x) + head.down_bias[i]
        gates = head.gates_read.weight @ z + head.gates_state.weight @ state + head.gate_bias[i]
        reset, keep = torch.sigmoid(gates).split(head.config.size)
        state = keep * state + (1 - keep) * torch.tanh(z + head.new.weight @ (reset * state))
    return with_last(head, state, token)


def layer_attention(head: Any, token: Tensor) -> Tensor:
    d, C = head.config.size // head.config.heads, head.geometry.outputs
    query = dense(head.query, unit(token[-1]))
    total = dense(head.project, token[-1])
    units = torch.stack([unit(x) for x in token])
    for a in range(head.config.heads):
        part = slice(a * d, (a + 1) * d)
        keys = units @ head.key.T + head.key_bias
        share = softmax(keys[:, part] @ query[part] / math.sqrt(d) + head.layer_bias[:, a])
        total = total + head.value[a * C : (a + 1) * C] @ (share @ units)
    return total


def head2toe(head: Any, token: Tensor) -> Tensor:
    wide = head.weight.permute(1, 0, 2).flatten(1) * head.mask.flatten()  # (C, L * H)
    return wide @ torch.cat([unit(x) for x in token]) + head.bias


def layer_reader(head: Any, token: Tensor) -> Tensor:
    return dense(head.project, token[head.config.layer])


def ladder(head: Any, window: Tensor) -> Tensor:
    """(L, n, H) -> (n, C)."""
    climbed = []
    for token in window.transpose(0, 1):
        state = torch.zeros(head.config.size, dtype=token.dtype)
        for i, x in enumerate(token):
            down = head.down[i] if head.config.unshared else head.down
            gate = 1 / (1 + torch.exp(-head.gate_bias[i]))
            state = gate * state + (1 - gate) * (down @ unit(x) + head.down_bias[i])
            if head.config.rung:
                state = state + dense(head.rung_out, gelu(dense(head.rung_in, state)))
        climbed.append(state)
    if head.config.heads:
        size = head.config.size
        d = size // head.config.heads
        rows = [dense(head.mixing.qkv, norm(x, head.mixing.norm)) for x in climbed]  # queries, keys, values
        for i, x in enumerate(list(climbed)):
            parts = []
            for a in range(0, size, d):
                query = rows[i][a : a + d]
                scores = torch.stack([query @ row[size + a : size + a + d] for row in rows]) / math.sqrt(d)
                values = torch.stack([row[2 * size + a : 2 * size + a + d] for row in rows])
                parts.append(softmax(scores) @ values)
            climbed[i] = x + dense(head.mixing.out, *parts)
    tokens = window.transpose(0, 1)
    return torch.stack([with_last(head, norm(x, head.norm), t) for x, t in zip(climbed, tokens, strict=True)])


# ---- window heads: `window` is (L, n, H), `pooled` (H,)


def picture(head: Any, window: Tensor, pooled: Tensor) -> Tensor:
    return torch.stack([pooled, *window[:, 0]])


def tenney_small(head: Any, window: Tensor, pooled: Tensor) -> Tensor:
    return dense(head.project, mixed(head, picture(head, window, pooled)))


def adapter_pooler(head: Any, window: Tensor, pooled: Tensor) -> Tensor:
    cls = picture(head, window, pooled)
    return dense(head.project, gelu(dense(head.down, mixed(head, cls)), head.config.gelu), cls[-1])


def cls_linear(head: Any, window: Tensor, pooled: Tensor) -> Tensor:
    return dense(head.project, pooled)


def cls_mlp(head: Any, window: Tensor, pooled: Tensor) -> Tensor:
    return dense(head.project, gelu(dense(head.down, window[-1, 0])))


def ap_glue(head: Any, window: Tensor, pooled: Tensor) -> Tensor:
    L, n, _ = window.shape
    wide = torch.zeros(head.config.tokens, head.config.size, L, dtype=window.dtype)
    for i in range(L):
        for t in range(n):
            wide[t, :, i] = gelu(dense(head.down, window[i, t]), head.config.gelu)
    return dense(head.project, wide.flatten())


def minbert(head: Any, window: Tensor, pooled: Tensor) -> Tensor:
    vector = pooled
    for i in range(head.config.blocks):
        vector = norm(dense(head.blocks[4 * i], vector), head.blocks[4 * i + 1]).clamp(min=0)
    return dense(head.project, vector)


def mean_pooler(head: Any, window: Tensor, pooled: Tensor) -> Tensor:
    means = window.mean(1)
    return dense(head.project, means[-1] if head.config.last else mixed(head, means))


def attention_pooler(head: Any, window: Tensor, pooled: Tensor) -> Tensor:
    if head.config.over == "tokens":
        tokens, extra = torch.stack([mixed(head, token) for token in window.transpose(0, 1)]), None
    else:
        tokens = window.flatten(0, 1)
        extra = head.layer_score_bias.repeat_interleave(window.shape[1], 0)
    keys = torch.stack([torch.tanh(dense(head.key, token)) for token in tokens])
    scores = keys @ head.query.T if extra is None else keys @ head.query.T + extra
    return dense(head.project, (softmax(scores).T @ tokens).flatten())


def reference(head: Any, batch: StateBatch) -> Tensor:
    """Logits of all real tokens, or of all examples."""
    formula, found = globals()[head.name.removesuffix(".v1")], []
    for b, length in enumerate(batch.mask.sum(1).tolist()):
        window = batch.states[:, b, :length]
        if formula is ladder:
            found.append(ladder(head, window))
        elif formula is layer_reader and head.cls_only:
            found.append(layer_reader(head, window[:, 0])[None])
        elif head.geometry.unit == "token":
            found.append(torch.stack([formula(head, window[:, t]) for t in range(length)]))
        elif b % head.windows == 0:
            assert batch.pooled is not None
            found.append(formula(head, window, batch.pooled[b : b + head.windows].flatten())[None])
    return torch.cat(found)


@torch.no_grad()
@pytest.mark.parametrize(("text", "geometry"), DENSE)
def test_a_head_is_its_formula(text: str, geometry: Geometry) -> None:
    head, batch = shaken(text, geometry).double(), cast(batch_of(geometry), torch.float64)
    if head.name == "head2toe.v1":
        head.mask[:, ::3] = False
    logits = real(head(batch), batch)
    torch.testing.assert_close(logits, reference(head, batch), rtol=1e-6, atol=1e-6)
    assert logits.std() > 1e-3
    if head.name == "head2toe.v1":
        head.mask[:] = True


@pytest.mark.parametrize(("geometry", "tokens"), [(LARGE, 386), (Geometry(3, 32, outputs=5), 1)])
def test_flops_follow_a_closed_formula(geometry: Geometry, tokens: int) -> None:
    """Two operations a multiply-add; a matrix (m, k) times (k, n) has m * k * n of them."""
    L, H, C, a = geometry.states, geometry.hidden, geometry.outputs, 64
    adapters, pooled = 2 * L * H * a + 2 * L * a * C, 2 * L * H + 2 * H * a + 2 * a * C
    expected = {
        "last_state": 2 * H * C,
        "average_pooling": 2 * L * H * C + 2 * L * C,
        "learned_pooling": 2 * L * H * C + 2 * L * C,
        "average_pooling:of=first-last": 2 * H * C,
        "last_state_mlp:width=7": 2 * H * 7 + 2 * 7 * C,
        "adapter:size=64": adapters,
        "adapter:size=64,unshared": adapters,
        "adapter:size=64,skip": adapters + 2 * H * C,
        "pooled_adapter:size=64": pooled + 2 * H * C,
        "twin_adapter:size=64": adapters + pooled,
    }
    counted = {text: cost(parse_head(text), geometry, tokens=tokens).flops_per_token for text in expected}
    assert counted == expected


# ---- initial weights


@pytest.mark.parametrize(
    "text", ["last_state", "adapter:size=64,unshared", "twin_adapter:size=64", "last_state_mlp"]
)
def test_keras_initial_weights(text: str) -> None:
    """Output layers Glorot-uniform; adapters cut at two sigma, where a normal has 0.8796 of its spread."""
    head: Any = parse_head(text).build(LARGE, seed=0)
    weight, limit = head.project.weight, math.sqrt(6 / (head.project.in_features + 2))
    assert 0.99 * limit < weight.abs().max() <= limit
    assert weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.05)
    assert head.project.bias.eq(0).all()
    if "adapter" in text:
        rows = head.down.weight.reshape(-1, 64 * 1024)
        assert 1.99e-3 < rows.abs().max() <= 2e-3
        assert rows.std(1).tolist() == pytest.approx([0.8796e-3] * len(rows), rel=0.02)
        assert (torch.corrcoef(rows) - torch.eye(len(rows))).abs().max() < 0.02, "layers are independent"


def test_learned_mixes_begin_near_the_mean() -> None:
    heads: list[Any] = [parse_head("learned_pooling").build(LARGE, seed=seed) for seed in range(80)]
    assert torch.stack([head.mix.w.detach() for head in heads]).std().item() == pytest.approx(0.05, rel=0.06)
    assert heads[0].mix.gamma.tolist() == [1.0]


@torch.no_grad()
def test_gates_begin_with_the_mean_of_all_layers() -> None:
    """With the rung at its initial zero, the state is sum_l z_l / (L + 1): no layer vanishes."""
    geometry = Geometry(25, 64)
    head: Any = parse_head("ladder:heads=0,skip=false").build(geometry, seed=0)
    batch, seen = batch_of(geometry), []
    head.norm.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    head(batch)
    z = torch.stack([head.down @ unit(x) for x in batch.states[:, 0, 0]])
    torch.testing.assert_close(seen[0][0, 0], z.sum(0) / 26, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_attention_begins_as_a_mean() -> None:
    batch = batch_of(TOKEN)
    head: Any = parse_head("layer_attention:size=4,heads=1").build(TOKEN, seed=0)
    mean = torch.stack([unit(x) for x in batch.states[:, 0, 0]]).mean(0)
    expected = head.value @ mean + head.project.weight @ batch.states[-1, 0, 0]
    torch.testing.assert_close(head(batch)[0, 0], expected, rtol=1e-4, atol=1e-5)
    batch = batch_of(WINDOW)
    for over, layers in (("tokens", 1), ("layers+tokens", 3)):
        head = parse_head(f"attention_pooler:over={over},queries=2").build(WINDOW, seed=0)
        shares = head.shares(batch.states[:layers], batch.mask)
        even = (1 / (layers * batch.mask.sum(1)))[None, :, None, None] * batch.mask[:, None]
        torch.testing.assert_close(shares, even.expand_as(shares), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("text", "geometry", "name"),
    [
        ("attention_pooler:size=3", WINDOW, "query"),
        ("attention_pooler:size=3,over=layers+tokens", WINDOW, "query"),
        ("layer_attention:size=4,heads=2", TOKEN, "query.weight"),
    ],
)
def test_what_begins_at_zero_leaves_it(text: str, geometry: Geometry, name: str) -> None:
    head = parse_head(text).build(geometry, seed=0)
    head(batch_of(geometry)).pow(2).sum().backward()
    gradient = head.get_parameter(name).grad
    assert gradient is not None
    assert gradient.abs().min() > 0


def test_starts_and_ends_begin_independent() -> None:
    logits = parse_head("biaffine:size=3,rank=2").build(TOKEN, seed=0)(batch_of(TOKEN))
    assert logits[..., :4].abs().min() > 0
    assert not logits[..., 4:].any()


# ---- window heads


def test_without_a_pooler_the_channels_are_the_states() -> None:
    batch = batch_of(WINDOW)
    bare = changed(batch, pooled=None)
    assert torch.equal(channels(bare), batch.states[:, :, 0])
    for dtype, wanted in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        assert channels(changed(batch, states=batch.states.to(dtype))).dtype == wanted
    head = shaken("cls_linear", Geometry(3, 12, 3, "window"))
    assert torch.equal(head(bare), head.project(batch.states[-1, :, 0]))


def test_means_are_not_biased_in_half_precision() -> None:
    """1 / 7 in bf16 is off by 0.2 %; the logits of many texts may differ by rounding, not by a common factor."""
    geometry = Geometry(1, 64, 64, "window")
    head: Any = parse_head("mean_pooler:last").build(geometry, seed=0)
    torch.nn.init.eye_(head.project.weight)
    for tokens in (7, 300):
        generator = torch.Generator().manual_seed(tokens)
        states = (torch.randn(1, 40, tokens, 64, generator=generator) + 3).bfloat16()
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            logits = head(bare_batch(states, torch.ones(40, tokens, dtype=torch.bool)))
        ratio = logits.double() / states[0].double().mean(1)
        assert ratio.mean().item() == pytest.approx(1, abs=2e-4)


def test_ap_glue_refuses_windows_longer_than_it_was_built_for() -> None:
    head, batch = shaken("ap_glue:size=2,tokens=9", WINDOW), batch_of(WINDOW, tokens=10)
    with pytest.raises(ConfigError, match="tokens=10"):
        head(batch)


def test_readers_know_their_layer() -> None:
    for layer in (0, 2, -1):
        assert layer_of(parse_head(f"layer_reader:layer={layer}").build(TOKEN, seed=0)) == layer % 3
    assert layer_of(parse_head("last_state").build(TOKEN, seed=0)) is None
    with pytest.raises(ConfigError, match="3 hidden states, numbered 0 to 2"):
        parse_head("layer_reader:layer=3").build(TOKEN, seed=0)
    head = parse_head("layer_reader").build(Geometry(3, 12, unit="window"), seed=0)
    assert (head.cls_only, shaken("layer_reader").cls_only) == (True, False)


# ---- head2toe


def fitted(head: Any, optimizer: torch.optim.Optimizer, steps: range, total: int) -> None:
    """Fit to numbers that only features 3 of layer 1 and 7 of layer 2 know."""
    generator = torch.Generator().manual_seed(5)
    mask = torch.ones(4, 6, dtype=torch.bool)
    for step in range(steps.stop):
        states = torch.randn(3, 4, 6, 12, generator=generator)
        if step < steps.start:
            continue  # the same numbers as in a fit that was not interrupted
        penalty = head.penalty(step / total)
        scaled = states / states.pow(2).mean(-1, keepdim=True).sqrt()
        wanted = torch.stack([scaled[1, ..., 3], scaled[2, ..., 7]], dim=-1)
        ((head(bare_batch(states, mask)) - wanted).pow(2).mean() + penalty).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def adamw(head: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(head.parameters(), lr=0.02, weight_decay=0.1)


def test_head2toe_keeps_the_features_that_matter() -> None:
    head: Any = parse_head("head2toe:keep=0.17,lasso=0.001").build(TOKEN, seed=0)
    optimizer = adamw(head)
    fitted(head, optimizer, range(30), 60)
    assert bool(head.mask.all())
    assert head.penalty(0.49) > 0
    fitted(head, optimizer, range(30, 31), 60)
    chosen, before = head.mask.clone(), head.weight.detach().clone()
    assert int(chosen.sum()) == 6  # of 3 * 12
    assert bool(chosen[1, 3] & chosen[2, 7])
    assert head.penalty(0.9) == 0
    fitted(head, optimizer, range(31, 60), 60)
    assert torch.equal(head.mask, chosen), "features are selected once"
    assert bool((head.weight != before).transpose(1, 2)[chosen].all()), "kept ones go on learning"
    batch = batch_of(TOKEN)
    noisy = torch.where(chosen[:, None, None], batch.states, -batch.states)  # norms stay
    assert torch.equal(head(batch), head(changed(batch, states=noisy))), "dropped ones are never read"
    norms = (head.weight.detach() * chosen[:, None]).norm(dim=1).sum(1)
    assert head.layer_weights() == pytest.approx((norms / norms.sum()).tolist(), abs=1e-6)


def test_head2toe_penalty_is_the_group_lasso() -> None:
    head = shaken("head2toe:lasso=0.5")
    head.penalty(0.1).backward()
    group = head.weight[2, :, 3]
    assert head.penalty(0.1).item() == pytest.approx(0.5 * head.weight.norm(dim=1).sum().item(), rel=1e-5)
    torch.testing.assert_close(head.weight.grad[2, :, 3], 0.5 * group / group.norm())
    torch.nn.init.zeros_(head.weight)
    head.zero_grad()
    head.penalty(0.1).backward()
    assert not head.weight.grad.any(), "at zero no gradient, and no NaN"


@pytest.mark.parametrize("stop", [20, 45])
def test_head2toe_goes_on_where_it_was(stop: int) -> None:
    """Interrupted before or after the selection, the fit ends with the same bits."""
    spec = parse_head("head2toe:keep=0.1")
    whole, first, second = (spec.build(TOKEN, seed=seed) for seed in (0, 0, 1))
    fitted(whole, adamw(whole), range(60), 60)
    optimizer = adamw(first)
    fitted(first, optimizer, range(stop), 60)
    second.penalty(0.9)  # it selected something by itself before: the loaded state decides
    second.load_state_dict(first.state_dict())
    resumed = adamw(second)
    resumed.load_state_dict(optimizer.state_dict())
    fitted(second, resumed, range(stop, 60), 60)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_head2toe_keeps_at_least_the_strongest_feature() -> None:
    head: Any = parse_head("head2toe:keep=0.001").build(TOKEN, seed=0)
    head.penalty(0.5)
    assert head.mask.flatten().nonzero().tolist() == [[head.weight.detach().norm(dim=1).argmax()]]
