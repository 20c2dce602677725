"""Small random questions, windows and logits for the tests of the span task; made without a tokenizer."""

import math

import numpy as np
import torch

from bertvision.data.examples import Answer, Example, SpanData
from bertvision.data.windows import Windows
from bertvision.encoder.batch import padded_positions
from bertvision.tasks.logits import Logits, Seen
from bertvision.tasks.span_decode import SpanCollector, span_logits

RANK = 3
WORD = 4  # characters of a token with the space behind it


def make_case(
    seed: int,
    *,
    questions: int = 4,
    most_windows: int = 3,
    empty_tokens: bool = False,
    null_inside: bool = False,
) -> tuple[SpanData, Windows]:
    """Questions over paragraphs of words `w00 w01 ...`, each read through 1 to `most_windows` windows.

    `null_inside` puts the null token behind the question instead of in front of it; `empty_tokens` gives
    some tokens of the paragraphs no characters.
    """
    random = np.random.default_rng(seed)
    examples, paragraphs = [], []
    ids, chars, best, offsets, of_example, context, null = [], [], [], [0], [], [], []
    for q in range(questions):
        words = int(random.integers(2, 14))
        paragraphs.append(" ".join(f"w{i:02d}" for i in range(words)))
        answers = ()
        if random.random() < 0.6:
            first = int(random.integers(words))
            last = min(words - 1, first + int(random.integers(3)))
            answers = (Answer(paragraphs[-1][WORD * first : WORD * last + 3], WORD * first),)
        examples.append(Example(f"id-{q}", f"question {q}?", q, answers))
        for _ in range(int(random.integers(1, most_windows + 1))):
            begin = int(random.integers(words))
            size = int(random.integers(1, words - begin + 1))
            before = int(random.integers(2, 5))
            spans = [(WORD * w, WORD * w + 3) for w in range(begin, begin + size)]
            if empty_tokens:
                spans = [(a, a if random.random() < 0.4 else b) for a, b in spans]
            chars += [(-1, -1)] * before + spans + [(-1, -1)]
            best += [False] * before + (random.random(size) < 0.7).tolist() + [False]
            ids += random.integers(0, 50, before + size + 1).tolist()
            context.append((before, before + size))
            null.append(before - 1 if null_inside else 0)
            of_example.append(q)
            offsets.append(len(chars))
    windows = Windows(
        ids=np.array(ids, np.int32),
        types=np.zeros(len(ids), np.uint8),
        chars=np.array(chars, np.int32),
        offsets=np.array(offsets, np.int64),
        example=np.array(of_example, np.int32),
        context=np.array(context, np.int32),
        labels=np.zeros((len(of_example), 2), np.int32),
        null=np.array(null, np.int32),
        best=np.array(best, np.bool_),
    )
    return SpanData(paragraphs, examples, "case"), windows


def make_logits(seed: int, windows: Windows, *, ties: bool = False) -> Logits:
    """Random logits; with `ties` only five values, -0.0 among them, so that equal scores are everywhere."""
    random = np.random.default_rng(seed)
    shape = (2, int(windows.offsets[-1]))
    if ties:
        values = random.choice(np.array([-2, -1, -0.0, 0.0, 1], np.float32), shape)
    else:
        values = random.normal(0, 3, shape).astype(np.float32)
    return span_logits(values[0], values[1])


# ---- heads that score starts and ends together


def pair_score(token_i: list[float], token_j: list[float]) -> float:
    """s_i + e_j + u_i . v_j / sqrt(r)."""
    r = (len(token_i) - 2) // 2
    product = sum(a * b for a, b in zip(token_i[2 : 2 + r], token_j[2 + r :], strict=True))
    return token_i[0] + token_j[1] + product / math.sqrt(r)


def log_sum(values: list[float]) -> float:
    return math.log(sum(math.exp(value) for value in values))


def evaluated(windows: Windows, values: np.ndarray) -> Logits:
    """What a walk collects of a head that gives `values`, two windows a batch, pads poisoned."""
    collector = SpanCollector(windows)
    for begin in range(0, len(windows), 2):
        rows = np.arange(begin, min(begin + 2, len(windows)))
        flat, mask = padded_positions(windows.offsets, rows)
        output = np.where(mask[..., None], values[flat], 50.0).astype(np.float32)
        collector.add(Seen(windows, rows, torch.from_numpy(mask)), torch.from_numpy(output))
    return collector.logits()


def make_joint(seed: int, windows: Windows, *, ties: bool = False) -> Logits:
    """Random pair scores with the marginals that belong to them; with `ties` small whole numbers."""
    random = np.random.default_rng(seed)
    shape = (windows.num_tokens, 2 + 2 * (4 if ties else RANK))  # sqrt(4): products stay exact
    values = random.integers(-1, 2, shape) * 2.0 if ties else random.normal(0, 2, shape)
    return evaluated(windows, values.astype(np.float32))
