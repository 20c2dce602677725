"""The nine tasks of GLUE and its diagnostic set AX: columns, classes, metric.

Classes have the order they have on the Hub. Metrics are the benchmark's own: Matthews' correlation for CoLA, Pearson's
for STS-B, F1 for MRPC and QQP, else accuracy.
"""

from dataclasses import dataclass

from bertvision.data.texts import Metric, TextKind
from bertvision.errors import ConfigError

__all__ = ["GLUE", "GlueTask", "glue_task"]


@dataclass(frozen=True)
class GlueTask:
    """How one task's files are written and what it is judged by."""

    name: str
    texts: tuple[str, ...]
    """Columns of the one text or the two."""
    label: str
    """Column of the label."""
    classes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    """What the files write for each class; empty: the names themselves."""
    metric: Metric = "accuracy"
    no_header: tuple[str, ...] = ()
    """Columns of a file without a header line."""
    hub_texts: tuple[str, ...] = ()
    """Columns of the texts on the Hub, where they differ."""
    lenient: bool = False
    """The published files with labels hold a few rows that were cut: they are left out with a warning."""

    @property
    def key(self) -> str:
        """Its name on the Hub."""
        return self.name.lower().replace("-", "")

    @property
    def kind(self) -> TextKind:
        return "label" if self.classes else "score"

    @property
    def names(self) -> dict[str, str]:
        """The class each value of the files stands for."""
        return dict(zip(self.values or self.classes, self.classes, strict=True))


_TWO = ("sentence1", "sentence2")
_ENTAILED = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
GLUE = {
    task.key: task
    for task in (
        GlueTask("CoLA", ("sentence",), "label", ("unacceptable", "acceptable"), ("0", "1"), "mcc",
                 no_header=("source", "label", "mark", "sentence")),
        GlueTask("SST-2", ("sentence",), "label", ("negative", "positive"), ("0", "1")),
        GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", ("not_equivalent", "equivalent"), ("0", "1"), "f1",
                 hub_texts=_TWO),
        GlueTask("QQP", ("question1", "question2"), "is_duplicate", ("not_duplicate", "duplicate"), ("0", "1"), "f1",
                 lenient=True),
        GlueTask("STS-B", _TWO, "score", metric="pearson"),
        GlueTask("MNLI", _TWO, "gold_label", _NLI, hub_texts=("premise", "hypothesis")),
        GlueTask("QNLI", ("question", "sentence"), "label", _ENTAILED),
        GlueTask("RTE", _TWO, "label", _ENTAILED),
        GlueTask("WNLI", _TWO, "label", ("not_entailment", "entailment"), ("0", "1")),
        GlueTask("AX", _TWO, "label", _NLI, hub_texts=("premise", "hypothesis")),
    )
}  # fmt: skip


def glue_task(name: str) -> GlueTask:
    """The task called so, in any case, with or without its hyphen."""
    task = GLUE.get(name.lower().replace("-", "").replace("_", ""))
    if task is None:
        raise ConfigError(
            f"GLUE has no task {name!r}; choose one of {', '.join(task.name for task in GLUE.values())}"
        )
    return task
