"""What `predict` gives: candidates whose probabilities add up, and an answer for each line of a stream, in order."""

import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runner import bertvision
from serve_cases import ALIKE, MOOD, SAME, save_span, save_system

import bertvision as bv
from bertvision.artifacts import write_json
from bertvision.data.spans import SpanBuilder
from bertvision.encoder.encoder import Encoder
from bertvision.errors import DataError
from bertvision.model import stream
from bertvision.model.model import Model
from bertvision.model.stream import answer_stream
from bertvision.tasks.base import to_json
from bertvision.tasks.metrics import NoAnswer

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
        for name, one in bundle.predict(*texts, n_best=2).items():
            expected = to_json(one)
            for key, value in row["tasks"].pop(name).items():
                if isinstance(value, float | dict):
                    assert value == pytest.approx(expected[key], rel=1e-3)
                elif key != "nbest":
                    assert value == expected[key]
        assert not row["tasks"], "no task more"


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
        (
            b'{"question": "Who?"}',
            "a line gives question and context, or text, for pairs with pair, but not 'question'",
        ),
        (b'{"question": "Who?", "context": "x", "text": "y"}', "but not 'context, question, text'"),
        (b'{"text": "x", "txet": "y"}', "but not 'text, txet'"),
        (b'{"text": "x", "pair": ""}', "the second text is empty"),
        (b"[" * 100_000, "the line is not JSON"),
        (b'{"text": "x", "id": ' + b"7" * 5000 + b"}", "the line is not JSON"),
        (b'{"text": "x", "id": "\\ud83d"}', "surrogates not allowed"),
        (b'{"text": "x", "id": NaN}', "NaN is no number there"),
        (b'{"text": "x", "id": [-1e999]}', "not JSON compliant"),
        (b'{"text": "x", "' + b"y" * 5000 + b'": 1}', "but not 'text, yyy"),
        (b'{"text": "also fine"}', ""),
    ]
    with pytest.raises(DataError, match="16 of 18 lines of the stream could not be answered"):
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
        (("--data", "-", "--max-examples", "3"), "--max-examples is for a file"),
        (("--text", MILL, "--n-best", "-1"), "--n-best must not be negative"),
        (("--text", MILL, "--tasks", "mood", "--n-best", "3"), "--n-best is for spans"),
        (("--text", MILL, "--backend", "onnx"), "holds no ONNX graph: make a package of it"),
        (("--question", "", "--context", MILL), "--question is empty: write it"),
        (("--question", QUESTION, "--context", " "), "--context is empty: write it"),
        (("--text", ""), "--text is empty: write it"),
        (("--text", "a", "--pair", "\t"), "--pair is empty: write it"),
        ((*asked, "--threshold", "nan"), "--threshold must be a finite number, not nan"),
    ):
        done = bertvision("predict", folder, *words)
        assert done.code == 2
        assert sentence in done.err
        assert not done.out


def test_n_best_on_the_command_line(lone: Path) -> None:
    words = ("predict", lone, "--question", QUESTION, "--context", MILLS)
    told, plain = bertvision(*words, "--n-best", "3", "--json"), bertvision(*words, "--n-best", "3")
    expected = bv.load(lone).predict(QUESTION, MILLS, n_best=3)
    assert json.loads(told.out) == {"id": "", "question": QUESTION} | json.loads(
        json.dumps(to_json(expected))
    )
    assert len({(one.start, one.end) for one in expected.nbest}) == 3
    for rank, one in enumerate(expected.nbest, start=1):
        assert one.text == MILLS[one.start : one.end]
        assert f"    {rank}. {one.text}  [{one.start}:{one.end}] p={one.probability:.3f}\n" in plain.out
    assert "    1. " not in bertvision(*words).out
    assert "nbest" not in json.loads(bertvision(*words, "--json").out)
