"""One encoder for several tasks: the same as a plain loop with an optimiser for the encoder and one a head, killed and
started again, in two processes, and what is written down."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from cli_runner import answered, as_json, refused
from killing import finish, run_together
from test_resume import assert_survives_kills
from tuning_helpers import (
    WINDOWS,
    PlainTuning,
    assert_equal,
    assert_same_tuning,
    label_texts,
    largest_difference,
    losses,
    score_texts,
    snapshot_weights,
    split_of,
    steps_of,
    write_table,
)

from bertvision.encoder.encoder import Encoder
from bertvision.errors import BertvisionError, ConfigError
from bertvision.pipeline.train import load_jobs
from bertvision.train import steps as steps_module
from bertvision.train.config import MultitaskConfig, TaskSpec
from bertvision.train.finetune import tune
from bertvision.train.job import Batching, Job, load_split
from bertvision.train.run_folder import RunFolder, read_metrics
from bertvision.train.steps import GraphSteps

# Adam divides by the gradient's own size; a large eps keeps it from blowing rounding up.
SETTINGS: dict[str, Any] = {
    "batch_size": 8, "lr": 1e-2, "eps": 1e-2, "weight_decay": 0.1, "schedule": "constant", "warmup": 0.0,
    "log_every": 1, "epochs": 2.0, "order": "mixed",
}  # fmt: skip


def config_of(**values: Any) -> MultitaskConfig:
    return MultitaskConfig(**(SETTINGS | values))


@pytest.fixture
def jobs(lively: Path, toy_squad: Path) -> list[Job]:
    """A label, a score of pairs encoded apart and spans, each drawn in its own way."""
    spans = load_split(str(toy_squad), Encoder.load(str(lively)), WINDOWS)
    labels = split_of(label_texts(27), lively)
    scores = split_of(score_texts(25), lively, apart=True)
    return [
        Job(labels, labels, name="mood", head="minbert:blocks=1,dropout=0", subset=20, sampling="weighted"),
        Job(
            scores, scores, name="near", head="minbert:vectors=2,dropout=0,blocks=1", batch_size=5, weight=0.5
        ),
        Job(spans, spans, name="where"),
    ]


def tuned(folder: Path, source: Path, jobs: list[Job], **values: Any) -> RunFolder:
    encoder = Encoder.load(str(source))
    return tune(encoder, jobs, folder=folder, config=config_of(**values))[0]


# ---- what is trained


@pytest.mark.parametrize(
    "values",
    [
        {"order": "sequential"}, {"order": "mixed", "accumulate": 2}, {"order": "temperature", "temperature": 3.0},
        {"order": "mixed", "policy": "cut-1"}, {"order": "mixed", "policy": "top-1", "accumulate": 3},
    ],
    ids=str,
)  # fmt: skip
def test_several_tasks_are_the_plain_loop(
    values: dict[str, Any], tmp_path: Path, lively: Path, jobs: list[Job]
) -> None:
    policy = values.get("policy", "full")

    def frozen(name: str) -> bool:
        if policy == "full":
            return False
        return not (name.startswith("encoder.layer.2.") or (policy == "top-1" and "LayerNorm" in name))

    plain = PlainTuning(lively, jobs, config_of(**values), frozen=frozen)
    begun = {name: tensor.clone() for name, tensor in plain.weights().items()}
    for number, rows in steps_of(jobs, config_of(**values)):
        group = jobs[number].task.group
        plain.step(number, rows[::group] // group)
    stage = tuned(tmp_path, lively, jobs, **values)
    assert losses(stage) == pytest.approx(plain.losses, rel=2e-4, abs=1e-5)
    found, wanted = snapshot_weights(tmp_path / "snapshot-2"), plain.weights()
    assert largest_difference({n: found[n] for n in wanted}, wanted) < 2e-5
    for folder in ("heads/mood", "heads/near", "heads/where", "encoder"):
        own = [n for n in wanted if n.startswith(folder)]
        assert max(float((wanted[n] - begun[n]).abs().max()) for n in own) > 1e-3, "hardly moved"


def test_one_named_task_is_the_plain_fine_tuning(tmp_path: Path, lively: Path) -> None:
    """Whether it comes by itself or from a recipe of one."""
    split = split_of(label_texts(27), lively)
    named = tuned(tmp_path / "named", lively, [Job(split, split, name="mood", head="cls_linear")])
    alone = tuned(tmp_path / "alone", lively, [Job(split, split, head="cls_linear")])
    assert losses(named) == losses(alone)
    ours, theirs = (snapshot_weights(tmp_path / name / "snapshot-2") for name in ("named", "alone"))
    assert_equal({n.replace("heads/mood/", "head/"): t for n, t in ours.items()}, theirs)
    assert named.results["snapshots"] == alone.results["snapshots"]


# ---- steps for graphs, which zero gradients instead of dropping them


class _Stream:
    def wait_stream(self, other: Any) -> None:
        pass


class _WithoutGraphs(GraphSteps):
    """The steps of a GPU where nothing could be captured."""

    captured = False

    def __init__(self, *values: Any, **more: Any) -> None:
        super().__init__(*values, **more)
        self.graphs.possible = False


@pytest.mark.parametrize("values", [{"order": "mixed"}, {"order": "sequential", "accumulate": 2}], ids=str)
def test_what_a_task_does_not_reach_rests(
    values: dict[str, Any], lively: Path, toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pooler belongs to the label; Adam would go on with it while spans train, and shrink it."""
    spans = load_split(str(toy_squad), Encoder.load(str(lively)), WINDOWS)
    jobs = [Job(split_of(label_texts(27), lively), name="mood"), Job(spans, name="where")]
    more: dict[str, Any] = {"weight_decay": 0.5, **values}
    plain = tuned(tmp_path / "plain", lively, jobs, **more)
    for name, value in (("graph_pool_handle", lambda: None), ("Stream", _Stream), ("current_stream", _Stream),
                        ("stream", lambda _: contextlib.nullcontext())):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(steps_module, "Steps", _WithoutGraphs)
    other = tuned(tmp_path / "other", lively, jobs, **more)
    assert losses(other) == pytest.approx(losses(plain), rel=1e-5)
    found, wanted = (snapshot_weights(tmp_path / name / "snapshot-2") for name in ("other", "plain"))
    assert largest_difference(found, wanted) < 1e-6


