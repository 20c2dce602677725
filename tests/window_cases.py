"""What tests of windows share: texts in several alphabets, tokenizers of several kinds, data made of them."""

from functools import cache
from typing import Any

from toy import toy_tokenizer

from bertvision.data.examples import Answer, Example, SpanData, TextData, TextExample
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.load import load_tokenizer

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


toy = cache(toy_tokenizer)
STYLES = ("bert", "plain", "roberta")
CONFIG = WindowConfig(60, 20, 15)


def text_data(*contents: tuple[str, ...], labels: list[Any] | None = None, kind: Any = "score") -> TextData:
    """Texts (one string each) or pairs with the scores 0, 0.5, 1 ... or labels."""
    labels = [i / 2 for i in range(len(contents))] if labels is None else labels
    examples = [
        TextExample(str(i), content[0], content[1] if len(content) > 1 else None, label)
        for i, (content, label) in enumerate(zip(contents, labels, strict=True))
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
