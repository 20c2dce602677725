"""Several tasks from one walk: cut states, calls of the encoder, the same predictions as alone, and what is refused."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serve_cases import ALIKE, ANSWERABLE, COLOUR, MOOD, SAME, WINDOWS, save_span, save_system
from toy import save_encoder

import bertvision as bv
from bertvision.data.building import SpanBuilder
from bertvision.data.examples import SpanData
from bertvision.data.reframe import Reframe
from bertvision.data.texts import TextData, TextExample, answerable
from bertvision.data.windows import make_windows
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, DataError
from bertvision.heads import Geometry, parse_head
from bertvision.model.folders import short_names
from bertvision.model.load import read
from bertvision.model.model import Model
from bertvision.model.trained import Trained, logits_of_trained, read_trained
from bertvision.states.config import EVERYTHING, Selection
from bertvision.states.live import LiveStates
from bertvision.tasks.predictions import LabelPrediction, Prediction, ScorePrediction
from bertvision.tasks.walk import narrow, wide_selection

MILL = "The mill in Arden was built by Ada Holt in 1871."
TEXTS = [
    MILL,
    "The bridge is old.",
    "Who built the tower in Arden, and when was it built? " * 6,  # several windows
    "A market",
]


@pytest.fixture(scope="module")
def encoder(tiny_bert: Path) -> Encoder:
    return Encoder.load(str(tiny_bert))


def labelled(texts: list[str], task: Any, seconds: list[str] | None = None) -> TextData:
    """Texts with any label: how they are asked about by the way that scores are made."""
    label = 0.0 if task.kind == "score" else 0
    others: list[Any] = list(seconds) if seconds else [None] * len(texts)
    examples = [TextExample(str(i), a, b, label) for i, (a, b) in enumerate(zip(texts, others, strict=True))]
    return TextData(examples, task.kind, task.classes)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many windows each call of an encoder had."""
    made: list[int] = []
    real = Encoder.layer_states

    def counted(self: Encoder, batch: Any) -> Any:
        made.append(len(batch.ids))
        return real(self, batch)

    monkeypatch.setattr(Encoder, "layer_states", counted)
    return made


# ---- cut states


READINGS = [
    Selection(positions="cls"),
    Selection((0, 2)),
    Selection((1,)),
    Selection((2, 0)),
    Selection((0, 1), "cls"),
    Selection((2,), "cls"),
    EVERYTHING,
]


@pytest.mark.parametrize("moved", [False, True], ids=["cls first", "cls anywhere"])
@pytest.mark.parametrize("selection", READINGS, ids=str)
def test_a_narrowed_batch_is_that_of_a_feed_of_its_own(
    encoder: Encoder, selection: Selection, moved: bool
) -> None:
    """Equal to the bit in states, mask, bounds and pooled vector, and so in logits."""
    windows = make_windows(labelled(TEXTS, MOOD), encoder.tokenizer, WINDOWS)
    if moved:
        windows = replace(windows, null=(windows.lengths - 1).astype(np.int32))
    wide, own = LiveStates(encoder, windows), LiveStates(encoder, windows, selection=selection)
    call = np.arange(len(windows))
    cut, expected = narrow(wide.read(call), wide, selection), own.read(call)
    assert torch.equal(cut.states, expected.states)
    assert torch.equal(cut.mask, expected.mask)
    assert torch.equal(cut.bounds, expected.bounds)
    assert (cut.pooled is None) == (expected.pooled is None) == (2 not in own.layers)
    if moved:
        return  # there a pooler reads [CLS] of one and the first token of the other
    if cut.pooled is not None and expected.pooled is not None:
        assert torch.equal(cut.pooled, expected.pooled)
    geometry = Geometry(len(own.layers), encoder.hidden, 2, "window", expected.pooled is not None)
    for name in ("tenney_small", "adapter_pooler:size=8", "mean_pooler", "attention_pooler"):
        head = parse_head(name).build(geometry, seed=1).eval()
        assert torch.equal(head(cut), head(expected)), name


def test_a_wide_reading_is_the_union() -> None:
    cls = Selection(positions="cls")
    assert wide_selection(frozenset({cls, Selection((0, 1), "cls")}), 3) == Selection((0, 1, 2), "cls")
    assert wide_selection(frozenset({Selection((-1,), "cls"), Selection((0,), "cls")}), 3) == Selection(
        (0, 2), "cls"
    )
    assert wide_selection(frozenset({Selection((0,), "cls"), Selection((2,))}), 3) == Selection((0, 2))
    assert wide_selection(frozenset({cls, Selection((1,))}), 3) == EVERYTHING


