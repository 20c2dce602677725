"""Triplets: what is mined, checked row by row against the labels; the two losses; distances of a real encoder."""

import math
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from bertvision.data.examples import TextData, TextExample
from bertvision.data.load import load_data
from bertvision.data.triplets import TripletData, TripletSet, mine_triplets, triplet_windows
from bertvision.data.windows import WindowConfig
from bertvision.errors import ConfigError, DataError
from bertvision.heads import Geometry, StateBatch, cost, load_head, parse_head, save_head
from bertvision.heads.base import bare_batch
from bertvision.tasks.triplet import TripletTask, triplet_loss

RNG = np.random.default_rng(0)


def sst(count: int = 60) -> TextData:
    labels = RNG.integers(0, 5, count).tolist()
    examples = [TextExample(f"s{i}", f"film {i} is fine", None, label) for i, label in enumerate(labels)]
    return TextData(examples, "label", tuple("01234"))


def sts(count: int = 40) -> TextData:
    scores = [0, 1.2, 2, 2.4, 2.999, 3, 4.1, 5]
    pairs = [(f"a man number {i}", f"a woman number {i}", scores[i % 8]) for i in range(count)]
    # A sentence in both halves, and one that comes twice with the same.
    pairs += [("a man number 0", "a dog", 4.5), ("a man number 5", "a cat", 3.5)]
    examples = [TextExample(f"p{i}", *pair) for i, pair in enumerate(pairs)]
    return TextData(examples, "score", metric="pearson")


def quora(count: int = 40) -> TextData:
    pairs = [(f"what is {i}", f"tell me what {i} is", int(i % 4 == 0)) for i in range(count)]
    # Paraphrases through others: "what is 0" - "explain 0" - "describe 0", which also stands in a negative pair.
    pairs += [("explain 0", "what is 0", 1), ("explain 0", "describe 0", 1), ("describe 0", "who knows", 0),
              ("why", "why", 1)]  # fmt: skip
    examples = [TextExample(f"q{i}", *pair) for i, pair in enumerate(pairs)]
    return TextData(examples, "label", ("different", "duplicate"))


ALL: dict[TripletSet, TextData] = {"sst": sst(), "sts": sts(), "quora": quora()}


@pytest.fixture(scope="module")
def mined() -> TripletData:
    return mine_triplets(ALL, seed=0)


def rows(data: TripletData, name: TripletSet) -> list[list[str]]:
    own = data.groups[data.origin == data.sets.index(name)]
    return [[data.texts[i] for i in row] for row in own.tolist()]


def texts_of(data: TextData) -> set[str]:
    return {text for e in data.examples for text in (e.first, e.second) if text is not None}


# ---- mining


def test_rows_are_what_the_labels_say(mined: TripletData) -> None:
    assert mined.groups.shape == (len(mined), 7)
    assert len(set(mined.texts)) == len(mined.texts)
    assert all(len(set(row)) == 7 for row in mined.groups.tolist())

    label = {e.first: e.label for e in ALL["sst"].examples}
    halves: dict[str, set[str]] = defaultdict(set)
    for e in ALL["sts"].examples:
        if e.second is not None and e.label is not None and not 2 < e.label < 3:
            for text in (e.first, e.second):
                halves[text].add("low" if e.label <= 2 else "high")
    half = {text: next(iter(own)) for text, own in halves.items() if len(own) == 1}
    assert "a man number 0" not in half
    others: list[tuple[TripletSet, dict[str, Any], TripletSet, TripletSet]] = [
        ("sst", label, "sts", "quora"), ("sts", half, "sst", "quora"),
    ]  # fmt: skip
    for name, kind, one, two in others:
        found = rows(mined, name)
        assert sorted(row[0] for row in found) == sorted(kind), "each once, none of two kinds"
        for anchor, positive, *negatives in found:
            assert kind[positive] == kind[anchor]
            assert all(kind[text] != kind[anchor] for text in negatives[:3])
            assert negatives[3] in texts_of(ALL[one])
            assert negatives[4] in texts_of(ALL[two])

    pairs = [(e.first, e.second) for e in ALL["quora"].examples if e.label == 1 and e.first != e.second]
    far = {text for e in ALL["quora"].examples if e.label == 0 for text in (e.first, e.second)}
    found = rows(mined, "quora")
    assert [(row[0], row[1]) for row in found] == pairs
    cluster = {"what is 0", "tell me what 0 is", "explain 0", "describe 0"}
    for anchor, _, *negatives in found:
        assert set(negatives[:3]) <= far
        assert not (anchor in cluster and cluster & set(negatives)), "no paraphrase of a paraphrase"
        assert negatives[3] in texts_of(ALL["sst"])
        assert negatives[4] in texts_of(ALL["sts"])


