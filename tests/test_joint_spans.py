"""Starts and ends scored together: loss, marginals, decoding and files against loops over all pairs."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from span_cases import make_case, make_logits
from torch import Tensor

from bertvision.data.windows import Windows
from bertvision.encoder.batch import padded_positions
from bertvision.errors import ArtifactError
from bertvision.heads import Geometry, parse_head
from bertvision.heads.base import bare_batch
from bertvision.tasks.logits import Logits, Seen
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.span import SPAN
from bertvision.tasks.span_decode import decode
from bertvision.tasks.span_logits import (
    SpanCollector,
    combine,
    marginals,
    second_best,
    span_logits,
    span_loss,
)

RANK = 3


def score(token_i: list[float], token_j: list[float]) -> float:
    """s_i + e_j + u_i . v_j / sqrt(r)."""
    r = (len(token_i) - 2) // 2
    product = sum(a * b for a, b in zip(token_i[2 : 2 + r], token_j[2 + r :], strict=True))
    return token_i[0] + token_j[1] + product / math.sqrt(r)


def log_sum(values: list[float]) -> float:
    return math.log(sum(math.exp(value) for value in values))


# ---- the loss


def batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4, 7, 2 + 2 * RANK, generator=generator)
    mask = torch.arange(7) < torch.tensor([7, 5, 3, 1])[:, None]
    labels = torch.tensor([[0, 6], [2, 4], [1, 1], [0, 0]])
    return logits.to(dtype), mask, labels


def loss_by_hand(logits: Tensor, mask: Tensor, labels: Tensor) -> list[float]:
    losses = []
    for rows, real, (first, last) in zip(logits.double(), mask, labels.tolist(), strict=True):
        tokens = rows[real].tolist()
        pairs = {(i, j): score(a, b) for i, a in enumerate(tokens) for j, b in enumerate(tokens) if i <= j}
        losses.append((log_sum(list(pairs.values())) - pairs[first, last]) / 2)
    return losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loss_is_the_formula(dtype: torch.dtype) -> None:
    logits, mask, labels = batch(dtype)
    each = span_loss(logits, mask, labels)
    assert each.dtype == torch.float32
    assert each.tolist() == pytest.approx(loss_by_hand(logits, mask, labels), abs=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(span_loss(logits, mask, labels), each)


def test_loss_of_one_token_is_that_of_two_sides() -> None:
    """Where order forbids nothing and the factors are zero, both losses are one."""
    logits, mask, labels = batch()
    logits[..., 2:] = 0
    alone = span_loss(logits[3:, :, :2], mask[3:], labels[3:])
    assert span_loss(logits[3:], mask[3:], labels[3:]).item() == pytest.approx(alone.item())
    # A window whose ends all lie behind its starts: the pairs that order forbids weigh nothing.
    logits[0, :3, 1], logits[0, 3:, 0] = -1e4, -1e4
    sides = span_loss(logits[:1, :, :2], mask[:1], labels[:1])
    assert span_loss(logits[:1], mask[:1], labels[:1]).item() == pytest.approx(sides.item(), rel=1e-5)


def test_loss_ignores_pads() -> None:
    logits, mask, labels = batch()
    for poison in (1e9, math.inf, math.nan):
        poisoned = torch.where(mask.unsqueeze(-1), logits, torch.tensor(poison)).requires_grad_()
        loss = span_loss(poisoned, mask, labels).mean()
        assert loss.item() == span_loss(logits, mask, labels).mean().item()
        (gradient,) = torch.autograd.grad(loss, poisoned)
        assert gradient.isfinite().all()
        assert not gradient[~mask].any()
        assert gradient[mask].any(0).all(), "s, e, u and v all learn"
    mask[3] = False
    assert span_loss(logits, mask, labels).isfinite().all()


def test_loss_of_stacked_heads() -> None:
    logits, mask, labels = batch()
    stacked = torch.stack([logits, -logits, 2 * logits]).requires_grad_()
    together = torch.func.vmap(lambda one: span_loss(one, mask, labels))(stacked)
    together.sum().backward()
    assert stacked.grad is not None
    for one, found, gradient in zip(stacked.detach(), together, stacked.grad, strict=True):
        own = one.clone().requires_grad_()
        alone = span_loss(own, mask, labels)
        alone.sum().backward()
        torch.testing.assert_close(found, alone)
        torch.testing.assert_close(gradient, own.grad)


@pytest.mark.parametrize(("factors", "reached"), [(1.0, math.log(2) / 2), (0.0, math.log(4) / 2)])
def test_pairs_learn_what_sides_cannot(factors: float, reached: float) -> None:
    """1..4 and 2..3, equally often: sides alone must give as much to 1..3 and 2..4 together."""
    states = torch.eye(6).repeat(1, 2, 1, 1)  # one layer, two equal windows
    batch, labels = bare_batch(states, torch.ones(2, 6, dtype=torch.bool)), torch.tensor([[1, 4], [2, 3]])
    head = parse_head("biaffine:size=4,rank=4").build(Geometry(1, 6), seed=0)
    counted = torch.tensor([1.0] * 2 + [factors] * 8)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    losses = []
    for _ in range(200):
        loss = span_loss(head(batch) * counted, batch.mask, labels).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] == pytest.approx(reached, abs=0.02)
    assert min(losses) > reached - 1e-4


# ---- marginals


def test_marginals_are_sums_over_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, mask, _ = batch()
    found = marginals(logits, mask)
    for b in range(4):
        tokens = logits[b][mask[b]].double().tolist()
        n = len(tokens)
        starts = [log_sum([score(tokens[i], tokens[j]) for j in range(i, n)]) for i in range(n)]
        ends = [log_sum([score(tokens[i], tokens[j]) for i in range(j + 1)]) for j in range(n)]
        assert found[b, :n, 0].tolist() == pytest.approx(starts, rel=1e-5)
        assert found[b, :n, 1].tolist() == pytest.approx(ends, rel=1e-5)
        assert log_sum(starts) == pytest.approx(log_sum(ends)), "both are shares of one distribution"
    monkeypatch.setattr(sys.modules["bertvision.tasks.span_logits"], "_CELLS", 2 * 7 * 7)
    torch.testing.assert_close(marginals(logits, mask), found)


def evaluated(windows: Windows, values: np.ndarray) -> Logits:
    """What a walk collects of a head that gives `values`, two windows a batch, pads poisoned."""
    collector = SpanCollector(windows)
    for begin in range(0, len(windows), 2):
        rows = np.arange(begin, min(begin + 2, len(windows)))
        flat, mask = padded_positions(windows, rows)
        output = np.where(mask[..., None], values[flat], 50.0).astype(np.float32)
        collector.add(Seen(windows, rows, torch.from_numpy(mask)), torch.from_numpy(output))
    return collector.logits()


def joint(seed: int, windows: Windows, *, ties: bool = False) -> Logits:
    """Random pair scores with the marginals that belong to them; with `ties` small whole numbers."""
    random = np.random.default_rng(seed)
    shape = (int(windows.offsets[-1]), 2 + 2 * (4 if ties else RANK))  # sqrt(4): products stay exact
    values = random.integers(-1, 2, shape) * 2.0 if ties else random.normal(0, 2, shape)
    return evaluated(windows, values.astype(np.float32))


def test_evaluation_keeps_pairs_and_marginals() -> None:
    _, windows = make_case(3)
    values = np.random.default_rng(0).normal(0, 2, (windows.num_tokens, 6)).astype(np.float32)
    plain, pairs = evaluated(windows, values[:, :2]), evaluated(windows, values)
    np.testing.assert_array_equal(plain["start"], values[:, 0])
    np.testing.assert_array_equal(plain["end"], values[:, 1])
    assert "pairs" not in plain.arrays
    np.testing.assert_array_equal(pairs["pairs"], values)
    for begin, end in zip(windows.offsets[:-1], windows.offsets[1:], strict=True):
        own = torch.from_numpy(values[begin:end])[None]
        expected = marginals(own, torch.ones(own.shape[:2], dtype=torch.bool))[0].numpy()
        np.testing.assert_allclose(pairs["start"][begin:end], expected[:, 0], rtol=1e-5)
        np.testing.assert_allclose(pairs["end"][begin:end], expected[:, 1], rtol=1e-5)


# ---- decoding


def brute_force(
    windows: Windows, logits: Logits, q: int, config: DecodeConfig, *, whole: bool = False
) -> tuple[list[Any], float]:
    """(score, (window, first, last)) of the valid pairs of a question, best first, and the merged null score.

    The n best, or all of them (`whole`).
    """
    found, nulls = [], []
    for w in np.flatnonzero(windows.example == q).tolist():
        begin, end = int(windows.offsets[w]), int(windows.offsets[w + 1])
        tokens = logits["pairs"][begin:end].astype(np.float64).tolist()
        start, stop = logits["start"][begin:end], logits["end"][begin:end]
        low, high = windows.context[w]
        firsts = sorted(range(end - begin), key=lambda t, s=start: (-s[t], t))[: config.n_best_size]
        lasts = sorted(range(end - begin), key=lambda t, s=stop: (-s[t], t))[: config.n_best_size]
        for i in firsts:
            for j in lasts:
                inside = low <= i <= j < high and j - i < config.max_answer_length
                seen = config.decoding != "google" or not config.max_context or windows.best[begin + i]
                if inside and seen and windows.chars[begin + i, 0] < windows.chars[begin + j, 1]:
                    found.append((score(tokens[i], tokens[j]), (w, i, j)))
        null = int(windows.null[w])
        nulls.append(score(tokens[null], tokens[null]))
    merged = min(nulls) if config.resolved_merging == "min" else max(nulls)
    return sorted(found, key=lambda c: -c[0])[: None if whole else config.n_best_size], merged


modes = st.builds(
    DecodeConfig,
    decoding=st.sampled_from(["google", "nbest"]),
    merging=st.sampled_from([None, "min", "max"]),
    n_best_size=st.sampled_from([1, 3, 200]),
    max_answer_length=st.sampled_from([1, 3, 30]),
    null_score_diff_threshold=st.sampled_from([-1.0, 0.0]),
    max_context=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), modes, st.booleans(), st.booleans(), st.booleans())
def test_decoding_equals_brute_force(
    seed: int, config: DecodeConfig, ties: bool, empty: bool, null_inside: bool
) -> None:
    data, windows = make_case(seed, empty_tokens=empty, null_inside=null_inside)
    logits = joint(seed, windows, ties=ties)
    answers = decode(windows, logits, data, config)
    for q in range(len(data)):
        candidates, null = brute_force(windows, logits, q, config)
        kept = int(np.isfinite(answers.nbest_score[q]).sum())
        assert kept == len(candidates)
        np.testing.assert_allclose(
            answers.nbest_score[q, :kept], [c[0] for c in candidates], rtol=1e-4, atol=1e-4
        )
        tokens = [tuple(token) for token in answers.nbest_token[q, :kept].tolist()]
        if ties:  # whole numbers: equal scores are equal, and their order is the rule's
            assert tokens == [token for _, token in candidates]
        else:  # neighbours may differ by less than float32 can tell: each has its score, and none comes twice
            assert len(set(tokens)) == kept
            every = {token: value for value, token in brute_force(windows, logits, q, config, whole=True)[0]}
            own = [every[token] for token in tokens]
            np.testing.assert_allclose(answers.nbest_score[q, :kept], own, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            answers.nbest_logits[q, :kept].sum(1), answers.nbest_score[q, :kept], atol=1e-4
        )
        np.testing.assert_allclose(answers.null_score[q], null, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(answers.null_logits[q].sum(), answers.null_score[q], atol=1e-4)
        expected = null - candidates[0][0] if candidates else math.inf
        np.testing.assert_allclose(answers.score_diff[q], expected, rtol=1e-4, atol=1e-4)
        if abs(expected - config.null_score_diff_threshold) > 1e-3:
            assert bool(answers.is_null()[q]) == (expected > config.null_score_diff_threshold)


def test_many_starts_and_ends_give_the_best_pair_of_all() -> None:
    """With room for every token nothing hangs on the marginals: the best of all pairs wins."""
    data, windows = make_case(17, questions=30, most_windows=1)
    logits = joint(17, windows)
    config = DecodeConfig(decoding="nbest", n_best_size=1000)
    answers = decode(windows, logits, data, config)
    independent = decode(windows, span_logits(logits["start"], logits["end"]), data, config)
    for q in range(30):
        tokens = logits["pairs"][windows.offsets[q] : windows.offsets[q + 1]].tolist()
        low, high = windows.context[q].tolist()
        pairs = [(i, j) for i in range(low, high) for j in range(i, high)]
        best = max(pairs, key=lambda pair: score(tokens[pair[0]], tokens[pair[1]]))
        assert tuple(answers.nbest_token[q, 0, 1:].tolist()) == best
    assert (answers.nbest_token[:, 0] != independent.nbest_token[:, 0]).any(), "the pairs changed nothing"


def test_without_factors_it_is_the_ordinary_decoding() -> None:
    data, windows = make_case(9, questions=20)
    plain = make_logits(9, windows)
    values = np.zeros((windows.num_tokens, 4), np.float32)
    values[:, 0], values[:, 1] = plain["start"], plain["end"]
    for decoding in ("google", "nbest"):
        config = DecodeConfig(decoding=decoding, n_best_size=100)
        ours = decode(windows, span_logits(plain["start"], plain["end"], values), data, config)
        theirs = decode(windows, plain, data, config)
        for name in ("score_diff", "null_score", "null_logits", "nbest_score", "nbest_token"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
        assert ours.nbest == theirs.nbest


def test_chunks_and_threads_do_not_change_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    data, windows = make_case(3, questions=40)
    logits = joint(3, windows, ties=True)
    whole = decode(windows, logits, data, DecodeConfig())
    monkeypatch.setattr(sys.modules["bertvision.tasks.span_decode"], "_CELLS", 50)
    parts = decode(windows, logits, data, DecodeConfig())
    assert whole.nbest == parts.nbest
    assert whole.null_odds == parts.null_odds


def test_what_reads_starts_and_ends_reads_the_marginals(tmp_path: Path) -> None:
    data, windows = make_case(6, questions=12)
    logits = joint(6, windows)
    bare = span_logits(logits["start"], logits["end"])
    config = DecodeConfig(decoding="bertvision")
    assert decode(windows, logits, data, config).nbest == decode(windows, bare, data, config).nbest
    second = second_best(windows, logits)
    assert "pairs" not in second.arrays
    np.testing.assert_array_equal(second["start"], second_best(windows, bare)["start"])
    other = make_logits(6, windows)
    together, apart = combine([logits, other], windows), combine([bare, other], windows)
    assert "pairs" not in together.arrays
    np.testing.assert_array_equal(together["start"], apart["start"])
    np.testing.assert_array_equal(together["end"], apart["end"])
    # Softmaxed, a marginal is the probability of the start over all pairs of the window.
    part = slice(0, int(windows.offsets[1]))
    tokens = logits["pairs"][part].astype(np.float64).tolist()
    pairs = {
        (i, j): math.exp(score(a, b)) for i, a in enumerate(tokens) for j, b in enumerate(tokens) if i <= j
    }
    share = [
        sum(v for (i, _), v in pairs.items() if i == t) / sum(pairs.values()) for t in range(len(tokens))
    ]
    alone = combine([logits], windows)
    np.testing.assert_allclose(np.exp(alone["start"][part]), share, rtol=1e-4, atol=1e-7)
    SPAN.write_answers(tmp_path, decode(windows, logits, data, DecodeConfig()))
    assert (tmp_path / "nbest_predictions.json").exists()


def test_wrong_pairs_are_refused() -> None:
    data, windows = make_case(0)
    logits = joint(0, windows)
    start, end, pairs = (logits[name] for name in ("start", "end", "pairs"))
    with pytest.raises(ArtifactError, match="rows of pairs"):
        decode(windows, span_logits(start, end, pairs[:-1]), data, DecodeConfig())
    broken = pairs.copy()
    broken[windows.offsets[1], -1] = np.inf
    with pytest.raises(ArtifactError, match="first in window 1"):
        decode(windows, span_logits(start, end, broken), data, DecodeConfig())
