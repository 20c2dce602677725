"""A study that is killed at any moment, or that two processes run at once, ends with the same records bit for bit."""

from pathlib import Path
from typing import Any

import pytest
from killing import finish, start
from study_runs import RECIPE, answers, command, study, titled, write_recipe

SMALL: dict[str, Any] = {
    "tune": [{**part, "inference": False} for part in RECIPE["tune"][:2]],
    "fit": [{**RECIPE["fit"][1], "heads": ["adapter:size=4"], "inference": False}],
    "read": [],
    "join": RECIPE["join"],
    "decode": RECIPE["decode"][1:],
}
"""A tuning with two seeds, a head on each, what joins them, another decoding."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return titled(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), **SMALL)


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_bert: Path, data: Path
) -> dict[str, Any]:
    """The records of the small study in one sitting."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        outcome = study(recipe, tiny_bert, data, out)
    assert outcome.code == 0, outcome.err
    return answers(out)


def test_killed_again_and_again_it_ends_with_the_same_records(
    tmp_path: Path, recipe: Path, tiny_bert: Path, data: Path, whole: dict[str, Any]
) -> None:
    """At file operations spread over all of it; each goes on where the one before was killed."""
    words = command(recipe, tiny_bert, data, tmp_path / "out", "--seeds", "0")
    killed = 0
    for operation in (100, 60, 40):
        killed += finish(words, tmp_path / "log", die_at=operation) == -9
    done = {path.parent.name for path in (tmp_path / "out").glob("records/*/about.json")}
    assert killed == 3
    assert 0 < len(done) < 5  # in the middle of it
    assert finish(words, tmp_path / "log") == 0, (tmp_path / "log").read_text()
    found = answers(tmp_path / "out")
    assert found == {
        name: value for name, value in whole.items() if ".seed0/" in name and "all_seeds" not in name
    }
    assert (tmp_path / "out" / "report.html").exists()


def test_two_processes_share_a_folder(
    tmp_path: Path, recipe: Path, tiny_bert: Path, data: Path, whole: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    running = [
        start(command(recipe, tiny_bert, data, out, "--seeds", seed), tmp_path / f"log{seed}")
        for seed in "01"
    ]
    for process in running:
        process.join(120)
    assert [process.exitcode for process in running] == [0, 0]
    assert study(recipe, tiny_bert, data, out).code == 0  # joins what waited for the other seed
    assert answers(out) == whole
    lines = (out / "units.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 8
