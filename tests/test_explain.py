"""`Model.explain`: one pass, true to `predict`, and to the heads' own logits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serve_cases import ALIKE, ANSWERABLE, COLOUR, MOOD, WINDOWS, save_span, save_system

from bertvision.encoder.encoder import Encoder
from bertvision.model.model import Model
from bertvision.model.trained import Trained, read_trained
from bertvision.states.base import StateBatch
from bertvision.states.config import EVERYTHING, Selection
from bertvision.tasks.base import Task, to_json
from bertvision.tasks.span import SPAN

MILL = "The mill in Arden was built by Ada Holt in 1871."
QUESTION = "Who built the mill?"
LONG = " ".join(f"Part {i} of the text." for i in range(9)) + " " + MILL


def span(folder: Path, encoder: Encoder, head: str = "last_state", **options: Any) -> Trained:
    return read_trained(save_span(folder, encoder, head, **options))


def own_probabilities(encoder: Encoder, system: Trained, question: str, context: str) -> np.ndarray:
    """(t, 2) of the context's tokens, from the tokenizer and the model themselves; a context of one window."""
    made = encoder.tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    inside = [i for i, part in enumerate(made.sequence_ids(0)) if part == 1]
    del made["offset_mapping"]
    with torch.no_grad():
        states = torch.stack(encoder.model(**made, output_hidden_states=True).hidden_states)
        mask = made["attention_mask"].bool()
        none = torch.zeros(1, 2, dtype=torch.long)
        logits = system.heads[0](StateBatch(states, mask, none, np.zeros(1, np.int64), none))[0]
    return logits.softmax(0)[inside].numpy()


# ---- spans


def test_heat_is_the_heads_own_probability(encoder: Encoder, tmp_path: Path) -> None:
    system = span(tmp_path / "span", encoder)
    told = Model({"qa": system}, encoder).explain(QUESTION, MILL)
    expected = own_probabilities(encoder, system, QUESTION, MILL)
    one = told["tasks"]["qa"]
    assert one["start"] == pytest.approx(expected[:, 0].tolist(), abs=1e-6)
    assert one["end"] == pytest.approx(expected[:, 1].tolist(), abs=1e-6)
    assert told["text"] == MILL
    words = [MILL[token["start"] : token["end"]] for token in told["tokens"]]
    assert "".join(words) == MILL.replace(" ", "")
    assert len(told["tokens"]) == len(one["start"]) == len(one["end"])
    assert json.loads(json.dumps(told)) == told
    for context in ("a", "\u200b", "🚄 東京 — naïve\tcafé.", "x " * 200):
        told = Model({"qa": system}, encoder).explain("Who?", context)
        assert len(told["tokens"]) == len(told["tasks"]["qa"]["start"])
        json.dumps(told, allow_nan=False)


def test_explain_says_what_predict_says(encoder: Encoder, tmp_path: Path, calls: list[int]) -> None:
    """Also over several windows, for spans side by side and for a label of the same question."""
    systems = {
        "span": span(tmp_path / "span", encoder),
        "pairs": span(tmp_path / "pairs", encoder, "biaffine"),
        "sure": read_trained(save_system(tmp_path / "sure", encoder, "tenney_small", ANSWERABLE)),
    }
    bundle = Model(systems, encoder)
    alone = Model({"span": systems["span"]}, encoder)
    for _ in range(2):  # the first time an encoder may be tried out
        calls.clear()
        alone(QUESTION, LONG)
    windows = sum(calls)
    found = bundle(QUESTION, LONG, n_best=5)
    calls.clear()
    told = bundle.explain(QUESTION, LONG)
    assert sum(calls) == windows > 1, "every window is read once, whoever asks"
    for name in ("span", "pairs"):
        one, expected = told["tasks"][name], found[name]
        assert one["prediction"]["text"] == expected.text
        assert one["prediction"]["probability"] == expected.probability
        assert [c["start"] for c in one["nbest"]] == [c.start for c in expected.nbest]
        assert (one["score_diff"] > one["threshold"]) == (one["prediction"]["text"] == "")
        assert 0 < sum(one["start"]) <= 1 + 1e-9
        assert one["shift"] is one["temperature"] is None
    best = told["tasks"]["span"]["nbest"][0]
    assert told["tokens"][0]["start"] <= best["start"] < best["end"] <= told["tokens"][-1]["end"]
    assert told["tasks"]["sure"]["probabilities"] == found["sure"].probabilities


