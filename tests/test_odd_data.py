"""Data that is right but odd goes through the whole run: markup, other alphabets, one kind of question only."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import TINY, bertvision


def squad(context: str, *questions: tuple[str, str]) -> dict[str, Any]:
    qas = [
        {
            "id": f"q<{i}>é",
            "question": question,
            "answers": [{"text": answer, "answer_start": context.index(answer)}] if answer else [],
            "is_impossible": not answer,
        }
        for i, (question, answer) in enumerate(questions)
    ]
    return {"version": "v2.0", "data": [{"title": "", "paragraphs": [{"context": context, "qas": qas}]}]}


PLAIN = "Ada Holt built the mill in Arden in 1871."
WORLD = "Zoë 😀 traf Łukasz 👩‍👩‍👧 in München; 東京で会った. e\u0301tude\u00a0final\u2028fin"
HTML = "<p>Ada Holt built <b>the mill</b> & <script>alert(1)</script> in {{ Arden }}.</p>"
ODD = {
    "one question": squad(PLAIN, ("Who built the mill?", "Ada Holt")),
    "all unanswerable": squad(PLAIN, ("Who sold it?", ""), ("Who burnt it?", "")),
    "none unanswerable": squad(PLAIN, ("Who built it?", "Ada Holt"), ("Where?", "Arden")),
    "other alphabets": squad(
        WORLD, ("Wer traf Łukasz?", "Zoë 😀"), ("どこ?", "東京"), ("😀?", "👩‍👩‍👧"), ("¿?", "")
    ),
    "markup": squad(HTML, ("Who built <i>it</i>?", "Ada Holt"), ("</script><script>alert(2)</script>?", "")),
    "a long paragraph": squad(
        "The road was long. " * 400 + PLAIN, ("Who built it?", "Ada Holt"), ("Who?", "")
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_data_runs_to_the_report(kind: str, tiny_bert: Path, tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    # As an editor on Windows leaves it.
    text = json.dumps(ODD[kind], indent=1, ensure_ascii=False).replace("\n", "\r\n")
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    out = tmp_path / "run"
    outcome = bertvision(
        "run", "--encoder", tiny_bert, "--train", file, "--dev", file, "--test", file, "--out", out, *TINY
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    paragraph = ODD[kind]["data"][0]["paragraphs"][0]
    answers = json.loads(bertvision("predict", out, "--data", file, "--threshold", "1e9", "--json").out)
    assert [answer["id"] for answer in answers] == [qa["id"] for qa in paragraph["qas"]]
    for answer in answers:
        assert answer["text"]
        assert answer["text"] == paragraph["context"][answer["start"] : answer["end"]]
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in report
    for table in ("nan", "None", "undefined"):
        assert f">{table}<" not in report
