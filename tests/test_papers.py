"""papers/: the plan is sound, published values are the documents', and a toy study goes from commands to a report."""

import csv
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from toy import squad_json

from bertvision.cli import find_command
from bertvision.cli.flags import parse
from bertvision.heads.spec import expand, parse_head
from papers.__main__ import main
from papers.data import Data, questions
from papers.figures import TITLES
from papers.measure import Study
from papers.plan import PLAN, Plan, PlanError, Step
from papers.published import published
from papers.runner import Runner
from papers.tables import rows_of

PAPERS = Plan.read()
STEPS = PAPERS.steps(PAPERS.parts)

# ---- the plan


@cache
def parsed(step: Step) -> Any:
    """The flags of a step's command, with names in the place of files."""
    words = PAPERS.words(step, lambda name: "2.5" if name == "null_weight" else name)
    args, as_json = parse(*find_command([*words, "--out", "out", "--json"]))
    assert as_json
    return args


@cache
def made_by(step: Step) -> set[str]:
    """The systems that a command leaves, without the seed in their names."""
    verb, args = PAPERS.jobs[step.job].run.split()[0], parsed(step)
    if verb == "finetune":
        return {f"snapshot-{mark:g}" for mark in (*args.finetune.snapshots, args.finetune.epochs)}
    if verb == "fit":
        return {parse_head(text).label for text, _ in expand(args.fit.heads)}
    if verb == "multitask":
        return {f"snapshot-{args.finetune.epochs:g}/heads/{task.name}" for task in args.tasks}
    if verb == "eval":
        whole = {other.path: made_by(other) for other in PAPERS.needs(step)}
        return set().union(*(whole.get(str(f), {f.name.partition(".seed")[0]}) for f in args.folders))
    return {"ensemble"} if verb == "ensemble" else {"snapshot", "best"}


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    for part in PAPERS.parts.values():
        for table in part.tables:
            assert all(metric in TITLES for metric in table["metrics"])
            yield from ((part.name, row) for row in rows_of(table))


def test_every_command_of_the_plan_parses() -> None:
    """Once for every job, and for every seed that has flags of its own."""
    assert len({step.job for step in STEPS}) == len(PAPERS.jobs), "a job that no part needs"
    shapes = {(step.job, PAPERS.jobs[step.job].seeds[step.seed]): step for step in reversed(STEPS)}
    assert all(str(parsed(step).out) == "out" for step in shapes.values())


def test_tables_name_systems_that_the_plan_makes() -> None:
    made: dict[str, set[str]] = {}
    for step in STEPS:
        made.setdefault(step.job, set()).update(made_by(step))
    # Fewer epochs and parts of the data are measured than published.
    measured = [(part, row) for part, row in rows() if not row["key"].replace(".", "").isdigit()]
    for part, row in measured:
        for key in ("of", "over", "first", "other"):
            job, _, name = (row.get(key) or "").partition("/")
            # At a decayed rate not every head is fitted on every encoder.
            assert not job or part == "decayed" or name in made[job], (part, row)


def test_the_papers_matrix_is_complete() -> None:
    """Eight models of Hulburd, twelve CACNNs, twenty span models, six of answer / no answer, ten tenths."""
    jobs = list(PAPERS.jobs)
    assert [sum(name.startswith(start) for name in jobs) for start in ("hulburd-", "cacnn-", "glue-")] == [
        8,
        12,
        8,
    ]
    heads = {
        row["published"] for part, row in rows() if part in ("heads", "cnn") and published(row["published"])
    }
    assert len({key.split("/")[1] for key in heads if key.startswith("heads/")}) == 20
    assert {f"snapshot-{k / 10:g}" for k in range(1, 11)} | {"snapshot-2"} == made_by(Step("constant", 0))


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"flags": {}}, "flags"),
        ({"jobs": {"a": {"run": "eval {b} $flag", "seeds": [1]}, "b": {"run": "fit"}}}, "seed 1"),
        ({"parts": {"p": {"title": "", "about": "", "jobs": ["c"], "tables": []}}}, "job c"),
    ],
)
def test_a_mistake_in_a_plan_is_named(change: dict[str, Any], mistake: str) -> None:
    part = {"title": "", "about": "", "jobs": ["a"], "tables": []}
    plan = {"flags": {"flag": ""}, "jobs": {"a": {"run": "fit $flag"}}, "parts": {"p": part}}
    assert Plan(plan).steps(["p"]) == [Step("a", 0)]
    with pytest.raises(PlanError, match=mistake):
        Plan(plan | change)


