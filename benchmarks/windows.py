"""How fast SQuAD questions become labelled windows.

    python benchmarks/windows.py FILE [FILE ...] [--encoder NAME] [--limit 20000]

Times `make_windows` (tokenising included, reading the file excluded) and, on the first --limit questions,
the usual way: one call of the tokenizer for each thousand question-context pairs with overflow, then a
Python loop over the windows that aligns the labels. The ratio compares the same questions in both ways.
"""

import argparse
import time
from typing import Any

from bertvision.data.cutting import make_windows
from bertvision.data.examples import SpanData
from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig
from bertvision.encoder.load import load_tokenizer


def plain_loop(data: SpanData, tokenizer: Any, config: WindowConfig) -> list[tuple[int, int]]:
    """Labels of all windows by the tokenizer's pair call and a loop over windows and tokens."""
    labels = []
    for begin in range(0, len(data), 1000):
        examples = data.examples[begin : begin + 1000]
        encoded = tokenizer(
            [e.question.lstrip() for e in examples],
            [data.context(e) for e in examples],
            truncation="only_second",
            max_length=config.max_seq_length,
            stride=config.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for w, offsets in enumerate(encoded["offset_mapping"]):
            example = examples[encoded["overflow_to_sample_mapping"][w]]
            sides = encoded.sequence_ids(w)
            null = encoded["input_ids"][w].index(tokenizer.cls_token_id)
            first, last = sides.index(1), len(sides) - 1 - sides[::-1].index(1)
            if not example.answers:
                labels.append((null, null))
                continue
            answer = example.answers[0]
            answer_end = answer.start + len(answer.text)
            if offsets[first][0] > answer.start or offsets[last][1] < answer_end:
                labels.append((null, null))
                continue
            while first <= last and offsets[first][1] <= answer.start:
                first += 1
            while last > first and offsets[last][0] >= answer_end:
                last -= 1
            labels.append((first, last))
    return labels


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+")
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--limit", type=int, default=20_000, help="questions the plain loop is timed on")
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.encoder)
    config = WindowConfig(stride="overlap")
    for file in args.files:
        data = load_span_data(file)
        part = data.take(range(min(args.limit, len(data))))
        make_windows(
            data.take(range(100)), tokenizer, config
        )  # the first call starts the tokenizer's threads
        for meaning in ("step", "overlap"):
            began, cpu = time.perf_counter(), time.process_time()
            windows = make_windows(data, tokenizer, WindowConfig(stride=meaning))
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            print(
                f"{file}: {len(data):,} questions, {len(windows):,} windows, {windows.num_tokens:,} tokens "
                f"({meaning}): {seconds:.2f} s ({cpu:.2f} s of CPU), {len(data) / seconds:,.0f} questions/s"
            )
        began = time.perf_counter()
        labels = plain_loop(part, tokenizer, config)
        plain = time.perf_counter() - began
        began = time.perf_counter()
        ours = make_windows(part, tokenizer, config)
        seconds = time.perf_counter() - began
        agree = sum(a == b for a, b in zip(map(tuple, ours.labels.tolist()), labels, strict=True))
        print(
            f"{file}, first {len(part):,} questions: "
            f"plain loop {plain:.2f} s, {len(part) / plain:,.0f} questions/s; "
            f"make_windows {seconds:.2f} s, {len(part) / seconds:,.0f} questions/s, "
            f"{plain / seconds:.1f} x faster; "
            f"{agree:,} of {len(labels):,} labels agree"
        )


if __name__ == "__main__":
    main()
