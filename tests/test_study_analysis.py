"""Analyses of a study against counts made question by question, and against what the paper printed."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from study_cases import made_study

from bertvision.report.study_schema import validate_study
from bertvision.study.picks import chosen
from bertvision.study.sections.examples import examples
from bertvision.study.sections.layer_weights import depth_parts, layer_weights
from bertvision.study.sections.lengths import lengths, right_sets
from bertvision.study.sections.pairs import pairings
from bertvision.study.sections.question_types import WORDS, kind_of_question, question_types
from bertvision.study.sections.second_best import second_best, second_of
from bertvision.study.sections.thresholds import thresholds
from bertvision.study.view import Group, Study

Builder = Callable[[Study], dict[str, Any] | None]
BUILDERS: list[Builder] = [thresholds, question_types, lengths, second_best, examples, layer_weights]


@pytest.fixture(scope="module")
def study() -> Study:
    return made_study()


def built(build: Builder, study: Study) -> dict[str, Any]:
    made = build(study)
    assert made is not None
    return made


def block(section: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(b for b in section["blocks"] if b["type"] == kind)


def texts(row: dict[str, Any]) -> list[str]:
    return [cell if isinstance(cell, str) else cell["text"] for cell in row["cells"]]


def table(section: dict[str, Any]) -> dict[str, dict[str, str]]:
    """First cell -> column (with its group in front) -> text, of the first table."""
    made = block(section, "table")
    names = [(f"{c['group']}: " if "group" in c else "") + c["name"] for c in made["columns"]]
    return {texts(row)[0]: dict(zip(names, texts(row), strict=True)) for row in made["rows"]}


def by_hand(group: Group, at: float | str) -> list[list[bool]]:
    """For each seed, which questions are exactly right; thresholds applied one question at a time."""
    found = []
    for system in group.systems:
        limit = system.threshold if at == "tuned" else 0.0
        rows = zip(
            system.dev.diff.tolist(), system.dev.exact.tolist(), group.answerable.tolist(), strict=True
        )
        found.append([not has if diff > limit else exact == 1 for diff, exact, has in rows])
    return found


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_sections_keep_the_form_and_say_what_they_do_not_show(study: Study, build: Builder) -> None:
    section = built(build, study)
    json.dumps(section, allow_nan=False)
    validate_study(
        {"schema": 1, "kind": "study", "bertvision": "0", "created": "", "headline": "h", "title": "t",
         "sections": [section]}
    )  # fmt: skip
    assert " not " in section["about"] or " no " in section["about"]


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_sections_without_their_systems_are_left_out(build: Builder) -> None:
    assert build(made_study(skip=("constant", "decayed", "untuned", "join"))) is None


@pytest.mark.parametrize("part", ["constant@0.3", "constant@1", "decayed", "adapter", "#second", "pool"])
def test_sections_stand_with_what_there_is(part: str) -> None:
    some = made_study(skip=(part,), seeds=(4,))
    made = [section for build in BUILDERS if (section := build(some))]
    assert len(made) >= 4
    assert (
        part not in json.dumps([s["blocks"] for s in made if s["id"] not in ("lengths",)]) or part == "pool"
    )


def test_heads_are_chosen_on_the_held_out_part(study: Study) -> None:
    found = pairings(study)
    assert [pair.snapshot.key for pair in found[:2]] == ["constant@0.3", "constant@1"]
    assert found[2].snapshot.key.startswith("decayed-")
    for pair in found:
        heads = [g for g in study.below(pair.snapshot.key) if g.about.kind == "head"]
        assert pair.head.holdout_f1 == max(g.holdout_f1 or 0 for g in heads)
    # decayed-3@3 has no heads; the strongest that has some is taken even where decayed-3@3 is stronger.
    have = [
        g for k in ("decayed-0.3@0.3", "decayed-0.5@0.5", "decayed-1@1", "decayed-2@2") if (g := study.get(k))
    ]
    assert found[2].snapshot is chosen(have)


def test_thresholds_table_and_curves(study: Study) -> None:
    section = built(thresholds, study)
    rows = table(section)
    pair = pairings(study)[1]
    answerable = study.answerable
    tuned = np.mean([[float(r) for r in seed] for seed in by_hand(pair.head, "tuned")], axis=0)
    assert rows[pair.head.key]["EM at threshold: tuned on held-out train"] == f"{100 * tuned.mean():.1f}"
    for row in rows.values():
        f1 = [
            float(row[f"F1 at threshold: {name}"])
            for name in ("0", "tuned on held-out train", "best on dev (oracle)")
        ]
        assert f1[2] >= max(f1[:2])
    curves = {line["name"]: line["points"] for line in block(section, "lines")["series"]}
    at_zero = dict(map(tuple, curves[pair.head.key]))[0.0]
    assert at_zero == pytest.approx(pair.head.scores("zero").f1)
    # Far to the left no question is answered: right are those without an answer.
    alone = pair.snapshot.systems[0].dev.at(-1e6, answerable)[1].mean()
    assert alone == pytest.approx(1 - answerable.mean())


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("In what year did it end?", "what"),
        ("Whose army won?", "who"),
        ("To whom was it sold?", "who"),
        ("HOW many were there?", "how"),
        ("Name the show that Whoopi left.", "other"),
        ("On which day, and why?", "which"),
        ("The somewhat odd year was when?", "when"),
        ("", "other"),
    ],
)
def test_question_words(question: str, kind: str) -> None:
    assert kind_of_question(question) == kind
    assert kind in WORDS


def test_counts_of_has_and_no_answer(study: Study) -> None:
    rows = table(built(question_types, study))
    for key in ("constant@1", "constant@0.3/adapter-386-skip"):
        group = study.get(key)
        assert group is not None
        right, none = by_hand(group, 0.0), ~group.answerable
        counts = [sum(r for r, n in zip(seed, none, strict=True) if n) for seed in right]
        assert rows[key]["no answer, right: at 0"] == f"{100 * np.mean(counts) / none.sum():.1f}"
        wrong = said = 0
        for seed, system in zip(right, group.systems, strict=True):
            for q, good in enumerate(seed):
                if group.answerable[q] and not good:
                    wrong += 1
                    said += bool(system.dev.diff[q] > 0)
        assert rows[key]["wrong has-answer that said no answer, at 0"] == f"{100 * said / wrong:.1f}"
    # As recomputed from the paper's counts: 63.9 and 66.9 of BERT, 80.6 and 59.2 of its model, after 3/10 epoch.
    assert rows["constant@0.3"]["no answer, right: paper"] == "63.9"
    assert rows["constant@0.3"]["has answer, exactly right: paper"] == "66.9"
    assert rows["constant@0.3/adapter-386-skip"]["no answer, right: paper"] == "80.6"
    assert rows["constant@0.3/adapter-386-skip"]["has answer, exactly right: paper"] == "59.2"
    assert rows["constant@1"]["has answer, exactly right: paper"] == "71.4"


def test_question_words_part_dev(study: Study) -> None:
    section = built(question_types, study)
    bars = block(section, "bars")
    sizes = [int(label.rpartition("(")[2].rstrip(")")) for label in bars["groups"]]
    assert sum(sizes) == len(study.dev)  # every kind of the made-up questions has enough of them
    pair = pairings(study)[0]
    for line, group in zip(bars["series"], (pair.snapshot, pair.head), strict=True):
        whole = sum(size * value for size, value in zip(sizes, line["values"], strict=True)) / len(study.dev)
        assert whole == pytest.approx(group.scores("tuned").f1)


def test_lengths_of_what_one_alone_has_right(study: Study) -> None:
    section = built(lengths, study)
    pair = pairings(study)[0]
    row = block(section, "table")["rows"][0]["cells"]
    ours, theirs = by_hand(pair.head, 0.0), by_hand(pair.snapshot, 0.0)
    every, only = [], []
    for mine, other in zip(ours, theirs, strict=True):
        for q, example in enumerate(study.dev.examples):
            words = len(study.dev.context(example).split())
            every += [words] if mine[q] else []
            only += [words] if mine[q] and not other[q] else []
    assert row[2] == {"text": f"{np.mean(every):.2f}", "sub": str(round(len(every) / 2))}
    assert row[5]["text"] == f"{np.mean(only):.2f}"
    assert float(row[7]["text"].replace("\u2212", "-")) == pytest.approx(
        float(row[5]["text"]) - float(row[6]["text"]), abs=0.011
    )
    assert [cell["text"] for cell in row[-2:]] == [
        "\u22121.36",
        "\u221213.72",
    ]  # 164.50 - 165.86, 161.58 - 175.30
    found = block(section, "histogram")
    alone = [int((mine & ~other).sum()) for mine, other in right_sets(pair, "tuned")]
    assert sum(found["series"][1]["counts"]) == pytest.approx(np.mean(alone))


def test_second_answers(study: Study) -> None:
    first, second = study.get("constant@1"), study.get("constant@1#second")
    assert first is not None
    assert second is not None
    found = second_of(first, second)
    assert found is not None
    one, two = by_hand(first, 0.0)[0], by_hand(second, 0.0)[0]  # the second was decoded for seed 0 alone
    assert found.wrong == one.count(False)
    saved = [q for q in range(len(one)) if two[q] and not one[q]]
    assert (found.rescued, found.answerable) == (len(saved), sum(bool(first.answerable[q]) for q in saved))
    assert found.both == sum(a and b for a, b in zip(one, two, strict=True))
    assert found.either == pytest.approx(found.first + 100 * len(saved) / len(one))
    assert found.exact == pytest.approx(100 * sum(two) / len(two))
    rows = table(built(second_best, study))
    assert rows["constant@1"]["first wrong"] == str(one.count(False))
    paper = block(built(second_best, study), "table")["rows"][-1]["cells"]
    assert paper[1:3] == ["17.4", "24.0"]
    assert (paper[4]["sub"], paper[5]["sub"]) == ("44.1 %", "46.9 %")  # 1,575 of 3,569; 739 of 1,575


def test_examples_are_of_both_sides_and_judged_as_scored(study: Study) -> None:
    section = built(examples, study)
    shown = block(section, "examples")["items"]
    sides = [[answer["right"] for answer in item["answers"]] for item in shown]
    assert sides == [[True, False]] * 4 + [[False, True]] * 4
    known = {example.question: example for example in study.dev.examples}
    for item in shown:
        for answer in item["answers"]:
            gold = [a.text for a in known[item["question"]].answers]
            assert answer["right"] == (answer["text"] in gold or (not gold and not answer["text"]))
    for row in block(section, "table")["rows"]:
        assert sum(map(int, texts(row)[1:])) == len(study.dev)


def test_depth_of_weights() -> None:
    assert depth_parts(np.ones(13) / 13) == pytest.approx((100 / 13, 300 / 13, 0.5))
    assert depth_parts(np.eye(5)[4]) == pytest.approx((100.0, 100.0, 1.0))
    assert depth_parts(np.array([0.25, 0, 0, 0, 0.75])) == pytest.approx((75.0, 75.0, 0.75))


def test_layer_weights_of_several_depths_share_an_axis(study: Study) -> None:
    section = built(layer_weights, study)
    lines = {line["name"]: line for line in block(section, "lines")["series"]}
    for name, states in (("constant@1/learned-pooling", 13), ("paper (24 layers)", 25)):
        points = lines[name]["points"]
        assert (points[0][0], points[-1][0], len(points)) == (0.0, 1.0, states)
        assert sum(y for _, y in points) / states == pytest.approx(1, abs=0.02)
    assert table(section)["paper, learned pooling"]["last state, %"] == "24.3"
    assert len(block(section, "bars")["groups"]) == 13
