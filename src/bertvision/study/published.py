"""What the seed documents print, as data: every value with where it stands and what is wrong with it.

Scores are percent. None of them is the measure of this report: BERTVision counts exact match and F1 on lists of word
pieces, with BERT-large, the whole training set, one seed, and no threshold for no answer; Hulburd has the official
measure, with BERT-base. `MEASURE` says so in every section that shows them, `BRIEF` beside each. What does not fit
together in the documents is in study/slips.py.

    ROWS[12].at[0.3]      exact match and F1 of the twelfth span model on the encoder of 3/10 epochs
    SPAN_CURVE[1]         of BERT itself after an epoch, in the true order: the papers print the table rotated
"""

from dataclasses import dataclass, field

from bertvision.heads.catalogue import CATALOGUE
from bertvision.heads.spec import parse_head

__all__ = [
    "ABOUT_RIGHT",
    "BRIEF",
    "CONTEXT_LENGTHS",
    "EFFICIENCY",
    "ENSEMBLES",
    "FRACTIONS",
    "HULBURD",
    "LABEL_CURVE",
    "LABEL_HEADS",
    "LAYER_WEIGHTS",
    "MEASURE",
    "NO_ANSWER_RIGHT",
    "REFERENCE",
    "REPOSITORY",
    "ROWS",
    "SECONDS_PER_EPOCH",
    "SECOND_BEST",
    "SPAN_CURVE",
    "TRANSFER",
    "HulburdModel",
    "PaperRow",
    "Printed",
    "printed_under",
]

MEASURE = (
    "Published values are of another measure (exact match and F1 on word pieces, no threshold) with BERT-large, the "
    "whole training set and one seed: compare differences and orders, not levels."
)
BRIEF = "Published values are of another measure: compare differences and orders, not levels."
"""The same in captions, below a section that has said it in full."""


@dataclass(frozen=True)
class Printed:
    """A score as a document prints it, percent."""

    exact: float
    f1: float
    place: str
    """Document, and table or figure."""
    wrong: str = ""
    """What is wrong with it."""


def _printed(text: str, place: str, wrong: str = "") -> Printed:
    """ ".673/.720" as the tables have it."""
    exact, f1 = (round(100 * float(part), 1) for part in text.split("/"))
    return Printed(exact, f1, place, wrong)


# ---- the twenty span models


@dataclass(frozen=True)
class PaperRow:
    """One of BERTVision's span models."""

    number: int
    name: str
    """What the paper calls it."""
    label: str
    """What the head is called here."""
    exact: bool
    """Its structure follows from the count or from code; else other structures would have met the count, too."""
    percent: float
    """Parameters as printed, percent of BERT-large."""
    at: dict[float, Printed] = field(default_factory=dict)
    """By epochs of the encoder's fine-tuning; one that was not reported is missing."""
    wrong: str = ""
    """What is wrong with its row."""


_ROWS = (
    ".673/.720 .745/.789", ".655/.701", ".670/.717 .744/.789", ".670/.712 .731/.766", ".675/.721 .745/.789",
    ".657/.700 .742/.786", ".677/.730 .739/.785", ".680/.732 .742/.787", ".684/.716 .736/.782",
    ".689/.733 .736/.784", ".660/.703 .749/.790 .753/.797", ".699/.740 .740/.786 .749/.795",
    ".676/.723 .714/.769", ".676/.723 .716/.767", ".691/.734 .741/.786", ".691/.734 .745/.789",
    ".670/.720 .748/.789", ".690/.731 .747/.786", ".501/.501", ".668/.711 .741/.786",
)  # fmt: skip
"""Of each row: on the encoder of 3/10 epochs, of one, of two."""

_WRONG = {
    4: "the main tables print other rows' scores here: row 11's in one version, row 5's in the other",
    6: "the main tables call it plain average pooling, of 0.001 %; that was never reported",
    7: "the main tables print row 8's scores here for 3/10 epochs",
    9: "0.491 % is row 10's: without the skip it is 0.490 %",
    11: "said to gain like all adapters, it gains 0.6 EM and 0.1 F1 at 3/10 epochs",
    13: "the main tables print row 14's scores for one epoch beside this row's size; at 3/10 both print the same",
    14: "the same scores as row 13 at 3/10 epochs",
    15: "the same scores at 3/10 epochs as row 16 and as the ensemble",
    16: "the same scores at 3/10 epochs as row 15 and as the ensemble",
    19: "what answering nothing at all scores: it learned nothing",
}