# ---- what is written down


def test_losses_and_scores_of_every_task_are_told(tmp_path: Path, lively: Path, jobs: list[Job]) -> None:
    stage = tuned(tmp_path / "out", lively, jobs, log_every=4, score_every=0.5, snapshots=(1.0,))
    plan = Batching(jobs, config_of())
    numbers = [n for epoch in (0, 1) for n, _ in plan.batches(epoch)]
    fine = losses(tuned(tmp_path / "fine", lively, jobs))
    records = read_metrics(stage.metrics)
    told = [r for r in records if "loss" in r]
    assert [r["step"] for r in told] == [*range(4, len(numbers), 4), len(numbers)]
    for record in told:
        own = range(4 * ((record["step"] - 1) // 4), record["step"])
        assert record["loss"] == pytest.approx(np.mean([fine[i] for i in own]))
        for n, job in enumerate(jobs):
            mine = [fine[i] for i in own if numbers[i] == n]
            assert (f"loss_{job.name}" in record) == bool(mine)
            if mine:
                assert record[f"loss_{job.name}"] == pytest.approx(np.mean(mine))
    scored = [r for r in records if "task" in r]
    half = plan.step_of(0.5), plan.step_of(1.0), plan.step_of(1.5), plan.step_of(2.0)
    assert [(r["step"], r["task"]) for r in scored] == [(s, j.name) for s in half for j in jobs]
    assert {r.get("snapshot") for r in scored if r["step"] == half[1]} == {"snapshot-1"}
    assert {r.get("snapshot") for r in scored if r["step"] == half[0]} == {None}
    metric = {"mood": "accuracy", "near": "pearson", "where": "f1"}
    for name, scores in stage.results["snapshots"].items():
        at = [r for r in scored if r.get("snapshot") == name]
        assert scores.keys() == {"mood", "near", "where"}
        assert {r["task"]: r[metric[r["task"]]] for r in at} == {t: s[metric[t]] for t, s in scores.items()}
    for job in jobs:
        folder = job.folder(tmp_path / "out" / "snapshot-2")
        assert (folder / "dev" / "logits.safetensors").exists()
        about = json.loads((folder / "config.json").read_text())
        assert (folder / about["encoder"]["path"]).resolve() == (tmp_path / "out" / "snapshot-2" / "encoder")


def test_scores_can_come_later_and_of_some_tasks(tmp_path: Path, lively: Path, jobs: list[Job]) -> None:
    bare = [replace(j, dev=None) for j in jobs]
    first = tuned(tmp_path, lively, bare)
    assert first.results["snapshots"] == {}
    for scored in ({"near", "where"}, {"mood"}):  # those of another dev set are forgotten
        some = [replace(j, dev=j.dev if j.name in scored else None) for j in jobs]
        again = tuned(tmp_path, lively, some)
        assert again.results["snapshots"]["snapshot-2"].keys() == scored
        assert losses(again) == losses(first), "nothing was trained again"


def test_another_setting_of_a_task_is_other_work(tmp_path: Path, lively: Path, jobs: list[Job]) -> None:
    bare = [replace(job, dev=None) for job in jobs[:2]]
    tuned(tmp_path, lively, bare, epochs=0.1)
    changes = [{"name": "other"}, {"weight": 2.0}, {"subset": 5}, {"batch_size": 3}, {"sampling": "balanced"}]
    for changed in changes:
        with pytest.raises(BertvisionError, match=r"other settings \(tasks\."):
            tuned(tmp_path, lively, [replace(bare[0], **changed), bare[1]], epochs=0.1)


# ---- mistakes


def test_what_cannot_be_leaves_nothing_behind(tmp_path: Path, lively: Path) -> None:
    """A folder with the wrong key would refuse the right command."""
    split, out = split_of(label_texts(9), lively), tmp_path / "out"
    for names in (*(("mood", other) for other in ("mood", "", "a/b", "two words")), ("..",)):
        with pytest.raises(ConfigError, match="need names of their own"):
            tuned(out, lively, [Job(split, name=name) for name in names])
    with pytest.raises(ConfigError, match="--bins"):
        tuned(out, lively, [Job(split_of(score_texts(9), lively), name="near", bins=0, sampling="weighted")])
    assert not out.exists()


# ---- recipes


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, toy_squad: Path) -> Path:
    """A folder of data, and a recipe that speaks of it."""
    folder = tmp_path_factory.mktemp("home")
    for name, data in (
        ("mood", label_texts(27)), ("more", label_texts(9, seed=1)), ("near", score_texts(25)),
    ):  # fmt: skip
        write_table(folder / f"{name}.tsv", data)
    (folder / "toy.json").write_bytes(toy_squad.read_bytes())
    tasks = [
        {"name": "mood", "train": ["{data}/mood.tsv", "{data}/more.tsv"], "dev": "{data}/mood.tsv",
         "head": "minbert:blocks=1,dropout=0.1", "sampling": "weighted", "subset": 20,
         "prompt": "was the old road cold?"},
        {"name": "near", "train": ["{data}/near.tsv"], "dev": "{data}/near.tsv", "task": "score", "weight": 0.5,
         "batch_size": 5},
        {"name": "where", "train": ["{data}/toy.json"], "dev": "{data}/toy.json", "head": "learned_pooling"},
    ]  # fmt: skip
    recipe = {
        "out": str(folder / "unused"), "tasks": tasks,
        "windows": {"max_seq_length": 64, "max_query_length": 16, "doc_stride": 24},
        "finetune": {"order": "mixed", "epochs": 2, "batch_size": 8, "lr": 1e-3, "schedule": "linear", "log_every": 3,
                     "checkpoint_seconds": 0, "snapshots": [0.5], "score_every": 0.25},
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return folder


Command = Callable[..., list[str]]


@pytest.fixture
def command(home: Path, tiny_bert: Path) -> Command:
    def words(
        out: Path, *more: Any, encoder: Path = tiny_bert, recipe: Path = home / "recipe.yaml"
    ) -> list[str]:
        told = ["multitask", "--config", recipe, "--data", home, "--encoder", encoder, "--out", out, *more]
        return [str(word) for word in told]

    return words


def test_a_recipe_is_run_and_told(command: Command, tmp_path: Path, home: Path, tiny_bert: Path) -> None:
    done = answered(*command(tmp_path / "out"))
    for word in ("snapshot-0.5", "snapshot-2", "mood", "near", "where", "accuracy", "Pearson", "F1"):
        assert word in done.out
    for name in ("mood", "near", "where"):
        head = tmp_path / "out" / "snapshot-2" / "heads" / name
        assert {"README.md", "config.json", "metrics.json", "dev"} <= {p.name for p in head.iterdir()}
    about = json.loads((tmp_path / "out" / "snapshot-2" / "heads" / "mood" / "config.json").read_text())
    assert about["reframe"]["prompt"] == "was the old road cold?"
    # What it wrote down repeats the run: all of it is there already.
    told = as_json("multitask", "--config", tmp_path / "out" / "config.yaml")
    assert told["scores"].keys() == {"snapshot-0.5", "snapshot-2"}
    jobs = load_jobs(
        [TaskSpec(name="mood", train=("{data}/mood.tsv", "{data}/more.tsv"))],
        Encoder.load(str(tiny_bert)), WINDOWS, data=str(home),
    )  # fmt: skip
    assert len(jobs[0].train.data) == 36
    assert len({e.id for e in jobs[0].train.data.examples}) == 36


def test_a_recipe_of_one_task_is_told_too(command: Command, tmp_path: Path, home: Path) -> None:
    recipe = yaml.safe_load((home / "recipe.yaml").read_text())
    recipe["tasks"] = recipe["tasks"][:1]
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(recipe))
    done = answered(*command(tmp_path / "out", recipe=tmp_path / "one.yaml"))
    assert "mood" in done.out
    assert "accuracy" in done.out
    assert (tmp_path / "out" / "snapshot-2" / "heads" / "mood" / "metrics.json").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "near"}, "need names of their own"),
        ({"name": ""}, "needs a name"),
        ({"train": []}, "needs a name and at least one training set"),
        ({"train": ["{data}/mood.tsv", "{data}/toy.json"]}, "has questions, which cannot be joined"),
        ({"head": "last_state"}, "last_state.v1 gives logits of each token"),
        ({"loss": "mse"}, "--text.loss mse is not for classes"),
        ({"weight": 0}, "weight of task mood must be a finite number above 0"),
        ({"dev": "{data}/toy.json"}, "toy.json"),
    ],
    ids=str,
)
def test_a_mistake_in_a_recipe_is_one_sentence(
    change: dict[str, Any], sentence: str, command: Command, tmp_path: Path, home: Path
) -> None:
    recipe = yaml.safe_load((home / "recipe.yaml").read_text())
    recipe["tasks"][0] |= change
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(recipe))
    assert sentence in refused(*command(tmp_path / "out", recipe=tmp_path / "wrong.yaml"), late=True)
    assert not (tmp_path / "out").exists()


