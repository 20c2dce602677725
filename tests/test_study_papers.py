"""Sections on the papers: what they say against what the records say."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from study_cases import made_study
from study_counts import head, snapshot, study_of
from study_counts import system as counted

from bertvision.report.study_schema import validate_study
from bertvision.report.words import change, interval, score
from bertvision.study.published import BRIEF, ENSEMBLES, FRACTIONS, MEASURE, ROWS, SPAN_CURVE
from bertvision.study.sections.curve import curve
from bertvision.study.sections.ensembles import ensembles
from bertvision.study.sections.fractions import _lasting, fractions
from bertvision.study.sections.inconsistencies import inconsistencies
from bertvision.study.sections.papers import papers, rank_correlation
from bertvision.study.sections.raw import raw
from bertvision.study.sections.transfer import transfer
from bertvision.study.slips import SLIPS
from bertvision.study.view import Group, Study, System
from bertvision.tasks.span.compare import mcnemar, paired_bootstrap

Built = Callable[[Study], dict[str, Any] | None]
ALL: list[Built] = [papers, curve, fractions, ensembles, raw, transfer, inconsistencies]


@pytest.fixture(scope="module")
def study() -> Study:
    return made_study()


def tables(made: dict[str, Any] | None) -> list[dict[str, Any]]:
    assert made is not None
    return [block for block in made["blocks"] if block["type"] == "table"]


def words(made: dict[str, Any] | None) -> str:
    assert made is not None
    return " ".join(p for block in made["blocks"] if block["type"] == "text" for p in block["paragraphs"])


def shown(cell: Any) -> str:
    return cell if isinstance(cell, str) else cell["text"]


def below(cell: Any) -> str:
    return "" if isinstance(cell, str) else cell.get("sub", "")


def group(study: Study, key: str) -> Group:
    found = study.get(key)
    assert found is not None, key
    return found


def per_question(study: Study, key: str, *, tuned: bool) -> tuple[np.ndarray, np.ndarray]:
    """(Q,) exact match and F1 by hand, means over the seeds."""
    exact, f1 = [], []
    for system in group(study, key).systems:
        threshold = system.threshold if tuned else 0.0
        rows = []
        for q, answerable in enumerate(study.answerable):
            if system.dev.diff[q] > threshold:
                rows.append((float(not answerable),) * 2)
            else:
                rows.append((float(system.dev.exact[q]), float(system.dev.f1[q])))
        exact.append([e for e, _ in rows])
        f1.append([f for _, f in rows])
    return np.mean(exact, axis=0), np.mean(f1, axis=0)


# ---- all of them


@pytest.mark.parametrize("build", ALL)
def test_sections_can_be_drawn(study: Study, build: Built) -> None:
    made = build(study)
    assert made is not None
    whole = {"schema": 1, "kind": "study", "bertvision": "0", "created": "", "headline": ""}
    validate_study({**whole, "sections": [made]})


@pytest.mark.parametrize("build", ALL[:6])
def test_published_numbers_are_never_without_a_word_on_their_measure(study: Study, build: Built) -> None:
    """In the section's own words and in the caption of every table that has such a column."""
    made = build(study)
    assert made is not None
    assert MEASURE in made["about"]
    for block in tables(made):
        groups = {column.get("group", "") for column in block["columns"]}
        if any("published" in name for name in groups):
            assert BRIEF in block["caption"] or MEASURE in block["caption"]


@pytest.mark.parametrize(
    ("build", "skip"),
    [
        (papers, ("/",)),
        (curve, ("constant@0", "constant@1")),
        (fractions, ("~",)),
        (ensembles, ("join/",)),
        (raw, ("untuned",)),
        (transfer, ("<",)),
    ],
)
def test_a_section_without_its_systems_is_left_out(build: Built, skip: tuple[str, ...]) -> None:
    assert build(made_study(seeds=(0,), skip=skip)) is None


def test_single_seeds_have_no_deviation() -> None:
    small = made_study(seeds=(0,))
    for build in ALL:
        for block in tables(build(small)):
            assert "±" not in str(block)


# ---- papers


