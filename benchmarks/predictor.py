"""A model beside a plain loop over AutoModelForQuestionAnswering: same encoder, same head, same inputs, on a CPU.

    python benchmarks/predictor.py [--encoder embedded] [--data FILE] [--questions 64] [--threads 2] [--backend onnx]
                                   [--json FILE]

The plain loop is what one writes with transformers alone: tokenise a batch with overflowing windows, pad, one forward
pass under inference_mode, then the best start and end of every question's windows. It runs in batches of 8 as the
questions come, padded to the longest of each and, as the official example does, to the full window; and in batches of
one. The model gets all questions at once, or one at a time. Both read windows of 384 tokens with 128
in common, and their answers are compared before anything is timed. How many cells of the loop's batches are pads
follows from the questions that were drawn, and stands beside the times: the fewer questions, the more it is chance.

They take turns in one process. What is shown are medians of the turns and of their ratios, on the clock and of the
process's own CPU time, which says more on a machine that others use (with one thread: several wait by spinning).
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForQuestionAnswering

from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, parse_head
from bertvision.model.model import Model
from bertvision.model.onnx import export_onnx, use_onnx
from bertvision.model.trained import Trained
from bertvision.states.config import EVERYTHING
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.span import SPAN

WINDOW, STRIDE, MOST = 384, 128, 30
CASES = ("longest", "window", "one")

Inputs = list[tuple[str, str]]
Padding = bool | str


class PlainLoop:
    """transformers alone."""

    def __init__(self, encoder: Encoder, head: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            encoder.model.save_pretrained(folder)
            self.model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
        self.model.qa_outputs.load_state_dict(
            {"weight": head.project.weight.detach(), "bias": head.project.bias.detach()}
        )
        self.tokenizer = encoder.tokenizer

    @torch.inference_mode()
    def answers(self, inputs: Inputs, batch: int, padding: Padding) -> list[tuple[str, float]]:
        """Text and score of the best span of each question."""
        found: list[tuple[str, float]] = []
        for i in range(0, len(inputs), batch):
            part = inputs[i : i + batch]
            made = self._tokenised(part, padding)
            owner, places = (
                made.pop("overflow_to_sample_mapping").tolist(),
                made.pop("offset_mapping").tolist(),
            )
            output = self.model(**made)
            best = [("", -1e30)] * len(part)
            for row, question in enumerate(owner):
                inside = torch.tensor([number == 1 for number in made.sequence_ids(row)])
                text, score = self._best(output, row, inside, part[question][1], places[row])
                if score > best[question][1]:
                    best[question] = text, score
            found += best
        return found

    def _tokenised(self, part: Inputs, padding: Padding) -> Any:
        return self.tokenizer(
            [question for question, _ in part],
            [context for _, context in part],
            truncation="only_second",
            max_length=WINDOW,
            stride=STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding=padding,
            return_tensors="pt",
        )

    def cells(self, inputs: Inputs, batch: int) -> float:
        """How many times its tokens the batches have, padded to the longest of each."""
        masks = [
            self._tokenised(inputs[i : i + batch], True)["attention_mask"]
            for i in range(0, len(inputs), batch)
        ]
        return sum(mask.numel() for mask in masks) / sum(int(mask.sum()) for mask in masks)

    @staticmethod
    def _best(
        output: Any, row: int, inside: torch.Tensor, context: str, places: list[list[int]]
    ) -> tuple[str, float]:
        start = output.start_logits[row].masked_fill(~inside, -1e30)
        end = output.end_logits[row].masked_fill(~inside, -1e30)
        count = min(20, len(start))
        (starts, first), (ends, last) = start.topk(count), end.topk(count)
        length = last[None] - first[:, None]
        scores = (starts[:, None] + ends[None]).masked_fill((length < 0) | (length >= MOST), -1e30)
        place = int(scores.argmax())
        a, b = int(first[place // count]), int(last[place % count])
        return context[places[a][0] : places[b][1]], float(scores.max())


def make_model(encoder: Encoder) -> Model:
    head = parse_head("last_state").build(Geometry(encoder.num_states, encoder.hidden), seed=0)
    with torch.no_grad():
        for parameter in head.parameters():  # random ones, large enough that tokens differ
            parameter.mul_(20)
    windows = WindowConfig(WINDOW, WINDOW // 2, STRIDE, stride="overlap")
    # nbest: like the loop, without the rule that a window must show a token best.
    decode = DecodeConfig(decoding="nbest", null_score_diff_threshold=1e9)
    trained = Trained(
        folder=Path("span"),
        heads=[head],
        selections=[EVERYTHING],
        windows=windows,
        encoder=encoder.name,
        fingerprint=encoder.fingerprint,
        task=SPAN,
        tuning=SPAN.untuned(decode),
    )
    return Model({"qa": trained}, encoder)


def questions(source: str, count: int) -> Inputs:
    """Evenly drawn from the data, in its order: paragraphs of all lengths come by."""
    data = load_span_data(source)
    step = max(1, len(data) // count)
    return [(e.question, data.context(e)) for e in data.examples[::step][:count]]


def timed(work: Callable[[], Any], count: int) -> tuple[float, float]:
    """Seconds a question, of the clock and of the CPU."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - began) / count, (time.process_time() - used) / count


