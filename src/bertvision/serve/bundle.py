"""Several tasks over one encoder: `bv.load(package).predict(first, second)` answers all of them.

The encoder is walked over once for all systems that read the same windows (`Trained.reads`), whatever their heads read
of its states (serve/walk.py). Texts that a system asks about with a prompt of its own are other windows, and are walked
over once for each prompt. Probabilities are calibrated as the heads' folders say (serve/calibrate.py).

`explain` tells what the answers were made of (serve/explain.py): the same walk, in which the layers' own readers stand
beside the heads, if there are any. What walks is `walk` or a graph of ONNX (serve/onnx.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from bertvision.data.examples import SpanData
from bertvision.data.reframe import reframe
from bertvision.data.texts import TextData, answerable
from bertvision.data.windows import Windows, make_windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, DataError, nearest
from bertvision.serve.calibrate import read_no_answer, read_temperature
from bertvision.serve.explain import explain
from bertvision.serve.inputs import as_questions, asks, checked_texts, short_names, texts_read
from bertvision.serve.package import layer_number
from bertvision.serve.predictions import (
    AnyPrediction,
    LabelPrediction,
    ScorePrediction,
    check_n_best,
    span_predictions,
    text_predictions,
)
from bertvision.serve.walk import Reader, walk
from bertvision.tasks.span.answers import SpanAnswers
from bertvision.tasks.span.decode import decode
from bertvision.tasks.text.answers import TextAnswers, answer, class_logits, softmax
from bertvision.tasks.text.logits import TextLogits
from bertvision.tasks.text.task import TextTask
from bertvision.train.evaluate import Logits
from bertvision.train.trained import Trained, join

__all__ = [
    "AnyPrediction",
    "Bundle",
    "LabelPrediction",
    "ScorePrediction",
    "TextPredictor",
    "Walked",
    "asks",
    "short_names",
    "text_predictions",
    "texts_read",
]


Texts = str | list[str] | tuple[str, ...]


@dataclass(frozen=True)
class Walked:
    """What one walk over the encoder gave, for systems that read the same windows."""

    names: tuple[str, ...]
    """The systems."""
    windows: Windows
    spans: SpanData | None
    """The examples as questions, where any system asks them."""
    texts: TextData | None
    """The examples as texts, where any system gives labels or scores."""
    logits: dict[str, Logits]
    """Of each system, its members joined."""
    layers: dict[str, dict[int, Logits]] = field(default_factory=dict)
    """Of the readers of each system's layers: number of the hidden state to its logits."""


_PLANS = 256
"""How many choices of tasks are remembered."""

Walk = Callable[..., dict[str, Logits]]
"""What `serve.walk.walk` does: (encoder, windows, readers, group=, label=) -> logits by reader."""


