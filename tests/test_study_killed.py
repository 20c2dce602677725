"""A study that is killed at any moment, that two processes run at once, or whose records alone were carried to another
machine, ends with the same records bit for bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from killing import finish, start
from study_runs import RECIPE, answers, command, one_sitting, study, titled, write_recipe

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
def folder(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_bert: Path, data: Path) -> Path:
    """The small study in one sitting: a folder to read, not to change."""
    return one_sitting(tmp_path_factory, recipe, tiny_bert, data)


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Any]:
    """Its records."""
    return answers(folder)


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


# ---- records without what they were made from


def carried(folder: Path, out: Path, *without: str) -> Path:
    """The records of a study alone, but for some."""
    shutil.copytree(folder / "records", out / "records")
    for name in without:
        shutil.rmtree(out / "records" / name)
    return out


def made(out: Path) -> set[str]:
    """What was trained."""
    return {f"{path.parent.name}/{path.name}" for kind in ("tune", "fit") for path in (out / kind).glob("*")}


def test_records_that_are_all_there_are_left_alone(
    tmp_path: Path, recipe: Path, tiny_bert: Path, data: Path, folder: Path, whole: dict[str, Any]
) -> None:
    out = carried(folder, tmp_path / "out")
    outcome = study(recipe, tiny_bert, data, out)
    assert outcome.code == 0, outcome.err
    assert "waits" not in outcome.err
    assert not made(out)
    assert answers(out) == whole


def test_a_missing_head_is_fitted_on_a_tuning_done_anew(
    tmp_path: Path, recipe: Path, tiny_bert: Path, data: Path, folder: Path, whole: dict[str, Any]
) -> None:
    """The joins of its seed come after it; the other seed stays as it is."""
    out = carried(folder, tmp_path / "out", "constant@1--adapter-4.seed0", "join--pair.seed0")
    outcome = study(recipe, tiny_bert, data, out)
    assert outcome.code == 0, outcome.err
    assert "waits" not in outcome.err
    assert made(out) == {"tune/curve.seed0", "fit/late.seed0"}
    assert answers(out) == whole


def test_what_cannot_be_joined_waits_and_the_rest_goes_on(
    tmp_path: Path, recipe: Path, tiny_bert: Path, data: Path, folder: Path, whole: dict[str, Any]
) -> None:
    lost = "constant@1--adapter-4..bertvision.seed0"
    out = carried(folder, tmp_path / "out", "join--pair.seed0", lost, "constant@1--adapter-4.seed1")
    outcome = study(recipe, tiny_bert, data, out)
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("pair of seed 0 waits for constant@1: its logits are not here") == 1
    assert (
        outcome.err.count("published of seed 0 waits for constant@1/adapter-4: its logits are not here") == 1
    )
    assert made(out) == {"tune/constant.seed1", "fit/late.seed1"}
    kept = {name: value for name, value in whole.items() if not name.startswith(("join--pair.seed0", lost))}
    assert answers(out) == kept


def test_logits_are_had_again_from_what_was_trained(
    tmp_path: Path, recipe: Path, tiny_bert: Path, data: Path, folder: Path, whole: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    shutil.rmtree(out / "logits")
    shutil.rmtree(out / "records" / "join--pair.seed0")
    trained = {path: path.stat().st_mtime_ns for path in out.glob("[tf]*/*/*/**/*.safetensors")}
    assert trained
    outcome = study(recipe, tiny_bert, data, out)
    assert outcome.code == 0, outcome.err
    assert "waits" not in outcome.err
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert answers(out) == whole


def test_no_record_stands_beside_heads_of_another_snapshot(
    tmp_path: Path, tiny_bert: Path, data: Path, folder: Path, whole: dict[str, Any]
) -> None:
    """Records of a tuning that ended with other weights: one more head asks for it anew, and all is read anew."""
    out = carried(folder, tmp_path / "out")
    shutil.copytree(folder / "fit", out / "fit")  # of the old weights, as a fit's mark says
    for path in out.glob("records/constant*.seed0/about.json"):
        about = json.loads(path.read_text())
        about["made"] = about["made"].partition(".")[0] + "." + 16 * "0"
        path.write_text(json.dumps(about))
    mark = out / "fit" / "late.seed0" / "stage.json"
    stage = json.loads(mark.read_text())
    mark.write_text(json.dumps(stage | {"key": stage["key"] | {"encoder": "other"}}))
    shutil.rmtree(out / "records" / "join--pair.seed0")
    more = {**SMALL["fit"][0], "name": "more", "heads": ["learned_pooling"], "seeds": [0]}
    changed = write_recipe(tmp_path, **(SMALL | {"fit": [*SMALL["fit"], more]}))
    outcome = study(changed, tiny_bert, data, out)
    assert outcome.code == 0, outcome.err
    found = answers(out)
    assert found.pop("constant@1--learned-pooling.seed0/about.json")["made"].count(".") == 1
    assert {name: value for name, value in found.items() if "learned-pooling" not in name} == whole


def test_records_of_earlier_versions_count(
    tmp_path: Path, recipe: Path, tiny_bert: Path, data: Path, folder: Path
) -> None:
    """Their `made` is a digest that cannot be checked without what they were made from."""
    out = carried(folder, tmp_path / "out", *(p.name for p in folder.glob("records/join*")))
    for path in out.glob("records/*/about.json"):
        about = json.loads(path.read_text())
        path.write_text(json.dumps(about | {"made": "0123456789abcdef"}))
    before = answers(out)
    assert study(recipe, tiny_bert, data, out).code == 0
    assert not made(out)
    assert answers(out) == before
