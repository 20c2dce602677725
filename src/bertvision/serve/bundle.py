"""Several tasks over one encoder: `bv.load(package).predict(first, second)` answers all of them.

The encoder is walked over once for all systems that read the same windows (`Trained.reads`), whatever their heads read
of its states (serve/walk.py). Texts that a system asks about with a prompt of its own are other windows, and are walked
over once for each prompt. Probabilities of labels are at the temperature that is stored with the head (metrics.json).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from bertvision.artifacts import read_json
from bertvision.data.answerable import answerable
from bertvision.data.building import Flaw, SpanBuilder, check_text
from bertvision.data.examples import SpanData
from bertvision.data.reframe import reframe
from bertvision.data.text_windows import make_windows_of
from bertvision.data.texts import TextData, TextExample
from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, DataError
from bertvision.heads.base import nearest
from bertvision.serve.predictor import Prediction, Predictor
from bertvision.serve.walk import Reader, walk
from bertvision.tasks.span.answers import SpanAnswers
from bertvision.tasks.span.decode import decode
from bertvision.tasks.text.answers import TextAnswers, answer, class_logits, softmax
from bertvision.tasks.text.logits import TextLogits
from bertvision.tasks.text.task import TextTask
from bertvision.train.trained import Trained, join

__all__ = [
    "AnyPrediction",
    "Bundle",
    "LabelPrediction",
    "ScorePrediction",
    "TextPredictor",
    "asks",
    "short_names",
    "text_predictions",
    "texts_read",
]


@dataclass(frozen=True)
class LabelPrediction:
    label: str
    """The class with the greatest probability."""
    probability: float
    """Its probability."""
    probabilities: dict[str, float]
    """Of every class."""


@dataclass(frozen=True)
class ScorePrediction:
    score: float


AnyPrediction = Prediction | LabelPrediction | ScorePrediction
Texts = str | list[str] | tuple[str, ...]


def asks(system: Trained) -> bool:
    """Whether it reads questions over paragraphs: spans, and answer / no answer."""
    return not isinstance(system.task, TextTask) or system.task.asks


def texts_read(system: Trained) -> int:
    """How many texts an example of its task has."""
    return 2 if asks(system) or (isinstance(system.task, TextTask) and system.task.pairs) else 1


def short_names(folders: Sequence[Path]) -> list[str]:
    """A name for each head's folder: the first part of its path that tells all of them apart, else the whole path below
    the folder they share."""
    paths = [folder.resolve().parts for folder in folders]
    depth = next((i for i, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), None)
    if depth is None:
        return [folder.resolve().name for folder in folders]
    for parts in list(zip(*paths, strict=False))[depth:]:
        if len(set(parts)) == len(parts):
            return list(parts)
    return ["/".join(parts[depth:]) for parts in paths]


def text_predictions(answers: TextAnswers) -> list[LabelPrediction | ScorePrediction]:
    """One prediction an example."""
    if answers.probabilities is None:
        return [ScorePrediction(value) for value in answers.values.tolist()]
    names = answers.task.classes
    return [
        LabelPrediction(names[best], row[best], dict(zip(names, row, strict=True)))
        for best, row in zip(answers.values.tolist(), answers.probabilities.tolist(), strict=True)
    ]


def _temperature(system: Trained) -> float:
    path = system.folder / "metrics.json"
    stored = read_json(path).get("temperature") if path.exists() else None
    return float(stored["value"]) if isinstance(stored, Mapping) and "value" in stored else 1.0


class Bundle:
    """Trained systems of one encoder, each answering under its name."""

    def __init__(
        self, systems: Sequence[Trained], encoder: Encoder, *, names: Sequence[str] | None = None
    ) -> None:
        """
        Args:
            names: What the systems are called; by default what tells their folders apart.
        """
        names = short_names([system.folder for system in systems]) if names is None else list(names)
        if not systems or len(set(names)) < len(systems):
            raise ConfigError("a bundle needs at least one system, and a name of its own for each")
        self.systems, self.encoder = dict(zip(names, systems, strict=True)), encoder
        for system in systems:
            if system.fingerprint != encoder.fingerprint:
                raise ArtifactError(
                    f"{system.folder} was fitted on another encoder (fingerprint {system.fingerprint[:12]}) than "
                    f"{encoder.name} ({encoder.fingerprint[:12]}): load each with its own"
                )
            encoder.check_length(system.windows.max_seq_length)
            for head in system.heads:
                head.to(encoder.device).eval()
        self.decodings = {name: system.decoding() for name, system in self.systems.items() if _spans(system)}
        """How the systems that find spans decode their logits."""
        self.temperatures = {name: _temperature(s) for name, s in self.systems.items() if not _spans(s)}
        self._plans: dict[tuple[str, ...], list[list[str]]] = {}

    # ---- texts

    @overload
    def predict(
        self, first: str, second: str | None = None, *, tasks: Sequence[str] | None = None
    ) -> dict[str, AnyPrediction]: ...
    @overload
    def predict(
        self,
        first: list[str] | tuple[str, ...],
        second: str | Sequence[str] | None = None,
        *,
        tasks: Sequence[str] | None = None,
    ) -> list[dict[str, AnyPrediction]]: ...
    def predict(
        self,
        first: Texts,
        second: str | Sequence[str] | None = None,
        *,
        tasks: Sequence[str] | None = None,
    ) -> dict[str, AnyPrediction] | list[dict[str, AnyPrediction]]:
        """What every task makes of one text or pair, or of several.

        Args:
            first: A text, the first of a pair, or a question.
            second: The other text, or the paragraph; one for all, or as many as there are first ones.
            tasks: The tasks that are to answer, which must read as many texts as are given; none = those that do.
        """
        firsts = [first] if isinstance(first, str) else list(first)
        seconds = [second] * len(firsts) if second is None or isinstance(second, str) else list(second)
        if len(firsts) != len(seconds):
            raise DataError(f"predict got {len(firsts)} first texts but {len(seconds)} second ones")
        asked = self.fitting(tasks, pairs=second is not None)
        if not firsts:
            return []
        found = self._answers(asked, _texts(firsts, seconds))
        told = {
            name: text_predictions(one) if isinstance(one, TextAnswers) else Predictor.predictions(one)
            for name, one in found.items()
        }
        rows = [{name: told[name][i] for name in asked} for i in range(len(firsts))]
        return rows[0] if isinstance(first, str) else rows

    def answer(
        self, data: SpanData | TextData, *, tasks: Sequence[str] | None = None
    ) -> dict[str, SpanAnswers | TextAnswers]:
        """Answers to a whole data set, whose labels are not looked at.

        Questions are for systems that ask, texts for all others.
        """
        asked = self.asked(tasks)
        questions = isinstance(data, SpanData) or data.spans is not None
        wrong = [name for name in asked if asks(self.systems[name]) != questions]
        if wrong:
            what = "questions over paragraphs" if questions else "texts"
            raise ConfigError(
                f"{data.name} holds {what}, which {', '.join(wrong)} cannot read: name other tasks"
            )
        if isinstance(data, TextData):
            asked = self.fitting(tasks, pairs=data.pairs)
        return self._answers(asked, data, label="predict")

    def asked(self, tasks: Sequence[str] | None) -> tuple[str, ...]:
        """The names of the tasks that are to answer; none = all."""
        if not tasks:
            return tuple(self.systems)
        for name in tasks:
            if name not in self.systems:
                raise ConfigError(f"there is no task {name!r}: {nearest(name, list(self.systems))}")
        return tuple(dict.fromkeys(tasks))

    def fitting(self, tasks: Sequence[str] | None, *, pairs: bool) -> tuple[str, ...]:
        """Of all tasks those that read as many texts as are given; a task that was asked for must be one of them."""
        given = 2 if pairs else 1
        asked = self.asked(tasks)
        wrong = [name for name in asked if texts_read(self.systems[name]) != given]
        if not wrong or (not tasks and len(wrong) < len(asked)):
            return tuple(name for name in asked if name not in wrong)
        reads, one = ("one text", "two are") if pairs else ("two texts", "one is")
        verb = "reads" if len(wrong) == 1 else "read"
        fitting = [name for name in asked if name not in wrong]
        way_out = f"ask only {', '.join(fitting)} (tasks)" if fitting else f"give {reads}"
        raise DataError(f"{', '.join(wrong)} {verb} {reads}, and {one} given: {way_out}")

    # ---- windows

    def _plan(self, asked: tuple[str, ...]) -> list[list[str]]:
        """The tasks, those that read the same windows together."""
        if asked not in self._plans:
            groups: dict[Any, list[str]] = {}
            for name in asked:
                groups.setdefault(self.systems[name].reads, []).append(name)
            self._plans[asked] = list(groups.values())
        return self._plans[asked]

    def _answers(
        self, asked: tuple[str, ...], data: SpanData | TextData, *, label: str = ""
    ) -> dict[str, SpanAnswers | TextAnswers]:
        found: dict[str, SpanAnswers | TextAnswers] = {}
        for names in self._plan(asked):
            found |= self._walked(names, data, label)
        return found

    def _walked(
        self, names: Sequence[str], data: SpanData | TextData, label: str
    ) -> dict[str, SpanAnswers | TextAnswers]:
        """Answers of systems that read the same windows, from one walk."""
        systems = {name: self.systems[name] for name in names}
        first = systems[names[0]]
        spans = _questions(data) if asks(first) else None
        texts = reframe(data, first.reframe) if isinstance(data, TextData) and spans is None else None
        if spans is not None and not all(map(_spans, systems.values())):
            # The windows of spans, but with a label each: there the pooler's vector is handed out.
            texts = answerable(spans, answers_required=False)
        source = spans if texts is None else texts
        assert source is not None
        windows = make_windows_of(source, self.encoder.tokenizer, first.windows)
        readers = {
            f"{name}/{i}": Reader(head, reading, system.task)
            for name, system in systems.items()
            for i, (head, reading) in enumerate(system.readers)
        }
        logits = walk(self.encoder, windows, readers, group=first.task.group, label=label)
        found: dict[str, SpanAnswers | TextAnswers] = {}
        for name, system in systems.items():
            own = join(system, [logits[f"{name}/{i}"] for i in range(len(system.heads))], windows)
            if isinstance(system.task, TextTask):
                assert texts is not None
                found[name] = _merged(windows, own, texts, system.task, self.temperatures[name])
            else:
                assert spans is not None
                found[name] = decode(windows, own, spans, self.decodings[name])
        return found


def _merged(
    windows: Windows, logits: TextLogits, data: TextData, task: TextTask, temperature: float
) -> TextAnswers:
    """The answers of one system; where every text is one window, as most are, there is nothing to merge."""
    rows = len(windows) // task.group
    if rows > len(data) or task.kind == "score":
        like = replace(data, kind=task.kind, classes=task.classes, _cache={})
        return answer(windows, logits, like, task, temperature=temperature)
    logits.check(rows)
    probabilities = softmax(class_logits(logits.values, task) / temperature)
    return TextAnswers([e.id for e in data.examples], task, probabilities, probabilities.argmax(axis=1))


def _spans(system: Trained) -> bool:
    return not isinstance(system.task, TextTask)


def _texts(firsts: Sequence[str], seconds: Sequence[str | None]) -> TextData:
    """Texts without labels, checked."""
    examples = [TextExample(str(i), a, b) for i, (a, b) in enumerate(zip(firsts, seconds, strict=True))]
    for example in examples:
        try:
            check_text(example.first, "text", "write it")
            if example.second is not None:
                check_text(example.second, "second text", "write it")
        except Flaw as flaw:
            raise DataError(f"text {int(example.id) + 1}: {flaw}") from None
    return TextData(examples, "label", name="the texts")


def _questions(data: SpanData | TextData) -> SpanData:
    """The same examples as questions over paragraphs, without answers."""
    if isinstance(data, SpanData):
        return data
    if data.spans is not None:
        return data.spans
    builder = SpanBuilder(data.name)
    for example in data.examples:
        builder.add(example.id, example.first, builder.shared(example.second), ())
    return builder.build()


class TextPredictor:
    """One label or score system with its encoder."""

    def __init__(self, trained: Trained, encoder: Encoder) -> None:
        self.trained, self.encoder = trained, encoder
        self.bundle = Bundle([trained], encoder)

    @overload
    def predict(self, first: str, second: str | None = None) -> LabelPrediction | ScorePrediction: ...
    @overload
    def predict(
        self, first: list[str] | tuple[str, ...], second: str | Sequence[str] | None = None
    ) -> list[LabelPrediction | ScorePrediction]: ...
    def predict(self, first: Texts, second: str | Sequence[str] | None = None) -> Any:
        """The label or the score of one text or pair, or of several."""
        found: Any = self.bundle.predict(first, second)  # pyright: ignore[reportArgumentType, reportCallIssue]
        rows = [next(iter(row.values())) for row in ([found] if isinstance(first, str) else found)]
        return rows[0] if isinstance(first, str) else rows

    def answer(self, data: SpanData | TextData) -> TextAnswers:
        """Answers to a whole data set, whose labels are not looked at."""
        (answers,) = self.bundle.answer(data).values()
        assert isinstance(answers, TextAnswers)
        return answers
