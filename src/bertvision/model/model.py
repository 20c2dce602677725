"""`Model`: trained heads of one encoder, which answer from one pass of it.

    model = bv.load("pkg")
    model("A moving film.")                 # every task that reads one text: {"mood": LabelPrediction, ...}
    model.predict("A moving film.")         # the same; of a model with one task its prediction itself
    model.explain("Who built it?", text)    # what the answers were made of
    model.save("copy")                      # a package (load.py)

The encoder is walked over once for all systems that read the same windows (`Trained.reads`), whatever their heads read
of its states (tasks/walk.py). What walks is torch, or a graph of ONNX (onnx.py).

`predict --data` reads the examples of a file, or with `--data -` JSON lines, each answered as it comes:

    {"id"?: ..., "question": "Who?", "context": "..."}         or {"text": "...", "pair"?: "..."}
    {"id"?: ..., "line": 1, "tasks": {NAME: {...}}}            or {"line": 1, "error": "..."}

What has come while the last answers were computed is answered next, together: one line alone does not wait, many lines
share encoder calls of similar length. A line that cannot be answered gets its number and the reason, and the stream
goes on; at its end the exit code is 2. Empty lines are skipped.
"""

import io
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.console import emit
from bertvision.data.cutting import make_windows
from bertvision.data.examples import SpanData, TextData, TextExample
from bertvision.data.load import load_data, load_span_data
from bertvision.data.tables import Flaw, at, check_text, shorten
from bertvision.data.texts import Columns
from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, BertvisionError, ConfigError, DataError, nearest
from bertvision.model import CardConfig, Keep
from bertvision.model.trained import Trained
from bertvision.tasks import AnyPrediction
from bertvision.tasks.base import Task, check_n_best, to_json
from bertvision.tasks.logits import Logits
from bertvision.tasks.texts import holds_questions
from bertvision.tasks.walk import Reader, walk_windows

_AT_ONCE = 1 << 16
"""Bytes read at once, as many as a pipe holds: whoever writes faster than answers are computed waits."""
_TEXTS = (("question", "context"), ("text",), ("text", "pair"))


@dataclass(frozen=True)
class _Walked:
    """What a walk over the encoder gave for one system: logits of its heads, joined, and of its layers' readers."""

    system: Trained
    windows: Windows
    data: Any
    logits: Logits
    layers: list[Logits]

    def answers(self, logits: Logits | None = None, tuning: Any = None) -> Any:
        tuning = tuning or self.system.tuning
        return self.system.task.answer(self.windows, logits or self.logits, self.data, tuning)