# ---- the published values


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("heads/adapter-386-skip/0.3", {"exact": 69.9, "f1": 74.0}),
        ("heads/adapter-386/1", {"exact": 74.9, "f1": 79.0}),
        ("heads/adapter-386/", {"percent": 0.124}),
        ("heads/inception/0.3", {"exact": 50.1, "f1": 50.1}),
        ("heads/inception/1", {}),
        ("ensembles/head+snapshot/1", {"exact": 75.6, "f1": 79.8}),
        ("transfer/adapter-386-skip/0.3 on 1", {"exact": 74.5, "f1": 79.1}),
        ("curve/encoder/0.3", {"exact": 65.4, "f1": 70.2}),
        ("curve/encoder/2", {"exact": 74.7, "f1": 79.2}),
        ("label-curve/encoder/3", {"accuracy": 80.4, "f1": 79.0}),
        ("labels/xception/0.2", {"accuracy": 70.7, "f1": 71.0}),
        ("fractions/adapter-386-skip/0.6", {"exact": 73.3, "f1": 78.0}),
        ("second-best/adapter-386-skip/0.3", {"exact": 17.4, "of_wrong": 3569, "right": 1575, "answerable": 739}),
        ("question-types/encoder/0.3", {"HasAns_exact": 66.9, "NoAns_exact": 63.9}),
        ("lengths/head/1", {"mean_all": 164.39, "mean_unique": 158.68}),
        ("layer-weights/learned_pooling/24", {"weight": 0.243}),
        ("hulburd/full/3", {"trainable": 108_311_810, "f1": 76.3, "minutes": 255, "efficiency": 3.3}),
        ("hulburd/houlsby-64/3", {"trainable": 2_417_664, "exact": 66.8, "inference_seconds": 154.3}),
        ("minbert/qabert/sts", {"pearson": 84.3, "spearman": 83.4}),
        ("glue/CoLA BERT/BERT-large", {"mcc": 20.67}),
        ("repository-squad/BERTVision/BERT-large", {"exact": 76.96, "f1": 80.27}),
    ],
)  # fmt: skip
def test_published_values_are_the_documents(key: str, values: dict[str, float]) -> None:
    found = {metric: printed.value for metric, printed in published(key).items()}
    assert values.items() <= found.items()
    assert bool(values) == bool(found)


def test_every_published_score_stands_in_a_table() -> None:
    shown = {row.get(key) for _, row in rows() for key in ("published", "published_over")}
    with PLAN.with_name("published.csv").open(encoding="utf-8", newline="") as lines:
        printed = [(f"{r['table']}/{r['row']}/{r['at']}", r) for r in csv.DictReader(lines)]
    left = {key for key, row in printed if key not in shown and row["metric"] not in ("percent", "weight")}
    assert not left


# ---- the data


def toy_data(folder: Path) -> Path:
    """The toy questions as four articles."""
    squad = squad_json()
    [article] = squad["data"]
    parts = [{"title": str(i), "paragraphs": article["paragraphs"][i::4]} for i in range(4)]
    path = folder / "squad.json"
    path.write_text(json.dumps({**squad, "data": parts}), encoding="utf-8")
    return path