# ---- one walk


def test_single_texts_are_walked_once(encoder: Encoder, tmp_path: Path, calls: list[int]) -> None:
    """Heads of [CLS], of all tokens, of some layers and of two tasks: one call of the encoder, and what each says is
    what the path that scores heads says of it alone."""
    folders = {
        "mood": save_system(
            tmp_path / "mood", encoder, "tenney_small", MOOD, selection=Selection(positions="cls")
        ),
        "colour": save_system(tmp_path / "colour", encoder, "mean_pooler", COLOUR, seed=1),
        "few": save_system(
            tmp_path / "few", encoder, "adapter_pooler:size=8", COLOUR, selection=Selection((0, 2)), seed=2
        ),
        "low": save_system(
            tmp_path / "low", encoder, "cls_mlp:width=8", MOOD, selection=Selection((1,), "cls"), seed=3
        ),
        "alike": save_system(tmp_path / "alike", encoder, "attention_pooler", ALIKE, seed=4),
    }
    systems = {name: read_trained(folder) for name, folder in folders.items()}
    bundle = Model(systems, encoder)
    assert list(bundle.predict(MILL)) == list(folders)
    assert calls == [1]
    calls.clear()
    rows = bundle.predict(TEXTS)
    windows = make_windows(labelled(TEXTS, MOOD), encoder.tokenizer, WINDOWS)
    assert len(windows) > len(TEXTS)
    assert sum(calls) == len(windows), "every window is read once"
    for name, system in systems.items():
        data = labelled(TEXTS, system.task)
        ((split, logits),) = logits_of_trained([system], data)
        alone = system.task.answer(split.windows, logits, data)
        for i, row in enumerate(rows):
            found = row[name]
            if isinstance(found, ScorePrediction):
                assert found.score == pytest.approx(alone.values[i], rel=1e-5)
                continue
            assert isinstance(found, LabelPrediction)
            assert list(found.probabilities) == list(system.task.classes)
            assert list(found.probabilities.values()) == pytest.approx(alone.probabilities[i], abs=1e-6)
            assert found.probability == max(found.probabilities.values()) == found.probabilities[found.label]
    assert len({rows[i]["colour"].probability for i in range(4)}) == 4


def test_spans_and_answerability_share_their_windows(
    encoder: Encoder, tmp_path: Path, calls: list[int]
) -> None:
    """Also where they read the paragraph alone, which takes a walk more, and where a question has several windows."""
    systems = {
        "span": read_trained(save_span(tmp_path / "span", encoder)),
        "pairs": read_trained(save_span(tmp_path / "pairs", encoder, "biaffine")),
        "sure": read_trained(save_system(tmp_path / "sure", encoder, "tenney_small", ANSWERABLE, seed=5)),
    }
    bundle = Model(systems, encoder)
    questions, contexts = ["Who built the mill?", "Where?"], [MILL, " ".join([MILL] * 5)]
    rows = bundle.predict(questions, contexts)
    assert len(calls) == 1
    for name in ("span", "pairs"):
        alone = Model({name: systems[name]}, encoder).predict(questions, contexts)
        for row, expected in zip(rows, alone, strict=True):
            found = row[name]
            assert isinstance(found, Prediction)
            assert (found.text, found.start, found.end) == (expected.text, expected.start, expected.end)
            assert found.probability == pytest.approx(expected.probability, rel=1e-4)
    builder = SpanBuilder("q")
    for i, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        builder.add(str(i), question, builder.shared(context), ())
    data = answerable(builder.build())
    ((split, logits),) = logits_of_trained([systems["sure"]], data)
    alone = ANSWERABLE.answer(split.windows, logits, data)
    for i, row in enumerate(rows):
        found = row["sure"]
        assert isinstance(found, LabelPrediction)
        assert found.probabilities["no answer"] == pytest.approx(alone.probabilities[i, 1], abs=1e-6)

    context = read_trained(
        save_span(tmp_path / "context", encoder, "adapter:size=4", selection=Selection(positions="context"))
    )
    both = Model(systems | {"context": context}, encoder)
    calls.clear()
    row = both.predict(questions[0], MILL)
    assert len(calls) == 2
    expected = Model({"context": context}, encoder).predict(questions[0], MILL)
    assert row["context"].start == expected.start


