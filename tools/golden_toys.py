"""A tiny random encoder and toy data for tools/golden.py, the same in every run."""

import csv
import json
import random
import shutil
import unicodedata
from pathlib import Path
from typing import Any

PEOPLE = (
    "Ada Holt",
    "Ben Carr",
    "Cora Dunn",
    "Zoë Elm",
    "Edna Frost",
    "Finn Gale",
    "Greta Hull",
    "Hugo Ives",
)
THINGS = ("mill", "bridge", "tower", "barn", "chapel", "harbour", "school", "market")
TOWNS = ("Arden", "Brill", "Corwen", "Dunster", "Elham", "Fowey", "Goring", "Hythe")
FILLER = "The wind was cold and the road was long."
WORDS = ("the", "a", "cat", "dog", "river", "city", "stone", "old", "green", "runs", "falls", "near", "under")
LABELS = ("no", "perhaps", "yes")
ASKED = (
    "who built where is sold when by in stands was it",
    "similar sentence does this first second mean same",
)


def make_spans(path: Path, seed: int, paragraphs: int) -> Path:
    """SQuAD 2.0 form: three questions a paragraph, one without an answer; every fourth paragraph is long."""
    chance, made = random.Random(seed), []
    for i in range(paragraphs):
        thing, person, town = chance.choice(THINGS), chance.choice(PEOPLE), chance.choice(TOWNS)
        year = str(chance.randint(1700, 1999))
        fact = f"The {thing} in {town} was built by {person} in {year}; it stands near 東京."
        before, after = (
            (FILLER + " ") * (7 if i % 4 == 1 else i % 3),
            (" " + FILLER) * (6 if i % 4 == 3 else i % 2),
        )
        context = before + fact + after
        questions = [(f"Who built the {thing}?", person), (f"Where is the {thing}?", town)]
        questions.append((f"When was the {thing} built?", year) if i % 2 else (f"Who sold the {thing}?", ""))
        rows = [
            {
                "id": f"{seed}-{i:03d}-{j}",
                "question": question,
                "is_impossible": not answer,
                "answers": [{"text": answer, "answer_start": context.index(answer)}] if answer else [],
            }
            for j, (question, answer) in enumerate(questions)
        ]
        made.append({"context": context, "qas": rows})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "Toy", "paragraphs": made}]}))
    return path


def make_table(path: Path, seed: int, examples: int, columns: str, delimiter: str = ",") -> Path:
    """A table of texts. The label follows from words in the text; `columns` name what there is.

    id, sentence1, sentence2, label: one of three classes. id, text, score: a number. A fifth of the texts are long.
    """
    chance, names = random.Random(seed), columns.split()
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        table.writerow(names)
        for i in range(examples):
            text, other = (
                " ".join(
                    chance.choice(WORDS) for _ in range(chance.randint(3, 9) + (30 if i % 5 == 4 else 0))
                )
                for _ in range(2)
            )
            label = LABELS[chance.randrange(3)]
            row = {"id": f"{seed}-{i:03d}", "text": text, "sentence1": text, "sentence2": f"{label} {other}"}
            row |= {
                "label": label,
                "sentence": f"{label} {text}",
                "score": text.split().count("the") + 0.25 * (i % 3),
            }
            row |= {"sentiment": LABELS.index(label) * 2, "is_duplicate": float(label == "yes")}
            table.writerow([row[name] for name in names])
    return path


def make_encoder(folder: Path) -> Path:
    """A random BERT of 4 layers and 32 features, and a WordPiece tokenizer over the words of the toy data."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

    text = " ".join((*PEOPLE, *THINGS, *TOWNS, FILLER, *WORDS, *LABELS, *ASKED)).lower()
    plain = "".join(c for c in unicodedata.normalize("NFD", text) if c.isalpha() or c == " ")
    letters = [chr(point) for point in range(33, 127) if not chr(point).isupper()]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [
        *special,
        *sorted({w for w in plain.split() if len(w) > 1}),
        *letters,
        *(f"##{c}" for c in letters),
    ]
    vocabulary = {word: i for i, word in enumerate(words)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    names: Any = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **names).save_pretrained(
        folder
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes: Any = {
        "num_hidden_layers": 4,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    config = BertConfig(vocab_size=len(words), max_position_embeddings=128, initializer_range=0.1, **sizes)
    BertModel(config).save_pretrained(folder)
    AutoModel.from_pretrained(folder)  # imports what the commands need, once, before the forks
    AutoTokenizer.from_pretrained(folder)
    return folder


class Toys:
    """The folder everything happens in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.encoder = make_encoder(folder / "encoder")
        self.train, self.dev = (
            make_spans(folder / "train.json", 1, 32),
            make_spans(folder / "dev.json", 2, 16),
        )
        pairs, scored = "id sentence1 sentence2 label", "id text score"
        self.labels = (
            make_table(folder / "labels.csv", 3, 80, pairs),
            make_table(folder / "ldev.csv", 4, 40, pairs),
        )
        self.scores = (
            make_table(folder / "scores.csv", 5, 80, scored),
            make_table(folder / "sdev.csv", 6, 40, scored),
        )

    def new(self, name: str) -> Path:
        """A folder that is empty."""
        path = self.folder / "out" / name
        shutil.rmtree(path, ignore_errors=True)
        return path
