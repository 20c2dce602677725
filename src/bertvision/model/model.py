"""`Model`: trained heads of one encoder, which answer from one pass of it.

    model = bv.load("pkg")
    model("A moving film.")                 # every task that reads one text: {"mood": LabelPrediction, ...}
    model.predict("A moving film.")         # the same; of a model with one task its prediction itself
    model.explain("Who built it?", text)    # what the answers were made of (explain.py)
    model.save("copy")                      # a package (package.py)

The encoder is walked over once for all systems that read the same windows (`Trained.reads`), whatever their heads read
of its states (tasks/walk.py). Texts that a system asks about with a prompt of its own are other windows, and are walked
over once for each prompt. What walks is torch, or a graph of ONNX (onnx.py).
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.data.cutting import make_windows
from bertvision.data.examples import TextData
from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, DataError, nearest
from bertvision.model.config import CardConfig, Keep
from bertvision.model.explain import explain
from bertvision.model.inputs import checked_texts
from bertvision.model.package import layer_number
from bertvision.model.trained import Trained
from bertvision.tasks.logits import Logits
from bertvision.tasks.predictions import AnyPrediction, check_n_best
from bertvision.tasks.texts import holds_questions
from bertvision.tasks.walk import Reader, walk_windows

if TYPE_CHECKING:
    from bertvision.model.export import Exported


Walk = Callable[..., dict[str, Logits]]
"""What `walk_windows` does: (encoder, windows, readers, label=) -> logits by reader."""


@dataclass(frozen=True)
class Walked:
    """What one walk over the encoder gave, for systems that read the same windows."""

    windows: Windows
    data: dict[str, Any]
    """The examples as each system reads them."""
    logits: dict[str, Logits]
    """Of each system, its members joined."""
    layers: dict[str, dict[int, Logits]] = field(default_factory=dict)
    """Of the readers of each system's layers: number of the hidden state to its logits."""


