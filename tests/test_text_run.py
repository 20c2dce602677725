"""`bertvision run` on labels and scores: every number of results.json again from the files beside the heads, what is
refused, and the commands of docs/texts.md."""

import csv
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cli_runner import answered, refused, tree
from text_tables import LABELS, write_labels, write_scores

from bertvision.artifacts import read_json
from bertvision.cli import find_command
from bertvision.cli.flags import parse
from bertvision.data.examples import TextData
from bertvision.data.load import load_data
from bertvision.heads.spec import parse_head
from bertvision.model.trained import logits_of_trained, read_trained
from bertvision.pipeline.run import System, pairs
from bertvision.tasks.logits import Logits

SMALL = ("--max-seq-length", "32", "--doc-stride", "8", "--finetune.batch-size", "8", "--finetune.lr", "1e-3",
         "--fit.batch-size", "8", "--states.source", "live")  # fmt: skip
HEADS = ("cls_linear", "tenney_small", "mean_pooler", "mean_pooler:last")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for seed, name in enumerate(("train", "dev", "test")):
        write_labels(folder / f"{name}.csv", seed)
        write_scores(folder / f"{name}-scores.csv", seed)
    write_labels(folder / "unknown.csv", 3, labelled=False)
    return folder


@pytest.fixture(scope="module")
def data(tables: Path, tiny_bert: Path) -> tuple[str | Path, ...]:
    """The beginning of a run on three classes."""
    splits = ("--train", tables / "train.csv", "--dev", tables / "dev.csv")
    return ("run", "--encoder", tiny_bert, *splits, *SMALL)


