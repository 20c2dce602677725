"""`predict` and `explain`: shares that add up, a line for each line of a stream, the heads' own logits in one pass."""

import dataclasses
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import bertvision
from serve_cases import (
    ALIKE,
    ANSWERABLE,
    COLOUR,
    MOOD,
    SAME,
    WINDOWS,
    assert_same,
    plain,
    save_span,
    save_system,
)

import bertvision as bv
from bertvision.artifacts import write_json
from bertvision.data.examples import SpanBuilder
from bertvision.encoder.encoder import Encoder
from bertvision.errors import DataError
from bertvision.model import stream
from bertvision.model.model import Model
from bertvision.model.stream import answer_stream
from bertvision.model.trained import Trained, read_trained
from bertvision.states.base import StateBatch
from bertvision.states.config import EVERYTHING, Selection
from bertvision.tasks.base import Task, to_json
from bertvision.tasks.metrics import NoAnswer
from bertvision.tasks.span import SPAN

QUESTION, MILL = "Who built the mill?", "The mill in Arden was built by Ada Holt in 1871."
MILLS = " ".join([f"{MILL[:-1]} and it is old."] * 4)


@pytest.fixture(scope="module")
def folder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks of single texts, of pairs and of questions."""
    home = tmp_path_factory.mktemp("stream")
    save_span(home / "span", encoder, "learned_pooling")
    save_system(home / "mood", encoder, "tenney_small", MOOD)
    save_system(home / "same", encoder, "cls_linear", SAME)
    save_system(home / "alike", encoder, "mean_pooler", ALIKE)
    return home


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Model:
    return bv.load(folder)


def streamed(
    bundle: Model, capsys: pytest.CaptureFixture[str], lines: bytes, **options: Any
) -> list[dict[str, Any]]:
    answer_stream(bundle, source=io.BytesIO(lines), **options)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_line_gets_what_it_would_get_alone(bundle: Model, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"question": "Who built the mill?", "context": MILL, "id": "q-1"},
        {"text": MILL},
        {"text": "One", "pair": MILL, "id": 7},
        *({"text": "word " * n} for n in range(1, 150)),
    ]
    told = streamed(bundle, capsys, "\n".join(map(json.dumps, lines)).encode(), n_best=2)
    assert [row["line"] for row in told] == list(range(1, len(lines) + 1))
    assert [row.get("id") for row in told[:4]] == ["q-1", None, 7, None]
    for line, row in zip(lines[:40], told[:40], strict=True):
        texts = [str(value) for key, value in line.items() if key != "id"]
        assert len(row["tasks"].get("span", {"nbest": (1, 2)})["nbest"]) == 2
        assert_same(row["tasks"], plain(bundle.predict(*texts, n_best=2)), rel=1e-3)


def test_broken_lines_are_told_and_the_others_answered(
    bundle: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        (b'{"text": "fine"}', ""),
        (b"{", "the line is not JSON"),
        (b"[1]", "the line is no JSON object"),
        (b'{"text": "\xff"}', "the line is not JSON in UTF-8"),
        (b'{"text": 5}', "text must be a string"),
        (b'{"text": " "}', "the text is empty"),
        (b'{"text": "\\ud83d"}', "half a character"),
        (b'{"question": "Who?"}', "but not 'question'"),
        (b'{"question": "Who?", "context": "x", "text": "y"}', "but not 'context, question, text'"),
        (b'{"text": "x", "pair": ""}', "the second text is empty"),
        (b"[" * 100_000, "the line is not JSON"),
        (b'{"text": "x", "id": ' + b"7" * 5000 + b"}", "the line is not JSON"),
        (b'{"text": "x", "id": "\\ud83d"}', "surrogates not allowed"),
        (b'{"text": "x", "id": [-1e999]}', "not JSON compliant"),
        (b'{"text": "x", "' + b"y" * 5000 + b'": 1}', "but not 'text, yyy"),
        (b'{"text": "also fine"}', ""),
    ]
    with pytest.raises(DataError, match="14 of 16 lines of the stream could not be answered"):
        answer_stream(bundle, source=io.BytesIO(b"\n\n".join(line for line, _ in cases)))
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(len(row.get("error", "")) < 200 for row in told)
    assert [row["line"] for row in told] == [1 + 2 * i for i in range(len(cases))]
    for row, (_, words) in zip(told, cases, strict=True):
        assert ("tasks" in row) == (words == "")
        assert words in row.get("error", "")


def test_a_line_that_no_task_reads_is_told(bundle: Model, capsys: pytest.CaptureFixture[str]) -> None:
    lines = b'{"text":"a","pair":"b"}\n{"text":"a"}'
    with pytest.raises(DataError, match="1 of 2 lines"):
        answer_stream(bundle, tasks=("mood",), source=io.BytesIO(lines))
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert "mood reads one text, and two are given" in first["error"]
    assert list(second["tasks"]) == ["mood"]
    assert streamed(bundle, capsys, b"") == streamed(bundle, capsys, b"\n  \n") == []


def test_lines_that_wait_share_a_call(
    bundle: Model, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that came in one piece, however the pieces cut them."""
    monkeypatch.setattr(stream, "_AT_ONCE", 100)
    sizes: list[int] = []
    predict = Model.__call__

    def counted(self: Model, first: Any, *args: Any, **options: Any) -> Any:
        sizes.append(len(first))
        return predict(self, first, *args, **options)

    monkeypatch.setattr(Model, "__call__", counted)
    found = streamed(bundle, capsys, b'{"text": "a word"}\n' * 100, tasks=("mood",))
    assert [row["line"] for row in found] == list(range(1, 101))
    assert sum(sizes) == 100
    assert set(sizes) == {5, 6}, "pieces of 100 bytes end or complete so many lines of 19"


