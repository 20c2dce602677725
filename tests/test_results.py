"""What a run collects into results.json, on made-up systems of labels and scores."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_cases import make_texts, make_windows, said, task_of

from bertvision.data.examples import TextData
from bertvision.data.windows import WindowConfig
from bertvision.heads import Geometry, parse_head
from bertvision.model.record import Record
from bertvision.pipeline.results import collect
from bertvision.pipeline.systems import System, pairs
from bertvision.tasks.base import Task
from bertvision.tasks.label import LabelAnswers
from bertvision.train.splits import Split

RUNS = {"three": 3, "two": 2, "scores": 0}


def made_up(seed: int, task: Any, data: TextData, skill: float) -> Any:
    """Answers that are right about as often as `skill` says, or scores that are nearer the higher it is."""
    random, labels = np.random.default_rng(seed), np.array([e.label for e in data.examples])
    if data.kind == "score":
        return said(task, data, labels + random.normal(0, 3 * (1 - skill), len(data)))
    logits = random.normal(0, 1, (len(data), len(data.classes)))
    logits[np.arange(len(data)), labels.astype(int)] += 4 * skill - 1
    return LabelAnswers(task, data, logits, np.arange(len(data)), labels.astype(int))


def system(
    label: str, kind: Any, splits: dict[str, Split], skill: float, *, seeds: int = 1, head: str = ""
) -> System:
    task: Task = splits["dev"].task
    geometry = Geometry(states=7, hidden=24, outputs=task.outputs, unit=task.unit, pooled=True)
    history = [{"epoch": e, "loss": 1 / e, "score": skill - 0.2 / e} for e in range(1, 5)]
    infos = [{"label": label, "seed": s, "seconds": 1.5 + s, "history": history} for s in range(seeds)]
    records = []
    for s in range(seeds):
        seed = zlib.crc32(label.encode()) % 1000 + s
        answers = {n: made_up(seed, task, split.data, skill) for n, split in splits.items() if n != "train"}
        tuning = task.tune(answers["dev"])
        scores = {name: task.score(own, tuning) for name, own in answers.items()}
        records.append(Record(task, answers, tuning, "dev", scores))
    made = parse_head(head).build(geometry, seed=0) if head else None
    found = System("snapshot-1", label, made, records, infos=infos if kind != "snapshot" else [])
    assert found.kind == kind
    return found


def run(classes: int, **options: Any) -> tuple[list[System], dict[str, Any]]:
    """A snapshot, a control and two heads with three seeds each."""
    splits = {}
    for i, name in enumerate(("train", "dev", "test")):
        data = make_texts(i, examples=150, classes=classes)
        windows = make_windows([1] * len(data))
        splits[name] = Split(data, windows, "f" * 32, WindowConfig(), task=task_of(data, **options))
    systems = [
        system("snapshot-1", "snapshot", splits, 0.7, head="cls_linear"),
        system("cls linear", "control", splits, 0.74, seeds=3, head="cls_linear"),
        system("tenney small", "head", splits, 0.86, seeds=3, head="tenney_small"),
        system("adapter pooler", "head", splits, 0.7, seeds=3, head="adapter_pooler:size=8"),
    ]
    results = collect(
        systems,
        command="bertvision run  # made-up numbers",
        settings={"finetune": {}, "fit": {"epochs": 4, "lr": 1e-3}},
        encoder={"name": "made-up", "fingerprint": "f" * 32, "parameters": 10_000, "states": 7, "hidden": 24},
        splits=splits,
        finetune=None,
        fits=[],
        out=Path("runs"),
        device="cpu",
        precision="fp32",
    )
    return systems, json.loads(json.dumps(results))


@pytest.mark.parametrize("name", RUNS)
def test_the_shape(name: str) -> None:
    _, results = run(RUNS[name])
    metrics, task = results["metrics"], results["task"]
    assert results["schema"] == 2
    assert next(iter(metrics)) == task["metric"]
    assert set(results["data"]) == {"train", "dev", "test"}
    assert sum(results["data"]["dev"].get("counts", {"all": 150}).values()) == 150
    for one in results["systems"]:
        assert {*one} >= {"name", "kind", "label", "snapshot", "head", "best", "scores", "versus", "seeds"}
        for split, scores in one["scores"].items():
            assert set(scores) == set(metrics)
            for metric, score in scores.items():
                assert set(score) == {"mean", "sd", "per_seed", "interval"}
                if score["interval"] is not None:
                    assert split == "test"
                    assert score["interval"][0] <= score["mean"] <= score["interval"][1], metric
    own = results["systems"][2]["scores"]["test"][task["metric"]]["interval"]
    assert own is not None, "claims have intervals"


def test_means_and_seeds() -> None:
    (_, _, head, _), results = run(3)
    row = results["systems"][2]
    for name, score in row["scores"]["dev"].items():
        values = head.values("dev", name)
        assert list(score["per_seed"].values()) == values
        assert list(score["per_seed"]) == ["0", "1", "2"]
        assert score["mean"] == pytest.approx(np.mean(values))
        assert score["sd"] == pytest.approx(np.std(values, ddof=1))
    assert head.shipped == int(np.argmax(head.values("dev", "accuracy")))
    assert results["systems"][0]["scores"]["dev"]["accuracy"]["sd"] is None
    assert row["seconds"] == pytest.approx(2.5)


@pytest.mark.parametrize("name", RUNS)
def test_comparisons_are_paired_over_all_members(name: str) -> None:
    (snapshot, _, head, _), results = run(RUNS[name])
    versus, task = results["systems"][2]["versus"], head.task
    assert (versus["baseline"], versus["split"]) == ("snapshot-1", "test")
    for metric, found in versus["metrics"].items():
        expected = task.compare(metric, head.members_on("test"), snapshot.members_on("test"))
        assert found == vars(expected)
    assert versus["metrics"][task.metric]["low"] > 0
    assert results["systems"][0]["versus"] is None
    if task.kind == "label":
        assert versus["mcnemar_p"] < 0.05


def test_the_head_is_chosen_on_dev() -> None:
    systems, results = run(3)
    best = max(systems[2:], key=lambda s: float(np.mean(s.values("dev", "accuracy"))))
    assert [s["best"] for s in results["systems"]] == [s is best for s in systems] + [False]
    assert set(results["details"]) == {best.name, "snapshot-1"}
    assert results["details"][best.name]["seed"] == best.shipped
    assert np.sum(results["details"][best.name]["confusion"]) == 150
    assert 0 < len(results["examples"]) <= 12
    assert results["curves"]["fit"][best.name][-1] == {"epoch": 4, "loss": 0.25, "score": pytest.approx(0.81)}


def test_baselines_are_what_the_training_set_alone_can_say() -> None:
    for classes in RUNS.values():
        _, results = run(classes)
        trivial = results["systems"][-1]
        assert trivial["kind"] == "baseline"
        train, test = (
            np.array([e.label for e in make_texts(i, examples=150, classes=classes).examples]) for i in (0, 2)
        )
        scores = {name: score["mean"] for name, score in trivial["scores"]["test"].items()}
        if classes:
            often = np.bincount(train.astype(int)).argmax()
            assert scores["accuracy"] == pytest.approx((test == often).mean())
            assert scores["mcc"] == 0
        else:
            assert scores["pearson"] == 0
            assert scores["mse"] == pytest.approx(((test - train.mean()) ** 2).mean())


def test_f1_of_two_classes_names_its_class() -> None:
    _, results = run(2, metric="f1", positive=0)
    assert results["metrics"]["f1"]["title"] == results["task"]["title"] == "F1 of 'red'"


def test_pairs_share_their_seeds() -> None:
    systems, _ = run(3)
    for one in systems:
        one.folders = [Path(f"{one.label}.{s}") for s in range(len(one.records))]
    systems[3].infos = systems[3].infos[1:]  # a seed diverged
    systems[3].folders = systems[3].folders[1:]
    own, heads = pairs(systems)
    assert own.first is systems[0]
    assert own.folders == [(Path("snapshot-1.0"), Path(f"tenney small.{seed}")) for seed in range(3)]
    assert {heads.first.label, heads.second.label} == {"tenney small", "adapter pooler"}
    assert heads.seeds == [info["seed"] for info in heads.infos] == [1, 2]
    assert all(a.name[-1] == b.name[-1] for a, b in heads.folders)
