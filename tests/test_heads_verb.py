"""The zoo as a table: every count of the papers, `bertvision heads`, sets of heads in a fit, and docs/heads.md."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runner import bertvision, tree
from toy import save_encoder

from bertvision.cli import VERBS
from bertvision.cli.flags import parse
from bertvision.cli.heads import bert_parameters
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads import Geometry, base, cost, head_names, load_head, parse_head, save_head
from bertvision.heads.base import head_class
from bertvision.heads.catalogue import CATALOGUE, LABEL_SETS, SETS, expand, find_row, for_windows, sets_of
from bertvision.heads.spec import TrainOverrides
from bertvision.report import words
from bertvision.train.fit import FitConfig
from bertvision.train.zoo import zoo_members

SMALL_SPECS: list[str] = []
"""This file has no heads of its own."""
DOCS = (Path(__file__).parents[1] / "docs" / "heads.md").read_text(encoding="utf-8")

# Typed from the papers' facts at 25 states of 1024: (row, trainable, total where it differs, printed percentage).
SPAN_ROWS: dict[int, tuple[int | None, int, float]] = {
    # 3.3, totals; the trainable ones were not published
    1: (None, 332_450, 0.099), 2: (None, 406_850, 0.121), 3: (None, 332_450, 0.099),
    5: (None, 313_276, 0.093), 6: (None, 313_250, 0.093), 17: (None, 693_326, 0.207),
    18: (None, 1_113_078, 0.332), 19: (6_681_422, 6_681_422, 1.994), 20: (None, 6_602_478, 1.970),
    # 3.2
    4: (2_076, 2_076, 0.001), 7: (68_802, 68_802, 0.021), 8: (70_850, 70_850, 0.021),
    9: (1_643_202, 1_643_202, 0.491), 10: (1_645_250, 1_645_250, 0.491), 11: (414_952, 414_952, 0.124),
    12: (417_000, 417_000, 0.124), 13: (9_910_552, 9_910_552, 2.957), 14: (9_912_600, 9_912_600, 2.958),
    15: (398_498, 398_498, 0.119), 16: (811_400, 811_400, 0.242),
}  # fmt: skip
LABEL_ROWS: dict[str, tuple[int, int, float]] = {
    "tenney small": (2_077, 2_077, 0.001),
    "adapter pooler tenney": (398_499, 398_499, 0.119),
    "adapter pooler avg": (398_472, 398_472, 0.119),
    "xception abbr": (264_066, 267_010, 0.079),
    "xception abbr cls": (266_114, 269_058, 0.080),
    "xception": (20_662_106, 20_716_634, 6.181),
}
NOT_AS_PRINTED = {"3.2 row 9"}
"""Row 10's percentage stands there too; no structure without the skip has it."""


