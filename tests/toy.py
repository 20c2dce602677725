"""Toy encoders and toy data for tests: every architecture, tiny and random, saved in Hugging Face format.

The vocabulary is made here: all words of the toy data, and single characters for everything else. Special tokens,
their order and the way pairs are joined are those of each architecture.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POSITIONS = 96
"""The longest window of every toy encoder."""

_PEOPLE = [
    "Ada Holt",
    "Ben Carr",
    "Cora Dunn",
    "Dirk Elm",
    "Edna Frost",
    "Finn Gale",
    "Greta Hull",
    "Hugo Ives",
]
_THINGS = ["mill", "bridge", "tower", "barn", "chapel", "harbour", "school", "market"]
_TOWNS = ["Arden", "Brill", "Corwen", "Dunster", "Elham", "Fowey", "Goring", "Hythe"]


def _paragraph(i: int) -> str:
    thing, person, town = _THINGS[i], _PEOPLE[i], _TOWNS[i]
    more = " It stands near the old road." * (i % 3)  # windows of different lengths make pads
    return f"The {thing} in {town} was built by {person} in {1871 + i}.{more}"


def squad_json(questions: int = 24) -> dict[str, Any]:
    """A data set in SQuAD 2.0 form: three questions a paragraph, one of the three unanswerable.

    The last paragraph is long: its fact stands behind sixty other words, so that it needs several windows.
    """
    paragraphs = []
    for i in range(questions // 3):
        thing, person, town = _THINGS[i], _PEOPLE[i], _TOWNS[i]
        context = _paragraph(i)
        if i == questions // 3 - 1:
            context = "The wind was cold and the road was long. " * 12 + context
        asked = [
            (f"Who built the {thing}?", person),
            (f"Where is the {thing}?", town),
            (f"Who sold the {thing}?", ""),
        ]
        qas = [
            {
                "id": f"{i}-{j}",
                "question": question,
                "is_impossible": not answer,
                "answers": [{"text": answer, "answer_start": context.index(answer)}] if answer else [],
            }
            for j, (question, answer) in enumerate(asked)
        ]
        paragraphs.append({"context": context, "qas": qas})
    return {"version": "v2.0", "data": [{"title": "Toy", "paragraphs": paragraphs}]}


# ---- tokenizers


@dataclass(frozen=True)
class _Style:
    """How an architecture's tokenizer marks pairs; `special` in the order of their ids."""

    special: tuple[str, ...]
    pair: str
    types: bool = False

    def token(self, *names: str) -> str:
        return next(token for token in self.special if token in names)


_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_STYLES = {
    "bert": _Style(_BERT, "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", types=True),
    "plain": _Style(_BERT, "[CLS] $A [SEP] $B [SEP]"),
    "roberta": _Style(("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s> $A </s> </s> $B </s>"),
}


def _words() -> list[str]:
    """Every word of the toy data in lower case, then single characters as beginnings and continuations."""
    text = json.dumps(squad_json()).lower()
    words = sorted(
        {word for word in "".join(c if c.isalpha() else " " for c in text).split() if len(word) > 1}
    )
    characters = [chr(point) for point in range(33, 127) if not chr(point).isupper()]
    return words + characters + [f"##{character}" for character in characters]


def toy_tokenizer(style: str) -> Any:
    """A fast WordPiece tokenizer that lower-cases; style is bert, plain or roberta."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    marks = _STYLES[style]
    vocabulary = {token: i for i, token in enumerate([*marks.special, *_words()])}
    unknown = marks.token("[UNK]", "<unk>")
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single=marks.pair.partition(" $B")[0],
        pair=marks.pair,
        special_tokens=[(token, vocabulary[token]) for token in marks.special],
    )
    inputs = (
        ["input_ids", "token_type_ids", "attention_mask"] if marks.types else ["input_ids", "attention_mask"]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=marks.token("[PAD]", "<pad>"),
        unk_token=unknown,
        cls_token=marks.token("[CLS]", "<s>"),
        sep_token=marks.token("[SEP]", "</s>"),
        mask_token=marks.token("[MASK]", "<mask>"),
        model_input_names=inputs,
    )


# ---- encoders

ARCHITECTURES = {
    "bert": "bert",
    "roberta": "roberta",
    "distilbert": "plain",
    "albert": "bert",
    "electra": "bert",
    "mpnet": "roberta",
    "deberta": "plain",
    "deberta-v2": "plain",
    "modernbert": "plain",
}
"""Encoders by model_type, and the style of their tokenizer."""


def toy_config(architecture: str, vocabulary: int, **changes: Any) -> Any:
    """Two layers of 32 features and two attention heads."""
    from transformers import AutoConfig

    common = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    offset = 2 if architecture in ("roberta", "mpnet") else 0
    own: dict[str, dict[str, Any]] = {
        "bert": common,
        "roberta": common | {"type_vocab_size": 1, "pad_token_id": 1},
        "distilbert": {"n_layers": 2, "dim": 32, "n_heads": 2, "hidden_dim": 48},
        "albert": common | {"embedding_size": 16},
        "electra": common | {"embedding_size": 16},
        "mpnet": common | {"pad_token_id": 1},
        "deberta": common | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0,
                             "position_biased_input": False},
        "deberta-v2": common | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0,
                                "position_biased_input": False, "position_buckets": 8, "share_att_key": True,
                                "norm_rel_ebd": "layer_norm"},
        "modernbert": common | {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2,
                                "eos_token_id": 3, "local_attention": 8, "global_attn_every_n_layers": 2},
        "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": POSITIONS, "bos_token_id": 2,
                 "eos_token_id": 3},
        "t5": {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2,
               "decoder_start_token_id": 0},
    }  # fmt: skip
    if architecture not in ("gpt2", "t5"):
        own[architecture] = {"max_position_embeddings": POSITIONS + offset} | own[architecture]
    return AutoConfig.for_model(architecture, vocab_size=vocabulary, **(own[architecture] | changes))


def save_encoder(folder: Path, architecture: str = "bert", *, seed: int = 0, **changes: Any) -> Path:
    """Write a random model of `architecture` with its tokenizer; `changes` go into its config."""
    import torch
    from transformers import AutoModel

    tokenizer = toy_tokenizer(ARCHITECTURES.get(architecture, "bert"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(toy_config(architecture, len(tokenizer), **changes))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
