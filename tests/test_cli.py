"""Every verb on toy data, its help and its mistakes in flags and recipes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import TINY, Outcome, bertvision, tree

from bertvision.cli import VERBS
from bertvision.config import recipes
from bertvision.errors import ConfigError

PLAIN_STAGE = re.compile(r"[\w -]+: \d+ \w+ in [\d.]+ s \([\d.]+ (\w+/s|s each)\)")


def answered(*words: str | Path) -> Outcome:
    outcome = bertvision(*words)
    assert outcome.code == 0, outcome.err
    return outcome


def as_json(*words: str | Path) -> object:
    """The result of a command that must print JSON, and nothing but JSON, on stdout."""
    return json.loads(answered(*words, "--json").out)


def sentence(outcome: Outcome) -> str:
    """The one sentence of a user's mistake."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", outcome.err), outcome.err
    return outcome.err


# ---- help


def test_top_level_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from bertvision.cli import main; main(['--help']); main([]); main(['--version'])\n"
        "heavy = {'torch', 'tyro', 'transformers', 'numpy', 'rich', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for verb in VERBS:
        assert f"\n  {verb}" in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_describes_every_flag(verb: str) -> None:
    help_text = answered(verb, "--help").out
    assert help_text.startswith(f"usage: bertvision {verb} [-h]")
    assert "{None}" not in help_text.replace("{None,min,max,prod_max,any_null}", "")
    # A flag's line, its text beside it or on the lines below.
    flags = re.findall(r"^  (--[a-z][\w.-]*)(.*\n(?: {6,}.*\n)*)", help_text, re.MULTILINE)
    assert flags
    for flag, text in flags:
        described = text.partition("(default:")[0].partition("(required)")[0]
        assert len(re.findall(r"[a-z]{2,}", described)) >= 2, f"{flag} of {verb} is not described"


# ---- every verb


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


def test_run_again_reuses_everything_and_tells_the_same(finished_run: Path) -> None:
    before = tree(finished_run)
    again = as_json("run", "--config", finished_run / "config.yaml")
    after = tree(finished_run)
    changed = {name for name in after.keys() | before.keys() if after.get(name) != before.get(name)}
    # Both say when they were written; everything else is the same to the byte.
    assert changed <= {"results.json", "report.html"}, changed
    old, new = (json.loads(content["results.json"] or b"") for content in (before, after))
    assert {**old, "created": None} == {**new, "created": None}
    assert isinstance(again, dict)
    assert again["systems"] == new["systems"]


def test_run_without_a_terminal_tells_one_plain_line_a_stage(
    tmp_path: Path, tiny_bert: Path, toy_squad: Path
) -> None:
    outcome = answered(
        "run", "--encoder", tiny_bert, "--train", toy_squad, "--dev", toy_squad, "--test", toy_squad,
        "--out", tmp_path / "run", *TINY,
    )  # fmt: skip
    told = [line.partition(":")[0] for line in outcome.err.splitlines() if PLAIN_STAGE.fullmatch(line)]
    assert told == ["fine-tune", "fit 3 heads", "evaluate dev", "evaluate test"]
    assert "\x1b" not in outcome.err + outcome.out
    assert "\r" not in outcome.err
    assert "tuned F1" in outcome.out
    assert str(tmp_path / "run" / "report.html") in outcome.out.replace("\n", "")


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, toy_squad: Path) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    answered("finetune", "--encoder", tiny_bert, "--train", toy_squad, "--out", folder / "ft",
             "--max_seq_length", "96", "--snapshots", "0.5,1.0")  # fmt: skip
    answered("fit", folder / "ft" / "snapshot-1", "--train", toy_squad, "--out", folder / "fit",
             "--max-seq-length", "96", "--heads", "learned_pooling,adapter:size=4,skip")  # fmt: skip
    return folder


def test_finetune_takes_snapshots_with_commas_or_spaces(
    snapshots: Path, tiny_bert: Path, toy_squad: Path
) -> None:
    weights = snapshots / "ft" / "snapshot-0.5" / "encoder" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    result = as_json("finetune", "--encoder", tiny_bert, "--train", toy_squad, "--out", snapshots / "ft",
                     "--max-seq-length", "96", "--snapshots", "0.5", "1.0")  # fmt: skip
    assert isinstance(result, dict)
    assert [Path(name).name for name in result["snapshots"]] == ["snapshot-0.5", "snapshot-1"]
    assert weights.stat().st_mtime_ns == written, "finished work was done again"