def test_papers_table_is_the_records(study: Study) -> None:
    blocks = tables(papers(study))
    assert len(blocks) == 3
    for epochs, block in zip((0.3, 1.0, 2.0), blocks, strict=True):
        snapshot = f"constant@{epochs:g}"
        base = {tuned: per_question(study, snapshot, tuned=tuned) for tuned in (False, True)}
        rows = {below(row["cells"][0]) or shown(row["cells"][0]): row["cells"] for row in block["rows"]}
        assert shown(rows[f"{snapshot} itself"][3]) == score(100 * base[False][0].mean())
        for known in ROWS.values():
            key = f"{snapshot}/{known.label}"
            printed = known.at.get(epochs)
            if study.get(key) is None and printed is None:
                assert known.label not in rows
                continue
            cells = rows[known.label]
            assert shown(cells[0]) == f"{known.number} {known.name}"
            assert shown(cells[2]) == (f"{printed.exact:.1f} / {printed.f1:.1f}" if printed else "–")
            gap = "–"
            if printed:
                theirs = SPAN_CURVE[epochs]
                gap = " / ".join(
                    change(round(a - b, 1))
                    for a, b in ((printed.exact, theirs.exact), (printed.f1, theirs.f1))
                )
            assert shown(cells[6]) == gap
            if study.get(key) is None:
                assert [shown(cells[i]) for i in (1, 3, 4, 5, 7, 8, 9, 10)] == ["–"] * 8
                continue
            plain, tuned = (per_question(study, key, tuned=t) for t in (False, True))
            values = (plain[0], plain[1], tuned[1])
            assert [shown(cells[i]) for i in (3, 4, 5)] == [score(100 * v.mean()) for v in values]
            seeds = [100 * pair[1].mean() for pair in group(study, key).each("zero")]
            assert below(cells[4]) == f"± {np.std(seeds, ddof=1):.2f}"
            others = (base[False][0], base[False][1], base[True][1])
            for place, ours, theirs in zip((7, 8, 9), values, others, strict=True):
                found = paired_bootstrap(ours, theirs)
                assert shown(cells[place]) == change(found.difference)
                assert below(cells[place]) == interval(found.low, found.high)
        for label in ("average-pooling", "last-state", "last-state-mlp"):
            assert shown(rows[label][0]) == label
            assert shown(rows[label][2]) == "–"


def test_papers_p_is_of_the_first_seed(study: Study) -> None:
    block = tables(papers(study))[1]
    cells = next(row["cells"] for row in block["rows"] if below(row["cells"][0]) == "adapter-386")
    ours, theirs = (group(study, key).each("zero")[0][0] for key in ("constant@1/adapter-386", "constant@1"))
    p = mcnemar(ours, theirs)
    assert shown(cells[-1]) == ("< 0.001" if p < 0.001 else f"{p:.3f}")


def test_papers_say_how_many_gain(study: Study) -> None:
    said = words(papers(study))
    gains = losses = measured = 0
    base = per_question(study, "constant@0.3", tuned=False)[1]
    for known in ROWS.values():
        if study.get(f"constant@0.3/{known.label}"):
            found = paired_bootstrap(per_question(study, f"constant@0.3/{known.label}", tuned=False)[1], base)
            measured, gains, losses = measured + 1, gains + (found.low > 0), losses + (found.high < 0)
    assert 0 < measured < 20
    assert f"{gains} of {measured} of the papers' heads gain" in said
    assert f"and {losses} lose with one below" in said
    assert "72.57" in said, "the repository's own row"


def test_papers_tell_what_is_wrong_with_rows(study: Study) -> None:
    made = papers(study)
    assert made is not None
    items = next(block["items"] for block in made["blocks"] if block["type"] == "list")
    for known in ROWS.values():
        told = [item for item in items if item.startswith(f"Row {known.number},")]
        assert len(told) == bool(known.wrong)


def test_scatter_holds_both_differences(study: Study) -> None:
    made = papers(study)
    assert made is not None
    drawn = next(block for block in made["blocks"] if block["type"] == "scatter")
    point = next(p for p in drawn["points"] if p["label"] == "12 adapter-386-skip")
    ours, base = (
        per_question(study, key, tuned=False)[1] for key in ("constant@0.3/adapter-386-skip", "constant@0.3")
    )
    assert point["x"] == 3.8
    assert point["y"] == pytest.approx(100 * (ours - base).mean())
    assert point["low"] <= point["y"] <= point["high"]


