"""What `predict` tells of spans: candidates whose probabilities add up, and what the command line says of them."""

import dataclasses
from pathlib import Path

import pytest
from cli_runner import bertvision
from serve_cases import save_span

import bertvision as bv
from bertvision.artifacts import write_json
from bertvision.data.building import SpanBuilder
from bertvision.encoder.encoder import Encoder
from bertvision.tasks.calibrate import NoAnswer

QUESTION = "Who built the mill?"
MILL = " ".join(["The mill in Arden was built by Ada Holt in 1871 and it is old."] * 4)


@pytest.fixture(scope="module")
def folder(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head whose decoding lists a span once for each window that proposes it."""
    made = save_span(tmp_path_factory.mktemp("hf") / "qa", Encoder.load(str(tiny_bert)))
    write_json(made / "metrics.json", {"tuning": {"decode": {"decoding": "nbest"}}})
    return made


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_span_of_two_windows_has_the_shares_of_both(folder: Path, *, calibrated: bool) -> None:
    model = bv.load(folder)
    if calibrated:
        (system,) = model.systems.values()
        tuning = dataclasses.replace(system.tuning, no_answer=NoAnswer(shift=0.5, temperature=2.0))
        model.systems[system.name] = dataclasses.replace(system, tuning=tuning)
    found = model.predict(QUESTION, MILL, n_best=20)
    builder = SpanBuilder("one")
    builder.add("0", QUESTION, builder.shared(MILL), ())
    (answers,) = model.answer(builder.build()).values()
    listed = [tuple(span) for span in answers.nbest_span[0].tolist()]
    shares: dict[tuple[int, ...], float] = {}
    for span, share in zip(listed, answers.candidate_probabilities[0].tolist(), strict=True):
        shares[span] = shares.get(span, 0.0) + share
    assert len(shares) < len(listed), "some span comes from two windows"
    left = (1 - found.no_answer_probability) / sum(shares.values())
    assert [(one.start, one.end) for one in found.nbest] == list(shares)
    assert [one.probability for one in found.nbest] == pytest.approx(
        [left * share for share in shares.values()]
    )
    assert sum(one.probability for one in found.nbest) + found.no_answer_probability == pytest.approx(1)
    assert found.probability == found.nbest[0].probability


def test_candidates_are_printed_as_text(folder: Path) -> None:
    words = ("predict", folder, "--question", QUESTION, "--context", MILL)
    told = bertvision(*words, "--n-best", "3")
    assert told.code == 0, told.err
    for rank, one in enumerate(bv.load(folder).predict(QUESTION, MILL, n_best=3).nbest, start=1):
        assert f"    {rank}. {one.text}  [{one.start}:{one.end}] p={one.probability:.3f}\n" in told.out
    assert "    1. " not in bertvision(*words).out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--question", "", "--context", MILL), "--question is empty: write it"),
        (("--question", QUESTION, "--context", " "), "--context is empty: write it"),
        (("--text", ""), "--text is empty: write it"),
        (("--text", "a", "--pair", "\t"), "--pair is empty: write it"),
        (
            ("--question", QUESTION, "--context", MILL, "--threshold", "nan"),
            "--threshold must be a finite number, not nan",
        ),
    ],
)
def test_the_flag_that_is_wrong_is_named(folder: Path, words: tuple[str, ...], sentence: str) -> None:
    told = bertvision("predict", folder, *words)
    assert told.code == 2
    assert sentence in told.err
    assert not told.out