def test_articles_are_held_out_and_parts_lie_in_one_another(tmp_path: Path) -> None:
    def ids(path: Path) -> set[str]:
        return {question["id"] for _, question in questions(json.loads(path.read_text(encoding="utf-8")))}

    data = Data(toy_data(tmp_path), tmp_path / "data")
    train, tune = ids(data.train()), ids(data.tune())
    assert (len(train), len(tune)) == (18, 6)
    assert train | tune == ids(data.source)
    small, large, other = ids(data.part(0.2, 0)), ids(data.part(0.5, 0)), ids(data.part(0.5, 1))
    assert (len(small), len(large)) == (4, 9)
    assert small < large < train
    assert large != other < train
    assert data.null_weight() == "1.0"  # two answerable questions for every unanswerable one, as in SQuAD 2.0
    alone = tmp_path / "one.json"
    alone.write_text(json.dumps(squad_json()), encoding="utf-8")
    with pytest.raises(PlanError, match="one article"):
        Data(alone, tmp_path / "one").tune()


# ---- end to end

TOY_FLAGS = {
    "windows": "--max-seq-length 96 --max-query-length 16 --doc-stride 32 --stride step",
    "rate": "--batch-size 8 --null-weight {null_weight}",
    "heads": "$windows --seed {seed} --seeds {seed} --batch-size 8 --lr 1e-2",
    "labels": "$heads --dev answerable:{tune} --epochs 2 --heads tenney_small cls_linear",
}
TOY_PARTS = {
    "curve": ["constant"],
    "heads": ["heads-0.3", "heads-1"],
    "fractions": ["fraction-0.4"],
    "ensembles": ["joined-0.3", "across-0.3-1"],
    "second-best": ["decoded-second"],
    "as-published": ["decoded-published"],
    "transfer": ["transfer"],
    "question-types": ["heads-1"],
    "lengths": ["heads-1"],
    "layer-weights": ["heads-0.3"],
    "hulburd": ["hulburd-top-1"],
    "labels": ["labels-1", "labels-any-null"],
    "glue": ["glue-RTE"],
}


def toy_plan() -> dict[str, Any]:
    """The real plan with small windows, few heads, one or two seeds, and of each part a job or two."""
    content = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    content["flags"] |= TOY_FLAGS
    few = "--heads pooling+adapters last_state last_state_mlp"
    for name, job in content["jobs"].items():
        job["run"] = job["run"].replace(few, "--heads learned_pooling adapter adapter:skip")
        if job.get("seeds") in ([0, 1, 2], [2]):
            job["seeds"] = [0, 1] if name == "heads-*" else [0]
    content["jobs"]["constant"]["seeds"] = {
        0: "--epochs 1 --snapshots 0.3 0.5",
        1: "--epochs 1 --snapshots 0.3",
    }
    content["parts"] = {name: content["parts"][name] | {"jobs": jobs} for name, jobs in TOY_PARTS.items()}
    return content


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> tuple[Path, list[str]]:
    """The folder of a finished toy study, and its flags."""
    folder = tmp_path_factory.mktemp("papers")
    (folder / "plan.yaml").write_text(yaml.safe_dump(toy_plan(), sort_keys=False), encoding="utf-8")
    data = str(toy_data(folder))
    flags = ["--plan", str(folder / "plan.yaml"), "--out", str(folder / "out")]
    assert main([*flags, "--encoder", str(tiny_bert), "--train", data, "--dev", data]) == 0
    return folder / "out", flags


def tables(results: dict[str, Any], part: str) -> dict[str, dict[str, Any]]:
    """All rows of a part by their titles."""
    [found] = [one for one in results["parts"] if one["name"] == part]
    return {row["name"]: row for table in found["tables"] for row in table["rows"] if row.get("measured")}


