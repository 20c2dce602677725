"""The contract of every verb (help, mistakes, text and JSON), and what the verbs leave and say on toy data."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runner import TINY, answered, as_json, bertvision, refused, tree
from text_tables import write_labels

from bertvision.cli import VERBS
from bertvision.cli.cache import ACTIONS
from bertvision.config import recipes
from bertvision.errors import ConfigError

PLAIN_STAGE = re.compile(r"[\w -]+: \d+ \w+ in [\d.]+ s \([\d.]+ (\w+/s|s each)\)")
COMMANDS = [*(verb for verb in VERBS if verb != "cache"), *(f"cache {action}" for action in ACTIONS)]


# ---- the contract of every verb


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_every_flag_and_an_unknown_one_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    help_text = answered(*command.split(), "--help").out
    assert help_text.startswith(f"usage: bertvision {command} [-h]")
    assert "{None}" not in help_text.replace("{None,min,max,prod_max,any_null}", "")
    # A flag's line, its text beside it or on the lines below.
    flags = re.findall(r"^  (--[a-z][\w.-]*)(.*\n(?: {6,}.*\n)*)", help_text, re.MULTILINE)
    assert flags
    for flag, text in flags:
        described = text.partition("(default:")[0].partition("(required)")[0]
        assert len(re.findall(r"[a-z]{2,}", described)) >= 2, f"{flag} of {command} is not described"
    outcome = bertvision(*command.split(), "--qqqq", "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err
    assert f"bertvision {command} --help" in outcome.err
    assert tree(tmp_path) == {}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, toy_squad: Path) -> Path:
    """A fine-tuning with two snapshots, and heads on the last one."""
    folder = tmp_path_factory.mktemp("home")
    answered("finetune", "--encoder", tiny_bert, "--train", toy_squad, "--out", folder / "ft",
             "--max_seq_length", "96", "--snapshots", "0.5,1.0")  # fmt: skip
    answered("fit", folder / "ft" / "snapshot-1", "--train", toy_squad, "--out", folder / "fit",
             "--max-seq-length", "96", "--heads", "learned_pooling,adapter:size=4,skip")  # fmt: skip
    write_labels(folder / "labels.csv", 0)
    reviews = "".join(f"the {i} mill,{'good' if i % 2 else 'bad'}\n" for i in range(16))
    (folder / "reviews.csv").write_text("text,label\n" + reviews)
    task = {"name": "near", "train": [str(folder / "labels.csv")], "dev": str(folder / "labels.csv")}
    (folder / "tasks.yaml").write_text(yaml.safe_dump({"tasks": [task]}))
    return folder


def words_of(verb: str, home: Path, run: Path, encoder: Path, squad: Path) -> list[Any]:
    """A command of the verb that ends well."""
    cut = ("--max-seq-length", "96")
    data, head = ("--train", squad, "--dev", squad), home / "fit" / "adapter-4-skip.seed0"
    known: dict[str, tuple[Any, ...]] = {
        "run": ("--config", run / "config.yaml"),
        "finetune": ("--encoder", encoder, *data, *cut, "--out", home / "scored"),
        "multitask": ("--config", home / "tasks.yaml", "--encoder", encoder, *cut, "--out", home / "tasks"),
        "triplet": ("--encoder", encoder, "--sst", home / "reviews.csv", *cut, "--out", home / "triplet"),
        "fit": (encoder, *data, *cut, "--out", home / "scored-fit", "--heads", "last_state"),
        "sweep": (encoder, *data, *cut, "--out", home / "sweep", "--heads", "last_state", "--grid",
                  "--vary", "lr=1e-3,1e-2"),
        "eval": (home / "fit", "--data", squad),
        "ensemble": (home / "fit", "--data", squad),
        "predict": (run, "--question", "Who?", "--context", "Ada Holt built it."),
        "score": (squad, run / "fit/snapshot-1/adapter-4.seed0/dev/predictions.json"),
        "data": (squad, "--encoder", encoder),
        "heads": ("learned_pooling",),
        "cache": ("ls", "--store", home / "store"),
        "export": (head, "--out", home / "package"),
        "report": (run, "--out", home / "report.html"),
        "recipes": (),
    }  # fmt: skip
    return [verb, *known[verb]]


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"serve"}))  # whose output are answers over HTTP
def test_a_verb_prints_json_or_text(
    verb: str, home: Path, finished_run: Path, tiny_bert: Path, toy_squad: Path
) -> None:
    words = words_of(verb, home, finished_run, tiny_bert, toy_squad)
    assert as_json(*words)
    outcome = answered(*words)
    assert outcome.out.strip()
    assert not outcome.out.startswith(("{", "["))
    assert "\x1b" not in outcome.out + outcome.err


def test_top_level_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from bertvision.cli import main; main(['--help']); main([]); main(['--version'])\n"
        "heavy = {'torch', 'tyro', 'transformers', 'numpy', 'rich', 'yaml', 'matplotlib', 'datasets'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for verb in VERBS:
        assert f"\n  {verb}" in done.stdout


# ---- what the verbs leave and say


def test_run_leaves_a_folder_with_everything(finished_run: Path) -> None:
    for name in (
        "config.yaml", "results.json", "report.html", "finetune/stage.json", "finetune/metrics.jsonl",
        "finetune/snapshot-1/encoder/model.safetensors", "finetune/snapshot-1/head/dev/predictions.json",
        "fit/snapshot-1/adapter-4.seed0/config.json", "fit/snapshot-1/adapter-4.seed0/model.safetensors",
        "fit/snapshot-1/adapter-4.seed0/README.md", "fit/snapshot-1/adapter-4.seed0/metrics.json",
        "fit/snapshot-1/adapter-4.seed0/dev/nbest_predictions.json",
        "fit/snapshot-1/adapter-4.seed0/dev/null_odds.json",
    ):  # fmt: skip
        assert (finished_run / name).is_file(), name
    assert {path.name for path in finished_run.rglob(".*")} <= {".lock"}, "temporary files are left"


def test_run_again_reuses_everything_and_reports_the_same(finished_run: Path) -> None:
    before = tree(finished_run)
    again = as_json("run", "--config", finished_run / "config.yaml")
    after = tree(finished_run)
    changed = {name for name in after.keys() | before.keys() if after.get(name) != before.get(name)}
    # Both hold the time they were written; everything else is the same to the byte.
    assert changed <= {"results.json", "report.html"}, changed
    old, new = (json.loads(content["results.json"] or b"") for content in (before, after))
    assert {**old, "created": None} == {**new, "created": None}
    assert again["systems"] == new["systems"]


def test_run_without_a_terminal_prints_one_plain_line_a_stage(
    tmp_path: Path, tiny_bert: Path, toy_squad: Path
) -> None:
    outcome = answered(
        "run", "--encoder", tiny_bert, "--train", toy_squad, "--dev", toy_squad, "--test", toy_squad,
        "--out", tmp_path / "run", *TINY,
    )  # fmt: skip
    stages = [line.partition(":")[0] for line in outcome.err.splitlines() if PLAIN_STAGE.fullmatch(line)]
    assert stages == ["fine-tune", "fit 3 heads", "evaluate dev", "evaluate test"]
    assert "\r" not in outcome.err
    assert "tuned F1" in outcome.out
    assert str(tmp_path / "run" / "report.html") in outcome.out


def test_finished_work_is_not_done_again(home: Path, tiny_bert: Path, toy_squad: Path) -> None:
    """Nor by flags written another way."""
    before = {path: path.stat().st_mtime_ns for path in home.glob("f*/**/model.safetensors")}
    assert len(before) == 6
    tuned = as_json("finetune", "--encoder", tiny_bert, "--train", toy_squad, "--out", home / "ft",
                    "--max-seq-length", "96", "--snapshots", "0.5", "1.0")  # fmt: skip
    assert [Path(name).name for name in tuned["snapshots"]] == ["snapshot-0.5", "snapshot-1"]
    fitted = as_json("fit", home / "ft" / "snapshot-1", "--train", toy_squad, "--out", home / "fit",
                     "--max-seq-length", "96", "--heads", "learned_pooling", "adapter:size=4,skip")  # fmt: skip
    heads = {Path(row["folder"]).name for row in fitted["heads"]}
    assert heads == {"learned-pooling.seed0", "adapter-4-skip.seed0"}
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_what_finetune_writes_down_repeats_it(home: Path) -> None:
    before = tree(home / "ft")
    again = as_json("finetune", "--config", home / "ft" / "config.yaml")
    assert [Path(name).name for name in again["snapshots"]] == ["snapshot-0.5", "snapshot-1"]
    assert tree(home / "ft") == before


def test_eval_of_a_whole_fit_is_eval_of_its_heads(home: Path, toy_squad: Path, tmp_path: Path) -> None:
    heads = [home / "fit" / "adapter-4-skip.seed0", home / "fit" / "learned-pooling.seed0"]
    whole = as_json("eval", home / "fit", "--data", toy_squad, "--out", tmp_path)
    assert whole == as_json("eval", *heads, "--data", toy_squad)
    # The written predictions are those the scores are about.
    scored = as_json("score", toy_squad, tmp_path / "learned-pooling.seed0" / "eval" / "predictions.json")
    assert scored["f1"] == pytest.approx(whole[1]["scores"]["tuned_f1"])
    table = answered("eval", home / "fit", "--data", toy_squad, "--scorer", "wordpiece").out
    assert "on word pieces" in table


def test_ensemble_is_a_system_like_any_other(home: Path, toy_squad: Path, tmp_path: Path) -> None:
    joined = tmp_path / "joined"
    rows = as_json("ensemble", home / "fit", "--data", toy_squad, "--out", joined, "--how", "mean")
    assert [row["system"] for row in rows][-1] == "mean of 2"
    (again,) = as_json("eval", joined, "--data", toy_squad)
    assert again["scores"] == pytest.approx(rows[-1]["scores"])


def test_predict_answers_one_question_and_files(finished_run: Path, toy_squad: Path, tmp_path: Path) -> None:
    context = "The mill in Arden was built by Ada Holt in 1871."
    asked = ("predict", finished_run, "--question", "Who built the mill?", "--context", context)
    one = as_json(*asked)
    assert one["text"] == (context[one["start"] : one["end"]] if one["text"] else "")
    assert 0 <= one["probability"] <= 1
    assert 0 <= one["no_answer_probability"] <= 1
    assert as_json(*asked, "--threshold", "1e9")["text"]
    rows = as_json("predict", finished_run, "--data", toy_squad, "--out", tmp_path / "answers")
    written = json.loads((tmp_path / "answers" / "predictions.json").read_text())
    assert written == {row["id"]: row["text"] for row in rows}
    plain = answered("predict", finished_run, "--data", toy_squad, "--max-examples", "2").out
    assert len(plain.splitlines()) == 4


def test_score_prints_the_official_keys(finished_run: Path, toy_squad: Path) -> None:
    head = finished_run / "fit" / "snapshot-1" / "adapter-4.seed0" / "dev"
    result = as_json("score", toy_squad, head / "predictions.json", "--na-prob", head / "null_odds.json")
    assert {"exact", "f1", "total", "HasAns_f1", "NoAns_f1", "best_exact", "best_f1_thresh"} <= result.keys()


def test_data_says_what_is_in_a_file(toy_squad: Path, tiny_bert: Path) -> None:
    result = as_json("data", toy_squad, "--encoder", tiny_bert, "--max-seq-length", "64")
    assert (result["examples"], result["paragraphs"]) == (24, 8)
    assert result["classes"]["with answer"]["examples"] == 16
    assert result["windows"] > 24
    assert "suggested --max-seq-length" in answered("data", toy_squad, "--encoder", tiny_bert).out


def test_report_is_written_again(finished_run: Path, tmp_path: Path) -> None:
    assert as_json("report", finished_run, "--out", tmp_path / "again.html")["headline"]
    assert (tmp_path / "again.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_recipes_are_listed_and_shown() -> None:
    assert {row["name"] for row in as_json("recipes")} == recipes().keys()
    assert isinstance(as_json("recipes", "demo"), dict)
    assert answered("recipes", "demo").out.startswith("# bertvision run\n")


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bertvision", "recipes", "demo"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


# ---- mistakes


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("heads --lyers 3", "--lyers --layers"),
        ("run --epochs 3", "--epochs --finetune.epochs --fit.epochs"),
        ("run extra", "extra"),
        ("heads --layers three", "--layers three INT"),
        ("run --finetune.lr fast", "--finetune.lr fast FLOAT"),
        ("run --precision fp8", "--precision fp8 auto fp32 bf16"),
        ("run --out", "--out value"),
        ("score", "DATA PREDICTIONS"),
        ("finetune --encoder x", "--train --out"),
        ("predict", "FOLDER"),
    ],
)
def test_what_the_parser_refuses_is_described(
    words: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = bertvision(*words.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert [word for word in wanted.split() if word not in outcome.err] == [], outcome.err
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("rum", "there is no verb 'rum': did you mean run"),
        ("cache lss", "did you mean ls"),
        ("run --config", "--config needs a value"),
        ("eval --data demo:dev", "at least one folder"),
        ("ensemble one --data demo:dev", "at least two folders"),
        ("eval one --data demo:dev --other-encoder", "--other-encoder needs --encoder"),
        ("heads adaptor", "there is no head 'adaptor': did you mean adapter"),
        ("heads adapter:sise=3", "did you mean size"),
        ("heads --layers 0", "--layers must lie between 1"),
        ("run --fit.heads adaptor", "there is no head 'adaptor'"),
        ("run --config squda", "there is no recipe 'squda': did you mean squad"),
        ("run --config none.yaml", "known: answerable, bertvision, demo, "),
        ("run --dev dev.json", "--train and --dev must both be given"),
        ("run --train train.json", "--train and --dev must both be given"),
        ("run --finetune.snapshots 1.5", "snapshot 1.5 lies outside the run of 1 epochs"),
        ("fit embedded --train demo:train --out x --keep best", "need --dev"),
        ("finetune --train a.json --out x --epochs 0", "--epochs 0 leaves nothing to do"),
        ("finetune --train a.json --out x --inference", "--inference answers the questions of --dev"),
        ("finetune --train a.json --out x --compare full", "--compare needs --dev"),
        ("multitask --out x", "give --config"),
        ("triplet --out x", "name some with --sst"),
        ("predict x --question why", "--question together with --context"),
        ("predict x --question why --context it --out y", "--out goes with --data"),
        ("data demo:dev --max-examples 0", "must be at least 1"),
        ("data demo:valid", "demo:dev"),
        ("report nowhere", "nowhere"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert wanted in refused(*words.split())
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("recipe", "wanted"),
    [
        ("encodr: embedded\n", "sets encodr, which does not exist: did you mean encoder"),
        ("fit: {headz: [adapter]}\n", "sets fit.headz, which does not exist: did you mean heads"),
        ("encoder: embedded\ntrain: [a\ndev: b\n", "is not valid YAML at line 3"),
        ("- a list\n", "`name: value`"),
        ("finetune: {snapshots: [2.0]}\n", "snapshot 2 lies outside"),
    ],
)
def test_a_mistaken_recipe_is_one_sentence(recipe: str, wanted: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(recipe, encoding="utf-8")
    said = refused("run", "--config", tmp_path / "mine.yaml")
    assert wanted in said
    assert "mine.yaml" in said or "snapshot" in said


def test_debug_lets_the_exception_through() -> None:
    with pytest.raises(ConfigError, match="did you mean run"):
        bertvision("rum", "--debug")
