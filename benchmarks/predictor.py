"""A model beside a plain loop over AutoModelForQuestionAnswering: same encoder, same head, same inputs, on a CPU.

    python benchmarks/predictor.py [--encoder embedded] [--data FILE] [--questions 64] [--threads 2] [--backend onnx]
                                   [--json FILE]

The plain loop is what one writes with transformers alone: tokenise a batch with overflowing windows, pad, one forward
pass under inference_mode, then the best start and end of every question's windows. It runs in batches of 8 as the
questions come, padded to the longest of each and, as the official example does, to the full window; and in batches of
one. The model gets all questions at once, or one at a time. Both read windows of 384 tokens with 128
in common, and their answers are compared before anything is timed. How many cells of the loop's batches are pads
follows from the questions that were drawn: the fewer, the more it is chance.

They take turns in one process. What is shown are medians of the turns and of their ratios, on the clock and of the
process's own CPU time, which says more on a machine that others use (with one thread: several wait by spinning).
"""

import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import arguments, contest, questions, random_system, show_contest, write
from transformers import AutoModelForQuestionAnswering

from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.model.model import Model
from bertvision.model.onnx import export_onnx, use_onnx
from bertvision.tasks.base import DecodeConfig
from bertvision.tasks.span import SPAN

WINDOW, STRIDE, MOST = 384, 128, 30

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
    windows = WindowConfig(WINDOW, WINDOW // 2, STRIDE, stride="overlap")
    # nbest: like the loop, without the rule that a window must show a token best.
    tuning = SPAN.untuned(DecodeConfig(decoding="nbest", null_score_diff_threshold=1e9))
    system = random_system("qa", "last_state", encoder, SPAN, windows, tuning=tuning)
    with torch.no_grad():
        for parameter in system.heads[0].parameters():  # large enough that tokens differ
            parameter.mul_(20)
    return Model({"qa": system}, encoder)


def main() -> None:
    args = arguments(
        __doc__, encoder="embedded", data="demo:dev", questions=64, cases=["longest", "window", "one"], turns=5,
        threads=2, backend="torch",
    )  # fmt: skip
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
    asked, read = map(list, zip(*inputs, strict=True))
    theirs = [text for text, _ in loop.answers(inputs, 8, True)]
    same = sum(a == b.text for a, b in zip(theirs, model.predict(asked, read), strict=True))
    lengths = [len(encoder.tokenizer(q, c, verbose=False)["input_ids"]) for q, c in inputs]
    print(
        f"{encoder.name} on {args.backend}, {args.threads} threads, {platform.machine()}; {len(inputs)} questions"
    )
    print(
        f"tokens {min(lengths)} to {max(lengths)}, mean {statistics.mean(lengths):.0f}; same answers: {same}"
    )
    many = lambda: model.predict(asked, read)  # noqa: E731
    # Padded in batches of one, too: the windows of one long text differ in length.
    cases: dict[str, tuple[Any, Any]] = {
        "longest": (lambda: loop.answers(inputs, 8, True), many),
        "window": (lambda: loop.answers(inputs, 8, "max_length"), many),
        "one": (lambda: loop.answers(inputs, 1, True), lambda: [model.predict(q, c) for q, c in inputs]),
    }
    rows = {name: contest(*cases[name], len(inputs), args.turns) for name in args.cases}
    for name, row in rows.items():
        show_contest(name, row)
    write(args, same=same, rows=rows)


if __name__ == "__main__":
    main()
