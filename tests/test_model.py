"""`Model`: several tasks from one walk, the same answers as alone, every kind of folder, and what is refused."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serve_cases import ALIKE, ANSWERABLE, COLOUR, MOOD, SAME, WINDOWS, save_span, save_system
from toy import save_encoder, squad_json

import bertvision as bv
from bertvision.data.cutting import make_windows
from bertvision.data.examples import SpanBuilder, TextData, TextExample, answerable
from bertvision.data.load import load_span_data
from bertvision.data.texts import Reframe
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, BertvisionError, ConfigError, DataError, EncoderError
from bertvision.heads import Geometry, parse_head, save_head
from bertvision.model.load import read, short_names
from bertvision.model.model import Model
from bertvision.model.trained import Trained, load_encoder, logits_of_trained, read_trained
from bertvision.states.base import LiveStates
from bertvision.states.config import EVERYTHING, Selection
from bertvision.tasks.label_score import ScorePrediction
from bertvision.tasks.walk import narrow, wide_selection

QUESTION, MILL = "Who built the mill?", "The mill in Arden was built by Ada Holt in 1871."
TEXTS = [
    MILL,
    "The bridge is old.",
    "Who built the tower in Arden, and when was it built? " * 6,  # several windows
    "A market",
]
CLS = Selection(positions="cls")


def labelled(texts: list[str], task: Any, seconds: list[str] | None = None) -> TextData:
    """Texts with any label: how they are asked about by the way that scores are made."""
    label = 0.0 if task.kind == "score" else 0
    others: list[Any] = list(seconds) if seconds else [None] * len(texts)
    examples = [TextExample(str(i), a, b, label) for i, (a, b) in enumerate(zip(texts, others, strict=True))]
    return TextData(examples, task.kind, task.classes)


def alone(system: Trained, data: Any) -> Any:
    """The answers of one system on the path that scores heads."""
    ((split, logits),) = logits_of_trained([system], data)
    return system.task.answer(split.windows, logits, split.data)


# ---- cut states


READINGS = [
    CLS, EVERYTHING, Selection((0, 2)), Selection((1,)), Selection((2, 0)), Selection((0, 1), "cls"),
    Selection((2,), "cls"),
]  # fmt: skip


@pytest.mark.parametrize("moved", [False, True], ids=["cls first", "cls anywhere"])
@pytest.mark.parametrize("selection", READINGS, ids=str)
def test_a_narrowed_batch_is_that_of_states_of_its_own(
    encoder: Encoder, selection: Selection, moved: bool
) -> None:
    """Equal to the bit in states, mask, bounds and pooled vector, and so in logits."""
    windows = make_windows(labelled(TEXTS, MOOD), encoder.tokenizer, WINDOWS)
    if moved:
        windows = replace(windows, null=(windows.lengths - 1).astype(np.int32))
    wide, own = LiveStates(encoder, windows), LiveStates(encoder, windows, selection=selection)
    call = np.arange(len(windows))
    cut, expected = narrow(wide.read(call), wide, selection), own.read(call)
    for name in ("states", "mask", "bounds"):
        assert torch.equal(getattr(cut, name), getattr(expected, name)), name
    assert (cut.pooled is None) == (expected.pooled is None) == (2 not in own.layers)
    if moved:
        return  # there a pooler reads [CLS] of one and the first token of the other
    if cut.pooled is not None and expected.pooled is not None:
        assert torch.equal(cut.pooled, expected.pooled)
    geometry = Geometry(len(own.layers), encoder.hidden, 2, "window", expected.pooled is not None)
    for name in ("tenney_small", "adapter_pooler:size=8", "attention_pooler"):
        head = parse_head(name).build(geometry, seed=1).eval()
        assert torch.equal(head(cut), head(expected)), name


def test_a_wide_reading_is_the_union() -> None:
    for parts, whole in (
        ({CLS, Selection((0, 1), "cls")}, Selection((0, 1, 2), "cls")),
        ({Selection((-1,), "cls"), Selection((0,), "cls")}, Selection((0, 2), "cls")),
        ({Selection((0,), "cls"), Selection((2,))}, Selection((0, 2))),
        ({CLS, Selection((1,))}, EVERYTHING),
    ):
        assert wide_selection(frozenset(parts), 3) == whole


# ---- one walk


def test_single_texts_are_walked_once(encoder: Encoder, tmp_path: Path, calls: list[int]) -> None:
    """Heads of [CLS], of all tokens, of some layers and of two tasks: one call of the encoder, and what each says is
    what the path that scores heads says of it alone."""
    heads: list[tuple[str, str, Any, Selection]] = [
        ("mood", "tenney_small", MOOD, CLS),
        ("colour", "mean_pooler", COLOUR, EVERYTHING),
        ("few", "adapter_pooler:size=8", COLOUR, Selection((0, 2))),
        ("low", "cls_mlp:width=8", MOOD, Selection((1,), "cls")),
        ("alike", "attention_pooler", ALIKE, EVERYTHING),
    ]
    systems = {
        name: read_trained(save_system(tmp_path / name, encoder, head, task, selection=selection, seed=seed))
        for seed, (name, head, task, selection) in enumerate(heads)
    }
    model = Model(systems, encoder)
    assert list(model(MILL)) == list(systems)
    assert calls == [1]
    calls.clear()
    rows = model(TEXTS)
    windows = make_windows(labelled(TEXTS, MOOD), encoder.tokenizer, WINDOWS)
    assert sum(calls) == len(windows) > len(TEXTS), "every window is read once"
    for name, system in systems.items():
        expected = alone(system, labelled(TEXTS, system.task))
        for i, found in enumerate(row[name] for row in rows):
            if isinstance(found, ScorePrediction):
                assert found.score == pytest.approx(expected.values[i], rel=1e-5)
            else:
                assert list(found.probabilities) == list(system.task.classes)
                assert list(found.probabilities.values()) == pytest.approx(
                    expected.probabilities[i], abs=1e-6
                )
                assert (
                    found.probability == max(found.probabilities.values()) == found.probabilities[found.label]
                )
    assert len({row["colour"].probability for row in rows}) == 4


def test_spans_and_answerability_share_their_windows(
    encoder: Encoder, tmp_path: Path, calls: list[int]
) -> None:
    """Also where they read the paragraph alone, which takes a walk more, and where a question has several windows."""
    systems = {
        "span": read_trained(save_span(tmp_path / "span", encoder)),
        "pairs": read_trained(save_span(tmp_path / "pairs", encoder, "biaffine")),
        "sure": read_trained(save_system(tmp_path / "sure", encoder, "tenney_small", ANSWERABLE, seed=5)),
    }
    questions, contexts = [QUESTION, "Where?"], [MILL, " ".join([MILL] * 5)]
    rows = Model(systems, encoder).predict(questions, contexts)
    assert len(calls) == 1
    for name in ("span", "pairs"):
        expected = Model({name: systems[name]}, encoder).predict(questions, contexts)
        for found, one in zip((row[name] for row in rows), expected, strict=True):
            assert (found.text, found.start, found.end) == (one.text, one.start, one.end)
            assert found.probability == pytest.approx(one.probability, rel=1e-4)
    builder = SpanBuilder("q")
    for i, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        builder.add(str(i), question, context)
    expected = alone(systems["sure"], answerable(builder.build()))
    for row, unsure in zip(rows, expected.probabilities[:, 1], strict=True):
        assert row["sure"].probabilities["no answer"] == pytest.approx(unsure, abs=1e-6)


def test_prompts_have_windows_of_their_own(encoder: Encoder, tmp_path: Path, calls: list[int]) -> None:
    prompt = Reframe(prompt="Is it good?")
    for name, how in (("plain", None), ("other", None), ("asked", prompt), ("again", prompt)):
        save_system(tmp_path / name, encoder, "tenney_small", MOOD, reframe=how)
    model = bv.load(tmp_path)
    found = model.predict(MILL)
    assert calls == [1, 1]
    assert found["plain"] == found["other"] != found["asked"] == found["again"]
    expected = alone(model.systems["asked"], labelled([MILL], MOOD))
    assert found["asked"].probabilities["good"] == pytest.approx(expected.probabilities[0, 1], abs=1e-6)


def test_pairs_encoded_apart(encoder: Encoder, tmp_path: Path) -> None:
    task, apart = replace(ALIKE, group=2, pairs=True), replace(WINDOWS, apart=True)
    folder = save_system(tmp_path / "pair", encoder, "minbert:vectors=2", task, windows=apart)
    model = bv.load(folder)
    firsts, seconds = TEXTS[:3], [MILL, "A bridge", "The old tower in the market"]
    expected = alone(read_trained(folder), labelled(firsts, task, seconds))
    found = [one.score for one in model.predict(firsts, seconds)]
    assert found == pytest.approx(expected.values.tolist(), rel=1e-5)
    with pytest.raises(DataError, match="pair reads two texts, and one is given: give two texts"):
        model.predict(MILL)


def test_the_stored_temperature_is_applied(encoder: Encoder, tmp_path: Path) -> None:
    for name, temperature in (("warm", 2.5), ("plain", None)):
        save_system(tmp_path / name, encoder, "cls_linear", COLOUR, temperature=temperature)
    found = bv.load(tmp_path).predict(MILL)
    logits = np.log(list(found["plain"].probabilities.values())) / 2.5
    expected = np.exp(logits) / np.exp(logits).sum()
    assert list(found["warm"].probabilities.values()) == pytest.approx(expected.tolist(), rel=1e-6)


def test_an_ensemble_is_its_members_mean(encoder: Encoder, tmp_path: Path) -> None:
    a, b = (
        read_trained(save_system(tmp_path / name, encoder, "cls_linear", COLOUR, seed=seed))
        for seed, name in enumerate("ab")
    )
    both = replace(a, folder=tmp_path / "both", readers=[*a.readers, *b.readers])
    found: Any = Model({"a": a, "b": b, "both": both}, encoder)(MILL)
    for name in COLOUR.classes:
        mean = (found["a"].probabilities[name] + found["b"].probabilities[name]) / 2
        assert found["both"].probabilities[name] == pytest.approx(mean, rel=1e-5)


# ---- which tasks answer


@pytest.fixture
def mixed(encoder: Encoder, tmp_path: Path) -> Model:
    """A task about single texts, one of questions, and one about pairs with a template."""
    save_system(tmp_path / "mood", encoder, "cls_linear", MOOD)
    save_span(tmp_path / "span", encoder)
    template = Reframe(context="{first} and {second}")
    save_system(tmp_path / "same", encoder, "cls_linear", SAME, reframe=template)
    return bv.load(tmp_path)


def test_tasks_that_read_as_many_texts_as_are_given_answer(mixed: Model, calls: list[int]) -> None:
    for texts, tasks, names in (
        ((MILL,), None, ["mood"]),
        ((MILL,), ("mood",), ["mood"]),
        (("Who?", MILL), None, ["same", "span"]),
        (("Who?", MILL), ["span"], ["span"]),
    ):
        assert list(mixed.predict(*texts, tasks=tasks)) == names
    one, many = mixed("Who?", MILL), mixed(["Who?", "Where?"], MILL)
    assert [row.keys() for row in many] == [one.keys()] * 2
    calls.clear()
    assert mixed.predict([], []) == []
    for texts, tasks, kind, sentence in (
        ((MILL,), ["mood", "same"], DataError, r"same reads two texts, .* ask only mood \(tasks\)"),
        (("Who?", MILL), ["mood"], DataError, "mood reads one text, and two are given: give one text"),
        ((MILL,), ["moon"], ConfigError, "there is no task 'moon': did you mean mood"),
        ((" ", MILL), None, DataError, "text 1: the text is empty"),
        ((["a"], ["b", "c"]), None, DataError, "predict got 1 first texts but 2 second ones"),
        ((["half \ud83d"], MILL), None, DataError, "text 1: the text holds half a character"),
        (("Who?", "  "), ["span"], DataError, "question 1: the context is empty"),
        ((["Who?", "\n"], MILL), ["span"], DataError, "question 2: the question is empty"),
    ):
        with pytest.raises(kind, match=sentence):
            mixed.predict(*texts, tasks=tasks)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="question 1: the context is empty"):
        mixed.explain("Who?", " ", tasks=["span"])
    assert not calls, "nothing was encoded"


# ---- what load makes of a folder


def test_folders_of_several_tasks(tiny_bert: Path, tmp_path: Path) -> None:
    """FOLDER/encoder beside FOLDER/TASK/HEAD, and snapshot/heads/TASK; the encoder itself is no task."""
    for folder, places in (
        (tmp_path / "fits", {"sst": "sst/cls-linear.seed0", "sts": "sts/cls-linear.seed0"}),
        (tmp_path / "snapshot-1", {"alike": "heads/alike", "mood": "heads/mood"}),
    ):
        shutil.copytree(tiny_bert, folder / "encoder")
        encoder = Encoder.load(str(folder / "encoder"))
        for task, place in zip((MOOD, ALIKE), places.values(), strict=True):
            save_system(folder / place, encoder, "cls_linear", task)
        assert list(read(folder)) == list(places)
        expected = bv.load(folder).predict(MILL)
        assert bv.load(folder.rename(tmp_path / f"{folder.name}-moved")).predict(MILL) == expected


def test_heads_of_two_encoders_are_refused(encoder: Encoder, tmp_path: Path) -> None:
    other = Encoder.load(str(save_encoder(tmp_path / "other", seed=1)))
    one = read_trained(save_system(tmp_path / "pkg" / "a", encoder, "cls_linear", MOOD))
    save_system(tmp_path / "pkg" / "b", other, "cls_linear", MOOD)
    with pytest.raises(ArtifactError, match="b was fitted on another encoder"):
        bv.load(tmp_path / "pkg")
    with pytest.raises(ArtifactError, match="was fitted on another encoder"):
        Model({"one": one}, other)
    with pytest.raises(ConfigError, match="at least one head"):
        Model({}, encoder)


def test_names_are_what_distinguishes_folders() -> None:
    for folders, names in (
        (["p/sst/a", "p/sts/a"], ["sst", "sts"]),
        (["p/heads/a", "p/heads/b"], ["a", "b"]),
        (["p/sst/a", "p/sst/b", "p/sts/a"], ["sst/a", "sst/b", "sts/a"]),
        (["p/sst/head", "p/sts/x/head"], ["sst", "sts"]),
        (["p/a"], ["a"]),
    ):
        assert short_names([Path(folder) for folder in folders]) == names


# ---- what the command line leaves


def fitted(run: Path, name: str = "adapter-4") -> Path:
    return run / "fit" / "snapshot-1" / f"{name}.seed0"


def keen(folder: Path, **options: Any) -> Model:
    """A model that always answers: the toy heads would often rather not."""
    model = bv.load(folder, **options)
    model.set_threshold(1e6)
    return model


def test_every_kind_of_folder_answers(finished_run: Path) -> None:
    snapshot = finished_run / "finetune" / "snapshot-1"
    for folder in (fitted(finished_run), finished_run, snapshot):
        found = keen(folder).predict(QUESTION, MILL)
        assert found.text == MILL[found.start : found.end] != ""
        assert 0 <= found.probability <= 1
        assert 0 <= found.no_answer_probability <= 1
    model = keen(snapshot)
    assert model.predict(QUESTION, MILL) == keen(snapshot / "head").predict(QUESTION, MILL)
    model.set_threshold(-1e6)
    found = model.predict(QUESTION, MILL)
    assert (found.text, found.start, found.end) == ("", -1, -1)


def test_a_run_loads_its_best_head_at_its_threshold(finished_run: Path, tmp_path: Path) -> None:
    results = json.loads((finished_run / "results.json").read_text())
    (best,) = [system for system in results["systems"] if system["best"]]
    trained = read_trained(finished_run)
    assert trained.folder == finished_run / best["folder"]
    stored = json.loads((trained.folder / "metrics.json").read_text())
    assert trained.tuning.threshold == stored["tuning"]["threshold"]
    assert stored["scores"]["dev"]["tuned_f1"] == best["scores"]["dev"]["tuned_f1"]["mean"]
    trained = read_trained(shutil.copytree(finished_run, tmp_path / "moved"))
    assert Path(trained.encoder).is_relative_to(tmp_path), "a whole run can be moved"
    assert load_encoder(trained).fingerprint == trained.fingerprint


def test_an_ensemble_of_spans_joins_its_members(finished_run: Path) -> None:
    """The mean of two heads' probabilities, one window, computed from their own logits."""
    first, second = members = [
        read_trained(fitted(finished_run, name)) for name in ("last-state", "adapter-4")
    ]
    whole = replace(first, readers=[*first.readers, *second.readers], how="mean")
    data = load_span_data("demo:dev", max_examples=1)
    (split, joined), (_, a), (_, b) = logits_of_trained([whole, *members], data)
    for name in ("start", "end"):
        for begin, end in pairwise(split.windows.offsets):
            parts = [torch.tensor(one[name][begin:end]).softmax(0) for one in (a, b)]
            expected = (parts[0] + parts[1]) / 2
            assert torch.allclose(torch.tensor(joined[name][begin:end]).exp(), expected, atol=1e-6)