def test_rank_correlation_is_spearmans() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        first, second = random.permutation(9), random.permutation(9)
        wanted = 1 - 6 * float(((first - second) ** 2).sum()) / (9 * 80)  # without ties there is a formula
        found = rank_correlation((first * 2.5).tolist(), np.exp(second).tolist())
        assert found == pytest.approx(wanted)
    assert rank_correlation([1.0, 1.0, 2.0], [5.0, 5.0, 9.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == 0.0


# ---- curve


def test_curve_is_in_the_true_order(study: Study) -> None:
    made = curve(study)
    block = tables(made)[0]
    rows = {row["cells"][0]: row["cells"] for row in block["rows"]}
    assert list(rows) == sorted(rows, key=float)
    for epochs, printed in SPAN_CURVE.items():
        cells = rows[f"{epochs:g}"]
        assert shown(cells[1]) == f"{printed.exact:.1f} / {printed.f1:.1f}"
    assert [shown(rows[at][2]) for at in ("0.1", "0.9", "1", "6")] == ["7/10", "6", "1/10", "6/10"]
    plain = per_question(study, "constant@0.4", tuned=False)
    assert [shown(rows["0.4"][i]) for i in (3, 4)] == [score(100 * v.mean()) for v in plain]
    falling = per_question(study, "decayed-3@3", tuned=True)[1]
    assert shown(rows["3"][8]) == score(100 * falling.mean())
    assert [shown(rows["3"][i]) for i in (3, 4, 5)] == ["–"] * 3, "no constant rate was run so long"
    assert "rotated" in words(made)


def test_curve_of_falling_rates_has_runs_that_differ_in_length_alone() -> None:
    """decayed-1-small is as long as decayed-1, with other batches: it has no place beside it."""

    def small(system: System) -> System | None:
        if system.about.snapshot == "decayed-0.5@0.5" and system.about.kind == "snapshot":
            return replace(system, about=replace(system.about, snapshot="decayed-1-small@1"))
        return system

    figure = next(block for block in (curve(changed(small)) or {})["blocks"] if block["type"] == "lines")
    falling = next(one for one in figure["series"] if one["name"].startswith("rate falls"))
    assert [point[0] for point in falling["points"]] == [0.3, 1.0, 2.0, 3.0]


def test_curve_bands_are_one_deviation(study: Study) -> None:
    made = curve(study)
    assert made is not None
    drawn = next(block for block in made["blocks"] if block["type"] == "lines")
    line = drawn["series"][0]
    assert [x for x, _ in line["points"]] == [*(k / 10 for k in range(1, 11)), 2.0]
    for (x, y), (_, low, high) in zip(line["points"], line["band"], strict=True):
        seeds = [100 * pair[1].mean() for pair in group(study, f"constant@{x:g}").each("zero")]
        assert y == pytest.approx(np.mean(seeds))
        assert (high - y, y - low) == pytest.approx((np.std(seeds, ddof=1),) * 2)
    published = next(one for one in drawn["series"] if one["kind"] == "published")
    assert [p for p in published["points"] if p[0] in (0.3, 1.0)] == [[0.3, 70.2], [1.0, 77.7]]
    assert max(x for x, _ in published["points"]) == 3.0, "as far as something was measured"


# ---- fractions


def test_fractions_are_compared_over_the_seeds_that_all_points_have() -> None:
    def of(*seeds_of_part: int) -> dict[str, Any]:
        both = [counted(replace(snapshot("constant@1"), seed=seed), 100 + 20 * seed) for seed in (0, 1, 2)]
        both += [counted(replace(head("constant@1", "adapter-64"), seed=s), 110 + 20 * s) for s in (0, 2)]
        part = replace(head("constant@1", "adapter-64"), data_fraction=0.1)
        found = fractions(
            study_of(*both, *(counted(replace(part, seed=s), 105 + 20 * s) for s in seeds_of_part))
        )
        assert found is not None
        return found

    figure, table = of(2)["blocks"][:2]
    heads, base = figure["series"][:2]
    assert heads["points"] == [[0.1, pytest.approx(72.5)], [1.0, pytest.approx(75.0)]]
    assert base["points"][0][1] == pytest.approx(70.0)
    assert "with seed 2, which all points have" in table["caption"]
    apart = of(1)["blocks"][1]["caption"]
    assert "no seed in common (10 % with seed 1, 100 % with seeds 0, 2)" in apart


def test_fractions_table(study: Study) -> None:
    block = tables(fractions(study))[0]
    rows = {row["cells"][0]: row["cells"] for row in block["rows"]}
    assert list(rows) == ["constant@1", "5 %", *(f"{10 * k} %" for k in range(1, 11))]
    assert shown(rows["5 %"][1]) == "–"
    assert shown(rows["60 %"][1]) == f"{FRACTIONS[0.6].exact:.1f} / {FRACTIONS[0.6].f1:.1f}"
    part = per_question(study, "constant@1/adapter-386-skip~0.2", tuned=False)
    whole = per_question(study, "constant@1/adapter-386-skip", tuned=False)
    base = per_question(study, "constant@1", tuned=False)
    for name, ours in (("20 %", part), ("100 %", whole)):
        assert shown(rows[name][3]) == score(100 * ours[1].mean())
        assert shown(rows[name][6]) == change(paired_bootstrap(ours[1], base[1]).difference)
    said = words(fractions(study))
    assert "about 30 % of the data" in said
    assert "from 60 % of the data on" in said


def test_lasting_is_the_least_part_after_which_all_hold() -> None:
    parts = [0.1, 0.2, 0.5, 1.0]
    for number in range(16):
        holds = {part: bool(number >> i & 1) for i, part in enumerate(parts)}
        good = [p for i, p in enumerate(parts) if all(holds[q] for q in parts[i:])]
        assert _lasting(holds) == (good[0] if good else None)


# ---- ensembles, raw states, transfer


def test_ensembles_are_held_against_their_best_member(study: Study) -> None:
    block = tables(ensembles(study))[0]
    rows = {shown(row["cells"][0]): row["cells"] for row in block["rows"]}
    assert list(rows) == ["paper-0.3", "paper-1", "paper-1-mean", "decayed-2"]
    for cells in rows.values():
        joined, told = below(cells[0]).split("; best: ")
        members = joined.split(" of ")[1].split(", ")
        best = max(members, key=lambda key: group(study, key).questions("tuned", [0])[1].mean())
        assert told == best
        ours = group(study, f"join/{shown(cells[0])}").questions("tuned")[1]
        theirs = group(study, best).questions("tuned", [0])[1]
        assert shown(cells[8]) == change(paired_bootstrap(ours, theirs).difference)
    assert shown(rows["paper-1"][1]) == f"{ENSEMBLES[1.0].exact:.1f} / {ENSEMBLES[1.0].f1:.1f}"
    assert shown(rows["paper-1"][5]) == "+0.7 / +0.8"
    assert shown(rows["paper-0.3"][5]) == "−0.8 / −0.6"
    assert shown(rows["paper-1-mean"][1]) == "–", "the papers joined by the maximum"
    assert shown(rows["decayed-2"][1]) == "–"


def test_raw_states_beside_saying_nothing(study: Study) -> None:
    block = tables(raw(study))[0]
    rows = {shown(row["cells"][0]): row["cells"] for row in block["rows"]}
    none = ~study.answerable
    assert [shown(rows["always no answer"][i]) for i in (2, 3, 4)] == [score(100 * none.mean())] * 3
    ours = per_question(study, "untuned/ladder-64", tuned=True)[1]
    cells = rows["ladder-64"]
    assert shown(cells[4]) == score(100 * ours.mean())
    assert shown(cells[5]) == change(100 * float((ours - none).mean()))
    assert shown(cells[6]) == score(group(study, "constant@0.3/ladder-64").scores("zero").f1)
    order = [group(study, f"untuned/{name}").holdout_f1 or 0.0 for name in list(rows)[1:]]
    assert order == sorted(order, reverse=True)
    assert len(order) == len(study.below("untuned"))


def test_transfer_shows_the_head_in_all_three_places(study: Study) -> None:
    (block,) = tables(transfer(study))
    keys = [
        "constant@1",
        "constant@0.3/adapter-386-skip",
        "constant@1/adapter-386-skip<constant@0.3",
        "constant@1/adapter-386-skip",
    ]
    printed = ["72.8 / 77.7", "69.9 / 74.0", "74.5 / 79.1", "74.0 / 78.6"]
    for row, key, told in zip(block["rows"], keys, printed, strict=True):
        assert shown(row["cells"][1]) == told
        assert shown(row["cells"][3]) == score(100 * per_question(study, key, tuned=False)[1].mean())
    moved, base = (per_question(study, key, tuned=True)[1] for key in (keys[2], keys[0]))
    assert shown(block["rows"][2]["cells"][7]) == change(paired_bootstrap(moved, base).difference)
    assert [row.get("strong", False) for row in block["rows"]] == [True, False, True, False]


# ---- systems fitted on a part of the data, and ensembles of seeds


def changed(change: Callable[[System], System | None]) -> Study:
    """The made-up study with some of its systems in another form, or left out."""
    made = made_study()
    systems = [
        one for group in made.groups.values() for own in group.systems if (one := change(own)) is not None
    ]
    return Study.of(made.dev, made.holdout, systems)


def test_heads_on_raw_states_may_be_fitted_on_a_part_of_the_data() -> None:
    def part(system: System) -> System:
        raw_head = system.about.snapshot == "untuned"
        return replace(system, about=replace(system.about, data_fraction=0.3)) if raw_head else system

    made = raw(changed(part))
    assert made is not None
    assert "fitted on 30 % of the training data" in made["about"]
    cells = {shown(row["cells"][0]): row["cells"] for row in tables(made)[0]["rows"]}
    assert below(cells["ladder-64"][0]) == "fitted on 30 % of the data"
    whole = tables(raw(made_study()))[0]["rows"]
    other = next(row["cells"] for row in whole if shown(row["cells"][0]) == "ladder-64")
    assert cells["ladder-64"][1:] == other[1:]


def test_rows_of_the_papers_that_were_fitted_on_a_part_say_so() -> None:
    label = ROWS[10].label

    def part(system: System) -> System:
        found = system.about.label == label
        return replace(system, about=replace(system.about, data_fraction=0.03)) if found else system

    study = changed(part)
    made = papers(study)
    block = tables(made)[1]
    cells = next(row["cells"] for row in block["rows"] if shown(row["cells"][0]).startswith("10 "))
    assert below(cells[0]) == f"{label}, fitted on 3 % of the data"
    assert "fitted on 3 % of the data" in block["caption"]
    assert shown(cells[4]) == score(group(study, f"constant@1/{label}~0.03").scores("zero").f1)
    drawn = [block for block in (made or {})["blocks"] if block["type"] == "intervals"]
    assert not any(label == row["label"].partition(" ")[2] for one in drawn for row in one["rows"])


def test_gains_are_ranked_with_the_seeds_that_all_heads_have() -> None:
    label = ROWS[10].label

    def single(system: System) -> System | None:
        return None if system.about.label == label and system.about.seed else system

    study = changed(single)
    made = papers(study) or {}
    drawn = next(block for block in made["blocks"] if block["type"] == "intervals")
    assert drawn["caption"].endswith("With seed 0, which all have.")
    other = group(study, "constant@0.3/adapter-64").questions("zero", [0])[1]
    gap = 100 * (other - group(study, "constant@0.3").questions("zero", [0])[1]).mean()
    assert next(r for r in drawn["rows"] if r["label"] == "7 adapter-64")["difference"] == pytest.approx(gap)
    assert "which all have" not in words(papers(made_study()))


def test_an_ensemble_of_seeds_is_held_against_the_best_of_them() -> None:
    key = "decayed-2@2/adapter-386"

    def seeds(system: System) -> System | None:
        if system.about.label != "decayed-2":
            return None if system.about.kind == "ensemble" else system
        about = replace(system.about, label="all seeds", members=(f"{key} seed 0", f"{key} seed 1"))
        return replace(system, about=about)

    study = changed(seeds)
    ((cells,),) = [[row["cells"] for row in block["rows"]] for block in tables(ensembles(study))]
    each = [f1.mean() for _, f1 in group(study, key).each("tuned")]
    best = int(np.argmax(each))
    assert below(cells[0]) == f"mean of 2 seeds of {key}; best: {key} seed {best}"
    ours = group(study, "join/all seeds").questions("tuned")[1].mean()
    assert shown(cells[8]) == change(100 * float(ours - each[best]))


def test_a_moved_head_is_shown_beside_others_of_its_own_seeds() -> None:
    def moved(system: System) -> System | None:
        return None if system.about.fitted_on and system.about.seed == 0 else system

    study = changed(moved)
    (block,) = tables(transfer(study))
    assert "measured with seed 1." in block["caption"]
    base = group(study, "constant@1")
    assert shown(block["rows"][0]["cells"][3]) == score(100 * base.questions("zero", [1])[1].mean())
    here = group(study, "constant@1/adapter-386-skip<constant@0.3").questions("tuned")[1]
    gap = paired_bootstrap(here, base.questions("tuned", [1])[1])
    assert shown(block["rows"][2]["cells"][7]) == change(gap.difference)


def test_every_slip_is_listed(study: Study) -> None:
    (block,) = tables(inconsistencies(study))
    assert [row["cells"][2] for row in block["rows"]] == [slip.what for slip in SLIPS]