def test_a_study_ends_in_a_report_with_published_beside_measured(toy: tuple[Path, list[str]]) -> None:
    out, _ = toy
    results = json.loads((out / "papers.json").read_text(encoding="utf-8"))
    page = (out / "papers.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 6
    assert "src=" not in page, "the page is one file"
    assert all(part["title"] in page for part in results["parts"])
    heads = tables(results, "heads")
    head = heads["Adapter 386 shared with skip (12)"]
    assert head["published"]["f1"] == 78.6  # the last of the tables with this row is that of one epoch
    assert head["published_gain"]["f1"] == pytest.approx(0.9)
    assert head["measured"]["f1"]["seeds"] == 2
    gain = head["gain"]["f1"]
    encoder = heads["The encoder itself"]["measured"]["f1"]["mean"]
    assert gain["mean"] == pytest.approx(head["measured"]["f1"]["mean"] - encoder)
    assert gain["interval"][0] <= gain["mean"] <= gain["interval"][1]
    assert head["measured"]["parameters"]["mean"] > 386 * 32
    assert "trainable" in tables(results, "hulburd")["L1"]["measured"]
    weights = tables(results, "layer-weights")["Encoder of 3/10 epochs"]
    assert sum(y for _, y in weights["line"]) == pytest.approx(3.0, abs=1e-4)
    for part in set(TOY_PARTS) - {"glue"}:
        assert tables(results, part), part
    assert not tables(results, "glue")


def test_every_metric_agrees_with_the_answers_it_is_made_of(toy: tuple[Path, list[str]]) -> None:
    """Our own copy of the official measure, question by question, against what bertvision's verbs scored."""
    out, flags = toy
    study = Study(Plan.read(Path(flags[1])), out, out.parent / "squad.json")
    checked = 0
    for step in study.plan.steps(study.plan.parts):
        for folder in (out / f"{step.path}.dev").glob("*"):
            system = f"{step.job}/{folder.name}"
            answers = study.answers(system, step.seed)
            assert answers is not None
            values = study.values(system, step.seed)
            for metric, drawn in answers.scores(np.ones((1, len(study.gold.ids)))).items():
                if metric.startswith("tuned") and step.job == "decoded-published":
                    continue
                assert drawn[0] == pytest.approx(values[metric], abs=1e-6), (system, metric)
                checked += 1
    assert checked > 100
    assert not list(out.glob("*.dev/**/nbest_predictions.json"))


def test_what_is_done_is_not_done_again(
    toy: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, flags = toy
    called: list[list[str]] = []
    monkeypatch.setattr(Runner, "_call", lambda self, words: called.append(words))
    assert main(flags) == 0
    assert main([*flags, "--report"]) == 0
    assert called == []
    capsys.readouterr()
    assert main([*flags, "--list"]) == 0
    assert "curve           2 of   2 commands" in capsys.readouterr().out
    # Another rate for the snapshots: they, and all that was made of them, are to be done again.
    content = toy_plan()
    content["flags"]["constant"] += " --lr 1e-4"
    plan = Plan(content)
    settings = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    runner = Runner(plan, out, settings)
    undone = {step.job for step in plan.steps(["heads", "hulburd", "transfer"]) if not runner.is_done(step)}
    assert undone == {"constant", "heads-0.3", "heads-1", "transfer"}


def test_what_changed_is_run_again_from_its_start(toy: tuple[Path, list[str]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(toy[0], out)
    content = toy_plan()
    content["flags"]["hulburd"] += " --lr 1e-4"
    content["parts"] = {"hulburd": content["parts"]["hulburd"]}
    plan = Plan(content)
    runner = Runner(plan, out, json.loads((out / "settings.json").read_text(encoding="utf-8")))
    steps = plan.steps(["hulburd"])
    runner.run(steps)
    assert all(map(runner.is_done, steps))
    stage = json.loads((out / "hulburd-top-1.s0" / "stage.json").read_text(encoding="utf-8"))
    assert stage["key"]["finetune"]["lr"] == 1e-4


@pytest.mark.parametrize(
    ("flags", "mistake"),
    [
        (["--only", "hats"], "hats"),
        (["--encoder", "elsewhere"], "begun with --encoder"),
        (["--plan", str(PLAN), "--out", "nowhere"], "--train"),
    ],
)
def test_a_mistake_is_one_sentence(
    flags: list[str], mistake: str, toy: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*toy[1], *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert mistake in error
    assert error.count("\n") == 1