def test_a_recipe_needs_tasks_and_its_data(
    command: Command, tmp_path: Path, home: Path, tiny_bert: Path
) -> None:
    said = refused("multitask", "--encoder", tiny_bert, "--out", tmp_path / "out")
    assert "reads its tasks from a recipe: give --config" in said
    words = command(tmp_path / "out")
    i = words.index("--data")
    assert "say with --data which folder {data} is" in refused(*words[:i], *words[i + 2 :])
    assert not (tmp_path / "out").exists()


# ---- killed, and in two processes


def test_killed_and_started_again(command: Command, tmp_path: Path) -> None:
    """With dropout, weighted draws, two parts of a batch and scores on the way."""
    assert_survives_kills(
        lambda out: command(out, "--policy", "cut-1", "--accumulate", "2"), tmp_path, "several"
    )


@pytest.mark.slow
def test_two_processes_tune_what_one_does(command: Command, tmp_path: Path, home: Path, lively: Path) -> None:
    recipe = yaml.safe_load((home / "recipe.yaml").read_text())
    recipe["tasks"][0]["head"] = "minbert:blocks=1,dropout=0"  # every rank draws its own
    recipe["finetune"] |= {"log_every": 1, "eps": 1e-2, "lr": 1e-2, "score_every": 1}
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(recipe))
    run, one = (
        command(tmp_path / out, "--device", "cpu", encoder=lively, recipe=tmp_path / "plain.yaml")
        for out in ("two", "one")
    )
    run_together(run, tmp_path, seconds=120)
    assert finish(one, tmp_path / "one.log") == 0, (tmp_path / "one.log").read_text()
    assert_same_tuning(tmp_path / "two", tmp_path / "one")