class Model:
    """An encoder and trained heads on its hidden states, by the names of their tasks."""

    def __init__(self, systems: Mapping[str, Trained], encoder: Encoder) -> None:
        if not systems:
            raise ConfigError("a model needs at least one head")
        self.systems, self.encoder = dict(systems), encoder
        self.walk: Callable[..., dict[str, Logits]] = walk_windows
        """What computes logits: (encoder, windows, readers, label=) -> logits by reader."""
        for system in [one for own in self.systems.values() for one in (own, *own.layers)]:
            if system.fingerprint != encoder.fingerprint:
                raise ArtifactError(
                    f"{system.folder} was fitted on another encoder (fingerprint {system.fingerprint[:12]}) than "
                    f"{encoder.name} ({encoder.fingerprint[:12]}): load each with its own"
                )
            encoder.check_length(system.windows.max_seq_length)
            for head in system.heads:
                head.to(encoder.device).eval()

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
        asked = self._fitting(tasks, pairs=second is not None)
        if not firsts:
            return []
        walked = self._walk(asked, self._texts(asked, firsts, seconds))
        found = {name: self.predictions(name, one.answers(), n_best=n_best) for name, one in walked.items()}
        rows = [{name: found[name][i] for name in asked} for i in range(len(firsts))]
        return rows[0] if isinstance(first, str) else rows

    def answer(self, data: SpanData | TextData, *, tasks: Sequence[str] | None = None) -> dict[str, Any]:
        """By task the answers to a whole dataset, whose labels are not looked at."""
        asked = self._fitting(tasks, pairs=isinstance(data, SpanData) or data.pairs)
        return {name: one.answers() for name, one in self._walk(asked, data, label="predict").items()}

    def predictions(self, name: str, answers: Any, *, n_best: int = 0) -> Sequence[AnyPrediction]:
        system = self.systems[name]
        return system.task.predictions(answers, system.tuning, n_best=n_best)

    def explain(
        self, first: str, second: str | None = None, *, tasks: Sequence[str] | None = None, n_best: int = 5
    ) -> dict[str, Any]:
        """What every task makes of one text or pair, and of what; the dict goes into JSON as it stands.

            text        the paragraph that was read, or the text
            tokens      [{"start", "end"}] characters of the paragraph's tokens in the window that holds the best
                        candidate of the first task that finds spans; [] without such a task
            tasks       by name, in the order they were asked:
              span      kind, prediction, nbest, start and end (a probability for each of `tokens`), no_answer,
                        score_diff, threshold (no answer is given where score_diff exceeds it), shift and temperature
                        (of no_answer; null: not calibrated), layer_weights (how much each hidden state counts, null:
                        the head has no such weights), pooled_weight (how much the pooler's vector counts beside them,
                        null: it is not one of them)
              label     kind, label, probabilities by class, layer_weights, pooled_weight
              score     kind, score, layer_weights, pooled_weight
            layers      by task, where a package holds readers of its hidden states, lowest first:
              span      layer, answer (text, start, end; of the best candidate, whatever no answer scores), probability,
                        no_answer, start, end
              label     layer, probabilities
              score     layer, score

        Probabilities of starts and ends are over all tokens of the window; what is missing to 1 lies on the question
        and on the token that means no answer.
        """
        check_n_best(n_best)
        asked = self._fitting(tasks, pairs=second is not None)
        walked = self._walk(asked, self._texts(asked, [first], [second]), layers=True)
        answers = {name: walked[name].answers() for name in asked}
        shown = (self.systems[name].task.shown_tokens(own) for name, own in answers.items())
        chars = next((found for found in shown if found is not None), np.zeros((0, 2), np.int32))
        found: dict[str, Any] = {}
        layers: dict[str, list[dict[str, Any]]] = {}
        for name, own in answers.items():
            one, system = walked[name], self.systems[name]
            member = own, system.tuning
            found[name] = system.task.explain(member, one.logits, chars, n_best=n_best)
            found[name] |= self._layer_weights(system)
            for reader, logits in zip(system.layers, one.layers, strict=True):
                member = one.answers(logits, reader.tuning), reader.tuning
                row = system.task.explain(member, logits, chars, layer=True)
                layers.setdefault(name, []).append({"layer": reader.state} | row)
        # A question is asked about the other text.
        asks = any(self.systems[name].task.asks for name in asked)
        return {
            "text": second if second is not None and asks else first,
            "tokens": [{"start": begin, "end": end} for begin, end in chars.tolist()],
            "tasks": found,
            "layers": layers,
        }

    def _layer_weights(self, system: Trained) -> dict[str, Any]:
        """How much each hidden state counts, 0 for those that the head does not read, and the pooled vector."""
        first, states = system.readers[0], self.encoder.num_states
        shares = first.head.layer_weights() if len(system.readers) == 1 else None
        if shares is None:
            return {"layer_weights": None, "pooled_weight": None}
        numbers = first.selection.numbers(states)
        pooled = shares[0] if len(shares) > len(numbers) else None  # one channel more, before the others
        by_state = dict(zip(numbers, shares[-len(numbers) :], strict=True))
        weights = [by_state.get(number, 0.0) for number in range(states)]
        return {"layer_weights": weights, "pooled_weight": pooled}

    def set_threshold(self, threshold: float) -> None:
        """Give no answer where its score exceeds the best candidate's by more than this, in tasks that may abstain."""
        for name, system in self.systems.items():
            if system.task.abstains:
                self.systems[name] = replace(system, tuning=replace(system.tuning, threshold=threshold))

    def _fitting(self, tasks: Sequence[str] | None, *, pairs: bool) -> tuple[str, ...]:
        """Of all tasks those that read as many texts as are given; a task that was asked for must be one of them."""
        for name in tasks or ():
            if name not in self.systems:
                raise ConfigError(f"there is no task {name!r}: {nearest(name, list(self.systems))}")
        asked = tuple(dict.fromkeys(tasks or self.systems))
        wrong = [name for name in asked if self.systems[name].task.texts_read != 1 + pairs]
        fitting = [name for name in asked if name not in wrong]
        if not wrong or (not tasks and fitting):
            return tuple(fitting)
        reads, one = ("one text", "two are") if pairs else ("two texts", "one is")
        verb = "reads" if len(wrong) == 1 else "read"
        way_out = f"ask only {', '.join(fitting)} (tasks)" if fitting else f"give {reads}"
        raise DataError(f"{', '.join(wrong)} {verb} {reads}, and {one} given: {way_out}")

    def _texts(self, asked: Iterable[str], firsts: Sequence[str], seconds: Sequence[str | None]) -> TextData:
        """Texts without labels, checked; messages call them questions and contexts where all tasks do."""
        questions = all(self.systems[name].task.asks for name in asked)
        first, second = ("question", "context") if questions else ("text", "second text")
        examples = [TextExample(str(i), a, b) for i, (a, b) in enumerate(zip(firsts, seconds, strict=True))]
        for i, example in enumerate(examples, start=1):
            with at(f"{first} {i}"):
                check_text(example.first, first)
                if example.second is not None:
                    check_text(example.second, second)
        return TextData(examples, "label", name="the texts")

    def _walk(
        self, asked: Sequence[str], data: Any, *, label: str = "", layers: bool = False
    ) -> dict[str, _Walked]:
        """Logits of systems, with `layers` of their layers' readers too; one walk for those with the same windows."""
        groups: dict[Any, list[str]] = {}
        for name in asked:
            groups.setdefault(self.systems[name].reads, []).append(name)
        found: dict[str, _Walked] = {}
        for names in groups.values():
            systems = {name: self.systems[name] for name in names}
            prepared = {name: system.task.prepare(data, system.reframe) for name, system in systems.items()}
            # The windows of questions are those of spans, but the pooler's vector is handed out with labels alone.
            first = next((name for name in names if systems[name].task.unit == "window"), names[0])
            windows = make_windows(prepared[first], self.encoder.tokenizer, systems[first].windows)
            logits = self.walk(self.encoder, windows, self.readers(names, layers=layers), label=label)
            for name, system in systems.items():
                own = [logits[f"{name}/{i}"] for i in range(len(system.readers))]
                under = [logits[f"{name}/layers/{i}"] for i in range(len(system.layers) if layers else 0)]
                found[name] = _Walked(system, windows, prepared[name], system.join(own, windows), under)
        return found

    def readers(self, names: Iterable[str], *, layers: bool) -> dict[str, Reader]:
        """The heads of systems, NAME/0 and so on, and with `layers` those of hidden states, NAME/layers/0 ..."""
        found = {f"{name}/{i}": one for name in names for i, one in enumerate(self.systems[name].readers)}
        for name in names if layers else ():
            found |= {f"{name}/layers/{i}": one.readers[0] for i, one in enumerate(self.systems[name].layers)}
        return found

    def save(
        self,
        folder: str | Path,
        *,
        keep: Keep = "auto",
        onnx: bool = False,
        card: CardConfig | None = None,
        title: str = "",
        command: str = "",
    ) -> dict[str, Any]:
        """Write a package to `folder`, which must be new or a package; returns what `export --json` prints.

        Args:
            keep: "bundle" copies the encoder into the package, "reference" names it; "auto" names it where others find
                it by the same name (embedded, or on the Hub) and copies it otherwise.
            onnx: Write encoder and heads as one ONNX graph too.
            card: What the card says beyond what is kept beside the heads.
            title: Of the card; by default the folder's name.
            command: What asked for it, for the card.
        """
        from bertvision.model.export import write_package

        card, folder = card or CardConfig(), Path(folder)
        return write_package(self, folder, keep, card, onnx=onnx, title=title, command=command)

    def push_to_hub(self, repo: str, *, private: bool = False, keep: Keep = "auto") -> str:
        """Put the model on the Hub as the package `repo` ("ORG/NAME"); returns its address."""
        from bertvision.model.export import check_push, push_to_hub

        check_push(repo)
        title = repo.rpartition("/")[2]
        with tempfile.TemporaryDirectory() as place:
            self.save(Path(place) / title, keep=keep, title=title)
            return push_to_hub(Path(place) / title, repo, private=private)


