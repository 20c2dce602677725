"""Several tasks over one encoder: `bv.load(package).predict(first, second)` answers all of them.

The encoder is walked over once for all systems that read the same windows (`Trained.reads`), whatever their heads read
of its states (serve/walk.py). Texts that a system asks about with a prompt of its own are other windows, and are walked
over once for each prompt. Probabilities are calibrated as the heads' folders say (serve/calibrate.py).

`explain` tells what the answers were made of (model/explain.py): the same walk, in which the layers' own readers stand
beside the heads, if there are any. What walks is `walk` or a graph of ONNX (model/onnx.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from bertvision.data.texts import TextData
from bertvision.data.windows import Windows, make_windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, DataError, nearest
from bertvision.model.explain import explain
from bertvision.model.inputs import checked_texts, short_names
from bertvision.model.package import layer_number
from bertvision.model.trained import Trained
from bertvision.tasks.logits import Logits
from bertvision.tasks.predictions import AnyPrediction, check_n_best
from bertvision.tasks.texts import holds_questions
from bertvision.tasks.walk import Reader, walk_windows

__all__ = ["Bundle", "Texts", "Walk", "Walked", "short_names"]


Texts = str | list[str] | tuple[str, ...]


@dataclass(frozen=True)
class Walked:
    """What one walk over the encoder gave, for systems that read the same windows."""

    names: tuple[str, ...]
    """The systems."""
    windows: Windows
    data: dict[str, Any]
    """The examples as each system reads them."""
    logits: dict[str, Logits]
    """Of each system, its members joined."""
    layers: dict[str, dict[int, Logits]] = field(default_factory=dict)
    """Of the readers of each system's layers: number of the hidden state to its logits."""


_PLANS = 256
"""How many choices of tasks are remembered."""

Walk = Callable[..., dict[str, Logits]]
"""What `walk_windows` does: (encoder, windows, readers, label=) -> logits by reader."""


class Bundle:
    """Trained systems of one encoder, each answering under its name."""

    def __init__(
        self,
        systems: Sequence[Trained],
        encoder: Encoder,
        *,
        names: Sequence[str] | None = None,
        layers: Mapping[str, Sequence[Trained]] | None = None,
        walk: Walk = walk_windows,
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
        self.tunings = {name: system.tuning for name, system in self.systems.items()}
        """What was fitted on dev: thresholds and calibrations."""
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
        found = self._answers(asked, checked_texts(firsts, seconds, questions=self._all_ask(asked)))
        told = {name: self.predictions(name, one, n_best=n_best) for name, one in found.items()}
        rows = [{name: told[name][i] for name in asked} for i in range(len(firsts))]
        return rows[0] if isinstance(first, str) else rows

    def predictions(self, name: str, answers: Any, *, n_best: int = 0) -> Sequence[AnyPrediction]:
        """A task's predictions, one an example."""
        return self.systems[name].task.predictions(answers, self.tunings[name], n_best=n_best)

    def explain(
        self,
        first: str,
        second: str | None = None,
        *,
        tasks: Sequence[str] | None = None,
        n_best: int = 5,
    ) -> dict[str, Any]:
        """What every task makes of one text or pair, and of what: see model/explain.py for what is told."""
        check_n_best(n_best)
        asked = self.fitting(tasks, pairs=second is not None)
        data = checked_texts([first], [second], questions=self._all_ask(asked))
        walks = [self._walked(names, data, layers=True) for names in self._plan(asked)]
        # A question is asked about the other text.
        asks = any(self.systems[name].task.reads_questions for name in asked)
        about = second if second is not None and asks else first
        return explain(self, walks, asked, text=about, n_best=n_best)

    def answer(self, data: Any, *, tasks: Sequence[str] | None = None) -> dict[str, Any]:
        """Answers to a whole dataset, whose labels are not looked at.

        Questions are for systems that ask, texts for all others.
        """
        asked, questions = self.asked(tasks), holds_questions(data)
        wrong = [name for name in asked if self.systems[name].task.reads_questions != questions]
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
        wrong = [name for name in asked if self.systems[name].task.texts_read != given]
        if not wrong or (not tasks and len(wrong) < len(asked)):
            return tuple(name for name in asked if name not in wrong)
        reads, one = ("one text", "two are") if pairs else ("two texts", "one is")
        verb = "reads" if len(wrong) == 1 else "read"
        fitting = [name for name in asked if name not in wrong]
        way_out = f"ask only {', '.join(fitting)} (tasks)" if fitting else f"give {reads}"
        raise DataError(f"{', '.join(wrong)} {verb} {reads}, and {one} given: {way_out}")

    def _all_ask(self, asked: Sequence[str]) -> bool:
        return all(self.systems[name].task.reads_questions for name in asked)

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

    def _answers(self, asked: tuple[str, ...], data: Any, *, label: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for names in self._plan(asked):
            walked = self._walked(names, data, label=label)
            found |= {name: self.merged(walked, name, walked.logits[name]) for name in names}
        return found

    def _walked(self, names: Sequence[str], data: Any, *, label: str = "", layers: bool = False) -> Walked:
        """Logits of systems that read the same windows, from one walk; with `layers` of their layers' readers too."""
        systems = {name: self.systems[name] for name in names}
        prepared = {name: system.task.prepare(data, system.reframe) for name, system in systems.items()}
        # The windows of questions are those of spans, but the pooler's vector is handed out with labels alone.
        first = next((name for name, system in systems.items() if system.task.unit == "window"), names[0])
        windows = make_windows(prepared[first], self.encoder.tokenizer, systems[first].windows)
        readers = self.readers(names, layers=layers)
        logits = self.walk(self.encoder, windows, readers, label=label)
        return Walked(
            tuple(names),
            windows,
            prepared,
            {
                name: system.join([logits[f"{name}/{i}"] for i in range(len(system.heads))], windows)
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
        made = {f"{name}/{i}": one for name in names for i, one in enumerate(self.systems[name].readers)}
        if layers:
            made |= {
                f"{name}/layers/{i}": one.readers[0]
                for name in names
                for i, one in enumerate(self.layers.get(name, []))
            }
        return made

    def merged(self, walked: Walked, name: str, logits: Logits, tuning: Any = None) -> Any:
        """The answers of the system `name` from its logits, or from those of a reader of one of its layers."""
        task = self.systems[name].task
        return task.answer(walked.windows, logits, walked.data[name], tuning or self.tunings[name])