class Bundle:
    """Trained systems of one encoder, each answering under its name."""

    def __init__(
        self,
        systems: Sequence[Trained],
        encoder: Encoder,
        *,
        names: Sequence[str] | None = None,
        layers: Mapping[str, Sequence[Trained]] | None = None,
        walk: Walk = walk,
    ) -> None:
        """
        Args:
            names: What the systems are called; by default what tells their folders apart.
            layers: By a system's name the readers of its hidden states (heads/layer_reader.py), which only `explain`
                asks; a system may have none.
            walk: What computes the logits; by default torch.
        """
        names = short_names([system.folder for system in systems]) if names is None else list(names)
        if not systems or len(set(names)) < len(systems):
            raise ConfigError("a bundle needs at least one system, and a name of its own for each")
        self.systems, self.encoder = dict(zip(names, systems, strict=True)), encoder
        self.layers = {name: list(readers) for name, readers in (layers or {}).items()}
        """The readers of hidden states, by the system whose task they were fitted for."""
        if strange := set(self.layers) - set(self.systems):
            raise ConfigError(f"there are layer readers for {min(strange)}, which is no task of the bundle")
        self.walk = walk
        """What computes logits; `serve.onnx.use_onnx` puts a graph here."""
        for system in (*systems, *(reader for readers in self.layers.values() for reader in readers)):
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
        self.no_answers = {
            name: read_no_answer(system.folder) for name, system in self.systems.items() if _spans(system)
        }
        """How they calibrate the probability of no answer; None = not at all."""
        self.temperatures = {
            name: read_temperature(system.folder)
            for name, system in self.systems.items()
            if not _spans(system)
        }
        self._plans: dict[tuple[str, ...], list[list[str]]] = {}

    # ---- texts

    @overload
    def predict(
        self,
        first: str,
        second: str | None = None,
        *,
        tasks: Sequence[str] | None = None,
        n_best: int = 0,
    ) -> dict[str, AnyPrediction]: ...
    @overload
    def predict(
        self,
        first: list[str] | tuple[str, ...],
        second: str | Sequence[str] | None = None,
        *,
        tasks: Sequence[str] | None = None,
        n_best: int = 0,
    ) -> list[dict[str, AnyPrediction]]: ...
    def predict(
        self,
        first: Texts,
        second: str | Sequence[str] | None = None,
        *,
        tasks: Sequence[str] | None = None,
        n_best: int = 0,
    ) -> dict[str, AnyPrediction] | list[dict[str, AnyPrediction]]:
        """What every task makes of one text or pair, or of several.

        Args:
            first: A text, the first of a pair, or a question.
            second: The other text, or the paragraph; one for all, or as many as there are first ones.
            tasks: The tasks that are to answer, which must read as many texts as are given; none = those that do.
            n_best: How many of the best candidates tasks that find spans tell beside the answer; no more than their
                decoding keeps (20).
        """
        check_n_best(n_best)
        firsts = [first] if isinstance(first, str) else list(first)
        seconds = [second] * len(firsts) if second is None or isinstance(second, str) else list(second)
        if len(firsts) != len(seconds):
            raise DataError(f"predict got {len(firsts)} first texts but {len(seconds)} second ones")
        asked = self.fitting(tasks, pairs=second is not None)
        if not firsts:
            return []
        found = self._answers(asked, checked_texts(firsts, seconds))
        told = {name: self.predictions(name, one, n_best=n_best) for name, one in found.items()}
        rows = [{name: told[name][i] for name in asked} for i in range(len(firsts))]
        return rows[0] if isinstance(first, str) else rows

    def predictions(
        self, name: str, answers: SpanAnswers | TextAnswers, *, n_best: int = 0
    ) -> Sequence[AnyPrediction]:
        """What a task's answers are in words, one prediction an example."""
        if isinstance(answers, TextAnswers):
            return text_predictions(answers)
        return span_predictions(answers, self.no_answers[name], n_best=n_best)

    def explain(
        self,
        first: str,
        second: str | None = None,
        *,
        tasks: Sequence[str] | None = None,
        n_best: int = 5,
    ) -> dict[str, Any]:
        """What every task makes of one text or pair, and of what: see serve/explain.py for what is told."""
        check_n_best(n_best)
        asked = self.fitting(tasks, pairs=second is not None)
        data = checked_texts([first], [second])
        walks = [self._walked(names, data, layers=True) for names in self._plan(asked)]
        # A question is asked about the other text.
        about = second if second is not None and any(asks(self.systems[name]) for name in asked) else first
        return explain(self, walks, asked, text=about, n_best=n_best)

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
        plan = self._plans.get(asked)
        if plan is None:
            groups: dict[Any, list[str]] = {}
            for name in asked:
                groups.setdefault(self.systems[name].reads, []).append(name)
            if len(self._plans) >= _PLANS:  # callers choose the tasks and their order
                self._plans.clear()
            plan = self._plans[asked] = list(groups.values())
        return plan

    def _answers(
        self, asked: tuple[str, ...], data: SpanData | TextData, *, label: str = ""
    ) -> dict[str, SpanAnswers | TextAnswers]:
        found: dict[str, SpanAnswers | TextAnswers] = {}
        for names in self._plan(asked):
            walked = self._walked(names, data, label=label)
            found |= {name: self.merged(walked, name, walked.logits[name]) for name in names}
        return found

    def _walked(
        self, names: Sequence[str], data: SpanData | TextData, *, label: str = "", layers: bool = False
    ) -> Walked:
        """Logits of systems that read the same windows, from one walk; with `layers` of their layers' readers too."""
        systems = {name: self.systems[name] for name in names}
        first = systems[names[0]]
        spans = as_questions(data) if asks(first) else None
        texts = reframe(data, first.reframe) if isinstance(data, TextData) and spans is None else None
        if spans is not None and not all(map(_spans, systems.values())):
            # The windows of spans, but with a label each: there the pooler's vector is handed out.
            texts = answerable(spans, answers_required=False)
        source = spans if texts is None else texts
        assert source is not None
        windows = make_windows(source, self.encoder.tokenizer, first.windows)
        readers = self.readers(names, layers=layers)
        logits = self.walk(self.encoder, windows, readers, group=first.task.group, label=label)
        return Walked(
            tuple(names),
            windows,
            spans,
            texts,
            {
                name: join(system, [logits[f"{name}/{i}"] for i in range(len(system.heads))], windows)
                for name, system in systems.items()
            },
            {
                name: {layer_number(one): logits[f"{name}/layers/{i}"] for i, one in enumerate(own)}
                for name, own in self.layers.items()
                if layers and name in systems
            },
        )

    def readers(self, names: Sequence[str] | None = None, *, layers: bool = False) -> dict[str, Reader]:
        """The heads of systems (none = all): NAME/0 and so on, and with `layers` those of states, NAME/layers/0 ..."""
        names = list(self.systems) if names is None else names
        made = {
            f"{name}/{i}": Reader(head, selection, self.systems[name].task)
            for name in names
            for i, (head, selection) in enumerate(self.systems[name].readers)
        }
        if layers:
            made |= {
                f"{name}/layers/{i}": Reader(one.heads[0], one.selections[0], one.task)
                for name in names
                for i, one in enumerate(self.layers.get(name, []))
            }
        return made

    def merged(
        self, walked: Walked, name: str, logits: Any, *, temperature: float | None = None
    ) -> SpanAnswers | TextAnswers:
        """The answers of the system `name` from its logits, or from those of a reader of one of its layers."""
        task = self.systems[name].task
        if not isinstance(task, TextTask):
            assert walked.spans is not None
            return decode(walked.windows, logits, walked.spans, self.decodings[name])
        assert walked.texts is not None
        used = self.temperatures[name] if temperature is None else temperature
        return _merged(walked.windows, logits, walked.texts, task, used)


def _merged(
    windows: Windows, logits: TextLogits, data: TextData, task: TextTask, temperature: float
) -> TextAnswers:
    """The answers of one system; where every text is one window, as most are, there is nothing to merge."""
    rows = len(windows) // task.group
    if rows > len(data) or task.kind == "score":
        like = replace(data, kind=task.kind, classes=task.classes)
        return answer(windows, logits, like, task, temperature=temperature)
    logits.check(rows)
    probabilities = softmax(class_logits(logits.values, task) / temperature)
    return TextAnswers([e.id for e in data.examples], task, probabilities, probabilities.argmax(axis=1))


def _spans(system: Trained) -> bool:
    return not isinstance(system.task, TextTask)


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