# ---- inputs of `predict --data`


def load_inputs(
    source: str, tasks: Mapping[str, Task], *, columns: Columns, max_examples: int | None = None
) -> SpanData | TextData:
    """The examples of a file as these tasks read them: as questions, or as texts whose labels do not matter."""
    asking = [name for name, task in tasks.items() if task.asks]
    if 0 < len(asking) < len(tasks):
        raise ConfigError(
            f"of these tasks {', '.join(asking)} read questions and the others texts: name those that --data suits "
            "with --tasks"
        )
    if asking:
        source = source.removeprefix("answerable:")
        return load_span_data(source, max_examples=max_examples, answers_required=False)
    named = source.startswith(("glue:", "cs224n:"))
    # "label" and not "auto": a table with questions and contexts may be one of pairs.
    task = "auto" if named else "label"
    limits: dict[str, Any] = {"max_examples": max_examples, "answers_required": False}
    data = load_data(source, columns=columns, task=task, **limits)
    if not isinstance(data, TextData) or holds_questions(data):
        raise ConfigError(f"--data {source} holds questions, and this folder gives labels or scores of texts")
    return replace(data, examples=[replace(example, label=None) for example in data.examples])


def answer_stream(
    model: Model, *, tasks: Sequence[str] = (), n_best: int = 0, source: io.BufferedIOBase | None = None
) -> None:
    """Answer every line of `source` (by default the standard input) until it ends; then raise if any was broken."""
    wrong = total = 0
    with open(0, "rb", closefd=False) if source is None else source as lines:
        for batch in _batches(lines):
            rows: dict[int, dict[str, Any]] = {}
            texts: dict[int, tuple[str, ...]] = {}
            for number, raw in batch:
                rows[number] = {"line": number}
                try:
                    value = _parsed(raw)
                    if value.get("id") is not None:
                        rows[number] = {"id": value["id"], "line": number}
                    texts[number] = _texts(value)
                except (DataError, Flaw) as error:
                    rows[number]["error"] = str(error)
            for count in (1, 2):  # single texts and pairs are predicted in one call each
                own = {number: read for number, read in texts.items() if len(read) == count}
                columns = [list(column) for column in zip(*own.values(), strict=True)]
                try:
                    answers = model(*columns, tasks=tasks or None, n_best=n_best) if own else []
                except BertvisionError as error:  # true of all: no task reads so many texts
                    for number in own:
                        rows[number]["error"] = str(error)
                    continue
                for number, row in zip(own, answers, strict=True):
                    rows[number]["tasks"] = {name: to_json(one) for name, one in row.items()}
            total += len(rows)
            wrong += sum("error" in row for row in rows.values())
            for row in rows.values():
                emit(json.dumps(row, ensure_ascii=False))
    if wrong:
        raise DataError(f"{wrong} of {total} lines of the stream could not be answered: each says why")