def test_systems_that_cut_otherwise_share_the_shown_tokens(encoder: Encoder, tmp_path: Path) -> None:
    """A head of wider windows is shown on the tokens of the first one's: its own probability of each."""
    narrow, wide = span(tmp_path / "narrow", encoder), span(tmp_path / "wide", encoder, "learned_pooling")
    wide = replace(wide, windows=replace(WINDOWS, max_seq_length=96))
    told = Model({"narrow": narrow, "wide": wide}, encoder).explain(QUESTION, LONG[84:])
    alone = Model({"wide": wide}, encoder).explain(QUESTION, LONG[84:])
    places = dict(zip(map(str, alone["tokens"]), alone["tasks"]["wide"]["start"], strict=True))
    shown = [str(token) for token in told["tokens"]]
    assert len(shown) < len(places)
    assert told["tasks"]["wide"]["start"] == pytest.approx([places[place] for place in shown], abs=1e-6)


# ---- layers


def readers(tmp_path: Path, encoder: Encoder, task: Task, name: str) -> list[Trained]:
    return [
        read_trained(save_system(tmp_path / name / str(k), encoder, f"layer_reader:layer={k}", task, seed=k))
        for k in range(encoder.num_states)
    ]


def test_every_layer_is_read_in_the_same_call(encoder: Encoder, tmp_path: Path, calls: list[int]) -> None:
    qa = span(tmp_path / "qa", encoder)
    own = readers(tmp_path, encoder, SPAN, "of-qa")
    bundle = Model({"qa": replace(qa, layers=own)}, encoder)
    bundle(QUESTION, MILL)  # the first time an encoder may be tried out
    calls.clear()
    told = bundle.explain(QUESTION, MILL)
    assert calls == [1]
    rows = told["layers"]["qa"]
    assert [row["layer"] for row in rows] == list(range(encoder.num_states))
    for row, reader in zip(rows, own, strict=True):
        expected = own_probabilities(encoder, reader, QUESTION, MILL)
        assert row["start"] == pytest.approx(expected[:, 0].tolist(), abs=1e-6)
        answer = row["answer"]
        assert answer["text"] == MILL[answer["start"] : answer["end"]] != ""
        alone = Model({"one": reader}, encoder).explain(QUESTION, MILL)["tasks"]["one"]
        assert answer["start"] == alone["nbest"][0]["start"]
        assert (row["probability"], row["no_answer"]) == pytest.approx(
            (alone["prediction"]["probability"], alone["no_answer"]), rel=1e-4
        )
    assert bundle(QUESTION, MILL)["qa"].text == told["tasks"]["qa"]["prediction"]["text"]


def test_layers_of_labels_and_scores(encoder: Encoder, tmp_path: Path) -> None:
    colour = read_trained(save_system(tmp_path / "colour", encoder, "tenney_small", COLOUR))
    few = Selection((0, 2))
    alike = read_trained(save_system(tmp_path / "alike", encoder, "mean_pooler", ALIKE, selection=few))
    systems = {
        "colour": replace(colour, layers=readers(tmp_path, encoder, COLOUR, "a")),
        "alike": replace(alike, layers=readers(tmp_path, encoder, ALIKE, "b")),
    }
    model = Model(systems, encoder)
    told, found = model.explain(MILL), model(MILL)
    assert (told["tokens"], told["text"]) == ([], MILL)
    assert told["tasks"]["colour"]["label"] == found["colour"].label
    assert told["tasks"]["alike"]["score"] == found["alike"].score
    for name, system in systems.items():
        for k, (row, reader) in enumerate(zip(told["layers"][name], system.layers, strict=True)):
            alone = to_json(Model({"one": reader}, encoder)(MILL)["one"])
            key = "score" if name == "alike" else "probabilities"
            assert row["layer"] == k
            assert row[key] == pytest.approx(alone[key], rel=1e-5, abs=1e-6)


def test_layer_weights_stand_at_their_states(encoder: Encoder, tmp_path: Path) -> None:
    """The pooled vector's share stands apart; states that are not read count nothing."""
    systems = {
        name: read_trained(save_system(tmp_path / name, encoder, head, MOOD, selection=selection))
        for name, head, selection in (
            ("first", "tenney_small", EVERYTHING),
            ("few", "mean_pooler", Selection((0, 2))),
            ("plain", "cls_linear", EVERYTHING),
        )
    }
    tasks = Model(systems, encoder).explain(MILL)["tasks"]
    weights = {name: (one["layer_weights"], one["pooled_weight"]) for name, one in tasks.items()}
    shares = {name: system.heads[0].layer_weights() for name, system in systems.items()}
    assert [weights["first"][1], *weights["first"][0]] == pytest.approx(shares["first"])
    assert shares["few"] is not None
    assert weights["few"][0] == pytest.approx([shares["few"][0], 0.0, shares["few"][1]])
    assert weights["plain"] == (None, None)