def test_answers_come_before_the_stream_ends(folder: Path) -> None:
    """A real process: the next line is written only after the answer to the last was read."""
    command = [sys.executable, "-m", "bertvision", "predict", str(folder), "--data", "-", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        assert process.stdin and process.stdout and process.stderr  # noqa: PT018
        for number, line in enumerate(('{"text": "one"}', "nonsense", '{"text": "three"}'), 1):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            told = json.loads(process.stdout.readline())
            assert told["line"] == number
            assert ("error" in told) == (number == 2)
        process.stdin.close()
        assert process.wait(60) == 2
        assert "1 of 3 lines of the stream could not be answered" in process.stderr.read()


# ---- candidates


@pytest.fixture(scope="module")
def lone(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head whose decoding lists a span once for each window that proposes it."""
    made = save_span(tmp_path_factory.mktemp("nbest") / "qa", encoder)
    write_json(made / "metrics.json", {"tuning": {"decode": {"decoding": "nbest"}}})
    return made


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_span_of_two_windows_has_the_shares_of_both(lone: Path, *, calibrated: bool) -> None:
    model = bv.load(lone)
    if calibrated:
        (system,) = model.systems.values()
        tuning = dataclasses.replace(system.tuning, no_answer=NoAnswer(shift=0.5, temperature=2.0))
        model.systems[system.name] = dataclasses.replace(system, tuning=tuning)
    found = model.predict(QUESTION, MILLS, n_best=20)
    builder = SpanBuilder("one")
    builder.add("0", QUESTION, MILLS)
    (answers,) = model.answer(builder.build()).values()
    listed = [tuple(span) for span in answers.nbest_span[0].tolist()]
    shares: dict[tuple[int, ...], float] = {}
    for span, share in zip(listed, answers.probabilities[0].tolist(), strict=False):
        shares[span] = shares.get(span, 0.0) + share
    assert len(shares) < len(listed), "some span comes from two windows"
    left = (1 - found.no_answer_probability) / sum(shares.values())
    assert [(one.start, one.end) for one in found.nbest] == list(shares)
    assert [one.probability for one in found.nbest] == pytest.approx(
        [left * share for share in shares.values()]
    )
    assert sum(one.probability for one in found.nbest) + found.no_answer_probability == pytest.approx(1)
    assert found.probability == found.nbest[0].probability


# ---- the flags


def test_flags_that_do_not_go_together(folder: Path) -> None:
    asked = ("--question", QUESTION, "--context", MILL)
    for words, sentence in (
        (("--data", "-", "--out", "x"), "--out is for a file: --data - writes its answers as they come"),
        (("--text", MILL, "--n-best", "-1"), "--n-best must not be negative"),
        (("--text", MILL, "--tasks", "mood", "--n-best", "3"), "--n-best is for spans"),
        (("--text", MILL, "--backend", "onnx"), "holds no ONNX graph: make a package of it"),
        (("--question", "", "--context", MILL), "--question is empty: write it"),
        (("--text", "a", "--pair", "\t"), "--pair is empty: write it"),
        ((*asked, "--threshold", "nan"), "--threshold must be a finite number, not nan"),
    ):
        done = bertvision("predict", folder, *words)
        assert done.code == 2
        assert sentence in done.err
        assert not done.out


def test_n_best_on_the_command_line(lone: Path) -> None:
    words = ("predict", lone, "--question", QUESTION, "--context", MILLS)
    told = bertvision(*words, "--n-best", "3", "--json")
    expected = bv.load(lone).predict(QUESTION, MILLS, n_best=3)
    assert json.loads(told.out) == {"id": "", "question": QUESTION} | json.loads(
        json.dumps(to_json(expected))
    )
    assert len({(one.start, one.end) for one in expected.nbest}) == 3
    assert "nbest" not in json.loads(bertvision(*words, "--json").out)


# ---- explain: one pass, true to predict and to the heads' own logits

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