def test_paraphrases_of_paraphrases_would_be_drawn_otherwise() -> None:
    """Among few questions the forbidden one would be drawn in one of these seeds."""
    small = TextData([*quora(8).examples], "label", ("different", "duplicate"))
    for seed in range(30):
        for anchor, _, *negatives in rows(mine_triplets({"quora": small}, seed=seed), "quora"):
            assert anchor not in ("what is 0", "explain 0") or "describe 0" not in negatives


def test_fewer_sets_and_shared_texts() -> None:
    sets: tuple[tuple[TripletSet, ...], ...] = (("sst",), ("sts", "quora"), ("quora", "sst"))
    for names in sets:
        found = mine_triplets({name: ALL[name] for name in names}, seed=0)
        assert found.negatives == 3 + len(names) - 1
        assert set(np.array(found.sets)[found.origin]) == set(names)
    shared = [TextExample(f"s{i}", e.first, None, i % 2) for i, e in enumerate(ALL["sts"].examples)]
    found = mine_triplets({"sst": TextData(shared, "label", ("0", "1")), "sts": ALL["sts"]}, seed=1)
    assert all(len({found.texts[i] for i in row}) == 6 for row in found.groups.tolist())
    unusable = [TextExample("n", "unknown", None, None), TextExample("b", " ", None, 1)]
    found = mine_triplets({"sst": replace(ALL["sst"], examples=[*ALL["sst"].examples, *unusable])}, seed=0)
    assert not {"unknown", " "} & {text for row in rows(found, "sst") for text in row}
    assert len(found) == 60


def test_triplets_are_a_function_of_data_and_seed(mined: TripletData) -> None:
    turned: dict[TripletSet, TextData] = {"quora": ALL["quora"], "sts": ALL["sts"], "sst": ALL["sst"]}
    assert np.array_equal(mine_triplets(turned, seed=0).groups, mined.groups)
    assert mine_triplets(turned, seed=0).fingerprint == mined.fingerprint
    assert mine_triplets(ALL, seed=1).fingerprint != mined.fingerprint
    part = mined.take([3, 0])
    assert np.array_equal(part.groups, mined.groups[[3, 0]])
    assert len({part.fingerprint, mined.fingerprint, mined.take([0, 3]).fingerprint}) == 3


