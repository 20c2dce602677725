"""What the seed documents print: the data fits together wherever one number follows from others."""

import math
from pathlib import Path

import pytest
from study_cases import made_study

import bertvision.study.sections as sections
from bertvision.heads.catalogue import CATALOGUE, expand
from bertvision.heads.spec import parse_head
from bertvision.study.published import (
    ABOUT_RIGHT,
    CONTEXT_LENGTHS,
    EFFICIENCY,
    ENSEMBLES,
    FRACTIONS,
    HULBURD,
    LABEL_CURVE,
    LABEL_HEADS,
    LAYER_WEIGHTS,
    NO_ANSWER_RIGHT,
    REPOSITORY,
    ROWS,
    SECOND_BEST,
    SPAN_CURVE,
    TRANSFER,
    Printed,
    printed_under,
)
from bertvision.study.sections.question_types import question_types
from bertvision.study.slips import SLIPS

UNANSWERABLE, ANSWERABLE = 5945, 5928
LARGE = 335_143_938


def percent(right: int) -> float:
    return round(100 * right / (UNANSWERABLE + ANSWERABLE), 1)


# ---- scores


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("head of 3/10 epochs", ROWS[12].at[0.3]),
        ("head of one epoch", ROWS[11].at[1.0]),
        ("BERT of 3/10 epochs", SPAN_CURVE[0.3]),
        ("BERT of one epoch", SPAN_CURVE[1.0]),
        ("BERT of two epochs", SPAN_CURVE[2.0]),
    ],
)
def test_exact_match_is_what_the_counts_of_right_answers_give(name: str, printed: Printed) -> None:
    """The curve's true order shows in it: a row of the rotated table would be far off."""
    none, some = NO_ANSWER_RIGHT[name]
    assert some is not None
    assert percent(none + some) == printed.exact


def test_counts_from_rounded_shares_are_told_as_about() -> None:
    assert set(NO_ANSWER_RIGHT) - ABOUT_RIGHT == {
        "head of 3/10 epochs", "head of 3/10 epochs, read on one epoch",
    }  # fmt: skip
    section = question_types(made_study())
    assert section is not None
    cells = {
        row["cells"][0]["text"]: row["cells"]
        for row in section["blocks"][1]["rows"]
        if isinstance(row["cells"][0], dict)
    }
    assert (cells["constant@1"][4]["sub"], cells["constant@1"][8]["sub"]) == (
        "4,406 of 5,945",
        "about 4,234 of 5,928",
    )


def test_second_best_answers_are_counted_among_the_wrong_ones() -> None:
    none, some = NO_ANSWER_RIGHT["head of 3/10 epochs"]
    assert SECOND_BEST["of_wrong"] == UNANSWERABLE + ANSWERABLE - none - (some or 0)
    assert percent(int(SECOND_BEST["right"] + SECOND_BEST["right_twice"])) == SECOND_BEST["exact"]


def test_row_nineteen_is_no_answer_to_everything() -> None:
    row = ROWS[19].at[0.3]
    assert row.exact == row.f1 == percent(UNANSWERABLE)
    assert row.exact < min(other.at[0.3].exact for number, other in ROWS.items() if number != 19)


def test_best_rows_and_the_encoders_they_were_reported_on() -> None:
    assert list(ROWS) == list(range(1, 21))
    assert max(ROWS, key=lambda n: ROWS[n].at[0.3].f1) == 12
    assert max((n for n in ROWS if 1.0 in ROWS[n].at), key=lambda n: ROWS[n].at[1.0].f1) == 11
    assert [n for n in ROWS if 1.0 not in ROWS[n].at] == [2, 19]
    assert [n for n in ROWS if 2.0 in ROWS[n].at] == [11, 12]
    assert max(ENSEMBLES, key=lambda epochs: ENSEMBLES[epochs].f1) == 1.0
    assert ROWS[12].at[1.0].f1 < TRANSFER.f1 < ENSEMBLES[1.0].f1


def test_f1_is_never_below_exact_match() -> None:
    """On spans; of answer / no answer the two are of different things."""
    curves = [*SPAN_CURVE.values(), *FRACTIONS.values(), *ENSEMBLES.values(), TRANSFER]
    rows = [printed for row in ROWS.values() for printed in row.at.values()]
    models = [Printed(model.exact, model.f1, "") for model in HULBURD]
    elsewhere = [printed for pair in REPOSITORY.values() for printed in pair.values()]
    for printed in (*curves, *rows, *models, *elsewhere):
        assert 0 < printed.exact <= printed.f1 < 100