def _batches(source: io.BufferedIOBase) -> Iterator[list[tuple[int, bytes]]]:
    """Numbered lines, without empty ones: as many as one read gives, which waits for the first byte alone."""
    number, rest, more = 0, b"", True
    while more:
        found = source.read1(_AT_ONCE)
        more = bool(found)
        *lines, rest = (rest + found).split(b"\n")
        if not more:
            lines.append(rest)
        if batch := [(number + i, line) for i, line in enumerate(lines, start=1) if line.strip()]:
            yield batch
        number += len(lines)


def _parsed(raw: bytes) -> dict[str, Any]:
    """The object of a line, whose id can stand in the answer: half a character or an infinite number cannot."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number there")  # NaN is one to Python

    try:
        value = json.loads(raw.decode(), parse_constant=refuse)
        if isinstance(value, dict):
            json.dumps(value.get("id"), ensure_ascii=False, allow_nan=False).encode()
            return value
    # of encodings, of JSON, of numbers with thousands of digits
    except (ValueError, RecursionError) as error:
        raise DataError(f"the line is not JSON in UTF-8 ({error})") from None
    raise DataError("the line is no JSON object")


def _texts(value: dict[str, Any]) -> tuple[str, ...]:
    given = {name for name, text in value.items() if text is not None} - {"id"}
    names = next((names for names in _TEXTS if given == set(names)), None)
    if names is None:
        said = shorten(", ".join(sorted(given)))
        raise DataError(f"a line gives question and context, or text, for pairs with pair, but not {said}")
    for name in names:
        check_text(value[name], "second text" if name == "pair" else name)
    return tuple(value[name] for name in names)
