"""Windows of texts, against the tokenizer's own calls and against a plain loop."""

import logging
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import toy_tokenizer

from bertvision.data.examples import Answer, Example, SpanData
from bertvision.data.kept import keep_tokens, kept_tokens
from bertvision.data.load import load_data
from bertvision.data.texts import TextData, TextExample, answerable
from bertvision.data.tokenise import probe_template
from bertvision.data.windows import WindowConfig, Windows, make_windows
from bertvision.encoder.load import load_tokenizer
from bertvision.errors import ConfigError, DataError

STYLES = ("bert", "plain", "roberta")
tokenizer = cache(toy_tokenizer)
texts = st.lists(st.sampled_from(["mill", "road", "old", "wind", "x", "zq", "!"]), max_size=40).map(" ".join)


def singles(*contents: str, labels: list[int | None] | None = None) -> TextData:
    labels = labels or [i % 2 for i in range(len(contents))]
    examples = [
        TextExample(str(i), t, None, label) for i, (t, label) in enumerate(zip(contents, labels, strict=True))
    ]
    return TextData(examples, "label", ("no", "yes"))


def pairs(*contents: tuple[str, str]) -> TextData:
    examples = [TextExample(str(i), first, second, i / 2) for i, (first, second) in enumerate(contents)]
    return TextData(examples, "score")


SPANS = SpanData(
    ["wind " * 40 + "Ada Holt", "The mill."],
    [Example("a", "Who?", 0, (Answer("Ada Holt", 200),)), Example("b", "Who?", 1), Example("c", "Who?", 0)],
)


def window(windows: Windows, i: int) -> tuple[list[int], list[int]]:
    """Ids and segment ids of a window."""
    part = slice(windows.offsets[i], windows.offsets[i + 1])
    return windows.ids[part].tolist(), windows.types[part].tolist()


def encoded(style: str, *sides: str, **options: Any) -> list[tuple[list[int], list[int]]]:
    """Ids and segment ids of the windows the tokenizer itself makes."""
    # As lists: an empty second text alone would be taken for none.
    made = tokenizer(style)(*([side] for side in sides), return_overflowing_tokens=True, **options)
    ids = made["input_ids"]
    return list(zip(ids, made.get("token_type_ids", [[0] * len(row) for row in ids]), strict=True))


@pytest.mark.parametrize("style", STYLES)
def test_what_fits_is_the_tokenizers_own_encoding(style: str) -> None:
    contents = ["The mill is old.", "", "wind"]
    windows = make_windows(singles(*contents), tokenizer(style), WindowConfig())
    assert [window(windows, i) for i in range(3)] == [encoded(style, text)[0] for text in contents]
    both = [
        ("The mill is old and long.", "Who?"),
        ("Who?", "The mill is old and long."),
        ("", "x"),
        ("x", ""),
        ("", ""),
    ]
    windows = make_windows(pairs(*both), tokenizer(style), WindowConfig())
    assert [window(windows, i) for i in range(5)] == [encoded(style, *pair)[0] for pair in both]
    assert windows.example.tolist() == [0, 1, 2, 3, 4]
    assert windows.labels.tolist() == [[0.0], [0.5], [1.0], [1.5], [2.0]]
    assert windows.labels.dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(text=texts, style=st.sampled_from(STYLES), length=st.integers(12, 24), overlap=st.integers(0, 5))
def test_a_long_text_is_cut_as_the_tokenizer_cuts_it(
    text: str, style: str, length: int, overlap: int
) -> None:
    config = WindowConfig(length, doc_stride=overlap, stride="overlap")
    windows = make_windows(singles(text, "x"), tokenizer(style), config)
    expected = encoded(style, text, truncation=True, max_length=length, stride=overlap)
    assert [window(windows, i) for i in range(len(windows) - 1)] == expected
    assert windows.labels[:, 0].tolist() == [0] * len(expected) + [1]