def test_prompts_have_windows_of_their_own(encoder: Encoder, tmp_path: Path, calls: list[int]) -> None:
    prompt = Reframe(prompt="Is it good?")
    for name, how in (("plain", None), ("other", None), ("asked", prompt), ("again", prompt)):
        save_system(tmp_path / name, encoder, "tenney_small", MOOD, reframe=how)
    bundle = bv.load(tmp_path)
    found = bundle.predict(MILL)
    assert calls == [1, 1]
    assert found["plain"] == found["other"] != found["asked"] == found["again"]
    system = bundle.systems["asked"]
    data = labelled([MILL], MOOD)
    ((split, logits),) = logits_of_trained([system], data)
    alone = MOOD.answer(split.windows, logits, split.data)
    assert found["asked"].probabilities["good"] == pytest.approx(alone.probabilities[0, 1], abs=1e-6)


def test_pairs_encoded_apart(encoder: Encoder, tmp_path: Path) -> None:
    task, apart = replace(ALIKE, group=2, pairs=True), replace(WINDOWS, apart=True)
    folder = save_system(tmp_path / "pair", encoder, "minbert:vectors=2", task, windows=apart)
    model = bv.load(folder)
    firsts, seconds = TEXTS[:3], [MILL, "A bridge", "The old tower in the market"]
    found = model.predict(firsts, seconds)
    data = labelled(firsts, task, seconds)
    ((split, logits),) = logits_of_trained([read_trained(folder)], data)
    alone = task.answer(split.windows, logits, data)
    assert [one.score for one in found] == pytest.approx(alone.values.tolist(), rel=1e-5)
    with pytest.raises(DataError, match="pair reads two texts, and one is given: give two texts"):
        model.predict(MILL)


def test_the_stored_temperature_is_applied(encoder: Encoder, tmp_path: Path) -> None:
    for name, temperature in (("warm", 2.5), ("plain", None)):
        save_system(tmp_path / name, encoder, "cls_linear", COLOUR, temperature=temperature)
    found = bv.load(tmp_path).predict(MILL)
    logits = np.log(list(found["plain"].probabilities.values())) / 2.5
    expected = np.exp(logits) / np.exp(logits).sum()
    assert list(found["warm"].probabilities.values()) == pytest.approx(expected.tolist(), rel=1e-6)
    assert found["warm"].label == found["plain"].label


# ---- which tasks answer


@pytest.fixture
def mixed(encoder: Encoder, tmp_path: Path) -> Model:
    """A task about single texts, one of questions, and one about pairs with a template."""
    save_system(tmp_path / "mood", encoder, "cls_linear", MOOD)
    save_span(tmp_path / "span", encoder)
    save_system(
        tmp_path / "same", encoder, "cls_linear", SAME, reframe=Reframe(context="{first} and {second}")
    )
    return bv.load(tmp_path)


def test_tasks_that_read_as_many_texts_as_are_given_answer(mixed: Model, calls: list[int]) -> None:
    assert list(mixed.predict(MILL)) == ["mood"]
    assert list(mixed.predict([MILL], tasks=("mood",))[0]) == ["mood"]
    assert list(mixed.predict("Who?", MILL)) == ["same", "span"]
    assert list(mixed.predict("Who?", MILL, tasks=["span"])) == ["span"]
    calls.clear()
    with pytest.raises(
        DataError, match=r"same, span read two texts, and one is given: ask only mood \(tasks\)"
    ):
        mixed.predict(MILL, tasks=["mood", "same", "span"])
    with pytest.raises(DataError, match="mood reads one text, and two are given: give one text"):
        mixed.predict("Who?", MILL, tasks=["mood"])
    with pytest.raises(ConfigError, match=r"there is no task 'moon': did you mean mood"):
        mixed.predict(MILL, tasks=["moon"])
    assert not calls, "nothing was encoded"