@pytest.mark.slow
def test_another_process_mines_the_same() -> None:
    """No order of a set or of hashes is in it."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_triplets import ALL, mine_triplets\n"
        "print(mine_triplets(ALL, seed=0).fingerprint)"
    )
    done = [
        subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent)],
            capture_output=True, text=True, timeout=120, check=True, env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout for seed in ("1", "2")
    ]  # fmt: skip
    assert done == [mine_triplets(ALL, seed=0).fingerprint + "\n"] * 2


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({}, "not of none"),
        ({"sst": ALL["sts"]}, "the sst set of triplets is single texts"),
        ({"sts": ALL["quora"]}, "the sts set of triplets is pairs with a score"),
        ({"sst": TextData([TextExample(str(i), str(i), None, 0) for i in range(9)], "label", ("0", "1"))}, "too few"),
        ({"sst": ALL["sst"], "quora": quora().take([])}, "there are no examples to make triplets of"),
        ({"sst": ALL["sst"], "quora": quora().take([0])}, "only 2 texts is too small for triplets"),
    ],
)  # fmt: skip
def test_a_set_that_cannot_be_mined_is_one_sentence(sets: dict[Any, TextData], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        mine_triplets(sets, seed=0)


# ---- the losses, whose formulas are in test_losses.py


def test_metrics_by_hand() -> None:
    found = TripletTask().score(np.array([[1.0, 2.0, 4.0], [3.0, 2.0, 6.0]]))
    softmin = [-math.log(math.exp(-2) + math.exp(-4)), -math.log(math.exp(-2) + math.exp(-6))]
    assert found == pytest.approx({
        "positive_distance": 2.0, "negative_distance": 3.5, "violation_rate": 0.5,
        "paper_loss": 0.0, "softmin_loss": (max(0, 1 - softmin[0]) + max(0, 3 - softmin[1])) / 2,
    })  # fmt: skip


# ---- the head

GEOMETRY = Geometry(states=3, hidden=4, outputs=6, unit="window")


def batch_of(states: torch.Tensor) -> StateBatch:
    return bare_batch(states, torch.ones(states.shape[1:3], dtype=torch.bool))


def test_the_head_gives_distances_to_the_anchor(tmp_path: Path) -> None:
    head = parse_head("triplet").build(GEOMETRY, seed=0)
    states = torch.randn(3, 14, 5, 4, generator=torch.Generator().manual_seed(0))
    found = head(batch_of(states))
    expected = [
        [math.dist(states[-1, 7 * e, 0].tolist(), states[-1, 7 * e + k, 0].tolist()) for k in range(1, 7)]
        for e in range(2)
    ]
    torch.testing.assert_close(found, torch.tensor(expected))
    assert (head.windows, head.cls_only, head.last_only) == (7, True, True)
    assert (head.num_parameters, cost(head, GEOMETRY).parameters) == (0, 0)
    half = head(batch_of(states.bfloat16()))
    assert half.dtype == torch.float32
    save_head(head, tmp_path, about={})
    assert load_head(tmp_path)[0].windows == 7
    assert parse_head("triplet:negatives=3").build(GEOMETRY, seed=0)(batch_of(states[:, :10])).shape == (2, 4)
    with pytest.raises(ConfigError, match="negatives of triplet must lie between 1"):
        parse_head("triplet:negatives=0")


def test_equal_texts_have_a_distance_of_zero_and_no_wild_gradient() -> None:
    head = parse_head("triplet").build(GEOMETRY, seed=0)
    states = torch.ones(1, 7, 2, 4, requires_grad=True)
    distances = head(batch_of(states))
    assert distances.tolist() == [[0.0] * 6]
    far = torch.tensor([[3e4, 1e4, 2e4]], requires_grad=True)
    for form in ("paper", "softmin"):
        loss = triplet_loss(distances, form=form).sum() + triplet_loss(far, form=form).sum()
        gradients = torch.autograd.grad(loss, (states, far), retain_graph=True)
        assert all(one.isfinite().all() for one in (loss, *gradients))


# ---- windows, and an encoder that learns


def test_windows_stand_in_the_order_of_the_rows_and_long_texts_have_one(
    mined: TripletData, tiny_bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    part = mined.take([0, len(mined) - 1, 0])
    windows = triplet_windows(part, tokenizer, WindowConfig(max_seq_length=32, doc_stride=8))
    assert len(windows) == 21
    assert windows.labels.tolist() == [[0]] * 21
    assert windows.example.tolist() == [0] * 7 + [1] * 7 + [2] * 7
    for w, text in enumerate(part.texts[i] for row in part.groups.tolist() for i in row):
        begin, end = windows.offsets[w : w + 2]
        assert windows.ids[begin:end].tolist() == tokenizer(text)["input_ids"]
    texts = ["a b c d e f g h i j k l m n o p q r s t", *(f"n {i}" for i in range(6))]
    data = TripletData(texts, np.arange(7)[None], np.zeros(1, np.int64), ("sst",))
    windows = triplet_windows(data, tokenizer, WindowConfig(max_seq_length=12, doc_stride=4))
    assert (len(windows), windows.lengths[0]) == (7, 12)
    assert "1 of 7 texts of the triplets are longer than 12 tokens" in caplog.text


def test_the_real_sets(shared_data: Path) -> None:
    files: dict[TripletSet, str] = {
        "sst": "ids-sst-train.csv", "sts": "sts-train.csv", "quora": "quora-train-small.csv",
    }  # fmt: skip
    sets: dict[TripletSet, Any] = {
        name: load_data(f"cs224n:{name}:{shared_data / 'cs224n' / file}") for name, file in files.items()
    }
    found = mine_triplets(sets, seed=0)
    duplicates = sum(e.label == 1 and e.first != e.second for e in sets["quora"].examples)
    scored = [(text, e.label) for e in sets["sts"].examples for text in (e.first, e.second)]
    low, high = {text for text, score in scored if score <= 2}, {text for text, score in scored if score >= 3}
    sentences = {e.first for e in sets["sst"].examples}
    assert np.bincount(found.origin).tolist() == [len(sentences), len(low ^ high), duplicates]
    assert len(low ^ high) > 9_400, "of 12,080"
    assert all(len(set(row)) == 7 for row in found.groups.tolist())