def test_one_or_many_and_the_runs_own_predictions(finished_run: Path, toy_squad: Path) -> None:
    model = keen(fitted(finished_run))
    questions = [QUESTION, "Where is the mill?"]
    many = model.predict(questions, [MILL, MILL])
    assert many == model.predict(tuple(questions), MILL)
    for question, found in zip(questions, many, strict=True):
        one = model.predict(question, MILL)
        assert (one.text, one.start, one.end) == (found.text, found.start, found.end)
        assert one.probability == pytest.approx(found.probability, rel=1e-4)
    data = load_span_data(str(toy_squad))
    asked = [e.question for e in data.examples], [data.context(e) for e in data.examples]
    found = bv.load(fitted(finished_run)).predict(*asked)
    written = json.loads((fitted(finished_run) / "dev" / "predictions.json").read_text())
    assert {e.id: p.text for e, p in zip(data.examples, found, strict=True)} == written


def test_long_documents_and_odd_texts_keep_their_offsets(finished_run: Path) -> None:
    """A document of many windows, of which any part can be an answer; characters the tokenizer drops, emoji, tabs."""
    model = keen(fitted(finished_run))
    context = " ".join(p["context"] for article in squad_json()["data"] for p in article["paragraphs"])
    starts = set()
    for thing in ("mill", "bridge", "tower", "market"):
        for text in (context, context[200:], context[400:] + " " + context[:300]):
            found = model.predict(f"Who built the {thing}?", text)
            assert found.text == text[found.start : found.end] != ""
            starts.add(found.start * 4 // len(text))
    assert len(starts) > 1
    for context in ("a", "🚄 東京 — naïve\tcafé\u200b.", MILL.upper(), "x " * 300, "\u200b ok"):
        found = model.predict("Who?", context)
        assert found.text == (context[found.start : found.end] if found.start >= 0 else "")


def test_the_encoder_may_move_but_not_change(finished_run: Path, tiny_bert: Path, tmp_path: Path) -> None:
    lone, moved = tmp_path / "head", tmp_path / "moved"
    shutil.copytree(fitted(finished_run), lone)  # the relative path to its encoder leads nowhere from here
    shutil.copytree(finished_run / "finetune" / "snapshot-1" / "encoder", moved)
    expected = keen(fitted(finished_run)).predict(QUESTION, MILL)
    for encoder in (str(moved), Encoder.load(str(moved))):
        assert keen(lone, encoder=encoder).predict(QUESTION, MILL) == expected
    with pytest.raises(EncoderError, match=r"is not at .* any more: name it with --encoder"):
        bv.load(lone)
    with pytest.raises(ArtifactError, match=r"on another encoder \(fingerprint \w{12}\).*--encoder"):
        bv.load(lone, encoder=str(tiny_bert))  # as it was before it was tuned


# ---- what is wrong with a folder


def _edit(path: Path, change: Any) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_folders_that_cannot_be_loaded(finished_run: Path, tiny_bert: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "version"):
        shutil.copytree(fitted(finished_run), tmp_path / name)
    for name in ("empty", "both"):
        (tmp_path / name).mkdir()
    save_head(parse_head("last_state").build(Geometry(3, 32), seed=0), tmp_path / "bare", about={})
    _edit(tmp_path / "version" / "config.json", lambda c: c["windows"].update(colour="red"))
    _edit(tmp_path / "b" / "config.json", lambda c: c["encoder"].update(fingerprint="f" * 32))
    ensemble = {"ensemble": {"how": "max", "members": ["../a", "../b"]}}
    (tmp_path / "both" / "config.json").write_text(json.dumps(ensemble))
    for folder, sentence in (
        ("missing", "there is no folder"),
        ("empty", "holds neither a package nor a head"),
        (fitted(finished_run).parent, r"several heads \(adapter-4\.seed0, last-state\.seed0, learned-pooling\.seed0\)"),
        (tiny_bert, "does not describe a bertvision head"),
        ("bare", "does not say which encoder"),
        ("version", r"config\.json sets colour"),
        ("both", "are for different encoders or tasks"),
    ):  # fmt: skip
        with pytest.raises(BertvisionError, match=sentence) as caught:
            bv.load(tmp_path / folder)
        assert len(str(caught.value).splitlines()) == 1


def test_a_folder_a_kill_left_aside_comes_back(encoder: Encoder, tmp_path: Path) -> None:
    save_span(tmp_path / ".qa.old", encoder)
    assert bv.load(tmp_path / "qa").predict(QUESTION, MILL)
