"""Decoding on the size of the SQuAD 2.0 dev set, against a double Python loop.

    python benchmarks/decode.py

11,873 questions, 12,009 windows of SQuAD-like lengths (171 tokens on average, 384 at most), logits with
several likely answers a window. The loop follows that of transformers' run_qa.py and is given plain lists, which is
kind to it. It makes n-best lists too; ours are made on demand, so the time is given without and with them. The answers
must be equal, question by question.
"""

import sys
import time
from typing import Any

import numpy as np
from common import arguments

from bertvision.data.examples import Example, SpanData
from bertvision.data.windows import Windows
from bertvision.tasks.logits import Logits
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.span_decode import decode
from bertvision.tasks.span_logits import span_logits

QUESTIONS = 11_873
LONGEST = 384


def make_case(seed: int) -> tuple[SpanData, Windows, Logits]:
    """Questions of 8-20 tokens over paragraphs of log-normal length; a token every four characters."""
    random = np.random.default_rng(seed)
    question = random.integers(8, 21, QUESTIONS)
    document = np.clip(random.lognormal(np.log(140), 0.42, QUESTIONS), 25, 800).astype(np.int64)
    step = 128
    room = LONGEST - question - 3
    count = np.where(document > room, 1 + -(-(document - room) // step), 1)
    example = np.repeat(np.arange(QUESTIONS), count)
    number = np.arange(len(example)) - np.repeat(np.cumsum(count) - count, count)
    begin = number * step
    size = np.minimum(document[example] - begin, room[example])
    before = question[example] + 2
    offsets = np.concatenate([[0], np.cumsum(before + size + 1)]).astype(np.int64)
    window = np.repeat(np.arange(len(example)), np.diff(offsets))
    place = np.arange(offsets[-1]) - offsets[window]
    token = place - before[window]
    inside = (token >= 0) & (token < size[window])
    first = (token + begin[window]) * 4
    chars = np.where(inside[:, None], np.stack([first, first + 3], axis=1), -1).astype(np.int32)
    windows = Windows(
        ids=np.zeros(offsets[-1], np.int32),
        types=np.zeros(offsets[-1], np.uint8),
        chars=chars,
        offsets=offsets,
        example=example.astype(np.int32),
        context=np.stack([before, before + size], axis=1).astype(np.int32),
        labels=np.zeros((len(example), 2), np.int32),
        null=np.zeros(len(example), np.int32),
        best=inside,
    )
    text = "".join(f"{i % 1000:03d} " for i in range(int(document.max()) + 1))
    paragraphs = [text[: 4 * n] for n in document.tolist()]
    data = SpanData(paragraphs, [Example(f"q{i}", "?", i) for i in range(QUESTIONS)], "benchmark")
    return data, windows, make_logits(random, windows, size, before)


def make_logits(
    random: np.random.Generator, windows: Windows, size: np.ndarray, before: np.ndarray
) -> Logits:
    """Logits as a trained model gives them: four likely answers a window, high around each of their ends.

    The n best starts and ends are therefore neighbours, and many of their pairs are valid spans.
    """
    count, offsets = len(size), windows.offsets
    lengths = np.diff(offsets)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    start, end = (random.normal(-6, 1.5, int(offsets[-1])) for _ in range(2))
    for height in (12.0, 9.0, 7.0, 6.0):
        first = before + (random.random(count) * size).astype(np.int64)
        last = np.minimum(first + random.integers(0, 6, count), before + size - 1)
        for values, peak in ((start, first), (end, last)):
            away = place - np.repeat(peak, lengths)
            values += np.repeat(height + random.normal(0, 1.5, count), lengths) * np.exp(-np.abs(away) / 2.5)
        start[offsets[:-1]] += 3 + random.normal(0, 1, count)
        end[offsets[:-1]] += 3
    return span_logits(start.astype(np.float32), end.astype(np.float32))


def plain_features(
    data: SpanData, windows: Windows, logits: Logits
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], np.ndarray, np.ndarray]:
    """The same case as the loop wants it: a dict a question, a dict a window, logits padded to 384."""
    examples = [{"id": e.id, "context": data.context(e)} for e in data.examples]
    features, padded = [], np.full((2, len(windows.example), LONGEST), -1e4, np.float32)
    for w, (begin, end) in enumerate(zip(windows.offsets[:-1], windows.offsets[1:], strict=True)):
        pairs = [tuple(p) if p[0] >= 0 else None for p in windows.chars[begin:end].tolist()]
        pairs += [None] * (LONGEST - len(pairs))
        features.append({"example_id": data.examples[windows.example[w]].id, "offset_mapping": pairs})
        padded[0, w, : end - begin], padded[1, w, : end - begin] = (
            logits["start"][begin:end],
            logits["end"][begin:end],
        )
    return examples, features, padded[0], padded[1]


def python_loop(
    examples: list[dict[str, Any]], features: list[dict[str, Any]], starts: np.ndarray, ends: np.ndarray
) -> dict[str, str]:
    """Every pair of the 20 best starts and ends of every window, one by one, under the same rules."""
    of_example: dict[str, list[int]] = {}
    for w, feature in enumerate(features):
        of_example.setdefault(feature["example_id"], []).append(w)
    answers, nbest_lists, odds = {}, {}, {}
    for example in examples:
        found: list[dict[str, Any]] = []
        null: dict[str, Any] = {"score": np.inf}
        for w in of_example[example["id"]]:
            start, end, chars = starts[w], ends[w], features[w]["offset_mapping"]
            if start[0] + end[0] < null["score"]:
                null = {"score": start[0] + end[0], "start": start[0], "end": end[0], "chars": (0, 0)}
            best_ends = np.argsort(end)[::-1][:20].tolist()
            for i in np.argsort(start)[::-1][:20].tolist():
                for j in best_ends:
                    if chars[i] is None or chars[j] is None or j < i or j - i >= 30:
                        continue
                    span = (chars[i][0], chars[j][1])
                    found.append(
                        {"score": start[i] + end[j], "start": start[i], "end": end[j], "chars": span}
                    )
        found.sort(key=lambda one: one["score"], reverse=True)
        best = found[0]
        listed = sorted([*found[:20], null], key=lambda one: one["score"], reverse=True)
        scores = np.array([one["score"] for one in listed])
        weights = np.exp(scores - scores.max())
        context = example["context"]
        nbest_lists[example["id"]] = [
            {
                "start_logit": float(one["start"]),
                "end_logit": float(one["end"]),
                "text": context[one["chars"][0] : one["chars"][1]],
                "probability": float(p),
            }
            for one, p in zip(listed, weights / weights.sum(), strict=True)
        ]
        odds[example["id"]] = float(null["score"] - best["start"] - best["end"])
        answers[example["id"]] = "" if odds[example["id"]] > 0 else context[slice(*best["chars"])]
    return answers


def time_ours(
    data: SpanData, windows: Windows, logits: Logits, repeats: int
) -> tuple[dict[str, str], float, float]:
    """Answers, and the median seconds without and with n-best lists."""
    config = DecodeConfig(max_context=False)  # run_qa.py has no max-context rule
    seconds, predictions = [], {}
    for _ in range(repeats):
        began = time.perf_counter()
        answers = decode(windows, logits, data, config)
        predictions, odds = answers.predictions(), answers.null_odds
        plain = time.perf_counter() - began
        lists = answers.nbest
        seconds.append((plain, time.perf_counter() - began))
        del answers, odds, lists
    plain, full = np.median(seconds, axis=0).tolist()
    return predictions, plain, full


def main() -> None:
    args = arguments(__doc__, repeats=7, seed=0)
    data, windows, logits = make_case(args.seed)
    lengths = np.diff(windows.offsets)
    print(f"{len(data)} questions, {len(lengths)} windows, {lengths.mean():.0f} tokens on average")
    ours, plain, full = time_ours(data, windows, logits, args.repeats)
    null = sum(not text for text in ours.values())
    print(f"bertvision {plain:.3f} s, with n-best lists {full:.3f} s; {null} questions without an answer")

    plainly = plain_features(data, windows, logits)
    began = time.perf_counter()
    theirs = python_loop(*plainly)
    seconds = time.perf_counter() - began
    print(f"the loop {seconds:.3f} s: {seconds / plain:.1f} x, with n-best lists {seconds / full:.1f} x")
    different = [key for key in ours if ours[key] != theirs[key]]
    if different:
        sys.exit(f"{len(different)} of {len(ours)} answers differ, first those to {different[:5]}")
    print("all answers are equal")


if __name__ == "__main__":
    main()