def contest(
    name: str, plain: Callable[[], Any], ours: Callable[[], Any], count: int, turns: int
) -> dict[str, Any]:
    for work in (plain, ours):
        work()  # warm
    both: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for turn in range(turns):
        if turn % 2:
            second = timed(ours, count)
            both.append((timed(plain, count), second))
        else:
            first = timed(plain, count)
            both.append((first, timed(ours, count)))
    row: dict[str, Any] = {"case": name, "questions": count, "turns": turns}
    for place, clock in enumerate(("wall", "cpu")):
        ratios = [a[place] / b[place] for a, b in both]
        row[clock] = {
            "plain_ms": 1e3 * statistics.median(a[place] for a, _ in both),
            "ours_ms": 1e3 * statistics.median(b[place] for _, b in both),
            "faster": statistics.median(ratios),
            "turns": [min(ratios), max(ratios)],
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--data", default="demo:dev")
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="batches of the plain loop")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--backend", choices=("torch", "onnx"), default="torch", help="what answers for us")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    encoder = Encoder.load(args.encoder, device="cpu", precision="fp32")
    model = make_model(encoder)
    loop = PlainLoop(encoder, model.systems["qa"].heads[0])
    if args.backend == "onnx":
        with tempfile.TemporaryDirectory() as folder:
            graph = Path(folder) / "model.onnx"
            export_onnx(model, graph)
            use_onnx(model, graph)
    inputs = questions(args.data, args.questions)
    asked, read = [q for q, _ in inputs], [c for _, c in inputs]

    theirs = [text for text, _ in loop.answers(inputs, 8, True)]
    same = sum(a == b.text for a, b in zip(theirs, model.predict(asked, read), strict=True))
    cells = loop.cells(inputs, 8)
    lengths = [len(encoder.tokenizer(q, c, verbose=False)["input_ids"]) for q, c in inputs]
    many = lambda: model.predict(asked, read)  # noqa: E731
    # Padded too: the windows of one long text differ in length.
    cases: dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]] = {
        "longest": ("8, longest", lambda: loop.answers(inputs, 8, True), many),
        "window": ("8, window", lambda: loop.answers(inputs, 8, "max_length"), many),
        "one": (
            "one",
            lambda: loop.answers(inputs, 1, True),
            lambda: [model.predict(q, c) for q, c in inputs],
        ),
    }
    rows = [contest(*cases[name], len(inputs), args.turns) for name in args.cases]
    print(
        f"{encoder.name} on {args.backend}, {args.threads} threads, {platform.machine()}; {len(inputs)} questions of "
        f"{args.data}"
    )
    print(
        f"tokens {min(lengths)} to {max(lengths)}, mean {statistics.mean(lengths):.0f}; same answers: {same}; "
        f"batches of 8 have {cells:.2f} times as many cells as tokens"
    )
    print("plain loop  clock  plain: ms  ours: ms  times faster (least, most of single turns)")
    for row in rows:
        for clock in ("wall", "cpu"):
            part = row[clock]
            print(
                f"{row['case']:<10}  {clock:<5}  {part['plain_ms']:>9.2f}  {part['ours_ms']:>8.2f}  "
                f"{part['faster']:>5.2f}  ({part['turns'][0]:.2f}, {part['turns'][1]:.2f})"
            )
    if args.json:
        found = {
            "encoder": encoder.name,
            "data": args.data,
            "backend": args.backend,
            "threads": args.threads,
            "same": same,
            "cells": cells,
            "rows": rows,
        }
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