@pytest.fixture(scope="module")
def labels(data: Any, tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three classes with two seeds and two snapshots; to be read alone."""
    out = tmp_path_factory.mktemp("labels") / "run"
    answered(
        *data, "--test", tables / "test.csv", "--out", out, "--finetune.snapshots", "0.5", "--fit.heads", *HEADS,
        "--fit.seeds", "0", "1", "--fit.epochs", "2", "--fit.keep", "best",
    )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def scores(tables: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on scores without a fine-tuning."""
    out = tmp_path_factory.mktemp("scores") / "run"
    answered(
        "run", "--encoder", tiny_bert, "--train", tables / "train-scores.csv", "--dev", tables / "dev-scores.csv",
        "--text.task", "score", "--out", out, *SMALL, "--finetune.epochs", "0", "--fit.heads", "tenney_small",
        "mean_pooler", "--fit.epochs", "3",
    )  # fmt: skip
    return out


def truth(path: Path, column: str = "label") -> dict[str, str]:
    with path.open(encoding="utf-8") as file:
        return {row["id"]: row[column] for row in csv.DictReader(file)}


def systems(run: Path) -> dict[str, dict[str, Any]]:
    return {system["name"]: system for system in read_json(run / "results.json")["systems"]}


def accuracy(folder: Path, split: str, table: Path) -> float:
    right, said = truth(table), read_json(folder / split / "predictions.json")
    assert said.keys() == right.keys()
    return sum(said[id] == right[id] for id in right) / len(right)


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("snapshot", ["snapshot-0.5", "snapshot-1"])
def test_scores_are_those_of_the_predictions_beside_the_heads(
    labels: Path, tables: Path, snapshot: str, split: str
) -> None:
    found, table = systems(labels), tables / f"{split}.csv"
    for head in ("cls-linear", "tenney-small", "mean-pooler"):
        folders = [labels / "fit" / snapshot / f"{head}.seed{seed}" for seed in (0, 1)]
        expected = [accuracy(folder, split, table) for folder in folders]
        told = found[f"{snapshot}/{head}"]["scores"][split]["accuracy"]
        assert told["per_seed"] == pytest.approx(dict(zip("01", expected, strict=True)))
        assert told["mean"] == pytest.approx(np.mean(expected))
        assert told["sd"] == pytest.approx(np.std(expected, ddof=1))
        if split == "test":  # claims have intervals
            assert told["interval"][0] <= told["mean"] <= told["interval"][1]
        for folder, value in zip(folders, expected, strict=True):
            assert read_json(folder / "metrics.json")["scores"][split]["accuracy"] == pytest.approx(value)
            assert (folder / "README.md").read_text().startswith("---")
    own = found[snapshot]["scores"][split]["accuracy"]
    assert own["mean"] == pytest.approx(accuracy(labels / "finetune" / snapshot / "head", split, table))
    assert own["sd"] is own["per_seed"] is None


def test_ensembles_are_means_of_probabilities_seed_by_seed(labels: Path, tables: Path) -> None:
    right = truth(tables / "test.csv")
    joined = [system for system in systems(labels).values() if system["kind"] == "ensemble"]
    assert len(joined) == 4  # of each snapshot: with the best head, and the two best heads
    for system in joined:
        base = f"snapshot-{system['snapshot']}"
        folders = [
            [labels / "finetune" / base / "head"] * 2
            if label == base
            else [labels / "fit" / base / f"{label}.seed{seed}" for seed in (0, 1)]
            for label in system["members"]
        ]
        expected = []
        for pair in zip(*folders, strict=True):
            said = [read_json(folder / "test" / "probabilities.json") for folder in pair]
            hits = 0
            for id, label in right.items():
                mean = {name: sum(one[id][name] for one in said) / 2 for name in LABELS}
                hits += max(mean, key=lambda name: mean[name]) == label
            expected.append(hits / len(right))
        told = list(system["scores"]["test"]["accuracy"]["per_seed"].values())
        assert told == pytest.approx(expected)


def test_the_best_head_is_chosen_on_dev_and_compared_with_its_snapshot(labels: Path, tables: Path) -> None:
    found, results = systems(labels), read_json(labels / "results.json")
    assert {n.rpartition("/")[2] for n, s in found.items() if s["kind"] == "control"} == {
        "cls-linear",
        "mean-pooler-last",
    }
    best = []
    for snapshot in ("0.5", "1"):
        heads = [s for s in found.values() if s["kind"] == "head" and s["snapshot"] == snapshot]
        (one,) = (s for s in heads if s["best"])
        dev = [s["scores"]["dev"]["accuracy"]["mean"] for s in heads]
        best.append((max(dev), one))
        assert one["scores"]["dev"]["accuracy"]["mean"] == max(dev)
        versus, own = one["versus"], found[f"snapshot-{snapshot}"]
        assert (versus["baseline"], versus["split"]) == (f"snapshot-{snapshot}", "test")
        gap = one["scores"]["test"]["accuracy"]["mean"] - own["scores"]["test"]["accuracy"]["mean"]
        assert versus["metrics"]["accuracy"]["difference"] == pytest.approx(gap)
        assert versus["metrics"]["accuracy"]["low"] <= gap <= versus["metrics"]["accuracy"]["high"]
    _, chosen = max(best, key=lambda pair: pair[0])
    assert [*results["details"]] == [chosen["name"], f"snapshot-{chosen['snapshot']}"]
    shipped = results["details"][chosen["name"]]
    per_seed = chosen["scores"]["dev"]["accuracy"]["per_seed"]
    assert per_seed[str(shipped["seed"])] == max(per_seed.values())
    assert chosen["folder"].endswith(f".seed{shipped['seed']}")
    said, table = read_json(labels / chosen["folder"] / "test" / "predictions.json"), np.zeros((3, 3), int)
    for id, label in truth(tables / "test.csv").items():
        table[LABELS.index(label), LABELS.index(said[id])] += 1
    assert shipped["confusion"] == table.tolist()
    assert "Confusions" in (labels / "report.html").read_text()
    assert [record["epoch"] for record in results["curves"]["fit"][chosen["name"]]] == [1, 2]
    assert len(results["curves"]["finetune"]) > 0
    assert all(row["head"] != row["snapshot"] for row in results["examples"])


def test_baselines_are_what_the_training_set_alone_can_say(labels: Path, scores: Path, tables: Path) -> None:
    trivial = [next(s for s in systems(run).values() if s["kind"] == "baseline") for run in (labels, scores)]
    classes, numbers = (
        {name: score["mean"] for name, score in one["scores"]["dev"].items()} for one in trivial
    )
    train, dev = (list(truth(tables / f"{name}.csv").values()) for name in ("train", "dev"))
    assert classes["accuracy"] == pytest.approx(dev.count(max(set(train), key=train.count)) / len(dev))
    assert classes["mcc"] == 0
    known, asked = (
        np.array([*truth(tables / f"{name}-scores.csv", "score").values()], float)
        for name in ("train", "dev")
    )
    assert numbers["mse"] == pytest.approx(((asked - known.mean()) ** 2).mean())
    assert numbers["pearson"] == 0


def test_pairs_share_their_seeds() -> None:
    def system(label: str, head: Any, seeds: list[int], score: float) -> System:
        metrics = {"accuracy": SimpleNamespace(higher=True)}
        task = SimpleNamespace(metric="accuracy", metrics=metrics)
        records: Any = [SimpleNamespace(task=task, scores={"dev": {"accuracy": score}})] * max(len(seeds), 1)
        folders = [Path(f"{label}.{seed}") for seed in seeds or [0]]
        return System("snapshot-1", label, head, records, folders, [{"seed": seed} for seed in seeds])

    head = SimpleNamespace(last_only=False)
    own, worst = system("own", head, [], 0.1), system("worst", head, [0, 1], 0.2)
    best, other = system("best", head, [1, 2], 0.9), system("other", head, [0, 1, 2], 0.5)  # a seed diverged
    first, second = pairs([worst, other, own, best])
    assert first[0] == (own, best)
    assert first[1] == [(Path("own.0"), Path(f"best.{seed}")) for seed in (1, 2)]
    assert second[0] == (best, other)
    assert second[1] == [(Path(f"best.{seed}"), Path(f"other.{seed}")) for seed in (1, 2)]
    assert [info["seed"] for info in second[2]] == [1, 2]


def test_a_finished_run_is_left_alone(labels: Path) -> None:
    """Its own config.yaml repeats it: nothing is trained again, and every file stays as it is."""
    before = tree(labels)
    done = answered("run", "--config", labels / "config.yaml")
    assert "fine-tune" not in done.err
    after = tree(labels)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {"results.json", "report.html"}  # the time they were made at


def test_scores_and_their_ensembles_are_those_of_the_files(scores: Path, tables: Path) -> None:
    right = {id: float(value) for id, value in truth(tables / "dev-scores.csv", "score").items()}
    said: dict[str, dict[str, float]] = {
        head: read_json(scores / "fit/untuned" / f"{head}.seed0" / "dev" / "predictions.json")
        for head in ("tenney-small", "mean-pooler")
    }
    found = systems(scores)
    said["joined"] = {id: (said["tenney-small"][id] + said["mean-pooler"][id]) / 2 for id in right}
    joined = next(system for system in found.values() if system["kind"] == "ensemble")
    told = {f"untuned/{head}": head for head in ("tenney-small", "mean-pooler")} | {joined["name"]: "joined"}
    for name, head in told.items():
        both = np.array([(right[id], said[head][id]) for id in right])
        mean = {metric: score["mean"] for metric, score in found[name]["scores"]["dev"].items()}
        assert mean["pearson"] == pytest.approx(np.corrcoef(both.T)[0, 1], abs=1e-6)
        assert mean["mse"] == pytest.approx(((both[:, 0] - both[:, 1]) ** 2).mean(), rel=1e-4)
        assert found[name]["versus"] is None  # there is no snapshot
    assert "there is no snapshot to compare it with" in (scores / "report.html").read_text()


@pytest.mark.parametrize(("own", "walks"), [("cls_linear", 1), ("mean_pooler", 2)])
def test_logits_of_the_shared_walk_are_those_of_each_head_alone(
    own: str, walks: int, data: Any, tables: Path, tmp_path: Path
) -> None:
    """A zoo that reads [CLS] alone shares its walk with a snapshot's own head that needs no more, and with no other."""
    out = tmp_path / "run"
    heads = ("--fit.heads", "tenney_small", "adapter_pooler:size=4")
    done = answered(*data, "--out", out, "--finetune.head", own, *heads)
    assert len(re.findall(r"evaluate dev: ", done.err)) == walks
    dev = load_data(str(tables / "dev.csv"), classes=LABELS)
    assert isinstance(dev, TextData)
    folders = [out / "finetune/snapshot-1/head", *(out / "fit/snapshot-1").glob("*.seed0")]
    assert len(folders) == 3
    for folder in folders:
        trained = read_trained(folder)
        assert (trained.readers[0].selection.positions == "cls") == (folder.name != "head")
        [(split, alone)] = logits_of_trained([trained], dev)
        kept = Logits.load(folder / "dev" / "logits.safetensors", split.fingerprint)
        np.testing.assert_allclose(kept["values"], alone["values"], atol=1e-5)


def test_answer_or_no_answer(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answered(
        "run", "--encoder", tiny_bert, "--train", f"answerable:{toy_squad}", "--dev", f"answerable:{toy_squad}",
        "--out", out, *SMALL, "--max-query-length", "12", "--fit.heads", "tenney_small",
    )  # fmt: skip
    results = read_json(out / "results.json")
    assert results["task"]["classes"] == ["answer", "no answer"]
    assert results["task"]["merge"] == "min"
    trivial = next(s for s in results["systems"] if s["kind"] == "baseline")
    assert trivial["scores"]["dev"]["accuracy"]["mean"] == pytest.approx(2 / 3)  # a third have no answer


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--test {tables}/unknown.csv", "unknown.csv has no column of labels"),
        ("--apart", "leave out --apart"),
        ("--combine product", "joined by mean"),
        ("--states.positions cls", "reads all"),
        ("--fit.heads last_state", "logits of each token"),
        ("--fit.heads beyond", "set of heads for another kind of task"),
        ("--finetune.head last_state", "logits of each token"),
        ("--test demo:test", "can only hold questions"),
        ("--text.context {label}", "the label never"),
        ("--text.task score", "train.csv:2"),
        ("--text.label nothing", "nothing"),
        ("--train demo:train --dev demo:dev --text.prompt Why?", "holds questions over paragraphs"),
    ],
)
def test_what_is_refused_in_one_sentence_before_anything_is_written(
    flags: str, words: str, data: Any, tables: Path, tmp_path: Path
) -> None:
    given = flags.replace("{tables}", str(tables)).split()
    assert words in refused(*data, "--out", tmp_path / "run", *given, late=True)
    assert not (tmp_path / "run").exists()


# ---- docs/texts.md

DOCS = (Path(__file__).parents[1] / "docs" / "texts.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if kind == "bash" for line in block.splitlines()]
RECIPE = next(block for kind, block in BLOCKS if kind == "yaml")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_docs_parse(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.yaml").write_text(RECIPE, encoding="utf-8")
    program, verb, *flags = shlex.split(command)
    assert program == "bertvision"
    args, _ = parse(*find_command([verb, *flags]))
    if verb == "multitask":
        assert all(parse_head(task.head) for task in args.tasks if task.head)