def test_fit_tells_its_heads(snapshots: Path, toy_squad: Path) -> None:
    result = as_json("fit", snapshots / "ft" / "snapshot-1", "--train", toy_squad, "--out", snapshots / "fit",
                     "--max-seq-length", "96", "--heads", "learned_pooling", "adapter:size=4,skip")  # fmt: skip
    assert isinstance(result, dict)
    assert {Path(row["folder"]).name for row in result["heads"]} == {
        "learned-pooling.seed0",
        "adapter-4-skip.seed0",
    }
    assert (snapshots / "fit" / "adapter-4-skip.seed0" / "README.md").is_file()


def test_eval_of_a_whole_fit_is_eval_of_its_heads(snapshots: Path, toy_squad: Path, tmp_path: Path) -> None:
    heads = [snapshots / "fit" / "adapter-4-skip.seed0", snapshots / "fit" / "learned-pooling.seed0"]
    whole = as_json("eval", snapshots / "fit", "--data", toy_squad, "--out", tmp_path)
    assert whole == as_json("eval", *heads, "--data", toy_squad)
    assert isinstance(whole, list)
    # The written predictions are those the scores are about.
    scored = as_json("score", toy_squad, tmp_path / "learned-pooling.seed0" / "eval" / "predictions.json")
    assert isinstance(scored, dict)
    assert scored["f1"] == pytest.approx(whole[1]["scores"]["tuned_f1"])
    table = answered("eval", snapshots / "fit", "--data", toy_squad, "--scorer", "wordpiece").out
    assert "on word pieces" in table


def test_ensemble_is_a_system_like_any_other(snapshots: Path, toy_squad: Path, tmp_path: Path) -> None:
    rows = as_json(
        "ensemble", snapshots / "fit", "--data", toy_squad, "--out", tmp_path / "joined", "--how", "mean"
    )
    assert isinstance(rows, list)
    assert [row["system"] for row in rows][-1] == "mean of 2"
    again = as_json("eval", tmp_path / "joined", "--data", toy_squad)
    assert isinstance(again, list)
    assert again[0]["scores"] == pytest.approx(rows[-1]["scores"])


def test_predict_answers_one_question_and_files(finished_run: Path, toy_squad: Path, tmp_path: Path) -> None:
    context = "The mill in Arden was built by Ada Holt in 1871."
    one = as_json("predict", finished_run, "--question", "Who built the mill?", "--context", context)
    assert isinstance(one, dict)
    assert one["text"] == (context[one["start"] : one["end"]] if one["text"] else "")
    assert 0 <= one["probability"] <= 1
    assert 0 <= one["no_answer_probability"] <= 1
    forced = as_json(
        "predict", finished_run, "--question", "Who?", "--context", context, "--threshold", "1e9"
    )
    assert isinstance(forced, dict)
    assert forced["text"]
    rows = as_json("predict", finished_run, "--data", toy_squad, "--out", tmp_path / "answers")
    assert isinstance(rows, list)
    written = json.loads((tmp_path / "answers" / "predictions.json").read_text())
    assert written == {row["id"]: row["text"] for row in rows}
    plain = answered("predict", finished_run, "--data", toy_squad, "--max-examples", "2").out
    assert len(plain.splitlines()) == 4


def test_score_prints_the_official_keys(finished_run: Path, toy_squad: Path) -> None:
    head = finished_run / "fit" / "snapshot-1" / "adapter-4.seed0" / "dev"
    files = ("score", toy_squad, head / "predictions.json", "--na-prob", head / "null_odds.json")
    result = as_json(*files)
    assert isinstance(result, dict)
    assert {"exact", "f1", "total", "HasAns_f1", "NoAns_f1", "best_exact", "best_f1_thresh"} <= result.keys()
    assert "best_f1" in answered(*files).out


def test_data_tells_what_is_in_a_file(toy_squad: Path, tiny_bert: Path) -> None:
    result = as_json("data", toy_squad, "--encoder", tiny_bert, "--max-seq-length", "64")
    assert isinstance(result, dict)
    assert (result["examples"], result["paragraphs"]) == (24, 8)
    assert result["classes"]["with answer"]["examples"] == 16
    assert result["windows"] > 24
    assert "suggested --max-seq-length" in answered("data", toy_squad, "--encoder", tiny_bert).out


def test_heads_tell_their_price() -> None:
    rows = as_json("heads", "learned_pooling", "adapter:size=64,skip")
    assert isinstance(rows, list)
    assert [row["parameters"] for row in rows] == [2076, 70850]
    assert "414,952" in answered("heads").out