@settings(max_examples=100, deadline=None)
@given(
    first=texts,
    second=texts,
    style=st.sampled_from(STYLES),
    length=st.integers(16, 32),
    overlap=st.integers(0, 4),
)
def test_the_longer_text_of_a_pair_is_cut(
    first: str, second: str, style: str, length: int, overlap: int
) -> None:
    made = tokenizer(style)
    template = probe_template(made)
    counts = [len(made(text, add_special_tokens=False)["input_ids"]) for text in (first, second)]
    room = length - len(template.special)
    config = WindowConfig(length, doc_stride=overlap, stride="overlap")
    windows = make_windows(pairs((first, second)), made, config)
    assert windows.lengths.max() <= length
    if min(counts) > room // 2 and sum(counts) > room:
        # Both are long: the shorter one is cut off at half the room, the longer one goes on.
        side = int(counts[1] < counts[0])
        ids = made((first, second)[side], add_special_tokens=False)["input_ids"][: room // 2]
        for i in range(len(windows)):
            begin, end = windows.context[i]
            row = window(windows, i)[0]
            where = len(template.prefix) if side == 0 else end + len(template.middle)
            assert row[where : where + len(ids)] == ids
            assert end - begin + len(ids) <= room
        return
    how = "only_second" if counts[1] >= counts[0] else "only_first"
    expected = encoded(style, first, second, truncation=how, max_length=length, stride=overlap)
    assert [window(windows, i) for i in range(len(windows))] == expected


@settings(max_examples=60, deadline=None)
@given(first=texts, second=texts, step=st.integers(1, 9), length=st.integers(16, 30))
def test_windows_of_a_step_show_every_token_and_one_shows_it_best(
    first: str, second: str, step: int, length: int
) -> None:
    made = tokenizer("bert")
    windows = make_windows(pairs((first, second)), made, WindowConfig(length, doc_stride=step))
    ids = [made(text, add_special_tokens=False)["input_ids"] for text in (first, second)]
    longer = ids[1] if len(ids[1]) >= len(ids[0]) else ids[0]
    seen: dict[int, list[int]] = {}
    begin = 0
    for i in range(len(windows)):
        low, high = windows.context[i]
        row = window(windows, i)[0]
        assert row[low:high] == longer[begin : begin + high - low]
        best = windows.best[windows.offsets[i] : windows.offsets[i + 1]]
        assert not best[:low].any()
        assert not best[high:].any()
        for token in range(begin, begin + high - low):
            seen.setdefault(token, []).append(int(best[low + token - begin]))
        begin += min(step, high - low) if i + 1 < len(windows) else 0
    assert sorted(seen) == list(range(len(longer)))
    assert all(sum(marks) == 1 for marks in seen.values())


def test_nothing_of_a_pair_is_lost_while_both_fit() -> None:
    """RTE: a long premise first, a short hypothesis second, and the other way round; both sides beyond 64 tokens."""
    long, short = " ".join(["mill"] * 100), " ".join(["road"] * 80)
    windows = make_windows(pairs((long, short), (short, long)), tokenizer("bert"), WindowConfig(183))
    assert windows.lengths.tolist() == [183, 183]


@pytest.mark.parametrize("style", STYLES)
def test_a_pair_apart_is_two_windows(style: str, caplog: pytest.LogCaptureFixture) -> None:
    contents = [("The mill is old.", "Who built the mill in Arden?"), ("x", "mill " * 40)]
    with caplog.at_level(logging.WARNING):
        windows = make_windows(pairs(*contents), tokenizer(style), WindowConfig(16, apart=True))
    flat = [text for pair in contents for text in pair]
    expected = [encoded(style, text, truncation=True, max_length=16)[0] for text in flat]
    assert [window(windows, i) for i in range(4)] == expected
    assert windows.example.tolist() == [0, 0, 1, 1]
    assert windows.labels.tolist() == [[0.0], [0.0], [0.5], [0.5]]
    assert re.search(
        r"1 of 4 texts are longer than 1[34] tokens and are cut off \(--max-seq-length\)", caplog.text
    )


def test_a_single_text_has_nothing_to_be_apart_from() -> None:
    data = singles("mill " * 30, "x")
    usual, apart = (
        make_windows(data, tokenizer("bert"), WindowConfig(16, doc_stride=4, apart=on))
        for on in (False, True)
    )
    assert len(usual) > 2
    assert usual.equals(apart)


@pytest.mark.parametrize("data", [pairs(("mill", "road"), ("old " * 30, "x")), SPANS])
@pytest.mark.parametrize("apart", [False, True])
def test_segment_ids_can_be_left_out(data: SpanData | TextData, apart: bool) -> None:
    if apart and isinstance(data, SpanData):
        with pytest.raises(ConfigError, match="--apart is for pairs with a label or a score"):
            make_windows(data, tokenizer("bert"), WindowConfig(apart=True))
        return
    with_ids, without = (
        make_windows(data, tokenizer("bert"), WindowConfig(16, doc_stride=4, segments=on, apart=apart))
        for on in (True, False)
    )
    assert with_ids.types.any() != apart
    assert not without.types.any()
    assert with_ids.equals(replace(without, types=with_ids.types))


def test_labels_that_are_not_known() -> None:
    windows = make_windows(singles("x", "mill", labels=[None, 1]), tokenizer("bert"), WindowConfig())
    assert (windows.labels.tolist(), windows.labels.dtype) == ([[-1], [1]], np.int32)
    data = TextData([TextExample("a", "x", None, None), TextExample("b", "x", None, 2.5)], "score")
    labels = make_windows(data, tokenizer("bert"), WindowConfig()).labels
    assert np.isnan(labels[0, 0])
    assert labels[1, 0] == 2.5


def test_the_null_token_is_the_first_of_a_text() -> None:
    for style in STYLES:
        made = tokenizer(style)
        for data in (singles("mill road"), pairs(("mill", "road"))):
            windows = make_windows(data, made, WindowConfig())
            assert windows.null.tolist() == [0]
            assert windows.ids[0] == made.cls_token_id


def test_windows_that_leave_no_room_are_one_sentence() -> None:
    with pytest.raises(DataError, match=r"takes 2 tokens .* leaves no room .* window of 2; raise --max-seq"):
        make_windows(singles("x"), tokenizer("bert"), WindowConfig(2))
    short = WindowConfig(16, doc_stride=14, stride="overlap")
    with pytest.raises(
        DataError,
        match=r"example 0 takes 2 tokens .* overlap of 14 .*; raise --max-seq-length or lower --doc-stride$",
    ):
        make_windows(singles("mill " * 20), tokenizer("bert"), short)
    assert len(make_windows(singles("mill"), tokenizer("bert"), short)) == 1  # nothing to cut


# ---- answer / no answer


def test_a_window_without_the_answer_is_labelled_so() -> None:
    config = WindowConfig(24, doc_stride=8)
    made = tokenizer("bert")
    spans = make_windows(SPANS, made, config)
    windows = make_windows(answerable(SPANS), made, config)
    holds = [
        SPANS.examples[e].answerable
        and any(
            spans.chars[spans.offsets[w] : spans.offsets[w + 1], 1] == 208
        )  # the last letter of the answer
        for w, e in enumerate(spans.example)
    ]
    assert windows.labels[:, 0].tolist() == [int(not one) for one in holds]
    assert sum(holds) == 1
    assert len(holds) > 4
    assert windows.equals(replace(spans, labels=windows.labels))


def test_answers_that_are_not_known() -> None:
    unknown = SPANS.take([1, 2])
    assert [e.label for e in answerable(unknown).examples] == [1, 1]
    data = answerable(unknown, answers_required=False)
    assert [e.label for e in data.examples] == [None, None]
    assert set(make_windows(data, tokenizer("bert"), WindowConfig(24)).labels[:, 0].tolist()) == {-1}


def test_answerable_takes_any_source_of_questions(toy_squad: Path, shared_data: Path) -> None:
    data = load_data(f"answerable:{toy_squad}")
    assert isinstance(data, TextData)
    assert (len(data), data.classes, data.positive, data.metric) == (
        24,
        ("answer", "no answer"),
        1,
        "accuracy",
    )
    assert sum(e.label or 0 for e in data.examples) == 8
    assert data.spans is not None
    part = data.take([3, 1])
    assert part.spans is not None
    assert [e.id for e in part.spans.examples] == [e.id for e in part.examples] == ["1-0", "0-1"]
    with pytest.raises(DataError, match="has the classes answer and no answer, not a, b"):
        load_data(f"answerable:{toy_squad}", classes=("a", "b"))

    official = load_data(f"answerable:{shared_data / 'squad/dev-v2.0.json'}")
    assert isinstance(official, TextData)
    assert (len(official), sum(e.label or 0 for e in official.examples)) == (11_873, 5_945)
    windows = make_windows(official, load_tokenizer("embedded"), WindowConfig(386))
    spans = make_windows(official.spans, load_tokenizer("embedded"), WindowConfig(386))  # pyright: ignore
    assert int((windows.labels == 0).sum()) == int((spans.labels[:, 0] != spans.null).sum())


# ---- kept tokens


def test_labels_of_texts_stay_where_tokens_go() -> None:
    data = replace(singles("mill road", "x"), classes=tuple("abcdefgh"))
    data = replace(
        data, examples=[replace(e, label=label) for e, label in zip(data.examples, (7, 5), strict=True)]
    )
    for windows in (
        make_windows(data, tokenizer("bert"), WindowConfig()),
        make_windows(pairs(("x", "mill"), ("y", "road")), tokenizer("bert"), WindowConfig()),
    ):
        for positions in ("cls", "context"):
            kept = keep_tokens(windows, kept_tokens(windows, positions), spans=False)
            assert kept.num_tokens < windows.num_tokens
            assert kept.labels.tolist() == windows.labels.tolist()
            assert kept.labels.dtype == windows.labels.dtype


def test_real_pairs_fit_whole(shared_data: Path) -> None:
    """Every pair of RTE is read as the tokenizer reads it: nothing is cut in a window of 384."""
    data = load_data(f"glue:RTE:{shared_data / 'glue/RTE/dev.tsv'}")
    assert isinstance(data, TextData)
    made = load_tokenizer("embedded")
    windows = make_windows(data, made, WindowConfig())
    assert len(windows) == 277
    for i, e in enumerate(data.examples):
        assert window(windows, i)[0] == made(e.first, e.second)["input_ids"]