def _paper_rows() -> dict[int, PaperRow]:
    rows: dict[int, PaperRow] = {}
    for known in CATALOGUE:
        if not known.seed.startswith(("3.2 row", "3.3 row")):
            continue
        number = int(known.seed.split()[-1])
        places = ("Fig. A.3", "Fig. A.3", "table of two epochs")
        at = {
            epochs: _printed(text, f"BERTVision, {place}")
            for epochs, place, text in zip((0.3, 1.0, 2.0), places, _ROWS[number - 1].split(), strict=False)
        }
        rows[number] = PaperRow(
            number, known.paper, parse_head(known.head).label, known.origin == "exact",
            known.published or 0.0, at, _WRONG.get(number, ""),
        )  # fmt: skip
    return dict(sorted(rows.items()))


ROWS: dict[int, PaperRow] = _paper_rows()

ENSEMBLES: dict[float, Printed] = {
    0.3: _printed(".691/.734", "BERTVision, ensembles", "below its own member, row 12 (69.9 / 74.0)"),
    1.0: _printed(".756/.798", "BERTVision, ensembles"),
    2.0: _printed(
        ".751/.796", "BERTVision, table of two epochs", "the text gives the ensemble row 12's 74.9 / 79.5"
    ),
}
"""BERT and the best head of that encoder, the greater probability of the two."""

TRANSFER = _printed(
    ".745/.791",
    "notebook of BERTVision",
    "in no paper, although above the head that was fitted there (74.0 / 78.6)",
)
"""Row 12 fitted on the encoder of 3/10 epochs and read on that of one epoch."""

# ---- BERT itself

_SPAN = ".036/.051 .540/.597 .636/.681 .654/.702 .709/.754 .715/.760 .708/.755 .717/.759 .727/.777 .730/.777 .728/.777"
_SPAN_ON = ".747/.792 .740/.788 .734/.787 .723/.778 .743/.796"
_LABEL = ".494/.660 .501/.139 .687/.636 .700/.634 .705/.641 .687/.586 .728/.658 .713/.623 .761/.719 .766/.728 .761/.720"
_LABEL_ON = ".793/.774 .804/.790 .770/.733 .794/.777 .801/.783"
_EPOCHS = (*(k / 10 for k in range(11)), 2.0, 3.0, 4.0, 5.0, 6.0)


def _curve(values: str, place: str) -> dict[float, Printed]:
    return {epochs: _printed(text, place) for epochs, text in zip(_EPOCHS, values.split(), strict=True)}


SPAN_CURVE = _curve(f"{_SPAN} {_SPAN_ON}", "BERTVision, reporting notebook")
LABEL_CURVE = _curve(f"{_LABEL} {_LABEL_ON}", "BERTVision, curve of answer / no answer")
"""Answer or no answer: accuracy, which they call EM, and F1 of no answer."""
SECONDS_PER_EPOCH = 13_750.0
"""Of one V100; the text says about 5 hours."""


def printed_under(epochs: float) -> str:
    """The name of the row under which both papers print the span scores of so many epochs."""
    tenths = [k / 10 for k in range(1, 10)]
    names = [*(f"{k}/10" for k in range(1, 10)), *(str(k) for k in range(1, 7))]
    held = [*(float(k) for k in range(1, 7)), *tenths]
    return dict(zip(held, names, strict=True)).get(epochs, "")


_FRACTIONS = (
    ".716/.765 .713/.764 .724/.772 .720/.769 .721/.775 .733/.780 .734/.782 .740/.783 .742/.786 .745/.788"
)
_SWAPPED = "the figure's legend swaps EM and F1"
FRACTIONS: dict[float, Printed] = {
    k / 10: _printed(text, "BERTVision, figure of data fractions", _SWAPPED)
    for k, text in enumerate(_FRACTIONS.split(), start=1)
}
"""Row 12 on the encoder of one epoch, fitted on a part of the data."""

# ---- analyses of the same

SECOND_BEST = {
    "exact": 17.4,
    "f1": 24.0,
    "right": 1575,
    "of_wrong": 3569,
    "answerable": 739,
    "right_twice": 492,
}
"""The head of 3/10 epochs decoded for its second-best answer; how often that is right where the first was wrong."""

CONTEXT_LENGTHS: dict[tuple[float, str], tuple[float, float]] = {
    (0.3, "all"): (164.50, 165.86),
    (0.3, "unique"): (161.58, 175.30),
    (1.0, "all"): (164.39, 165.90),
    (1.0, "unique"): (158.68, 172.33),
}
"""Mean word pieces of the paragraphs that (head, BERT) answers rightly: all of these, and those only it does."""

