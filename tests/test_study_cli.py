"""`bertvision study` as it is used: a part of a recipe, in sittings, and with mistakes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_runner import bertvision, tree
from study_cases import made_study
from study_runs import RECIPE, answers, one_sitting, study, titled, write_recipe

from bertvision.study.stages import add_unit, forget_unit, read_stages

SMALL: dict[str, Any] = {
    "tune": RECIPE["tune"][:2],
    "fit": [{**RECIPE["fit"][1], "heads": ["adapter:size=4"], "inference": False}],
    "read": [],
    "join": RECIPE["join"],
    "decode": RECIPE["decode"][1:],
}
"""A tuning with two seeds, a head on each, what joins them, another decoding."""
KEPT = {
    "constant@0.5.seed0", "constant@1.seed0", "constant@1--adapter-4.seed0", "join--pair.seed0",
    "constant@1--adapter-4..bertvision.seed0", "constant@0.5.seed1", "constant@1.seed1", "constant@1--adapter-4.seed1",
    "join--pair.seed1", "join--all_seeds.seed0",
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return titled(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), **SMALL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_bert: Path, data: Path) -> Path:
    """The small study in one sitting: a folder to read, not to change."""
    return one_sitting(tmp_path_factory, recipe, tiny_bert, data)


def records(out: Path) -> set[str]:
    return {path.parent.name for path in out.glob("records/*/about.json")}


def units(out: Path) -> list[tuple[str, int]]:
    lines = [json.loads(line) for line in (out / "units.jsonl").read_text().splitlines()]
    return [(line["name"], line["seed"]) for line in lines]


def test_a_whole_study(whole: Path) -> None:
    assert records(whole) == KEPT
    told = json.loads((whole / "study.json").read_text())
    assert told["encoder"]["name"]
    assert told["data"]["holdout"]["examples"] == 6
    results = json.loads((whole / "results.json").read_text())
    assert results["kind"] == "study"
    assert results["command"].startswith("bertvision study --config")
    assert {(s["name"], s["seed"]) for s in results["settings"]["stages"]} == set(units(whole))


# ---- a part of it, or some seeds, or some time


def test_only_brings_what_it_stands_on_and_nothing_else(
    tmp_path: Path, recipe: Path, tiny_bert: Path, data: Path, whole: Path
) -> None:
    out = tmp_path / "out"
    flags = ("--only", "published", "--seeds", "0", "--json")
    outcome = study(recipe, tiny_bert, data, out, *flags)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["report"] == str(out / "report.html")
    assert units(out) == [("curve", 0), ("late", 0), ("published", 0)]
    assert records(out) == {name for name in KEPT if name.endswith(".seed0") and not name.startswith("join")}
    ours, theirs = answers(out), answers(whole)
    assert all(theirs[name] == value for name, value in ours.items())


def test_limit_stops_before_a_unit_and_says_so(
    tmp_path: Path, recipe: Path, tiny_bert: Path, data: Path
) -> None:
    outcome = study(recipe, tiny_bert, data, tmp_path / "out", "--limit", "0")
    assert outcome.code == 0
    assert "time is up before curve of seed 0" in outcome.err
    assert "not all of it is done: the same command goes on" in outcome.out
    assert not records(tmp_path / "out")
    assert not (tmp_path / "out" / "report.html").exists()


def test_list_names_parts_and_what_they_stand_on(
    whole: Path, recipe: Path, tiny_bert: Path, data: Path
) -> None:
    before = tree(whole)
    outcome = study(recipe, tiny_bert, data, whole, "--list", "--json")
    rows = {row["part"]: row for row in json.loads(outcome.out)}
    assert set(rows) == {"curve", "constant", "late", "pair", "all seeds", "published"}
    assert rows["published"]["stands on"] == "curve, constant, late"
    assert rows["curve"]["records"] == 2
    assert rows["all seeds"]["records"] == 1
    assert tree(whole) == before


def test_report_needs_neither_encoder_nor_what_was_trained(
    tmp_path: Path, whole: Path, recipe: Path, data: Path
) -> None:
    out = tmp_path / "moved"
    shutil.copytree(whole / "records", out / "records")
    for name in ("study.json", "units.jsonl"):
        shutil.copy(whole / name, out / name)
    outcome = study(recipe, tmp_path / "nowhere", data, out, "--report")
    assert outcome.code == 0, outcome.err
    ours, theirs = (json.loads((place / "results.json").read_text()) for place in (out, whole))
    assert ours["sections"] == theirs["sections"]
    assert ours["headline"] == theirs["headline"]
    assert ours["headline"] in outcome.out
    nothing = study(recipe, tmp_path / "nowhere", data, tmp_path / "empty", "--report")
    assert nothing.code == 2
    assert nothing.err.count("\n") == 1
    assert not (tmp_path / "empty").exists()


def test_lines_of_units_that_are_cut_off_or_of_another_version_are_skipped(
    tmp_path: Path, whole: Path, recipe: Path, data: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole / "records", out / "records")
    shutil.copy(whole / "study.json", out / "study.json")
    lines = [
        {"name": "curve", "seed": 0, "seconds": 100.0, "alone": True},
        {"name": "curve", "seed": 0, "seconds": 20.5, "alone": True},
        {"name": "late", "seed": 0, "seconds": 7.0, "alone": True},
        {"name": "late", "seed": 0, "seconds": 9.0, "alone": False},
        {"name": "constant", "seed": "1", "seconds": 3.0, "alone": True},
        {"unit": "constant", "seconds": 3.0},
        ["constant", 1, 3.0],
        {"name": "constant", "seed": 1, "seconds": float("nan"), "alone": True},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + '\n\n{"name": "late", "seed": 1, "sec'
    (out / "units.jsonl").write_bytes(text.encode() + b"\xff\n")
    assert study(recipe, tmp_path / "nowhere", data, out, "--report").code == 0
    stages = json.loads((out / "results.json").read_text())["settings"]["stages"]
    assert stages == [{"name": "curve", "seed": 0, "seconds": 120.5, "headline": True}]


def test_seconds_of_work_that_was_redone_are_replaced(tmp_path: Path) -> None:
    """A try that goes on adds to the one before; one from scratch does not."""

    def told() -> list[tuple[str, int, float]]:
        return [(s["name"], s["seed"], s["seconds"]) for s in read_stages(tmp_path, made_study())]

    forget_unit(tmp_path, "late", 0)  # nothing was there
    add_unit(tmp_path, "late", 0, 10.0, alone=False)
    add_unit(tmp_path, "late", 1, 4.0, alone=True)
    assert told() == [("late", 1, 4.0)]
    forget_unit(tmp_path, "late", 0)
    assert told() == [("late", 1, 4.0)]
    add_unit(tmp_path, "late", 0, 6.0, alone=True)
    add_unit(tmp_path, "late", 0, 1.5, alone=True)
    assert sorted(told()) == [("late", 0, 7.5), ("late", 1, 4.0)]


def test_records_that_are_not_whole_are_left_out_with_one_warning(
    tmp_path: Path, whole: Path, recipe: Path, data: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole / "records", out / "records")
    shutil.copy(whole / "study.json", out / "study.json")
    (out / "records" / "constant@0.5.seed0" / "dev.safetensors").unlink()
    (out / "records" / "join--pair.seed1" / "about.json").unlink()
    outcome = study(recipe, tmp_path / "nowhere", data, out, "--report")
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("not whole") == 1
    assert "2 records are not whole and left out (constant@0.5.seed0" in outcome.err


# ---- what stands on what


def test_a_read_waits_for_a_fit_on_a_later_tuning(tmp_path: Path, tiny_bert: Path, data: Path) -> None:
    """Heads of the second tuning, read on a snapshot of the first."""
    tune = {**SMALL["tune"][0]["finetune"], "snapshots": []}
    changes = {
        "tune": [{"name": "first", "finetune": tune}, {"name": "then", "finetune": tune}],
        "fit": [{**SMALL["fit"][0], "snapshot": "then@1", "seeds": [0]}],
        "read": [{"name": "back", "heads_of": "late", "snapshot": "first@1"}],
        "join": [],
        "decode": [],
    }
    out = tmp_path / "out"
    outcome = study(write_recipe(tmp_path, **changes), tiny_bert, data, out)
    assert outcome.code == 0, outcome.err
    assert units(out) == [("first", 0), ("then", 0), ("late", 0), ("back", 0)]
    assert "first@1--adapter-4-from-then@1.seed0" in records(out)


def test_an_ensemble_over_seeds_is_a_member_like_any_other(
    tmp_path: Path, tiny_bert: Path, data: Path
) -> None:
    """Of seeds 1 and 2, and in a recipe that has seed 0 as well."""
    tune = {**SMALL["tune"][0], "finetune": {**SMALL["tune"][0]["finetune"], "snapshots": []}}
    over = {"name": "both", "members": ["constant@1"], "how": "mean", "seeds": [1, 2], "over_seeds": True}
    changes = {
        "tune": [{**tune, "seeds": [0, 1, 2]}],
        "fit": [],
        "read": [],
        "join": [{"name": "more", "members": ["join/both", "constant@1"], "seeds": [0, 1]}, over],
        "decode": [{"name": "second", "of": ["join/both"], "variant": "second"}],
    }
    out = tmp_path / "out"
    outcome = study(write_recipe(tmp_path, **changes), tiny_bert, data, out)
    assert outcome.code == 0, outcome.err
    assert "waits" not in outcome.err
    assert records(out) == {
        *(f"constant@1.seed{seed}" for seed in range(3)),
        "join--both.seed0", "join--more.seed0", "join--more.seed1", "join--both..second.seed0",
    }  # fmt: skip
    about = json.loads((out / "records" / "join--more.seed1" / "about.json").read_text())
    assert about["members"] == ["join/both", "constant@1"]


# ---- mistakes


def changed(path: str, value: Any) -> dict[str, Any]:
    """SMALL with the setting at a dotted path replaced."""
    made = json.loads(
        json.dumps({"read": [RECIPE["read"][0] | {"heads_of": "late", "snapshot": "constant@0.5"}]})
    )
    made = json.loads(json.dumps(SMALL)) | made
    *way, last = path.split(".")
    place: Any = made
    for word in way:
        place = place[int(word)] if word.isdigit() else place[word]
    place[last] = value
    return made


WRONG = {
    "unknown snapshot": ("fit.0.snapshot", "constant@0.7", "part late of the recipe reads constant@0.7 of seed 0"),
    "seed not tuned": ("fit.0.seeds", [0, 5], "reads constant@1 of seed 5, which no tuning makes"),
    "two parts of a name": ("fit.0.name", "curve", "two parts called curve"),
    "unknown key": ("fit.0.haeds", ["adapter"], "haeds"),
    "unknown key of training": ("tune.0.finetune.learning_rate", 1e-3, "learning_rate"),
    "no seeds": ("tune.0.seeds", [], "part curve of the recipe has no seeds"),
    "no data": ("fit.0.fraction", 0, "fraction of part late"),
    "too much data": ("tune.0.fraction", 1.5, "fraction of part curve"),
    "heads of no fit": ("read.0.heads_of", "later", "reads heads of later with seed 0"),
    "heads of another seed": ("read.0.seeds", [0, 7], "constant@0.5 of seed 7"),
    "no such member": ("join.0.members", ["constant@1", "constant@3/adapter-4"], "takes constant@3/adapter-4 of seed"),
    "no such part of the data": ("join.0.members", ["constant@1/adapter-4~0.5"], "takes constant@1/adapter-4~0.5"),
    "no such decoding": ("decode.0.variant", "third", "third"),
    "decodes what nobody makes": ("decode.0.of", ["join/none"], "takes join/none of seed 0"),
    "unknown head": ("fit.0.heads", ["adaptor"], "adaptor"),
    "holdout": ("holdout", 1.0, "--holdout must lie between 0 and 1"),
}  # fmt: skip

TWICE = [*SMALL["fit"], {**SMALL["fit"][0], "name": "later", "seeds": [1]}]
FAMILY = [*SMALL["tune"], {**SMALL["tune"][0], "name": "longer"}]
COLLIDE = [*SMALL["join"], {**SMALL["join"][0], "name": "all_seeds", "seeds": [0]}]
CLASHES = {
    "one head": ("fit", TWICE, "parts late and later of the recipe both make constant@1/adapter-4 of seed 1"),
    "one snapshot": ("tune", FAMILY, "parts curve and longer of the recipe both make constant@0.5 of seed 0"),
    "one folder": ("join", COLLIDE, "join/all seeds of part all seeds and join/all_seeds of part all_seeds would lie"),
    "one decoding": ("decode", [*SMALL["decode"], {**SMALL["decode"][0], "name": "too"}], "parts published and too"),
}  # fmt: skip
WRONG |= CLASHES


def one_sentence(outcome: Any, *told: str) -> None:
    assert outcome.code == 2, outcome.err
    assert not outcome.out
    assert outcome.err.strip().count("\n") == 0, outcome.err
    assert "Traceback" not in outcome.err
    for words in told:
        assert words in outcome.err


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_recipe_is_told_in_one_sentence(
    name: str, tmp_path: Path, tiny_bert: Path, data: Path
) -> None:
    path, value, told = WRONG[name]
    recipe = write_recipe(tmp_path, **changed(path, value))
    one_sentence(study(recipe, tiny_bert, data, tmp_path / "out"), told)
    assert not (tmp_path / "out").exists()


def test_the_changed_recipes_are_right_but_for_the_change(
    tmp_path: Path, tiny_bert: Path, data: Path
) -> None:
    recipe = write_recipe(tmp_path, **changed("holdout", 0.2))
    assert study(recipe, tiny_bert, data, tmp_path / "out", "--list").code == 0


def test_wrong_flags_are_told_in_one_sentence(
    tmp_path: Path, recipe: Path, tiny_bert: Path, data: Path
) -> None:
    out = tmp_path / "out"
    mistyped = study(recipe, tiny_bert, data, out, "--only", "lates")
    one_sentence(mistyped, "--only lates is no part of the recipe", "did you mean late?")
    one_sentence(
        study(recipe, tiny_bert, data, out, "--only", "zzz"), "--only zzz is no part of the recipe: --list"
    )
    one_sentence(study(recipe, tiny_bert, tmp_path / "none.json", out), "none.json")
    one_sentence(study(recipe, tmp_path / "nowhere", data, out), "nowhere")
    one_sentence(study(recipe, tiny_bert, data, out, "--seeds", "7"), "--seeds 7", "it has 0, 1")
    one_sentence(bertvision("study", "--encoder", tiny_bert, "--out", out), "--config")
    nothing = write_recipe(tmp_path, **SMALL)
    one_sentence(
        bertvision("study", "--config", nothing, "--encoder", tiny_bert, "--out", out), "--train and --dev"
    )
    assert not out.exists()
