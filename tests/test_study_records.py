"""Records against official scores and thresholds tried one by one; the view against sums done by hand."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from span_cases import make_case, make_logits
from study_cases import made_data, made_labels, made_record, made_study, write_system

from bertvision.artifacts import write_json
from bertvision.data.examples import SpanData
from bertvision.errors import ArtifactError
from bertvision.study.about import About
from bertvision.study.records import (
    LabelRecord,
    SpanRecord,
    answerable_of,
    half_unanswerable_threshold,
    oracle_threshold,
    weighted_f1,
)
from bertvision.study.view import LabelSystem, Study, System
from bertvision.tasks.span import (
    DecodeConfig,
    SpanAnswers,
    best_threshold,
    decode,
    mcnemar,
    paired_bootstrap,
    score,
)
from bertvision.tasks.span.score import summary
from bertvision.tasks.text.metrics import f1 as label_f1

DEV = made_data(24, 3, unanswerable=0.5, name="dev")
HELD = made_data(20, 4, unanswerable=0.3, name="held")


def decoded(seed: int, *, ties: bool = False, decoding: Any = "google", questions: int = 8) -> SpanAnswers:
    data, windows = make_case(seed, questions=questions)
    return decode(windows, make_logits(seed, windows, ties=ties), data, DecodeConfig(decoding=decoding))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["google", "bertvision"]), st.booleans())
def test_a_record_scores_as_the_official_script_does(seed: int, decoding: str, ties: bool) -> None:
    answers = decoded(seed, ties=ties, decoding=decoding)
    record, answerable = SpanRecord.of(answers), answerable_of(answers.data)
    for threshold in (-1e9, -3.0, -1.0, -0.37, 0.0, 0.41, 1.0, 2.0, 1e9):
        official = score(answers.data, answers.predictions(threshold))
        assert summary(*record.at(threshold, answerable), answerable) == pytest.approx(official, abs=1e-4)
        assert record.texts(answers.data, threshold) == list(answers.predictions(threshold).values())


@pytest.mark.parametrize("threshold", [-2.0, 0.0, 0.7])
def test_it_agrees_with_null_odds_given_to_the_official_script(threshold: float) -> None:
    answers = decoded(11, questions=30)
    record, answerable = SpanRecord.of(answers), answerable_of(answers.data)
    given_all = dict(zip(answers.ids, answers.text, strict=True))
    official = score(answers.data, given_all, na_probs=answers.null_odds, na_prob_thresh=threshold)
    found = summary(*record.at(threshold, answerable), answerable)
    assert found == pytest.approx({name: official[name] for name in found}, abs=1e-4)


def test_a_threshold_between_two_float32_neighbours_parts_them() -> None:
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2))
    nothing = np.zeros(2, np.float32)
    record = SpanRecord(np.array([low, high]), nothing, nothing, np.zeros((2, 2), np.int32))
    assert record.is_null((float(low) + float(high)) / 2).tolist() == [False, True]


def half_and_half(data: SpanData) -> SpanData:
    """The same questions, repeated until as many have an answer as have none."""
    answerable = answerable_of(data)
    times = np.where(answerable, (~answerable).sum(), answerable.sum())
    picked = np.repeat(np.arange(len(data)), times).tolist()
    examples = [replace(data.examples[q], id=f"{place}") for place, q in enumerate(picked)]
    return SpanData(data.paragraphs, examples)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_the_reweighted_threshold_is_the_best_of_all(seed: int, ties: bool) -> None:
    answers = decoded(seed, ties=ties)
    data, record, answerable = answers.data, SpanRecord.of(answers), answerable_of(answers.data)
    if answerable.all() or not answerable.any():
        return
    value = half_unanswerable_threshold(record, answerable)
    repeated = half_and_half(data)
    times = np.where(answerable, (~answerable).sum(), answerable.sum())

    def official(threshold: float) -> float:
        texts = np.repeat(np.array(record.texts(data, threshold), object), times).tolist()
        return float(score(repeated, {f"{place}": text for place, text in enumerate(texts)})["f1"])

    finite = sorted({float(d) for d in record.diff if abs(d) < 1e38})
    cuts = [0.0] + [(a + b) / 2 for a, b in pairwise(finite)]
    cuts += [finite[0] - 1, finite[-1] + 1] if finite else []
    tried = {threshold: official(threshold) for threshold in cuts}
    assert official(value) == pytest.approx(max(tried.values()), abs=1e-4)
    assert weighted_f1(record, answerable, value) == pytest.approx(official(value), abs=1e-4)
    # None that is equally good lies closer to 0.
    assert all(abs(t) >= abs(value) - 1e-6 for t, f1 in tried.items() if f1 > max(tried.values()) - 1e-7)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_the_oracle_is_the_best_threshold_of_the_part(seed: int) -> None:
    answers = decoded(seed)
    found = oracle_threshold(SpanRecord.of(answers), answerable_of(answers.data))
    known = best_threshold(answers, answers.data)
    assert score(answers.data, answers.predictions(found))["f1"] == pytest.approx(known.f1, abs=1e-9)
    assert found == pytest.approx(known.value, abs=1e-5)


def test_questions_of_one_kind_and_infinite_differences_have_a_finite_threshold() -> None:
    huge = np.finfo(np.float32).max
    record = SpanRecord(
        np.array([huge, -huge], np.float32),
        np.zeros(2, np.float32),
        np.zeros(2, np.float32),
        -np.ones((2, 2), np.int32),
    )
    for answerable in ([True, True], [False, False], [True, False]):
        assert half_unanswerable_threshold(record, np.array(answerable)) == 0.0
    assert record.texts(DEV.take([0, 1]), 0.0)[0] == ""


def test_reweighting_moves_the_threshold_towards_no_answer() -> None:
    """One unanswerable question against three answerable ones, two of which the cut before it costs."""
    record = SpanRecord(
        np.array([1.0, 2.6, 3.0, 2.5], np.float32),
        np.array([1, 1, 1, 0], np.float32),
        np.array([1, 1, 1, 0], np.float32),
        np.zeros((4, 2), np.int32),
    )
    answerable = np.array([True, True, True, False])
    assert oracle_threshold(record, answerable) == pytest.approx(4.0)  # answers all: 3 of 4, with the cut 2
    assert half_unanswerable_threshold(record, answerable) == pytest.approx(1.75)
    assert weighted_f1(record, answerable, 1.75) == pytest.approx(100 * (1 / 6 + 1 / 2))
    assert weighted_f1(record, answerable, 9.0) == pytest.approx(50.0)


def test_records_come_back_and_refuse_other_data(tmp_path: Path) -> None:
    record = made_record(DEV, 0.6, 1)
    path = tmp_path / "dev.safetensors"
    record.save(path, DEV.fingerprint)
    back = SpanRecord.load(path, DEV.fingerprint)
    assert all(np.array_equal(value, getattr(back, name)) for name, value in vars(record).items())
    assert back.spans.dtype == np.int32
    with pytest.raises(ArtifactError, match="answers other questions"):
        SpanRecord.load(path, HELD.fingerprint)
    with pytest.raises(ArtifactError, match="no record of this kind"):
        LabelRecord.load(path, DEV.fingerprint)
    with pytest.raises(ArtifactError, match="is missing"):
        SpanRecord.load(tmp_path / "holdout.safetensors", DEV.fingerprint)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match="is damaged"):
        SpanRecord.load(path, DEV.fingerprint)


def test_labels_are_right_where_they_agree(tmp_path: Path) -> None:
    record = LabelRecord(np.array([0.2, 0.5, 0.51, 0.9], np.float32))
    none = np.array([False, True, False, True])
    assert record.at(0.5, none).tolist() == [True, False, False, True]  # even odds are no vote for no answer
    record.save(tmp_path / "dev.safetensors", "f")
    assert (
        LabelRecord.load(tmp_path / "dev.safetensors", "f").probability.tolist()
        == record.probability.tolist()
    )


def system(label: str, seed: int, skill: float, draw: int, **more: Any) -> System:
    about = About("heads", more.pop("kind", "head"), label, seed=seed, snapshot="constant@1", **more)
    held = made_record(HELD, skill, draw + 50)
    threshold = half_unanswerable_threshold(held, answerable_of(HELD))
    return System(about, made_record(DEV, skill, draw), held, f"{draw:03d}", threshold)


def test_a_group_is_the_mean_of_its_seeds() -> None:
    members = [system("one", seed, 0.6, seed, fit_seconds=float(seed), alone=seed != 5) for seed in (5, 3, 4)]
    group = Study.of(DEV, HELD, members).groups["constant@1/one"]
    assert group.seeds == [3, 4, 5]
    answerable = answerable_of(DEV)
    each = [s.dev.at(s.threshold, answerable) for s in group.systems]
    exact, f1 = group.questions("tuned")
    assert exact == pytest.approx(sum(e for e, _ in each) / 3)
    scores = group.scores("tuned")
    assert scores.f1 == pytest.approx(100 * f1.mean())
    per_seed = [100 * float(values.mean()) for _, values in each]
    assert scores.sd_f1 == pytest.approx(np.sqrt(sum((v - scores.f1) ** 2 for v in per_seed) / 2))
    assert [record["seed"] for record in scores.per_seed] == [3, 4, 5]
    assert scores.no_exact == pytest.approx(100 * exact[~answerable].mean())
    assert scores.has_f1 == pytest.approx(100 * f1[answerable].mean())
    for number, record in enumerate(group.scores("oracle").per_seed):
        assert record["f1"] >= max(per_seed[number], group.scores("zero").per_seed[number]["f1"]) - 1e-9
    assert group.mean("fit_seconds") == 3.5  # seed 5 did not run alone
    assert group.mean("seed") == 4.0
    assert group.mean("peak_bytes") is None
    held = [weighted_f1(s.holdout, answerable_of(HELD), s.threshold) for s in group.systems if s.holdout]
    assert group.holdout_f1 == pytest.approx(np.mean(held))


def test_a_system_run_twice_counts_once_and_its_costs_twice() -> None:
    first, again = (system("one", 0, 0.6, draw, fit_seconds=float(draw)) for draw in (1, 2))
    group = Study.of(DEV, HELD, [first, again]).groups["constant@1/one"]
    assert group.seeds == [0]
    assert group.questions("zero")[0].tolist() == first.dev.at(0.0, answerable_of(DEV))[0].tolist()
    assert group.mean("fit_seconds") == 1.5


def test_systems_are_compared_on_the_seeds_both_have() -> None:
    ours = [system("one", seed, 0.8, 10 + seed) for seed in (0, 1, 2)]
    theirs = [system("two", seed, 0.4, 20 + seed) for seed in (1, 2, 3)]
    lonely = [system("three", 9, 0.4, 40)]
    study = Study.of(DEV, HELD, [*ours, *theirs, *lonely])
    one, two = study.groups["constant@1/one"], study.groups["constant@1/two"]
    found = study.versus(one, two, "zero")
    assert found.seeds == [1, 2]
    answerable = answerable_of(DEV)
    mean = [np.mean([s.dev.at(0.0, answerable) for s in part], axis=0) for part in (ours[1:], theirs[:2])]
    assert found.f1 == paired_bootstrap(mean[0][1], mean[1][1])
    assert found.p == mcnemar(ours[1].dev.at(0.0, answerable)[0], theirs[0].dev.at(0.0, answerable)[0])
    apart = study.versus(one, study.groups["constant@1/three"], "zero")
    assert apart.seeds == []
    gap = one.questions("zero")[1].mean() - lonely[0].dev.at(0.0, answerable)[1].mean()
    assert apart.f1.difference == pytest.approx(100 * gap)


def test_below_a_snapshot_stand_its_plain_heads() -> None:
    odd: list[dict[str, Any]] = [
        {"data_fraction": 0.1}, {"fitted_on": "constant@0.3"}, {"variant": "second"}, {"kind": "ensemble"}
    ]  # fmt: skip
    plain = [system("one", 0, 0.5, 1), system("last-state", 0, 0.5, 2, kind="control")]
    rest = [system("one", 0, 0.5, 3 + place, **more) for place, more in enumerate(odd)]
    study = Study.of(DEV, HELD, [*plain, *rest])
    assert [group.key for group in study.below("constant@1")] == ["constant@1/one", "constant@1/last-state"]
    assert study.get("constant@1/one<constant@0.3") is not None
    assert study.get("constant@1") is None
    assert study.below("constant@0.3") == []


def test_labels_score_as_the_label_task_does() -> None:
    about = About("answerable", "snapshot", "pooled", task="answerable", snapshot="pooled@1")
    records = [made_labels(DEV, 0.4, draw) for draw in (1, 2)]
    systems = [
        LabelSystem(replace(about, seed=seed), record, f"{seed}") for seed, record in enumerate(records)
    ]
    group = Study.of(DEV, None, systems).labels["answerable:pooled@1"]
    right = (~answerable_of(DEV)).astype(int)
    scores = []
    for record in records:
        said = (record.probability > 0.5).astype(int)
        hits, told, true = (
            np.bincount(values, minlength=2).astype(float) for values in (right[said == right], said, right)
        )
        scores.append((100 * (said == right).mean(), 100 * float(label_f1(hits, told, true, positive=1))))
    assert (group.accuracy, group.f1) == pytest.approx(tuple(np.mean(scores, axis=0)))
    assert group.sd == pytest.approx(np.std([a for a, _ in scores], ddof=1))
    assert 100 * group.questions.mean() == pytest.approx(group.accuracy)


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    members = [
        system("one", seed, 0.6, seed, command=f"run {seed % 2}", environment={"torch": "2"})
        for seed in range(3)
    ]
    for member in members:
        write_system(tmp_path, member, DEV, HELD)
    (tmp_path / "records" / "002" / "holdout.safetensors").unlink()
    study = Study.load(tmp_path, DEV, HELD)
    (group,) = study.groups.values()
    assert [s.threshold for s in group.systems] == [members[0].threshold, members[1].threshold, 0.0]
    assert [s.tuned for s in group.systems] == [True, True, False]
    assert not group.tuned
    assert group.systems[1].about == members[1].about
    assert study.commands == ["run 0", "run 1"]
    assert study.environment == {"torch": "2"}
    untuned = Study.load(tmp_path, DEV, None)
    assert untuned.groups["constant@1/one"].holdout_f1 is None
    with pytest.raises(ArtifactError, match="answers other questions"):
        Study.load(tmp_path, HELD, None)
    write_json(tmp_path / "records" / "001" / "about.json", {"experiment": "x", "nonsense": 1})
    with pytest.raises(Exception, match=r"about\.json"):
        Study.load(tmp_path, DEV, HELD)
    with pytest.raises(ArtifactError, match="holds no records"):
        Study.load(tmp_path / "nothing", DEV, HELD)


def test_the_made_up_study_is_the_same_from_disk(tmp_path: Path) -> None:
    skip = ("decayed", "cacnn", "constant@0", "constant@2", "untuned", "adapter-64")
    kept, read = made_study(skip=skip), made_study(tmp_path, skip=skip)
    assert list(kept.groups) == list(read.groups)
    assert list(kept.labels) == list(read.labels)
    for key, group in kept.groups.items():
        assert group.scores("tuned") == read.groups[key].scores("tuned")