def test_rotated_table() -> None:
    """Every name of the table is used once, and six rows separate what is printed from what is meant."""
    names = [printed_under(epochs) for epochs in SPAN_CURVE if epochs > 0]
    assert sorted(names) == sorted([*(f"{k}/10" for k in range(1, 10)), *map(str, range(1, 7))])
    assert printed_under(1.0) == "1/10"
    assert printed_under(6.0) == "6/10"
    assert printed_under(0.1) == "7/10"
    assert printed_under(0.9) == "6"
    assert printed_under(0.0) == ""
    assert SPAN_CURVE.keys() == LABEL_CURVE.keys()


def test_curve_of_data_fractions_passes_bert_at_sixty_percent() -> None:
    assert list(FRACTIONS) == [k / 10 for k in range(1, 11)]
    above = [part for part, printed in FRACTIONS.items() if printed.f1 > SPAN_CURVE[1.0].f1]
    assert above == [0.6, 0.7, 0.8, 0.9, 1.0]
    assert above == [part for part, printed in FRACTIONS.items() if printed.exact > SPAN_CURVE[1.0].exact]


# ---- sizes


def test_sizes_of_rows_follow_from_their_structure() -> None:
    """25 states of 1024: an adapter is 1024 a + a, a pooling 25 + 1, an output layer 2 d + 2, a skip 1024 more."""

    def head(width: int) -> int:
        return 2 * width + 2

    small, large = 1025 * 64, 1025 * 386
    sizes = {
        4: 26 + head(1024),
        7: small + head(1600),
        8: small + head(2624),
        10: 25 * small + head(2624),
        11: large + head(9650),
        12: large + head(10674),
        13: 25 * large + head(9650),
        14: 25 * large + head(10674),
        15: 26 + large + head(1410),
        16: 26 + 2 * large + head(9650 + 386),
    }
    for number, size in sizes.items():
        assert round(100 * size / LARGE, 3) == ROWS[number].percent, number
    assert round(100 * (25 * small + head(1600)) / LARGE, 3) != ROWS[9].percent == ROWS[10].percent


def test_rows_are_heads_that_the_papers_set_fits() -> None:
    heads = {row.head for row in CATALOGUE if "row" in row.seed}
    assert {text for text, _ in expand(["papers"])} >= heads
    assert len({row.label for row in ROWS.values()}) == 20
    assert [n for n, row in ROWS.items() if row.exact] == [4, *range(7, 16)]


def test_hulburds_counts_are_those_of_a_cased_bert() -> None:
    """The adapters of 64 lack an output layer; nothing else is off by one parameter."""
    layer, norms, first, head = 7_087_872, 3_072, 1_536, 1_538
    counts = {f"L{k}": k * layer + (12 - k) * norms + first + head for k in (0, 1, 3, 6)}
    counts["L12"] = 108_310_272 + head
    adapters = {size: 24 * (2 * 768 * size + size + 768) for size in (64, 768)}
    counts |= {
        "L12-A64": counts["L12"] + adapters[64],
        "L0-A64": counts["L0"] + adapters[64] - head,
        "L0-A768": counts["L0"] + adapters[768],
    }
    assert {model.name: model.trainable for model in HULBURD} == counts
    for name, printed in EFFICIENCY.items():
        model = next(model for model in HULBURD if model.name == name)
        assert round((model.f1 - 50) / math.log10(model.trainable), 2) == printed


# ---- the rest


def test_labels_of_answerability_are_heads() -> None:
    spelt = {parse_head(row.head).label for row in CATALOGUE if row.task == "label"}
    assert set(LABEL_HEADS) <= spelt
    assert {label for label, at in LABEL_HEADS.items() if 3.0 in at} == {"tenney-small"}
    assert all(at.keys() >= {0.2, 1.0} for at in LABEL_HEADS.values())


def test_small_tables() -> None:
    assert len(LAYER_WEIGHTS) == 25
    assert sum(LAYER_WEIGHTS) == pytest.approx(1.0, abs=0.03)
    assert max(LAYER_WEIGHTS) == LAYER_WEIGHTS[-1]
    for head, bert in CONTEXT_LENGTHS.values():
        assert head < bert
    base, large = REPOSITORY["BERT-base"], REPOSITORY["BERT-large"]
    assert base["BERTVision"].f1 > base["BERT"].f1
    assert round(large["BERT"].f1 - large["BERTVision"].f1, 2) == 0.31


def test_slips_name_sections_that_exist() -> None:
    folder = Path(str(sections.__path__[0]))
    for slip in SLIPS:
        assert slip.what.endswith(".")
        assert slip.taken.endswith(".")
        assert not slip.section or (folder / f"{slip.section.replace('-', '_')}.py").exists(), slip.section
    assert len({slip.what for slip in SLIPS}) == len(SLIPS) >= 18
