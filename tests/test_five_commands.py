"""The README's five commands from a CSV to a served model, run as they stand there on a small CSV and a toy encoder."""

import csv
import re
import shlex
from pathlib import Path

import pytest
from cli_runner import bertvision
from serving import serving

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    section = README.split("## Ship it: from a CSV to a served model")[1]
    found = re.search(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    return [shlex.split(line) for line in found[1].splitlines()]


def reviews(path: Path, count: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as handle:
        rows = csv.writer(handle)
        rows.writerow(["text", "label"])
        for i in range(count):
            rows.writerow(
                [f"{('red', 'blue')[i % 2]} film number {i}, seen {i % 3} times", ("good", "bad")[i % 2]]
            )


def test_five_commands_lead_from_a_csv_to_a_served_model(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = commands()
    assert [words[1] for words in lines] == ["data", "run", "export", "predict", "serve"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-encoder").symlink_to(tiny_bert)
    reviews(tmp_path / "reviews.csv", 24)
    reviews(tmp_path / "held-out.csv", 12)
    told = ""
    for program, *words in lines[:-1]:
        assert program == "bertvision"
        # The recipe's windows are longer than what the toy encoder reads.
        more = ["--max-seq-length", "64"] if words[0] in ("data", "run") else []
        outcome = bertvision(*words, *more)
        assert outcome.code == 0, outcome.err
        told = outcome.out
    assert "good" in told or "bad" in told
    with serving(tmp_path / lines[-1][2]) as server:
        answer = server.post("/v1/predict", {"text": "A moving film."})
        assert answer.status_code == 200, answer.text
        (prediction,) = answer.json()["predictions"].values()
        assert prediction["label"] in told, "the same as from the command line"
        assert "<title>" in server.get("/").text
