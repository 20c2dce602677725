"""Windows against independent references: the tokenizer's own pair call, and a plain loop a window."""

import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.examples import Answer, Example, SpanData
from bertvision.data.squad import read_squad
from bertvision.data.windows import WindowConfig, Windows, make_windows
from bertvision.encoder.load import load_tokenizer
from bertvision.errors import ConfigError, DataError, EncoderError

PARAGRAPHS = [
    "The Halvard Bridge, opened on 3 May 1911, crosses the river Lume at Østervik. It was designed by Ingrid "
    "Sæther, whose earlier works (the Fyllan viaduct; St. Olav's quay) had won her the commission. Steel "
    "came from Krüger & Söhne: 4,200 tons at $1.75 a pound. The bridge's south tower leans 0.3° since the "
    "flood of 1934...",
    "東京 is 3.5 hours from  here,\tby night train — “Hayabusa” 🚄 they call it.\n\nNaïve tourists prepay; "
    "locals don't. Counterrevolutionaries' antidisestablishmentarianism notwithstanding, fares rose 12%.",
    "Short one.",
]
QUESTIONS = ["Who designed the Halvard Bridge?", "What do they call the night train (早い)?", "Is it short?"]


@cache
def bert() -> Any:
    return load_tokenizer("embedded")


@cache
def byte_level(style: str) -> Any:
    """Byte-level BPE trained on the paragraphs; pairs are joined as by RoBERTa, ModernBERT or XLNet."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "</s>", "<pad>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(PARAGRAPHS + QUESTIONS, trainer)
    special = [("<s>", 0), ("</s>", 1)]
    tokenizer.post_processor = {
        "roberta": processors.RobertaProcessing(
            ("</s>", 1), ("<s>", 0), trim_offsets=True, add_prefix_space=False
        ),
        "modern": processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=special
        ),
        "xlnet": processors.TemplateProcessing(
            single="$A </s> <s>", pair="$A:0 </s>:0 $B:1 </s>:1 <s>:2", special_tokens=special
        ),
    }[style]
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (style == "xlnet")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", cls_token="<s>", sep_token="</s>", eos_token="</s>",
        pad_token="<pad>", unk_token="<unk>", model_input_names=names,
    )  # fmt: skip


TOKENIZERS = {
    "bert": bert,
    "roberta": lambda: byte_level("roberta"),
    "modern": lambda: byte_level("modern"),
    "xlnet": lambda: byte_level("xlnet"),
}


def span_data(pairs: list[tuple[str, str]], answers: dict[int, str] | None = None) -> SpanData:
    paragraphs = list(dict.fromkeys(context for _, context in pairs))
    found = {i: (Answer(text, pairs[i][1].index(text)),) for i, text in (answers or {}).items()}
    return SpanData(
        paragraphs,
        [Example(str(i), q, paragraphs.index(c), found.get(i, ())) for i, (q, c) in enumerate(pairs)],
    )


ALL_PAIRS = [(q, c) for c in PARAGRAPHS for q in QUESTIONS]


def piece(windows: Windows, name: str, w: int) -> list[Any]:
    return getattr(windows, name)[windows.offsets[w] : windows.offsets[w + 1]].tolist()


# ---- overlap: the tokenizer's own pair call


@pytest.mark.parametrize("kind", list(TOKENIZERS))
@pytest.mark.parametrize(("length", "overlap"), [(384, 128), (40, 10), (33, 0), (48, 20)])
def test_overlap_is_what_the_tokenizer_itself_gives(kind: str, length: int, overlap: int) -> None:
    tokenizer = TOKENIZERS[kind]()
    data = span_data(ALL_PAIRS)
    config = WindowConfig(length, length, overlap, "overlap")
    windows = make_windows(data, tokenizer, config)
    w = 0
    for i, (question, context) in enumerate(ALL_PAIRS):
        theirs = tokenizer(
            question, context, truncation="only_second", max_length=length, stride=overlap,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        for k, ids in enumerate(theirs["input_ids"]):
            assert piece(windows, "ids", w) == ids
            assert windows.example[w] == i
            types = theirs["token_type_ids"][k] if "token_type_ids" in theirs else [0] * len(ids)
            assert piece(windows, "types", w) == types
            sides = theirs.sequence_ids(k)
            begin, end = windows.context[w]
            assert [begin <= t < end for t in range(len(ids))] == [side == 1 for side in sides]
            for t, (side, offset) in enumerate(zip(sides, theirs["offset_mapping"][k], strict=True)):
                ours = tuple(windows.chars[windows.offsets[w] + t].tolist())
                if side != 1:
                    assert ours == (-1, -1)
                else:
                    # White space in front of a word is left out, whichever tokenizer counted it in.
                    assert ours[1] == offset[1]
                    assert context[ours[0] : ours[1]] == context[slice(*offset)].lstrip()
            assert ids[windows.null[w]] == tokenizer.cls_token_id
            w += 1
    assert w == len(windows)


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


@pytest.mark.parametrize(("length", "stride"), [(384, 128), (50, 12), (50, 40), (50, 1), (30, 128)])
def test_step_is_what_a_plain_loop_gives(length: int, stride: int) -> None:
    config = WindowConfig(length, 16, stride)
    windows = make_windows(span_data(ALL_PAIRS), bert(), config)
    plain = [(i, p) for i, (q, c) in enumerate(ALL_PAIRS) for p in plain_windows(bert(), q, c, config)]
    assert windows.example.tolist() == [i for i, _ in plain]
    for w, (_, expected) in enumerate(plain):
        same(windows, w, expected)


words = st.lists(
    st.sampled_from(["a", "river", "Østervik", "1911", "unbelievably", "—", "東京", "x.y"]), min_size=1
)


@settings(max_examples=60, deadline=None)
@given(
    context=words.map(" ".join), question=words.map(" ".join), length=st.integers(24, 60),
    stride=st.integers(1, 40), query=st.integers(1, 12), meaning=st.sampled_from(["step", "overlap"]),
)  # fmt: skip
def test_windows_cover_every_token_and_each_is_best_once(
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
    everywhere = bert()(context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
        "offset_mapping"
    ]
    in_context = windows.chars[:, 0] >= 0
    assert {tuple(c) for c in windows.chars[in_context].tolist()} == set(everywhere)
    assert sorted(map(tuple, windows.chars[windows.best].tolist())) == sorted(everywhere)
    assert windows.lengths.max() <= length


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
    pairs = [(QUESTIONS[0], next(p for p in PARAGRAPHS if text in p)) for text in wanted] + [
        (QUESTIONS[2], PARAGRAPHS[0])
    ]
    data = span_data(pairs, dict(enumerate(wanted)))
    windows = make_windows(data, TOKENIZERS[kind](), WindowConfig(length, 32, 15))
    hits = np.zeros(len(data), int)
    for w in range(len(windows)):
        example = data.examples[windows.example[w]]
        (first, last), null = windows.labels[w], windows.null[w]
        begin, end = windows.context[w]
        seen = windows.chars[windows.offsets[w] :][begin:end]
        if first == null:
            assert last == null
            if example.answers:
                answer = example.answers[0]
                # The whole answer is not in sight.
                assert seen[0, 0] > answer.start or seen[-1, 1] < answer.start + len(answer.text)
            continue
        hits[windows.example[w]] += 1
        assert begin <= first <= last < end
        text = data.context(example)[seen[first - begin, 0] : seen[last - begin, 1]]
        assert text.strip() == example.answers[0].text
    assert hits[:-1].all()
    assert hits[-1] == 0
    if length == 60:
        assert hits.max() > 1


def test_an_answer_inside_a_word_takes_the_whole_word_piece() -> None:
    data = span_data([("Which?", "a bridge there")], {0: "ridg"})
    windows = make_windows(data, bert(), WindowConfig())
    first, last = windows.labels[0]
    assert windows.chars[first : last + 1].tolist() == [[2, 8]]


def test_an_answer_the_tokenizer_drops_counts_as_none(caplog: pytest.LogCaptureFixture) -> None:
    data = span_data([("Which?", "a \u200b b")], {0: "\u200b"})
    with caplog.at_level(logging.WARNING):
        windows = make_windows(data, bert(), WindowConfig())
    assert windows.labels.tolist() == [[0, 0]]
    assert "1 answers have no token" in caplog.text


# ---- edges


def test_long_questions_are_cut_with_one_word(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [("why " * 80, PARAGRAPHS[0]), ("why", PARAGRAPHS[0]), ("why " * 90, PARAGRAPHS[2])]
    with caplog.at_level(logging.WARNING):
        windows = make_windows(span_data(pairs), bert(), WindowConfig())
    assert len(caplog.records) == 1
    assert "2 of 3 questions" in caplog.text
    assert windows.context[:, 0].tolist() == [66, 3, 66]


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        (WindowConfig(30, 64), False),
        (WindowConfig(43, 40), False),
        (WindowConfig(44, 40), True),
        (WindowConfig(60, 40, 17, "overlap"), False),
        (WindowConfig(60, 40, 16, "overlap"), True),
    ],
)
def test_a_question_that_leaves_no_room_is_named(config: WindowConfig, fits: bool) -> None:
    data = span_data([("why", PARAGRAPHS[0]), ("why " * 40, PARAGRAPHS[0])])
    if fits:
        assert len(make_windows(data, bert(), config)) > 2
        return
    with pytest.raises(DataError, match=r"question 1 takes 43 tokens .* raise --max-seq-length"):
        make_windows(data, bert(), config)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"max_seq_length": 0}, "--max-seq-length"),
        ({"max_query_length": 0}, "--max-query-length"),
        ({"doc_stride": 0}, "--doc-stride"),
        ({"doc_stride": -1, "stride": "overlap"}, "--doc-stride"),
        ({"stride": "hop"}, "--stride"),
    ],
)
def test_impossible_settings_name_their_flag(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        WindowConfig(**flags)


def test_a_context_without_tokens_still_has_a_window() -> None:
    windows = make_windows(span_data([("why", "\u200b"), ("why", "x")]), bert(), WindowConfig())
    assert windows.example.tolist() == [0, 1]
    assert np.diff(windows.context, axis=1).tolist() == [[0], [1]]


def test_only_paragraphs_asked_about_are_read_and_examples_keep_their_order() -> None:
    data = span_data(ALL_PAIRS)
    some = data.take([7, 2, 2, 0])
    whole, part = (make_windows(d, bert(), WindowConfig(60, 20, 15)) for d in (data, some))
    of = [np.flatnonzero(whole.example == i) for i in (7, 2, 2, 0)]
    expected = whole.take(np.concatenate(of))
    assert part.example.tolist() == [k for k, ws in enumerate(of) for _ in ws]
    for name in ("ids", "types", "chars", "offsets", "context", "labels", "null", "best"):
        assert np.array_equal(getattr(part, name), getattr(expected, name)), name


def test_taking_windows_and_first_windows() -> None:
    windows = make_windows(span_data(ALL_PAIRS), bert(), WindowConfig(60, 20, 15))
    chosen = [5, 0, 5]
    taken = windows.take(chosen)
    for k, w in enumerate(chosen):
        assert piece(taken, "ids", k) == piece(windows, "ids", w)
        assert piece(taken, "chars", k) == piece(windows, "chars", w)
        assert taken.labels[k].tolist() == windows.labels[w].tolist()
    assert windows.take(range(len(windows))).equals(windows)
    assert not taken.equals(windows)
    assert len(windows.take([])) == 0
    assert taken.num_tokens == taken.lengths.sum()
    starts = [windows.example.tolist().index(i) for i in range(len(ALL_PAIRS))]
    assert windows.example_starts.tolist() == starts


def test_truncation_left_on_by_a_tokenizer_file_is_ignored_and_left_on() -> None:
    tokenizer = byte_level("modern")
    before = make_windows(span_data(ALL_PAIRS), tokenizer, WindowConfig())
    tokenizer.backend_tokenizer.enable_truncation(8, stride=2)
    tokenizer.backend_tokenizer.enable_padding(length=12, pad_token="<pad>", pad_id=2)
    try:
        assert make_windows(span_data(ALL_PAIRS), tokenizer, WindowConfig()).equals(before)
        assert tokenizer.backend_tokenizer.truncation["max_length"] == 8
        assert tokenizer.backend_tokenizer.padding["length"] == 12
    finally:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()


def test_a_tokenizer_without_offsets_is_refused() -> None:
    class Slow:
        name_or_path = "slow-one"

    with pytest.raises(EncoderError, match="slow-one has no fast tokenizer"):
        make_windows(span_data(ALL_PAIRS), Slow(), WindowConfig())  # pyright: ignore[reportArgumentType]


# ---- the real set


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


def test_a_sample_of_the_official_dev_set_against_the_plain_loop(shared_data: Path) -> None:
    data = read_squad(shared_data / "squad" / "dev-v2.0.json")
    long_ones = [i for i, e in enumerate(data.examples) if len(data.context(e)) > 1_600][::4]
    data = data.take(long_ones)
    windows = make_windows(data, bert(), WindowConfig())
    plain = [
        p for e in data.examples for p in plain_windows(bert(), e.question, data.context(e), WindowConfig())
    ]
    assert len(windows) == len(plain) > len(data) + 50
    for w, expected in enumerate(plain):
        same(windows, w, expected)
