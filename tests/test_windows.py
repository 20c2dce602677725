"""Windows against independent references: the tokenizer's own calls, a plain loop over windows and tokens; labels."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import toy_tokenizer

from bertvision.data.cutting import make_windows, probe_template
from bertvision.data.examples import Answer, Example, SpanData, TextData, TextExample, answerable, read_squad
from bertvision.data.load import load_data
from bertvision.data.windows import WindowConfig, Windows, pack_windows
from bertvision.encoder.load import load_tokenizer
from bertvision.errors import BertvisionError, ConfigError, EncoderError

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


def tokenizer_of(kind: str) -> Any:
    return bert() if kind == "bert" else byte_level(kind)


KINDS = ("bert", "roberta", "modern", "xlnet")


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


toy = cache(toy_tokenizer)
STYLES = ("bert", "plain", "roberta")
CONFIG = WindowConfig(60, 20, 15)


def text_data(*contents: tuple[str, ...], labels: list[Any] | None = None, kind: Any = "score") -> TextData:
    """Texts (one string each) or pairs with the scores 0, 0.5, 1 ... or labels."""
    labels = [i / 2 for i in range(len(contents))] if labels is None else labels
    rows = enumerate(zip(contents, labels, strict=True))
    examples = [
        TextExample(str(i), one[0], one[1] if len(one) > 1 else None, label) for i, (one, label) in rows
    ]
    return TextData(examples, kind, ("no", "yes") if kind == "label" else ())


def window(windows: Windows, w: int) -> tuple[list[int], list[int]]:
    return piece(windows, "ids", w), piece(windows, "types", w)


def own(tokenizer: Any, *sides: str, **options: Any) -> list[tuple[list[int], list[int]]]:
    """Ids and segment ids of the windows the tokenizer itself makes."""
    # As lists: an empty second text alone would be taken for none.
    made = tokenizer(*([side] for side in sides), return_overflowing_tokens=True, **options)
    ids = made["input_ids"]
    return list(zip(ids, made.get("token_type_ids", [[0] * len(row) for row in ids]), strict=True))


# ---- overlap: the tokenizer's own call


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("length", "overlap"), [(384, 128), (40, 10), (33, 0), (48, 20)])
def test_questions_are_cut_as_the_tokenizer_cuts_them(kind: str, length: int, overlap: int) -> None:
    tokenizer = tokenizer_of(kind)
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
            inside = [b <= token < b + n for b, n in spans]
            scores = [min(token - b, b + n - 1 - token) + 0.01 * n for b, n in spans]
            scores = [score if shown else -1.0 for score, shown in zip(scores, inside, strict=True)]
            best.append(scores.index(max(scores)) == s)
        front, none = len(q) + 2, (-1, -1)
        made.append({
            "ids": [cls, *q, sep, *d[begin : begin + length], sep],
            "types": [0] * front + [1] * (length + 1),
            "chars": [none] * front + offsets[begin : begin + length] + [none],
            "context": [front, front + length],
            "best": [False] * front + best + [False],
        })  # fmt: skip
    return made


def same(windows: Windows, w: int, plain: dict[str, Any]) -> None:
    found: dict[str, Any] = {name: piece(windows, name, w) for name in ("ids", "types", "chars", "best")}
    found["chars"] = [tuple(pair) for pair in found["chars"]]
    assert found | {"context": windows.context[w].tolist()} == plain


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


def test_answerable_takes_any_source_of_questions(toy_squad: Path) -> None:
    data = load_data(f"answerable:{toy_squad}")
    assert isinstance(data, TextData)
    assert (len(data), data.classes, data.positive) == (24, ("answer", "no answer"), 1)
    assert sum(e.label or 0 for e in data.examples) == 8
    part = data.take([3, 1])
    assert part.spans is not None
    assert [e.id for e in part.spans.examples] == [e.id for e in part.examples] == ["1-0", "0-1"]
    unknown = answerable(SPANS.take([1, 2]), answers_required=False)
    assert set(make_windows(unknown, toy("bert"), CONFIG).labels[:, 0].tolist()) == {-1}
    with pytest.raises(BertvisionError, match="has the classes answer and no answer, not a, b"):
        load_data(f"answerable:{toy_squad}", classes=("a", "b"))


# ---- labels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [384, 60])
def test_labels_point_at_the_answer(kind: str, length: int) -> None:
    wanted = ["Ingrid Sæther", "3 May 1911", "0.3°", "Hayabusa", "東京", "🚄", "fares", "locals", "Short"]
    pairs = [(QUESTIONS[0], next(p for p in PARAGRAPHS if text in p)) for text in wanted]
    data = span_data([*pairs, (QUESTIONS[2], PARAGRAPHS[0])], dict(enumerate(wanted)))
    windows = make_windows(data, tokenizer_of(kind), WindowConfig(length, 32, 15))
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
    # A single text has nothing to be apart from.
    configs = [WindowConfig(16, doc_stride=4, apart=on) for on in (False, True)]
    usual, apart = (make_windows(text_data(("mill " * 30,), ("x",)), toy(style), one) for one in configs)
    assert len(usual) > 2
    assert pack_windows(usual) == pack_windows(apart)


TEXTS = text_data(("mill", "road"), ("old " * 30, "x"))


@pytest.mark.parametrize(("data", "apart"), [(TEXTS, False), (TEXTS, True), (SPANS, False)])
def test_segment_ids_can_be_left_out(data: SpanData | TextData, apart: bool) -> None:
    with_ids, without = (
        make_windows(data, toy("bert"), WindowConfig(16, doc_stride=4, segments=on, apart=apart))
        for on in (True, False)
    )
    assert with_ids.types.any() != apart
    assert not without.types.any()
    assert pack_windows(with_ids) == pack_windows(replace(without, types=with_ids.types))


# ---- edges


LONG = span_data([("why", PARAGRAPHS[0]), ("why " * 40, PARAGRAPHS[0])])
WORDS = text_data(("mill " * 20,))
WIDER = "raise --max-seq-length"
NARROW: list[tuple[SpanData | TextData, WindowConfig, str]] = [
    (SPANS, WindowConfig(apart=True), "--apart is for pairs with a label or a score"),
    (LONG, WindowConfig(43, 40), f"question 1 takes 43 tokens .* {WIDER} or lower --max-query-length$"),
    (LONG, WindowConfig(44, 40), ""),
    (LONG, WindowConfig(60, 40, 17, "overlap"), "of 17 .* or lower --doc-stride or --max-query-length$"),
    (LONG, WindowConfig(60, 40, 16, "overlap"), ""),
    (text_data(("x",)), WindowConfig(2), "example 0 takes 2 tokens .* window of 2; raise --max-seq-length$"),
    (WORDS, WindowConfig(16, doc_stride=14, stride="overlap"), "overlap of 14 .* --doc-stride$"),
]


@pytest.mark.parametrize(("data", "config", "message"), NARROW)
def test_an_example_that_leaves_no_room_is_named(data: Any, config: WindowConfig, message: str) -> None:
    if not message:
        assert make_windows(data, bert(), config).lengths.max() <= config.max_seq_length
        return
    with pytest.raises(BertvisionError, match=message):
        make_windows(data, bert(), config)


@pytest.mark.parametrize(
    ("flags", "flag"),
    [({"max_query_length": 0}, "--max-query-length"), ({"doc_stride": 0}, "--doc-stride"),
     ({"doc_stride": -1, "stride": "overlap"}, "--doc-stride"), ({"stride": "hop"}, "--stride")],
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
    assert pack_windows(part) == pack_windows(replace(expected, example=part.example))
    assert len(whole.take([])) == 0
    assert whole.example_starts.tolist() == [whole.example.tolist().index(i) for i in range(len(ALL_PAIRS))]
    taken = whole.take([5, 0, 5])
    assert taken.num_tokens == taken.lengths.sum()
    for k, w in enumerate([5, 0, 5]):
        for name in ("ids", "chars", "types", "best"):
            assert piece(taken, name, k) == piece(whole, name, w)
        assert taken.labels[k].tolist() == whole.labels[w].tolist()


def test_truncation_left_on_by_a_tokenizer_file_is_ignored_and_left_on() -> None:
    tokenizer = byte_level.__wrapped__("modern")
    before = make_windows(span_data(ALL_PAIRS), tokenizer, WindowConfig())
    tokenizer.backend_tokenizer.enable_truncation(8, stride=2)
    tokenizer.backend_tokenizer.enable_padding(length=12, pad_token="<pad>", pad_id=2)
    assert pack_windows(make_windows(span_data(ALL_PAIRS), tokenizer, WindowConfig())) == pack_windows(before)
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