def rows(*flags: str) -> list[dict[str, Any]]:
    outcome = bertvision("heads", *flags, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


@pytest.fixture(scope="module")
def large() -> list[dict[str, Any]]:
    return rows("--layers", "24", "--hidden", "1024", "--tokens", "386")


def refused(*words: str | Path) -> str:
    outcome = bertvision(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", outcome.err), outcome.err
    return outcome.err


# ---- the counts of the papers


def test_every_span_model_of_the_paper_in_its_order(large: list[dict[str, Any]]) -> None:
    found = [row for row in large if row["seed"].startswith(("3.2", "3.3"))]
    assert [int(row["seed"].rpartition(" ")[2]) for row in found] == list(range(1, 21))
    for number, row in enumerate(found, 1):
        trainable, total, printed = SPAN_ROWS[number]
        assert row["total"] == total, row
        assert trainable in (None, row["parameters"]), row
        assert row["published_percent"] == printed, row
        assert row["percent_of"] == ("total" if row["seed"].startswith("3.3") else "trainable")


def test_every_classification_model_of_the_paper(large: list[dict[str, Any]]) -> None:
    found = {row["paper"]: row for row in large if row["seed"].startswith("4 ")}
    assert found.keys() == LABEL_ROWS.keys()
    for paper, row in found.items():
        assert (row["parameters"], row["total"], row["published_percent"]) == LABEL_ROWS[paper], row


def test_printed_percentages_are_met_to_their_last_digit(large: list[dict[str, Any]]) -> None:
    printed = [row for row in large if row["published_percent"] is not None]
    assert len(printed) == 20 + 6 + 1
    for row in printed:
        compared = row["total"] if row["percent_of"] == "total" else row["parameters"]
        assert row["percent"] == pytest.approx(100 * compared / 335_143_938)
        assert (f"{row['percent']:.3f}" == f"{row['published_percent']:.3f}") != (
            row["seed"] in NOT_AS_PRINTED
        )


def test_counts_at_other_sizes() -> None:
    base_size = ("--layers", "12", "--hidden", "768", "--tokens")
    by_head = {row["head"]: row["parameters"] for row in rows(*base_size, "384")}
    assert by_head["adapter:size=384,gelu=erf"] == 305_282
    assert by_head["cacnn"] == 11_802_630
    assert by_head["minbert"] == 2_369_281 + 769  # two outputs here, one there
    assert by_head["minbert:vectors=2"] == 2_959_105 + 769
    # F a + a + T a L C + C; the head follows --tokens unless it says its own
    [row] = rows("ap_glue", *base_size, "250")
    assert (row["head"], row["parameters"]) == ("ap_glue:tokens=250", 58_154)
    [row] = rows("ap_glue:tokens=250", *base_size, "99")
    assert row["parameters"] == 58_154
    assert rows("ap_glue:size=16", *base_size, "100")[0]["head"] == "ap_glue:size=16,tokens=100"


def test_a_pooler_is_one_channel_more() -> None:
    channels = {row["head"]: row["parameters"] for row in rows("--task", "label")}
    states = {row["head"]: row["parameters"] for row in rows("--task", "label", "--no-pooler")}
    assert channels["tenney_small"] == 26 + 1 + 2_050
    assert states["tenney_small"] == 25 + 1 + 2_050
    assert channels["xception_abbr"] - states["xception_abbr"] == 64 * 3
    assert channels["cls_linear"] == states["cls_linear"]


def test_the_percentage_is_of_a_bert_of_that_size_or_of_what_is_said() -> None:
    assert bert_parameters(24, 1024) == 335_143_938
    assert bert_parameters(12, 768) == 109_483_778
    assert bert_parameters(6, 384) == 22_713_216 + 770
    assert rows("adapter", "--encoder-parameters", "41495200")[0]["percent"] == pytest.approx(1)
    assert "41,495,200 parameters (as given)" in bertvision(
        "heads", "adapter", "--encoder-parameters", "41495200").out  # fmt: skip


def test_operations_are_counted_by_hand() -> None:
    found = {row["head"]: row["flops_per_token"] for row in rows("last_state", "adapter:size=64,skip")}
    assert found["last_state"] == 2 * 1024 * 2
    assert found["adapter:size=64,skip"] == 2 * 25 * (1024 * 64 + 64 * 2) + 2 * 1024 * 2


# ---- the catalogue


def test_every_registered_head_has_a_row_and_every_row_is_one_head() -> None:
    specs = [parse_head(row.head) for row in CATALOGUE]
    assert {spec.name for spec in specs} == set(head_names())
    assert len({spec.label for spec in specs}) == len(specs)
    for row, spec in zip(CATALOGUE, specs, strict=True):
        assert row.task in head_class(spec.name).tasks
        assert find_row(spec) is row
        assert (row.origin == "ours") == (not row.seed), row


def test_a_row_is_found_however_its_head_is_written() -> None:
    for text in ("adapter.v1:skip=true", "adapter:skip,size=386,lr=3e-4,seed=7"):
        row = find_row(parse_head(text))
        assert row is not None
        assert row.seed == "3.2 row 12"
    assert find_row(parse_head("adapter:size=385")) is None


def test_sets() -> None:
    assert [len(SETS[name]) for name in ("papers", "pooling+adapters", "controls", "beyond")] == [
        20,
        12,
        4,
        5,
    ]
    assert set(SETS["all"]) == {row.head for row in CATALOGUE if row.task == "span"}
    small = {"average_pooling", *(row.head for row in CATALOGUE if row.seed.startswith("3.2 "))}
    assert set(SETS["pooling+adapters"]) == small
    assert {parse_head(head).name for head in SETS["controls"]} == {"last_state.v1", "last_state_mlp.v1"}


def test_sets_of_label_and_score_tasks() -> None:
    rows = [row for row in CATALOGUE if row.task == "label"]
    assert {row.head for row in rows} - set(LABEL_SETS["all"]) == {"minbert:vectors=2"}
    assert len(LABEL_SETS["papers"]) == 8
    for task in ("label", "score"):
        for name, heads in LABEL_SETS.items():
            found = list(expand([name, "cls_mlp:width=2"], task))
            assert found == [*((head, True) for head in heads), ("cls_mlp:width=2", False)]
            for head in heads:
                built = parse_head(head).build(Geometry(3, 8, 1, task), seed=0)
                assert built.windows == 1, "one fit reads all heads of a set through the same windows"
    assert set(LABEL_SETS) <= set(SETS)
    assert list(expand(["default"])) == [(head, True) for head in SETS["default"]]
    assert sets_of("triplet") == {}


def test_the_default_sets_are_what_a_fit_takes() -> None:
    own = zoo_members(FitConfig())
    assert zoo_members(FitConfig(heads=("default",))) == own
    assert len(own) == 5


def test_distances_can_be_had_for_triplets_alone() -> None:
    assert "triplet.v1" not in head_names()
    assert list(expand(["triplet:negatives=3"], "triplet")) == [("triplet:negatives=3", False)]
    for task in ("span", "label", "score"):
        with pytest.raises(ConfigError, match=f"for triplet pre-training, not for a {task} task"):
            list(expand(["triplet.v1"], task))
    with pytest.raises(ConfigError, match="default is a set of span heads"):
        list(expand(["default"], "triplet"))


def test_a_head_of_a_window_length_takes_that_of_the_windows() -> None:
    assert for_windows("ap_glue", 77) == "ap_glue:tokens=77"
    assert for_windows("ap_glue:size=4", 77) == "ap_glue:size=4,tokens=77"
    assert for_windows("ap_glue:tokens=5", 77) == "ap_glue:tokens=5"
    assert for_windows("cls_linear", 77) == "cls_linear"


def test_a_fit_takes_sets_beside_heads() -> None:
    members = zoo_members(FitConfig(heads=("papers", "ladder:size=8", "controls"), seeds=(0, 1)))
    assert len(members) == (20 + 1 + 4) * 2
    assert len({name for name, _, _ in members}) == len(members)
    assert [name for name, _, _ in members[:2]] == ["cnn.seed0", "cnn.seed1"]
    assert len(zoo_members(FitConfig(heads=("all",)))) == len(SETS["all"])


def test_what_a_set_names_too_is_fitted_once() -> None:
    alone = zoo_members(FitConfig(heads=("pooling+adapters",)))
    # adapter is row 11 with its default size; a set beside its own superset adds nothing.
    for heads in (
        ("pooling+adapters", "adapter"),
        ("pooling+adapters",) * 2,
        ("adapter", "pooling+adapters"),
    ):
        assert sorted(zoo_members(FitConfig(heads=heads)), key=str) == sorted(alone, key=str)
    other = zoo_members(FitConfig(heads=("pooling+adapters", "adapter:lr=0.1", "adapter:seed=5")))
    assert {name for name, _, _ in other} - {name for name, _, _ in alone} == {
        "adapter-386-lr=0.1.seed0", "adapter-386.seed5",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"names adapter-386\.seed0 twice"):
        zoo_members(FitConfig(heads=("papers", "adapter", "adapter:size=386")))


# ---- the verb


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from bertvision.cli import main\n"
        "try: main(['heads', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "335,143,938" in done.stdout.replace("\n", "")


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_table_keeps_within_the_terminal(
    width: int, large: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = bertvision("heads").out.splitlines()
    assert max(map(len, lines)) <= width
    table = "\n".join(lines)
    for row in large:
        # Its own line: head, size and percentage, whatever else there is room for.
        start = row["head"][:36].rpartition(",")[0] if len(row["head"]) > 36 else row["head"]
        size = f"{row['parameters']:,}"
        assert re.search(
            rf"^{re.escape(start)}\S* .*\s{size} .*\s{row['percent']:.3f}", table, re.MULTILINE
        ), row
        if width >= 120:
            assert re.search(
                rf"^{re.escape(start)}.*{row['origin']}.*\s{row['total']:,} ", table, re.MULTILINE
            )
            assert f" {row['structure']}" in table
    assert ("left out for want of width" in table) == (width < 120)


def test_heads_are_told_once_each_and_sets_in_full() -> None:
    assert [row["head"] for row in rows("beyond")] == list(SETS["beyond"])
    assert len(rows("papers", "pooling+adapters")) == 21
    assert {row["task"] for row in rows("--task", "label")} == {"label"}
    assert {row["task"] for row in rows("--task", "span")} == {"span"}
    heads = [row["head"] for row in rows("default", "--task", "label", "--tokens", "99")]
    assert heads == [for_windows(head, 99) for head in LABEL_SETS["default"]]
    [row] = rows("adapter:size=3")
    assert (row["seed"], row["origin"], row["published_percent"]) == ("", "", None)
    assert row["label"] == "adapter-3"
    assert row["name"] == "adapter.v1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("lader", "there is no head 'lader': did you mean ladder"),
        ("paper", "there is no head 'paper': did you mean papers"),
        ("papers:skip", "papers is a set of heads and takes no options"),
        ("tenney_small --task span", "is a head for label and score tasks, not for span"),
        ("adapter --task label", "is a head for span tasks, not for label"),
        (
            "beyond --task label",
            "beyond is a set of span heads: for a label task use all, papers, controls, default",
        ),
        ("triplet", "triplet gives distances between texts and has nothing to fit"),
        ("--layers 0", "--layers must be at least 1, not 0"),
        ("--hidden -5", "--hidden must be at least 1"),
        ("--tokens 0", "--tokens must be at least 1"),
        ("--encoder-parameters 0", "--encoder-parameters must be at least 1"),
        ("--task spam", "--task cannot be 'spam': give one of span, label, all"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, told: str) -> None:
    assert told in refused("heads", *words.split())


# ---- fits


@pytest.mark.parametrize(
    ("heads", "told"),
    [
        ("papres", "did you mean papers"),
        ("adapter adapter.v1", "twice"),
    ],
)
def test_a_wrong_head_is_told_before_the_encoder_is_looked_for(heads: str, told: str, tmp_path: Path) -> None:
    said = refused("fit", tmp_path / "no-encoder", "--train", "demo:train", "--out", tmp_path / "out",
                   "--heads", *heads.split())  # fmt: skip
    assert told in said
    assert tree(tmp_path) == {}


def test_a_head_of_another_task_is_told_when_the_data_is_known(tiny_bert: Path, tmp_path: Path) -> None:
    small = ("--max-train-examples", "2", "--max-seq-length", "96", "--max-query-length", "60")
    said = refused(
        "fit",
        tiny_bert,
        "--train",
        "demo:train",
        *small,
        "--out",
        tmp_path / "out",
        "--heads",
        "tenney_small",
    )
    assert "is a head for label and score tasks, not for span" in said
    assert not (tmp_path / "out").exists()


def test_a_fit_tells_its_heads_best_first_and_who_was_dropped(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    flags = ("fit", tiny_bert, "--train", toy_squad, "--max-seq-length", "96", "--out", tmp_path / "fit", "--heads",
             "last_state", "controls", "average_pooling", "adapter:size=4,lr=1e30")  # fmt: skip
    outcome = bertvision(*flags, "--dev", toy_squad, "--json")
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert result["dropped"] == ["adapter-4-lr=1e+30.seed0"]
    assert len(result["heads"]) == 5
    scores = [row["tuned_f1"] for row in result["heads"]]
    assert scores == sorted(scores, reverse=True)
    by_name = {row["head"]: row for row in result["heads"]}
    for name, row in by_name.items():
        assert Path(row["folder"]) == tmp_path / "fit" / name
        assert row["seconds"] > 0
    assert by_name["last-state.seed0"]["parameters"] == by_name["last-state.seed0"]["total"] == 66
    assert by_name["last-state.seed0"]["flops_per_token"] == 2 * 32 * 2
    told = bertvision(*flags, "--dev", toy_squad).out
    assert [name for name in re.findall(r"[\w=.-]+\.seed0", told) if name in by_name] == list(by_name)
    assert "dropped, because they diverged: adapter-4-lr=1e+30.seed0" in told
    # Without dev the losses sort them.
    unscored = json.loads(bertvision(*flags, "--json").out)["heads"]
    losses = [row["loss"] for row in unscored]
    assert losses == sorted(losses)
    assert "tuned_f1" not in unscored[0]


def test_a_head_of_another_size_is_told_with_both_sizes(
    finished_run: Path, toy_squad: Path, tmp_path: Path
) -> None:
    other = save_encoder(tmp_path / "other", hidden_size=16, num_hidden_layers=3)
    head = finished_run / "fit" / "snapshot-1" / "adapter-4.seed0"
    for verb in (
        ("eval", head, "--data", toy_squad),
        ("predict", head, "--question", "a", "--context", "b"),
    ):
        said = refused(*verb, "--encoder", other)
        assert "was fitted on another encoder" in said
        assert "which has 4 states of 16 and not 3 of 32" in said


def test_weights_of_another_size_name_one_of_them(tmp_path: Path) -> None:
    save_head(parse_head("cnn").build(Geometry(3, 8), seed=0), tmp_path, about={})
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["geometry"]["states"] = 4
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(
        ArtifactError, match=r"holds stages\.0\.conv\.weight as \(100, 3, 7\).*\(100, 4, 7\)"
    ) as told:
        load_head(tmp_path)
    assert len(str(told.value).split(": ")[-1].splitlines()) == 1
    assert len(str(told.value)) < 400


# ---- docs/heads.md

BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)


def test_the_tables_of_the_docs_are_those_of_the_verb(large: list[dict[str, Any]]) -> None:
    """On failure the difference shows the lines that should stand there."""
    right = []
    for row in large:
        star = "*" if row["percent_of"] == "total" else ""
        printed = "" if row["published_percent"] is None else f"{row['published_percent']:.3f}"
        cells = (
            f"`{row['head']}`", row["seed"], row["paper"], row["origin"], f"{row['parameters']:,}", f"{row['total']:,}",
            f"{row['percent']:.3f}{star}", printed, words.compact(row["flops_per_token"]),
        )  # fmt: skip
        right.append(f"| {' | '.join(cells)} |")
    found = [
        line for line in DOCS.splitlines() if re.match(r"\| `[^|]*\|[^|]*\|[^|]*\| (exact|recons|ours)", line)
    ]
    assert found == right


def test_the_docs_name_every_set_option_and_training_setting() -> None:
    before, options_, training = re.split(r"^## (?:Options|Training)$", DOCS, flags=re.MULTILINE)
    row = re.compile(r"^\| `([\w+]+)` \| (.*) \|$", re.MULTILINE)
    assert dict(row.findall(before)).keys() >= SETS.keys()
    assert dict(row.findall(training)).keys() >= {field.name for field in dataclasses.fields(TrainOverrides)}
    said = dict(row.findall(options_))
    for name in head_names():
        options = set(re.findall(r"`(\w+)(?:=[^`]*)?`", said[name.removesuffix(".v1")]))
        fields = dataclasses.fields(head_class(name).config_class)
        assert options >= {field.name for field in fields}, name
        for field in fields:
            told = re.search(rf"`{field.name}=([^`]+)`", said[name.removesuffix(".v1")])
            if told:
                text = f"{name.removesuffix('.v1')}:{field.name}={told[1]}"
                assert getattr(parse_head(text).config, field.name) == field.default, text
            else:
                assert field.default is False, f"{name}: the default of {field.name} is not told"


def test_the_commands_of_the_docs_parse() -> None:
    lines = [line for kind, block in BLOCKS if kind == "bash" for line in block.splitlines()]
    assert len(lines) >= 5
    for line in lines:
        words = shlex.split(re.sub(r"\s#.*", "", line))
        verb, flags = (words[3], words[4:]) if words[0] == "python" else (words[1], words[2:])
        assert verb in VERBS
        args = parse(import_module(f"bertvision.cli.{verb}"), flags, prog="bertvision")
        for text, _ in (
            expand(getattr(getattr(args, "fit", args), "heads", ())) if words[0] != "python" else ()
        ):
            parse_head(text)


def test_a_head_of_ones_own_is_a_head_like_any_other(
    toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's own code, run as it stands."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))  # the head is gone after this test
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "my-encoder", max_position_embeddings=384)
    (tmp_path / "train.json").symlink_to(toy_squad)
    [code] = [block for kind, block in BLOCKS if kind == "python"]
    own = code.partition("@dataclass")[2].partition("folders =")[0]
    assert len([line for line in own.splitlines() if line.strip()]) <= 20
    namespace: dict[str, Any] = {"__name__": "docs"}
    exec(compile(code, "docs/heads.md", "exec"), namespace)
    assert [folder.name for folder in namespace["folders"]] == [
        "top-layers-layers=2.seed0",
        "learned-pooling.seed0",
    ]
    head, _ = load_head(namespace["folders"][0])
    states, mask = torch.randn(3, 2, 5, 32), torch.ones(2, 5, dtype=torch.bool)
    torch.testing.assert_close(head(states, mask), head.project((states[1] + states[2]) / 2))  # pyright: ignore
    assert cost(parse_head("top_layers"), Geometry(3, 32)).parameters == 66
    [line] = [
        line for kind, block in BLOCKS if kind == "bash" for line in block.splitlines() if "main()" in line
    ]
    assert "mean of the last states -> Linear(H, C)" in bertvision(*shlex.split(line)[3:]).out
