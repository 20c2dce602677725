"""The whole of a study's results: fit for the page, honest in its words, and whole when parts are missing."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from study_cases import LABEL_HEADS, made_study
from study_counts import head, snapshot, study_of, system

from bertvision.errors import ArtifactError
from bertvision.report import words
from bertvision.report.study_schema import validate_study
from bertvision.study.about import About
from bertvision.study.picks import best_full, cheapest
from bertvision.study.results import collect
from bertvision.study.sections.answerable import answerable
from bertvision.study.sections.cacnn import cacnn
from bertvision.study.sections.decoding import decoding
from bertvision.study.sections.how import how
from bertvision.study.sections.hulburd import hulburd
from bertvision.study.view import Study

ENCODER = {"name": "mpnet", "parameters": 109_000_000}
DATA = {
    "train": {
        "name": "train-v2.0-partial",
        "examples": 1000,
        "unanswerable": 166,
        "windows": 1100,
        "tokens": 2e5,
    }
}


def results(study: Study, **more: Any) -> dict[str, Any]:
    found = collect(study, command="bertvision study", settings={}, encoder=ENCODER, data=DATA, **more)
    return validate_study(json.loads(json.dumps(found, allow_nan=False)))


def ids(found: dict[str, Any]) -> list[str]:
    return [section["id"] for section in found["sections"]]


@pytest.fixture(scope="module")
def whole() -> Study:
    return made_study()


def test_everything_is_told_with_the_cost_curve_first(whole: Study) -> None:
    found = results(whole)
    told = ids(found)
    assert told[:3] == ["cost", "goals", "papers"]
    assert told[-2:] == ["time", "how"]
    assert {
        "baseline",
        "beyond",
        "ensembles",
        "curve",
        "fractions",
        "thresholds",
        "question-types",
        "lengths",
    } < {*told}
    assert {
        "second-best",
        "decoding",
        "layer-weights",
        "examples",
        "hulburd",
        "cacnn",
        "answerable",
        "inconsistencies",
    } < {*told}
    first = found["sections"][0]["blocks"][0]
    assert (first["type"], first["front"], len(first["lines_at"])) == ("scatter", True, 1)
    best = best_full(whole)
    assert best is not None
    assert first["lines_at"][0]["y"] == pytest.approx(best.scores("tuned").f1 - 0.3)


def test_the_headline_is_made_from_the_numbers(whole: Study) -> None:
    found, best = cheapest(whole), best_full(whole)
    assert found is not None
    assert best is not None
    said = results(whole)["headline"]
    assert f"{best.scores('tuned').f1:.1f} F1" in said
    cheap = [
        system(snapshot("decayed-1@1", 200.0), 150),
        system(head("constant@0.3", "adapter-386", 60.0, 10.0), 150),
    ]
    assert results(study_of(*cheap))["headline"] == (
        "adapter-386 on constant@0.3 comes within 0.3 F1 of the best full fine-tuning (75.0 F1) with 35 % of the GPU "
        "time: 70 s instead of 3 min 20 s."
    )
    assert results(study_of(cheap[0], replace(cheap[1], dev=system(cheap[1].about, 149).dev)))[
        "headline"
    ] == (
        "Nothing cheaper comes within 0.3 F1 of the best full fine-tuning: full fine-tuning with decayed rate, "
        "1 epoch, 75.0 F1 in 3 min 20 s of GPU time."
    )


@pytest.mark.parametrize(("more", "word"), [(30, "is ahead of"), (1, "is level with"), (-30, "is behind")])
def test_the_words_follow_the_interval(more: int, word: str) -> None:
    study = study_of(
        system(snapshot("decayed-1@1"), 120), system(head("decayed-1@1", "adapter-386"), 120 + more)
    )
    (said,) = (line for line in results(study)["lede"] if line.startswith("Against"))
    assert f"adapter-386 on decayed-1@1 {word} decayed-1@1" in said


@pytest.mark.parametrize(
    "study",
    [
        study_of(system(snapshot("constant@1"), 100)),
        study_of(system(snapshot("houlsby-64@1", 10.0, policy="houlsby-64"), 100)),
        study_of(system(head("untuned", "adapter-386", None, 5.0), 20)),
        study_of(replace(system(snapshot("decayed-1@1", 50.0), 100), holdout=None)),
        study_of(system(About("join", "ensemble", "lonely", members=("gone@1",)), 100)),
    ],
    ids=["one snapshot", "adapters alone", "a head alone", "nothing held out", "an ensemble alone"],
)
def test_a_study_of_one_system_is_told_as_well(study: Study) -> None:
    found = results(study)
    assert "goals" in ids(found)
    assert "how" in ids(found)
    assert found["headline"].endswith(".")
    assert not re.search(r"\bnan\b|None", json.dumps(found["sections"]))


@pytest.mark.parametrize(
    ("skip", "gone"),
    [
        (("answerable:",), {"answerable"}),
        (("hulburd",), {"hulburd"}),
        (("cacnn",), {"cacnn"}),
        (("join/",), {"ensembles"}),
        (("ladder", "recurrent", "layer-attention", "head2toe", "biaffine"), {"beyond"}),
        (("decayed",), {"baseline"}),
        (("constant",), {"papers", "curve", "fractions", "transfer"}),
    ],
)
def test_what_was_not_run_is_left_out(whole: Study, skip: tuple[str, ...], gone: set[str]) -> None:
    left = {key: group for key, group in whole.groups.items() if not any(part in key for part in skip)}
    labels = {key: group for key, group in whole.labels.items() if not any(part in key for part in skip)}
    told = {*ids(results(Study(whole.dev, whole.holdout, whole.answerable, left, labels)))}
    assert not told & gone
    assert {"goals", "how"} < told


def test_answer_or_no_answer_alone_and_nothing_at_all(whole: Study) -> None:
    found = results(Study(whole.dev, whole.holdout, whole.answerable, {}, whole.labels))
    assert {"answerable", "how"} <= {*ids(found)}
    assert "goals" not in ids(found)
    with pytest.raises(ArtifactError, match="no answered system"):
        collect(Study.of(whole.dev, None, []), command="", settings={}, encoder={}, data={})


def cells(section: dict[str, Any] | None, table: int = 0) -> list[list[str]]:
    assert section is not None
    tables = [block for block in section["blocks"] if block["type"] == "table"]
    return [[c if isinstance(c, str) else c["text"] for c in row["cells"]] for row in tables[table]["rows"]]


def test_hulburds_rows_stand_beside_his_numbers(whole: Study) -> None:
    rows = {row[0]: row for row in cells(hulburd(whole))}
    assert list(rows) == ["L12", "L6", "L3", "L1", "L0", "L12-A64", "L0-A64", "L0-A768"]
    assert rows["L6"][1:7] == ["72.3", "75.2", "42,548,738", "218 min", "145 to 150 s", "3.30"]
    own = whole.groups["hulburd-top-6@1~0.2"].scores("zero")
    assert rows["L6"][7:9] == [f"{own.exact:.1f}", f"{own.f1:.1f}"]
    some = Study(whole.dev, None, whole.answerable, {"x": whole.groups["hulburd-top-6@1~0.2"]}, {})
    assert {row[7] for row in cells(hulburd(some)) if row[0] != "L6"} == {"–"}


def test_cacnns_are_read_off_their_names(whole: Study) -> None:
    rows = cells(cacnn(whole))
    assert len(rows) == 12
    assert ["without context vector", "5x4", "6"] in [row[:3] for row in rows]
    assert {row[2] for row in rows} == {"0", "6", "12"}


def test_answerability_is_told_epoch_by_epoch(whole: Study) -> None:
    section = answerable(whole)
    rows = cells(section)
    snapshot_row = next(row for row in rows if row[0] == "pooled@1")
    assert snapshot_row[3:5] == ["76.1", "72.0"]  # BERT-large after an epoch
    assert next(row for row in rows if row[0] == "tenney-small")[3:5] == ["69.7", "65.0"]  # on 2/10 epochs
    group = whole.labels["answerable:pooled@1"]
    assert snapshot_row[5] == f"{group.accuracy:.1f}"
    assert section is not None
    figure = next(block for block in section["blocks"] if block.get("title", "").startswith("tenney-small"))
    assert [one["name"] for one in figure["series"]] == ["on pooled@0.2", "on pooled@1"]
    for one in figure["series"]:
        assert [tuple(point) for point in one["points"]] == [
            (1, pytest.approx(64)), (2, pytest.approx(68)), (3, pytest.approx(72)),
        ]  # fmt: skip
    (said,) = (b["paragraphs"] for b in section["blocks"] if b["type"] == "text" and len(b["paragraphs"]) > 1)
    head = whole.labels["answerable:pooled@1/tenney-small"]
    took = head.systems[0].about.fit_seconds
    assert took is not None
    assert said[1].startswith(
        "tenney-small on pooled@1: 72.0 % after the last epoch, 72.0 % after the best of 3, as the papers count, "
        f"78.2 in the paper. All 3 took {words.duration(took)}, the one pass of the encoder included."
    )


def test_answerability_on_parts_of_the_data_says_so(whole: Study) -> None:
    """Heads on less of the data than their snapshot stand below it all the same, each on the largest part it has."""
    systems = []
    for group in whole.labels.values():
        for one in group.systems:
            tuned = one.about.kind == "snapshot"
            parts = (0.4,) if tuned else (0.1, 0.05)
            systems += [
                replace(one, about=replace(one.about, data_fraction=part, alone=False)) for part in parts
            ]
    section = answerable(Study.of(whole.dev, whole.holdout, systems))
    assert section is not None
    titles = [row["cells"][0] for row in section["blocks"][1]["rows"]]
    assert len(titles) == 2 * (1 + len(LABEL_HEADS))
    assert titles[0] == {"text": "pooled@0.2", "sub": "tuned on 40 % of the data"}
    assert {title["sub"] for title in titles if "pooled@" not in title["text"]} == {
        "fitted on 10 % of the data"
    }
    assert "beside other work on the device" in section["blocks"][3]["paragraphs"][0]


def test_the_papers_decoding_stands_against_the_official_one(whole: Study) -> None:
    rows = cells(decoding(whole))
    assert [row[0] for row in rows] == [
        f"constant@{at}{head}" for at in ("0.3", "1") for head in ("", "/adapter-386")
    ]
    for told in rows:
        ours, official = whole.groups[f"{told[0]}#bertvision"], whole.groups[told[0]]
        seed = ours.seeds[0]
        gap = [
            100 * (ours.questions("zero")[k] - official.questions("zero", [seed])[k]).mean() for k in (0, 1)
        ]
        assert told[4:6] == [words.change(float(one)) for one in gap]
    assert decoding(study_of(system(snapshot("constant@1"), 100))) is None


def test_how_it_was_run_names_commands_and_cautions(whole: Study) -> None:
    section = how(whole, encoder=ENCODER, data=DATA)
    (lines,) = (block["lines"] for block in section["blocks"] if block["type"] == "code")
    assert lines == whole.commands
    (said,) = (" ".join(block["items"]) for block in section["blocks"] if block["type"] == "list")
    for part in (
        "16.6 % of them without an answer",
        "lower-cased",
        "sentence encoder",
        "oracle",
        "60 questions",
    ):
        assert part in said
    (plain,) = (" ".join(b["items"]) for b in how(whole)["blocks"] if b["type"] == "list")
    assert "lower-cased" not in plain  # of other data nothing of the kind is known
    assert ["heads", "164", "324"] in [row[:3] for row in cells(section)]


def test_the_headline_is_so_far_while_parts_of_the_cost_curve_are_missing() -> None:
    study = study_of(system(replace(snapshot("decayed-1@1", 100.0), experiment="decayed-1"), 150))
    parts = [{"name": f"decayed-{k}", "finetune": {"epochs": k}} for k in (1, 2)]
    told = [
        collect(study, command="", settings={"tune": parts[:count]}, encoder=ENCODER, data=DATA)["headline"]
        for count in (1, 2)
    ]
    assert told[0].startswith("Nothing cheaper comes within 0.3 F1")
    assert told[1].startswith("Nothing cheaper measured so far comes within 0.3 F1")