NO_ANSWER_RIGHT: dict[str, tuple[int, int | None]] = {
    "head of 3/10 epochs": (4793, 3511),
    "head of 3/10 epochs, read on one epoch": (4882, None),
    "head of one epoch": (4961, 3927),
    "BERT of 3/10 epochs": (3798, 3965),
    "BERT of one epoch": (4406, 4234),
    "BERT of two epochs": (4763, 4108),
}
"""Right among 5,945 unanswerable and among 5,928 answerable questions (None = not known), from counts; the bars of the
figure are swapped and divided by the wrong totals."""
ABOUT_RIGHT = frozenset(
    {"head of one epoch", "BERT of 3/10 epochs", "BERT of one epoch", "BERT of two epochs"}
)
"""Of these the count among answerable questions is known about, from a rounded share."""

LAYER_WEIGHTS: tuple[float, ...] = (*(0.0195,) * 18, 0.03, 0.04, 0.07, 0.085, 0.09, 0.11, 0.243)
"""Learned pooling over the embeddings and 24 layers, read off the figure; the first 18 lie between .017 and .022."""

# ---- answer / no answer

_LABEL_MODELS = {
    "tenney-small": ".697/.650 .782/.763 .811/.795",
    "adapter-pooler-386": ".685/.646 .781/.765",
    "adapter-pooler-386-pooling=average": ".691/.624 .779/.765",
    "xception-abbr": ".673/.702 .785/.782",
    "xception-abbr-cls": ".672/.564 .783/.780",
    "xception": ".707/.710 .783/.766",
}
_BEST_EPOCHS = "each number is the best of ten epochs on dev, taken by itself"

LABEL_HEADS: dict[str, dict[float, Printed]] = {
    label: {
        epochs: _printed(text, "BERTVision, tables of answer / no answer", _BEST_EPOCHS)
        for epochs, text in zip((0.2, 1.0, 3.0), values.split(), strict=False)
    }
    for label, values in _LABEL_MODELS.items()
}
"""Accuracy and F1 of no answer, by epochs of the encoder's fine-tuning."""

# ---- Hulburd


@dataclass(frozen=True)
class HulburdModel:
    """A row of Hulburd's table: BERT-base (its counts say cased), official measure, three epochs."""

    name: str
    policy: str
    """What trains, as it is called here."""
    trainable: int
    """As printed."""
    exact: float
    f1: float
    minutes: int
    """Of training, under the heading "seconds"."""
    inference: tuple[float, float]
    """Seconds on 12,320 windows, least and most."""
    wrong: str = ""


HULBURD: tuple[HulburdModel, ...] = (
    HulburdModel("L12", "full", 108_311_810, 73.3, 76.3, 255, (145, 150), "75.8 F1 in the text, twice"),
    HulburdModel("L6", "top-6", 42_548_738, 72.3, 75.2, 218, (145, 150)),
    HulburdModel("L3", "top-3", 21_294_338, 69.3, 72.5, 203, (145, 150)),
    HulburdModel("L1", "top-1", 7_124_738, 62.8, 65.9, 193, (145, 150)),
    HulburdModel("L0", "top-0", 39_938, 52.1, 53.1, 188, (145, 150)),
    HulburdModel("L12-A64", "houlsby-64+full", 110_691_074, 73.2, 76.3, 269, (154.3, 154.8)),
    HulburdModel(
        "L0-A64", "houlsby-64", 2_417_664, 66.8, 69.8, 203, (154.3, 154.8), "without its output layer of 1,538"
    ),
    HulburdModel(
        "L0-A768", "houlsby-768", 28_388_354, 72.0, 75.0, 253, (188.8, 188.8),
        "said to cost about 20 % and under 2.5 ms more; its own numbers say 26 to 30 % and 3.1 to 3.6 ms",
    ),
)  # fmt: skip
EFFICIENCY = {"L6": 3.30, "L12": 3.27}
"""(F1 - 50) / log10(trainable), as printed; the base is not."""

# ---- elsewhere

_README = "BERTVision repository, README"
REPOSITORY: dict[str, dict[str, Printed]] = {
    "BERT-base": {"BERT": Printed(69.41, 72.57, _README), "BERTVision": Printed(70.10, 73.42, _README)},
    "BERT-large": {
        "BERT": Printed(77.58, 80.58, _README),
        "BERTVision": Printed(
            76.96, 80.27, _README, "an image of the results prints a difference of .0150 F1; it is .0031"
        ),
    },
}
"""SQuAD 2.0 after one epoch, with the repository's second set of programs and the usual measure."""
REFERENCE = Printed(78.7, 81.9, "Devlin et al., as the seed documents cite it")
"""BERT-large fully fine-tuned, official measure."""