def test_a_lone_task_refuses_another_number_of_texts(encoder: Encoder, tmp_path: Path) -> None:
    save_system(tmp_path / "mood", encoder, "cls_linear", MOOD)
    save_system(tmp_path / "same", encoder, "cls_linear", SAME)
    with pytest.raises(DataError, match="reads one text, and two are given: give one text"):
        bv.load(tmp_path / "mood").predict(MILL, "The bridge is old.")
    with pytest.raises(DataError, match="reads two texts, and one is given: give two texts"):
        bv.load(tmp_path / "same").predict(MILL)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (" ", MILL, "text 1: the text is empty"),
        (["a", "b"], ["c", ""], "text 2: the second text is empty"),
        (["a"], ["b", "c"], "predict got 1 first texts but 2 second ones"),
        (["half \ud83d"], MILL, "text 1: the text holds half a character"),
        ([7], MILL, "text 1: the text must be a string"),
    ],
)
def test_bad_texts_are_one_sentence(mixed: Model, first: Any, second: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        mixed.predict(first, second)


def test_no_texts_no_predictions(mixed: Model) -> None:
    assert mixed.predict([], []) == []
    one, many = mixed.predict("Who?", MILL), mixed.predict(["Who?", "Where?"], MILL)
    assert many[0].keys() == one.keys()
    assert len(many) == 2


def test_data_of_the_other_kind_is_refused(mixed: Model) -> None:
    with pytest.raises(ConfigError, match="holds texts, which span cannot read"):
        mixed.answer(labelled(TEXTS, MOOD))
    with pytest.raises(ConfigError, match="holds questions over paragraphs, which mood, same cannot read"):
        mixed.answer(SpanData([], [], "toy"))


# ---- what load makes of a folder


def test_a_lone_head_answers_directly(encoder: Encoder, tmp_path: Path) -> None:
    save_system(tmp_path / "a" / "label", encoder, "cls_linear", MOOD)
    save_system(tmp_path / "b" / "score", encoder, "cls_linear", ALIKE)
    label, score = bv.load(tmp_path / "a" / "label"), bv.load(tmp_path / "b")
    assert isinstance(label.predict(MILL), LabelPrediction)
    assert isinstance(score.predict("A bridge"), ScorePrediction)
    assert [one.label for one in label.predict(TEXTS)] == [label.predict(text).label for text in TEXTS]
    assert label.predict([]) == []
    assert type(label) is type(score) is bv.Model


def test_packages_and_snapshots_of_several_tasks(tiny_bert: Path, tmp_path: Path) -> None:
    """pkg/encoder beside pkg/TASK/HEAD, and snapshot/heads/TASK; the encoder itself is no task."""
    package = tmp_path / "pkg"
    shutil.copytree(tiny_bert, package / "encoder")
    encoder = Encoder.load(str(package / "encoder"))
    for task, kind in (("sst", MOOD), ("sts", ALIKE)):
        save_system(package / task / "cls-linear.seed0", encoder, "cls_linear", kind)
    assert list(read(package).systems) == ["sst", "sts"]
    snapshot = tmp_path / "snapshot-1"
    shutil.copytree(tiny_bert, snapshot / "encoder")
    for task, kind in (("mood", MOOD), ("alike", ALIKE)):
        save_system(snapshot / "heads" / task, encoder, "cls_linear", kind)
    assert list(read(snapshot).systems) == ["alike", "mood"]
    moved = tmp_path / "moved"
    expected = bv.load(package).predict(MILL)
    package.rename(moved)
    assert bv.load(moved).predict(MILL) == expected


def test_heads_of_two_encoders_are_refused(encoder: Encoder, tmp_path: Path) -> None:
    other = Encoder.load(str(save_encoder(tmp_path / "other", seed=1)))
    one = read_trained(save_system(tmp_path / "pkg" / "a", encoder, "cls_linear", MOOD))
    save_system(tmp_path / "pkg" / "b", other, "cls_linear", MOOD)
    with pytest.raises(ArtifactError, match="b reads another encoder"):
        bv.load(tmp_path / "pkg")
    with pytest.raises(ArtifactError, match="was fitted on another encoder"):
        Model({"one": one}, other)
    with pytest.raises(ConfigError, match="at least one head"):
        Model({}, encoder)


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["p/sst/a", "p/sts/a"], ["sst", "sts"]),
        (["p/heads/a", "p/heads/b"], ["a", "b"]),
        (["p/sst/a", "p/sst/b", "p/sts/a"], ["sst/a", "sst/b", "sts/a"]),
        (["p/sst/head", "p/sts/x/head"], ["sst", "sts"]),
        (["p/a"], ["a"]),
    ],
)
def test_names_are_what_tells_folders_apart(folders: list[str], names: list[str]) -> None:
    assert short_names([Path(folder) for folder in folders]) == names


def test_an_ensemble_in_a_bundle_is_its_members_mean(encoder: Encoder, tmp_path: Path) -> None:
    members = [
        read_trained(save_system(tmp_path / name, encoder, "cls_linear", COLOUR, seed=seed))
        for seed, name in enumerate(("a", "b"))
    ]
    both: Trained = replace(
        members[0],
        folder=tmp_path / "both",
        heads=[*members[0].heads, *members[1].heads],
        selections=[EVERYTHING] * 2,
    )
    found = Model(dict(zip(("a", "b", "both"), (*members, both), strict=True)), encoder).predict(MILL)
    for name in COLOUR.classes:
        parts = [found[one].probabilities[name] for one in ("a", "b")]
        assert found["both"].probabilities[name] == pytest.approx(sum(parts) / 2, rel=1e-5)
