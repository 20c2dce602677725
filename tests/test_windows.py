"""Windows against independent references: the tokenizer's own calls, and a plain loop over windows and tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import ALL_PAIRS, STYLES, TOKENIZERS, bert, own, piece, span_data, text_data, toy, window

from bertvision.data.cutting import make_windows
from bertvision.data.examples import TextData, answerable
from bertvision.data.load import load_data
from bertvision.data.spans import read_squad
from bertvision.data.tokenise import probe_template
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import BertvisionError

# ---- overlap: the tokenizer's own call


@pytest.mark.parametrize("kind", list(TOKENIZERS))
@pytest.mark.parametrize(("length", "overlap"), [(384, 128), (40, 10), (33, 0), (48, 20)])
def test_questions_are_cut_as_the_tokenizer_cuts_them(kind: str, length: int, overlap: int) -> None:
    tokenizer = TOKENIZERS[kind]()
    windows = make_windows(span_data(ALL_PAIRS), tokenizer, WindowConfig(length, length, overlap, "overlap"))
    w = 0
    for i, (question, context) in enumerate(ALL_PAIRS):
        options = {"truncation": "only_second", "max_length": length, "stride": overlap}
        theirs = tokenizer(
            question, context, return_overflowing_tokens=True, return_offsets_mapping=True, **options
        )
        for k, row in enumerate(own(tokenizer, question, context, **options)):
            assert (window(windows, w), windows.example[w]) == (row, i)
            sides = theirs.sequence_ids(k)
            begin, end = windows.context[w]
            assert [begin <= t < end for t in range(len(sides))] == [side == 1 for side in sides]
            ours = piece(windows, "chars", w)
            for t, (side, offset) in enumerate(zip(sides, theirs["offset_mapping"][k], strict=True)):
                if side != 1:
                    assert ours[t] == [-1, -1]
                else:
                    # White space in front of a word is left out, whichever tokenizer counted it in.
                    assert ours[t][1] == offset[1]
                    assert context[slice(*ours[t])] == context[slice(*offset)].lstrip()
            assert row[0][windows.null[w]] == tokenizer.cls_token_id
            w += 1
    assert w == len(windows)


texts = st.lists(st.sampled_from(["mill", "road", "old", "wind", "x", "zq", "!"]), max_size=40).map(" ".join)


@settings(max_examples=160, deadline=None)
@given(first=texts, second=st.none() | texts, style=st.sampled_from(STYLES), length=st.integers(16, 32),
       overlap=st.integers(0, 4))  # fmt: skip
def test_the_longer_text_is_cut_as_the_tokenizer_cuts_it(
    first: str, second: str | None, style: str, length: int, overlap: int
) -> None:
    made = toy(style)
    sides = (first,) if second is None else (first, second)
    template = probe_template(made, pair=len(sides) == 2)
    counts = [len(made(text, add_special_tokens=False)["input_ids"]) for text in sides]
    room = length - len(template.special)
    windows = make_windows(text_data(sides), made, WindowConfig(length, doc_stride=overlap, stride="overlap"))
    assert windows.lengths.max() <= length
    assert set(windows.null) == {0}
    if len(sides) == 2 and min(counts) > room // 2 and sum(counts) > room:
        # Both are long: the shorter one is cut off at half the room, the longer one goes on.
        side = int(counts[1] < counts[0])
        ids = made(sides[side], add_special_tokens=False)["input_ids"][: room // 2]
        for w in range(len(windows)):
            begin, end = windows.context[w]
            where = len(template.prefix) if side == 0 else end + len(template.middle)
            assert piece(windows, "ids", w)[where : where + len(ids)] == ids
            assert end - begin + len(ids) <= room
        return
    how = "only_second" if len(sides) == 2 and counts[1] >= counts[0] else "only_first"
    expected = own(made, *sides, truncation=how, max_length=length, stride=overlap)
    assert [window(windows, w) for w in range(len(windows))] == expected


# ---- step: one window after the other, from the rule's own words


def plain_windows(tokenizer: Any, question: str, context: str, config: WindowConfig) -> list[dict[str, Any]]:
    """Windows of one BERT example: ids, spans and labels by a loop over windows and tokens."""
    q = tokenizer(question, add_special_tokens=False)["input_ids"][: config.max_query_length]
    encoded = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    d, offsets = encoded["input_ids"], encoded["offset_mapping"]
    room = config.max_seq_length - len(q) - 3
    spans, begin = [], 0
    while True:
        length = min(len(d) - begin, room)
        spans.append((begin, length))
        if begin + length == len(d):
            break
        begin += min(length, config.doc_stride) if config.stride == "step" else room - config.doc_stride
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    made = []
    for s, (begin, length) in enumerate(spans):
        best = []
        for token in range(begin, begin + length):
            scores = []
            for b, n in spans:
                inside = b <= token < b + n
                scores.append(min(token - b, b + n - 1 - token) + 0.01 * n if inside else float("-inf"))
            best.append(scores.index(max(scores)) == s)
        made.append(
            {
                "ids": [cls, *q, sep, *d[begin : begin + length], sep],
                "types": [0] * (len(q) + 2) + [1] * (length + 1),
                "chars": offsets[begin : begin + length],
                "context": (len(q) + 2, len(q) + 2 + length),
                "best": [False] * (len(q) + 2) + best + [False],
            }
        )
    return made


def same(windows: Windows, w: int, plain: dict[str, Any]) -> None:
    assert piece(windows, "ids", w) == plain["ids"]
    assert piece(windows, "types", w) == plain["types"]
    assert piece(windows, "best", w) == plain["best"]
    assert tuple(windows.context[w]) == plain["context"]
    begin, end = plain["context"]
    assert [tuple(pair) for pair in piece(windows, "chars", w)[begin:end]] == plain["chars"]


words = st.lists(
    st.sampled_from(["a", "river", "Østervik", "1911", "unbelievably", "—", "東京", "x.y"]), min_size=1
)


@settings(max_examples=80, deadline=None)
@given(
    context=words.map(" ".join), question=words.map(" ".join), length=st.integers(24, 60),
    stride=st.integers(1, 40), query=st.integers(1, 12), meaning=st.sampled_from(["step", "overlap"]),
)  # fmt: skip
def test_windows_are_those_of_a_plain_loop_and_each_token_is_best_once(
    context: str, question: str, length: int, stride: int, query: int, meaning: Any
) -> None:
    if meaning == "overlap":
        stride = min(stride, length - query - 4)
    config = WindowConfig(length, query, stride, meaning)
    windows = make_windows(span_data([(question, context)]), bert(), config)
    plain = plain_windows(bert(), question, context, config)
    assert len(windows) == len(plain)
    for w, expected in enumerate(plain):
        same(windows, w, expected)
    encoded = bert()(context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    in_context = windows.chars[:, 0] >= 0
    assert {tuple(c) for c in windows.chars[in_context].tolist()} == set(encoded["offset_mapping"])
    assert sorted(map(tuple, windows.chars[windows.best].tolist())) == sorted(encoded["offset_mapping"])


@settings(max_examples=60, deadline=None)
@given(first=texts, second=texts, step=st.integers(1, 9), length=st.integers(16, 30))
def test_windows_of_pairs_show_every_token_and_one_shows_it_best(
    first: str, second: str, step: int, length: int
) -> None:
    made = toy("bert")
    windows = make_windows(text_data((first, second)), made, WindowConfig(length, doc_stride=step))
    ids = [made(text, add_special_tokens=False)["input_ids"] for text in (first, second)]
    longer = ids[1] if len(ids[1]) >= len(ids[0]) else ids[0]
    marks = np.zeros(len(longer), int)
    begin = 0
    for w in range(len(windows)):
        low, high = windows.context[w]
        assert piece(windows, "ids", w)[low:high] == longer[begin : begin + high - low]
        best = np.array(piece(windows, "best", w))
        assert best.sum() == best[low:high].sum()
        marks[begin : begin + high - low] += best[low:high]
        begin += min(step, high - low)
    assert (marks == 1).all()


# ---- the real sets


@pytest.mark.parametrize(
    ("config", "count", "tokens", "labelled"),
    [
        (WindowConfig(), 12_232, 2_237_885, 5_983),
        # The published count of the dev set at 386 tokens.
        (WindowConfig(386), 12_227, 2_237_313, 5_983),
        (WindowConfig(stride="overlap"), 12_134, 2_184_022, 5_953),
    ],
)
def test_the_official_dev_set(
    shared_data: Path, config: WindowConfig, count: int, tokens: int, labelled: int
) -> None:
    data = read_squad(shared_data / "squad" / "dev-v2.0.json")
    windows = make_windows(data, bert(), config)
    has_label = windows.labels[:, 0] != windows.null
    assert (len(windows), windows.num_tokens, int(has_label.sum())) == (count, tokens, labelled)
    # Every answerable question has a window that shows its answer, and the labelled span holds it.
    assert len(np.unique(windows.example[has_label])) == 5_928
    begins, ends = (windows.offsets[:-1][has_label] + windows.labels[has_label, side] for side in (0, 1))
    examples = [data.examples[i] for i in windows.example[has_label]]
    spans = zip(windows.chars[begins, 0].tolist(), windows.chars[ends, 1].tolist(), strict=True)
    texts = [data.context(e)[a:b] for e, (a, b) in zip(examples, spans, strict=True)]
    assert all(e.answers[0].text.strip() in text for e, text in zip(examples, texts, strict=True))
    assert sum(e.answers[0].text == text for e, text in zip(examples, texts, strict=True)) > 0.99 * labelled
    if config.max_seq_length == 386:
        labels = make_windows(answerable(data), bert(), config).labels
        assert np.array_equal(labels[:, 0] == 0, has_label)


def test_a_sample_of_the_official_dev_set_against_the_plain_loop(shared_data: Path) -> None:
    data = read_squad(shared_data / "squad" / "dev-v2.0.json")
    data = data.take([i for i, e in enumerate(data.examples) if len(data.context(e)) > 1_600][::4])
    windows = make_windows(data, bert(), WindowConfig())
    plain = [
        p for e in data.examples for p in plain_windows(bert(), e.question, data.context(e), WindowConfig())
    ]
    assert len(windows) == len(plain) > len(data) + 50
    for w, expected in enumerate(plain):
        same(windows, w, expected)


def test_real_pairs_fit_whole(shared_data: Path) -> None:
    """Every pair of RTE is read as the tokenizer reads it: nothing is cut in a window of 384."""
    data = load_data(f"glue:RTE:{shared_data / 'glue/RTE/dev.tsv'}")
    assert isinstance(data, TextData)
    windows = make_windows(data, bert(), WindowConfig())
    assert [piece(windows, "ids", w) for w in range(len(windows))] == [
        bert()(e.first, e.second)["input_ids"] for e in data.examples
    ]
    assert len(windows) == 277


def test_answerable_takes_any_source_of_questions(toy_squad: Path) -> None:
    data = load_data(f"answerable:{toy_squad}")
    assert isinstance(data, TextData)
    assert (len(data), data.classes, data.positive, data.metric) == (
        24,
        ("answer", "no answer"),
        1,
        "accuracy",
    )
    assert sum(e.label or 0 for e in data.examples) == 8
    part = data.take([3, 1])
    assert part.spans is not None
    assert [e.id for e in part.spans.examples] == [e.id for e in part.examples] == ["1-0", "0-1"]
    with pytest.raises(BertvisionError, match="has the classes answer and no answer, not a, b"):
        load_data(f"answerable:{toy_squad}", classes=("a", "b"))
