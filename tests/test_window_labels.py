"""Labels of windows; pairs read apart, segment ids, and the edges."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from window_cases import (
    ALL_PAIRS,
    CONFIG,
    PARAGRAPHS,
    QUESTIONS,
    STYLES,
    TOKENIZERS,
    bert,
    byte_level,
    own,
    piece,
    span_data,
    text_data,
    toy,
    window,
)

from bertvision.data.cutting import make_windows
from bertvision.data.examples import Answer, Example, SpanData, TextData, answerable
from bertvision.data.tokenise import probe_template
from bertvision.data.windows import WindowConfig, keep_tokens, kept_tokens
from bertvision.errors import ConfigError, DataError, EncoderError

# ---- labels


@pytest.mark.parametrize("kind", list(TOKENIZERS))
@pytest.mark.parametrize("length", [384, 60])
def test_labels_point_at_the_answer(kind: str, length: int) -> None:
    wanted = [
        "Ingrid Sæther",
        "3 May 1911",
        "0.3°",
        "Hayabusa",
        "東京",
        "🚄",
        "fares",
        "locals",
        "Short",
        "The",
    ]
    pairs = [(QUESTIONS[0], next(p for p in PARAGRAPHS if text in p)) for text in wanted]
    data = span_data([*pairs, (QUESTIONS[2], PARAGRAPHS[0])], dict(enumerate(wanted)))
    windows = make_windows(data, TOKENIZERS[kind](), WindowConfig(length, 32, 15))
    hits = np.zeros(len(data), int)
    for w in range(len(windows)):
        example = data.examples[windows.example[w]]
        (first, last), null = windows.labels[w], windows.null[w]
        begin, end = windows.context[w]
        seen = windows.chars[windows.offsets[w] :][begin:end]
        if first == null:
            assert last == null
            for answer in example.answers:  # the whole answer is not in sight
                assert seen[0, 0] > answer.start or seen[-1, 1] < answer.start + len(answer.text)
            continue
        hits[windows.example[w]] += 1
        assert begin <= first <= last < end
        text = data.context(example)[seen[first - begin, 0] : seen[last - begin, 1]]
        assert text.strip() == example.answers[0].text
    assert hits[:-1].all()
    assert hits[-1] == 0
    assert length != 60 or hits.max() > 1


def test_answers_that_are_no_whole_tokens(caplog: pytest.LogCaptureFixture) -> None:
    inside = make_windows(span_data([("Which?", "a bridge there")], {0: "ridg"}), bert(), WindowConfig())
    first, last = inside.labels[0]
    assert inside.chars[first : last + 1].tolist() == [[2, 8]], "the whole word piece"
    dropped = make_windows(span_data([("Which?", "a \u200b b")], {0: "\u200b"}), bert(), WindowConfig())
    assert dropped.labels.tolist() == [[0, 0]]
    assert "1 of 1 answers have no token" in caplog.text


def test_labels_of_texts() -> None:
    for kind, labels, dtype in (("label", [None, 1], np.int32), ("score", [None, 2.5], np.float32)):
        data = text_data(("x",), ("mill " * 30,), labels=labels, kind=kind)
        windows = make_windows(data, toy("bert"), WindowConfig(16, doc_stride=4))
        unknown, *known = windows.labels[:, 0].tolist()
        assert unknown == -1 if kind == "label" else np.isnan(unknown)
        assert (set(known), len(known) > 2, windows.labels.dtype) == ({labels[1]}, True, dtype)


SPANS = SpanData(
    ["wind " * 40 + "Ada Holt", "The mill."],
    [Example("a", "Who?", 0, (Answer("Ada Holt", 200),)), Example("b", "Who?", 1), Example("c", "Who?", 0)],
)


def test_a_window_without_the_answer_is_labelled_so() -> None:
    spans, windows = (make_windows(data, toy("bert"), WindowConfig(24, doc_stride=8))
                      for data in (SPANS, answerable(SPANS)))  # fmt: skip
    # 208: the last letter of the answer.
    ends = [{end for _, end in piece(spans, "chars", w)} for w in range(len(spans))]
    holds = [e == 0 and 208 in seen for e, seen in zip(spans.example, ends, strict=True)]
    assert windows.labels[:, 0].tolist() == [int(not one) for one in holds]
    assert (sum(holds), len(holds) > 4) == (1, True)
    assert windows.equals(replace(spans, labels=windows.labels))
    unknown = SPANS.take([1, 2])
    assert [e.label for e in answerable(unknown).examples] == [1, 1]
    data = answerable(unknown, answers_required=False)
    assert [e.label for e in data.examples] == [None, None]
    assert set(make_windows(data, toy("bert"), WindowConfig(24)).labels[:, 0].tolist()) == {-1}


@pytest.mark.parametrize("positions", ["cls", "context"])
def test_labels_of_texts_stay_where_tokens_go(positions: Any) -> None:
    windows = make_windows(text_data(("x", "mill"), ("y", "road")), toy("bert"), WindowConfig())
    windows = replace(windows, labels=np.array([[7], [5]], np.int32))  # as if they were tokens
    kept = keep_tokens(windows, kept_tokens(windows, positions), spans=False)
    assert kept.num_tokens < windows.num_tokens
    assert np.array_equal(kept.labels, windows.labels)


# ---- pairs apart, segments


@pytest.mark.parametrize("style", STYLES)
def test_a_pair_apart_is_two_windows(style: str, caplog: pytest.LogCaptureFixture) -> None:
    contents = [("The mill is old.", "Who built the mill in Arden?"), ("x", "mill " * 40)]
    windows = make_windows(text_data(*contents), toy(style), WindowConfig(16, apart=True))
    flat = [text for pair in contents for text in pair]
    expected = [own(toy(style), text, truncation=True, max_length=16)[0] for text in flat]
    assert [window(windows, w) for w in range(4)] == expected
    assert windows.example.tolist() == [0, 0, 1, 1]
    assert windows.labels.tolist() == [[0.0], [0.0], [0.5], [0.5]]
    room = 16 - len(probe_template(toy(style), pair=False).special)
    assert f"1 of 4 texts are longer than {room} tokens and are cut off (--max-seq-length)" in caplog.text
    single = text_data(("mill " * 30,), ("x",))
    usual, apart = (
        make_windows(single, toy(style), WindowConfig(16, doc_stride=4, apart=on)) for on in (False, True)
    )
    assert len(usual) > 2
    assert usual.equals(apart), "a single text has nothing to be apart from"


@pytest.mark.parametrize("data", [text_data(("mill", "road"), ("old " * 30, "x")), SPANS])
@pytest.mark.parametrize("apart", [False, True])
def test_segment_ids_can_be_left_out(data: SpanData | TextData, apart: bool) -> None:
    if apart and isinstance(data, SpanData):
        with pytest.raises(ConfigError, match="--apart is for pairs with a label or a score"):
            make_windows(data, toy("bert"), WindowConfig(apart=True))
        return
    with_ids, without = (
        make_windows(data, toy("bert"), WindowConfig(16, doc_stride=4, segments=on, apart=apart))
        for on in (True, False)
    )
    assert with_ids.types.any() != apart
    assert not without.types.any()
    assert with_ids.equals(replace(without, types=with_ids.types))


# ---- edges


def test_long_questions_are_cut_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [("why " * 80, PARAGRAPHS[0]), ("why", PARAGRAPHS[0]), ("why " * 90, PARAGRAPHS[2])]
    windows = make_windows(span_data(pairs), bert(), WindowConfig())
    assert len(caplog.records) == 1
    assert "2 of 3 questions" in caplog.text
    assert windows.context[:, 0].tolist() == [66, 3, 66]


LONG = span_data([("why", PARAGRAPHS[0]), ("why " * 40, PARAGRAPHS[0])])
NARROW: list[tuple[SpanData | TextData, WindowConfig, str]] = [
    (
        LONG,
        WindowConfig(30, 64),
        r"question 1 takes 43 tokens .* raise --max-seq-length or lower --max-query-length$",
    ),
    (LONG, WindowConfig(43, 40), "question 1 takes 43 tokens"),
    (LONG, WindowConfig(44, 40), ""),
    (
        LONG,
        WindowConfig(60, 40, 17, "overlap"),
        "overlap of 17 .* or lower --doc-stride or --max-query-length$",
    ),
    (LONG, WindowConfig(60, 40, 16, "overlap"), ""),
    (
        text_data(("x",)),
        WindowConfig(2),
        "example 0 takes 2 tokens .* in a window of 2; raise --max-seq-length$",
    ),
    (
        text_data(("mill " * 20,)),
        WindowConfig(16, doc_stride=14, stride="overlap"),
        "overlap of 14 .* --doc-stride$",
    ),
    (text_data(("mill",)), WindowConfig(16, doc_stride=14, stride="overlap"), ""),
]


@pytest.mark.parametrize(("data", "config", "message"), NARROW)
def test_an_example_that_leaves_no_room_is_named(data: Any, config: WindowConfig, message: str) -> None:
    if not message:
        assert make_windows(data, bert(), config).lengths.max() <= config.max_seq_length
        return
    with pytest.raises(DataError, match=message):
        make_windows(data, bert(), config)


@pytest.mark.parametrize(
    ("flags", "flag"),
    [({"max_seq_length": 0}, "--max-seq-length"), ({"max_query_length": 0}, "--max-query-length"),
     ({"doc_stride": 0}, "--doc-stride"), ({"doc_stride": -1, "stride": "overlap"}, "--doc-stride"),
     ({"stride": "hop"}, "--stride")],
)  # fmt: skip
def test_impossible_settings_name_their_flag(flags: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        WindowConfig(**flags)


def test_nothing_is_lost_and_nothing_is_missing_at_the_edges() -> None:
    empty = make_windows(span_data([("why", "\u200b"), ("why", "x")]), bert(), WindowConfig())
    assert empty.example.tolist() == [0, 1], "a context without tokens still has a window"
    assert np.diff(empty.context, axis=1).tolist() == [[0], [1]]
    # RTE: a long premise first, a short hypothesis second, and the other way round; both sides beyond 64 tokens.
    long, short = " ".join(["mill"] * 100), " ".join(["road"] * 80)
    windows = make_windows(text_data((long, short), (short, long)), toy("bert"), WindowConfig(183))
    assert windows.lengths.tolist() == [183, 183]


def test_a_subset_and_windows_taken_keep_their_order() -> None:
    data = span_data(ALL_PAIRS)
    whole, part = (make_windows(d, bert(), CONFIG) for d in (data, data.take([7, 2, 2, 0])))
    of = [np.flatnonzero(whole.example == i) for i in (7, 2, 2, 0)]
    expected = whole.take(np.concatenate(of))
    assert part.example.tolist() == [k for k, ws in enumerate(of) for _ in ws]
    assert part.equals(replace(expected, example=part.example))
    chosen = [5, 0, 5]
    taken = whole.take(chosen)
    for k, w in enumerate(chosen):
        for name in ("ids", "chars", "types", "best"):
            assert piece(taken, name, k) == piece(whole, name, w)
        assert taken.labels[k].tolist() == whole.labels[w].tolist()
    assert taken.num_tokens == taken.lengths.sum()
    assert whole.take(range(len(whole))).equals(whole)
    assert not taken.equals(whole)
    assert len(whole.take([])) == 0
    assert whole.example_starts.tolist() == [whole.example.tolist().index(i) for i in range(len(ALL_PAIRS))]


def test_truncation_left_on_by_a_tokenizer_file_is_ignored_and_left_on() -> None:
    tokenizer = byte_level.__wrapped__("modern")
    before = make_windows(span_data(ALL_PAIRS), tokenizer, WindowConfig())
    tokenizer.backend_tokenizer.enable_truncation(8, stride=2)
    tokenizer.backend_tokenizer.enable_padding(length=12, pad_token="<pad>", pad_id=2)
    assert make_windows(span_data(ALL_PAIRS), tokenizer, WindowConfig()).equals(before)
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 8
    assert tokenizer.backend_tokenizer.padding["length"] == 12


def test_tokenizers_that_cannot_be_used_are_refused() -> None:
    class Slow:
        name_or_path = "slow-one"

    from tokenizers import processors

    bare, mixed = byte_level.__wrapped__("modern"), byte_level.__wrapped__("modern")
    bare.backend_tokenizer.post_processor = processors.ByteLevel()
    mixed.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A <s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    for tokenizer, message in (
        (Slow(), "slow-one has no fast tokenizer"), (bare, "does not keep texts whole between special tokens"),
        (mixed, "between the texts"),
    ):  # fmt: skip
        with pytest.raises(EncoderError, match=message):
            make_windows(span_data(ALL_PAIRS), tokenizer, WindowConfig())  # pyright: ignore[reportArgumentType]