class Model:
    """An encoder and trained heads on its hidden states, by the names of their tasks."""

    def __init__(
        self,
        systems: Mapping[str, Trained],
        encoder: Encoder,
        *,
        layers: Mapping[str, Sequence[Trained]] | None = None,
    ) -> None:
        """
        Args:
            layers: By a task's name the readers of its hidden states (heads/layer_reader.py), which only `explain`
                asks; a task may have none.
        """
        if not systems:
            raise ConfigError("a model needs at least one head")
        self.systems, self.encoder = dict(systems), encoder
        self.walk: Walk = walk_windows
        """What computes logits: torch, or a graph (onnx.py)."""
        self.layers = {name: list(readers) for name, readers in (layers or {}).items()}
        if unknown := set(self.layers) - set(self.systems):
            raise ConfigError(f"there are layer readers for {min(unknown)}, which is no task of the model")
        for system in (*self.systems.values(), *(reader for own in self.layers.values() for reader in own)):
            if system.fingerprint != encoder.fingerprint:
                raise ArtifactError(
                    f"{system.folder} was fitted on another encoder (fingerprint {system.fingerprint[:12]}) than "
                    f"{encoder.name} ({encoder.fingerprint[:12]}): load each with its own"
                )
            encoder.check_length(system.windows.max_seq_length)
            for head in system.heads:
                head.to(encoder.device).eval()

    # ---- predictions

    def predict(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str] | None = None,
        *,
        tasks: Sequence[str] | None = None,
        n_best: int = 0,
    ) -> Any:
        """As calling the model; a model of one task gives its predictions themselves instead of by its name."""
        found = self(first, second, tasks=tasks, n_best=n_best)
        if len(self.systems) > 1:
            return found
        (name,) = self.systems
        return found[name] if isinstance(first, str) else [row[name] for row in found]

    def __call__(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str] | None = None,
        *,
        tasks: Sequence[str] | None = None,
        n_best: int = 0,
    ) -> Any:
        """For one text or pair {task: prediction}; for several a list of such.

        Args:
            first: A text, the first of a pair, or a question.
            second: The other text, or the paragraph; one for all, or as many as there are first ones.
            tasks: The tasks that are to answer, which must read as many texts as are given; none = those that do.
            n_best: How many of the best candidates are listed beside an answer found in a paragraph; no more than its
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
        answers = self._answers(asked, checked_texts(firsts, seconds, questions=self._all_ask(asked)))
        found = {name: self.predictions(name, one, n_best=n_best) for name, one in answers.items()}
        rows = [{name: found[name][i] for name in asked} for i in range(len(firsts))]
        return rows[0] if isinstance(first, str) else rows

    def answer(self, data: Any, *, tasks: Sequence[str] | None = None) -> dict[str, Any]:
        """By task the answers to a whole dataset, whose labels are not looked at.

        Questions are for tasks that read them, texts for all others.
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

    def predictions(self, name: str, answers: Any, *, n_best: int = 0) -> Sequence[AnyPrediction]:
        """A task's predictions, one an example."""
        system = self.systems[name]
        return system.task.predictions(answers, system.tuning, n_best=n_best)

    def explain(
        self, first: str, second: str | None = None, *, tasks: Sequence[str] | None = None, n_best: int = 5
    ) -> dict[str, Any]:
        """What every task makes of one text or pair, and of what: see explain.py for the keys."""
        check_n_best(n_best)
        asked = self.fitting(tasks, pairs=second is not None)
        data = checked_texts([first], [second], questions=self._all_ask(asked))
        walked: dict[str, Walked] = {}
        for names in self._plan(asked):
            walked |= dict.fromkeys(names, self._walked(names, data, layers=True))
        # A question is asked about the other text.
        asks = any(self.systems[name].task.reads_questions for name in asked)
        text = second if second is not None and asks else first
        return explain(self, {name: walked[name] for name in asked}, text=text, n_best=n_best)

    def set_threshold(self, threshold: float) -> None:
        """Give no answer where its score exceeds the best candidate's by more than this, in tasks that may abstain."""
        for name, system in self.systems.items():
            if system.task.abstains:
                self.systems[name] = replace(system, tuning=replace(system.tuning, threshold=threshold))

    # ---- which tasks

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
        fitting = [name for name in asked if name not in wrong]
        if not wrong or (not tasks and fitting):
            return tuple(fitting)
        reads, one = ("one text", "two are") if pairs else ("two texts", "one is")
        verb = "reads" if len(wrong) == 1 else "read"
        way_out = f"ask only {', '.join(fitting)} (tasks)" if fitting else f"give {reads}"
        raise DataError(f"{', '.join(wrong)} {verb} {reads}, and {one} given: {way_out}")

    def _all_ask(self, asked: Sequence[str]) -> bool:
        return all(self.systems[name].task.reads_questions for name in asked)

    # ---- windows

    def _plan(self, asked: Sequence[str]) -> list[list[str]]:
        """The tasks, those that read the same windows together."""
        groups: dict[Any, list[str]] = {}
        for name in asked:
            groups.setdefault(self.systems[name].reads, []).append(name)
        return list(groups.values())

    def _answers(self, asked: Sequence[str], data: Any, *, label: str = "") -> dict[str, Any]:
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
        joined = {
            name: system.join([logits[f"{name}/{i}"] for i in range(len(system.heads))], windows)
            for name, system in systems.items()
        }
        of_layers = {
            name: {layer_number(one): logits[f"{name}/layers/{i}"] for i, one in enumerate(own)}
            for name, own in self.layers.items()
            if layers and name in systems
        }
        return Walked(windows, prepared, joined, of_layers)

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
        system = self.systems[name]
        return system.task.answer(walked.windows, logits, walked.data[name], tuning or system.tuning)

    # ---- packages

    def save(
        self,
        folder: str | Path,
        *,
        keep: Keep = "auto",
        onnx: bool = False,
        card: CardConfig | None = None,
        title: str = "",
    ) -> "Exported":
        """Write a package (export.py) to `folder`, which must be new or a package.

        Args:
            keep: "bundle" copies the encoder into the package, "reference" names it; "auto" names it where others find
                it by the same name (embedded, or on the Hub) and copies it otherwise.
            onnx: Write encoder and heads as one ONNX graph too.
            card: What the card says beyond what is kept beside the heads.
            title: Of the card; by default the folder's name.
        """
        from bertvision.model.export import write_package

        return write_package(self, Path(folder), keep=keep, onnx=onnx, card=card or CardConfig(), title=title)

    def push_to_hub(self, repo: str, *, private: bool = False, keep: Keep = "auto") -> str:
        """Put the model on the Hub as the package `repo` ("ORG/NAME"); returns its address."""
        from bertvision.model.hub import check_reachable, check_repo, push_to_hub

        check_repo(repo)
        check_reachable(repo)
        title = repo.rpartition("/")[2]
        with tempfile.TemporaryDirectory() as place:
            self.save(Path(place) / title, keep=keep, title=title)
            return push_to_hub(Path(place) / title, repo, private=private)
