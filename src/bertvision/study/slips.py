"""What does not fit together in the seed documents, where that matters here, and what was done about it.

Documents: BERTVision's two versions, the conference form and the thesis, and its repository; Hulburd's study; Q&ABERT.
"""

from dataclasses import dataclass

__all__ = ["ELSEWHERE", "SLIPS", "Slip"]

ELSEWHERE = ""
"""Of a slip that no section of this report stands on."""


@dataclass(frozen=True)
class Slip:
    """A contradiction, or a number that cannot be right."""

    document: str
    what: str
    taken: str
    """What this project goes by instead."""
    section: str = ELSEWHERE
    """Where in the report it matters."""


_BOTH = "BERTVision, both versions"

SLIPS: tuple[Slip, ...] = (
    Slip(
        _BOTH,
        "The table of BERT's own span scores is rotated: the rows called 1/10 to 6/10 hold epochs 1 to 6, and those "
        "called 7/10 to 6 hold tenths 1 to 9, so that the marked baselines point at other rows' numbers.",
        "The true order, from the notebook that made the table.",
        "curve",
    ),
    Slip(
        _BOTH,
        "Learned pooling has three scores at 3/10 epochs: 66.0 / 70.3 in one main table (which is adapter 386 without "
        "skip), 67.5 / 72.1 in the other (learned pooling with a CNN) and 67.0 / 71.2 in the figure of all models. "
        "Average pooling is printed with the score of average pooling with a CNN and the size of one without.",
        "The figure of all models; plain average pooling was never reported and is measured here.",
        "papers",
    ),
    Slip(
        _BOTH,
        "The main tables take now the model with the skip, now the one without: adapter 64 shared at 3/10 epochs is "
        "the one with it, adapter 64 not shared the one without, although the other is better (68.9 / 73.3), and "
        "adapter 386 not shared at one epoch has the score of one and the size of the other.",
        "Every model by its own row of the figure of all models.",
        "papers",
    ),
    Slip(
        _BOTH,
        "One version calls learned pooling like BERT and average pooling much worse; the other calls average pooling "
        "like BERT and learned pooling better. One finds the last layers slightly favoured, the other simply favoured.",
        "Both poolings and the layers' weights are measured.",
        "layer-weights",
    ),
    Slip(
        "BERTVision, conference form",
        "Fine-tuning is told with batches of 8; the thesis and the code have 4.",
        "4 is what was run there; the batch size here stands in the commands.",
        "curve",
    ),
    Slip(
        _BOTH,
        "The mean length of the contexts that only the head answers is 161.68 in one version and 161.58 in the other "
        "and in the notebook.",
        "161.58.",
        "lengths",
    ),
    Slip(
        _BOTH,
        "Digits differ between the versions: 68,998 and 68,898 seconds, and F1 in the figure of the curve (76.88 and "
        "77.69 at five epochs). An epoch takes about 5 hours in the text and 13,750 seconds in the table; 3/10 of it "
        "1.5 hours and 4,125 seconds.",
        "The notebook's scores; the seconds of the table.",
        "curve",
    ),
    Slip(
        _BOTH,
        "On the encoder of two epochs the text gives the ensemble 74.9 / 79.5, the table 75.1 / 79.6: the text's pair "
        "is the head's of 3/10 epochs. One version sets the lower row in bold and mixes up which head is which.",
        "The table; heads by their structure.",
        "ensembles",
    ),
    Slip(
        _BOTH,
        "Adapters of all flavours are said to improve on BERT; adapter 386 without the skip gains 0.6 EM and 0.1 F1 at "
        "3/10 epochs, from one seed.",
        "Differences with intervals, over several seeds.",
        "papers",
    ),
    Slip(
        _BOTH,
        "A head is said to beat BERT with about 30 % of the data. On the only curve that was recorded it does so from "
        "60 % on, and the figure's legend has EM and F1 swapped.",
        "The curve's numbers, with the two columns put right.",
        "fractions",
    ),
    Slip(
        _BOTH,
        "In the figure of question types the bars of BERT at 3/10 epochs are swapped and divided by the wrong totals "
        "(true: 66.9 % of the answerable, 63.9 % of the unanswerable), and a head's bars use swapped totals (83.69 for "
        "83.45, 66.06 for 66.24).",
        "Shares computed anew from the counts.",
        "question-types",
    ),
    Slip(
        _BOTH,
        "Of answer / no answer the text excepts F1 at three epochs from what the heads reach, while the table has them "
        "0.5 above; the abstract says that no head reaches BERT of three epochs, which the same row contradicts.",
        "The table.",
        "answerable",
    ),
    Slip(
        _BOTH,
        "One network has 335,141,888 parameters in one table and 335,143,938 in another (without and with the output "
        "layer). Percentages count now what trains, now everything, and are now rounded, now cut off (.0797 as .079, "
        ".4903 as .491).",
        "Counts to the unit; percentages of the larger number.",
        "papers",
    ),
    Slip(
        _BOTH,
        "The input of the models of answer / no answer has 25 channels in the text and 26 in the appendix, whose order "
        "of channels is not the code's; the repository speaks of 24 layers.",
        "26 channels in the code's order.",
        "answerable",
    ),
    Slip(
        "BERTVision, repository",
        "README, an image of results and the project's page disagree on GLUE by up to 39 points (BERT-large on CoLA), "
        "and on SQuAD the image prints a gain of 1.5 F1 where the two numbers differ by 0.31. BERT is untuned and in "
        "places collapsed, while the heads were searched for on dev.",
        "Only the README's SQuAD row is cited; no head here is chosen on dev.",
        "papers",
    ),
    Slip(
        "Hulburd",
        "Full fine-tuning has 76.3 F1 in the table and 75.8 in the text, twice.",
        "The table.",
        "hulburd",
    ),
    Slip(
        "Hulburd",
        "The size of the adapters of 64 lacks the output layer (1,538), which all others count. The counts are those "
        "of the cased checkpoint, which is not stated.",
        "Counts with the output layer.",
        "hulburd",
    ),
    Slip(
        "Hulburd",
        "Training times under the heading of seconds are minutes. Inference with context-aware filters takes 200 s, or "
        "80 % more, or 9.5 ms a window more, which would be 262 s; adapters of 768 cost about 20 % and under 2.5 ms in "
        "the text, 26 to 30 % and 3.1 to 3.6 ms by the table.",
        "Times are measured here, and nothing is scaled from those.",
        "hulburd",
    ),
    Slip(
        "Hulburd",
        "The set called test is dev, and the table of the context-aware CNN has the caption of the table before it.",
        "Scores on dev are called that; no number of that CNN is cited, as they are printed as an image alone.",
        "cacnn",
    ),
    Slip(
        "Q&ABERT",
        "The shares of Quora's two classes are swapped (62.5 % are no paraphrases), a length of 758 exceeds BERT's 512 "
        "positions, the printed input contains the answer, one row mixes test and dev, and the depth of its dense "
        "layers is told in two ways.",
        "Tasks of texts are no part of this study.",
    ),
    Slip(
        _BOTH,
        "The smallest model is called the best of answer / no answer; the tables have Xception ahead at 2/10 epochs "
        "(70.7 / 71.0) and abbreviated Xception at one (78.5 / 78.2). Its F1 is 65.0 in a table and 64.9 in a figure.",
        "The tables, told to be the best of ten epochs on dev.",
        "answerable",
    ),
)