def test_report_is_written_again(finished_run: Path, tmp_path: Path) -> None:
    result = as_json("report", finished_run, "--out", tmp_path / "again.html")
    assert isinstance(result, dict)
    assert result["headline"]
    assert (tmp_path / "again.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "no folder" not in sentence(bertvision("report", tmp_path / "nowhere"))


def test_recipes_are_listed_and_shown() -> None:
    rows = as_json("recipes")
    assert isinstance(rows, list)
    assert "demo" in [row["name"] for row in rows]
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


# ---- mistakes in flags


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("rum", "there is no verb 'rum': did you mean run?"),
        ("zzz", "`bertvision --help` lists the verbs"),
        ("heads --lyers 3", "there is no flag --lyers: did you mean --layers?"),
        ("run --epochs 3", "did you mean --finetune.epochs or --fit.epochs?"),
        ("run --snapshots 0.3,1.0", "did you mean --finetune.snapshots?"),
        ("run --qqqq", "there is no flag --qqqq: `bertvision run --help` shows what there is"),
        ("run extra", "there is no place for extra"),
        ("heads --layers three", "--layers cannot be 'three': give a whole number"),
        ("run --seed 1.5", "--seed cannot be '1.5': give a whole number"),
        ("run --finetune.lr fast", "--finetune.lr cannot be 'fast': give a number"),
        ("run --precision fp8", "--precision cannot be 'fp8': give one of auto, fp32, bf16"),
        ("run --out", "--out needs a value"),
        ("run --config", "--config needs a value"),
        ("score", "DATA and PREDICTIONS are missing"),
        ("finetune --encoder x", "--train and --out are missing"),
        ("predict", "FOLDER is missing"),
        ("eval --data demo:dev", "at least one folder"),
        ("ensemble one --data demo:dev", "at least two folders"),
        ("heads adaptor", "there is no head 'adaptor': did you mean adapter"),
        ("heads adapter:sise=3", "did you mean size"),
        ("heads --layers 0", "--layers must be at least 1"),
        ("run --fit.heads adaptor", "there is no head 'adaptor'"),
        ("run --config squda", "there is no recipe 'squda': did you mean squad?"),
        ("recipes demoo", "did you mean demo?"),
        ("run --dev dev.json", "--train and --dev must both be given"),
        ("run --test test.json", "--train and --dev must both be given"),
        ("run --train train.json", "--train and --dev must both be given"),
        ("run --finetune.snapshots 1.5", "snapshot 1.5 lies outside the run of 1 epochs"),
        ("fit embedded --train demo:train --out x --keep best", "need --dev"),
        ("predict x --question why", "--question together with --context"),
        ("predict x --question why --context it --out y", "--out goes with --data"),
        ("data demo:dev --max-examples 0", "must be at least 1"),
        ("data demo:valid", "demo:dev"),
    ],
)
def test_a_mistaken_flag_is_one_sentence(
    words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in sentence(bertvision(*words.split()))
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("encodr: embedded\n", "sets encodr, which does not exist: did you mean encoder?"),
        ("fit: {headz: [adapter]}\n", "sets fit.headz, which does not exist: did you mean fit.heads?"),
        ("encoder: embedded\nfinetune: {epochs: many}\n", "sets finetune.epochs to 'many': it must be a number"),
        ("finetune: 3\n", "sets finetune to 3: it must be a mapping of optimizer, lr"),
        ("fit: {seeds: 3}\n", "sets fit.seeds to 3: it must be a list, each item a whole number"),
        ("fit: {keep: first}\n", "it must be last or best"),
        ("encoder: embedded\ntrain: [a\ndev: b\n", "is not valid YAML at line 3"),
        ("encoder: embedded\n\ttrain: x\n", "is not valid YAML at line 2"),
        ("- a list\n", "`name: value`"),
        ("finetune: {snapshots: [2.0]}\n", "snapshot 2 lies outside"),
    ],
)  # fmt: skip
def test_a_mistaken_recipe_is_one_sentence(recipe: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(recipe, encoding="utf-8")
    said = sentence(bertvision("run", "--config", tmp_path / "mine.yaml"))
    assert told in said
    assert "mine.yaml" in said or "snapshot" in said


def test_a_missing_recipe_names_the_shipped_ones(tmp_path: Path) -> None:
    assert ", ".join(sorted(recipes())) in sentence(bertvision("run", "--config", tmp_path / "none.yaml"))


def test_debug_lets_the_exception_through() -> None:
    with pytest.raises(ConfigError, match="did you mean run"):
        bertvision("rum", "--debug")
