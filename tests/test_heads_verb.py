"""The catalogue: every count of the papers, sets of heads, `bertvision heads`, fits of sets, and docs/heads.md."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runner import as_json, bertvision, refused, tree
from toy import save_encoder

from bertvision import words
from bertvision.cli import find_command
from bertvision.cli.flags import parse
from bertvision.cli.heads import bert_parameters
from bertvision.errors import ConfigError
from bertvision.heads import Geometry, base, cost, head_names, load_head, parse_head
from bertvision.heads.base import bare_batch, head_class
from bertvision.heads.readouts import layer_of
from bertvision.heads.spec import CATALOGUE, SETS, TrainOverrides, expand, find_row
from bertvision.train.config import FitConfig
from bertvision.train.zoo import zoo_members

DOCS = (Path(__file__).parents[1] / "docs" / "heads.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)


# ---- sizes

# Typed from the papers' facts at 25 states of 1024: total and printed percentage of each row.
SPAN_ROWS: dict[int, tuple[int, float]] = {
    # 3.3
    1: (332_450, 0.099), 2: (406_850, 0.121), 3: (332_450, 0.099), 5: (313_276, 0.093), 6: (313_250, 0.093),
    17: (693_326, 0.207), 18: (1_113_078, 0.332), 19: (6_681_422, 1.994), 20: (6_602_478, 1.970),
    # 3.2
    4: (2_076, 0.001), 7: (68_802, 0.021), 8: (70_850, 0.021), 9: (1_643_202, 0.491), 10: (1_645_250, 0.491),
    11: (414_952, 0.124), 12: (417_000, 0.124), 13: (9_910_552, 2.957), 14: (9_912_600, 2.958),
    15: (398_498, 0.119), 16: (811_400, 0.242),
}  # fmt: skip
TRAINABLE_TOO = {4, *range(7, 17), 19}
CLASSIFICATION_ROWS: dict[str, tuple[int, int, float]] = {
    "tenney small": (2_077, 2_077, 0.001), "adapter pooler tenney": (398_499, 398_499, 0.119),
    "adapter pooler avg": (398_472, 398_472, 0.119), "xception abbr": (264_066, 267_010, 0.079),
    "xception abbr cls": (266_114, 269_058, 0.080), "xception": (20_662_106, 20_716_634, 6.181),
}  # fmt: skip
NOT_AS_PRINTED = {"3.2 row 9"}
"""Row 10's percentage stands there too; no structure without the skip has it."""


def rows(*flags: str) -> list[dict[str, Any]]:
    return as_json("heads", *flags)


@pytest.fixture(scope="module")
def large() -> list[dict[str, Any]]:
    return rows("--layers", "24", "--hidden", "1024", "--tokens", "386")


def test_every_model_of_the_papers(large: list[dict[str, Any]]) -> None:
    spans = [row for row in large if row["section"].startswith(("3.2", "3.3"))]
    assert [int(row["section"].rpartition(" ")[2]) for row in spans] == list(range(1, 21)), "in their order"
    for number, row in enumerate(spans, 1):
        assert (row["total"], row["published_percent"]) == SPAN_ROWS[number], row
        assert number not in TRAINABLE_TOO or row["parameters"] == row["total"], row
        assert row["percent_of"] == ("total" if row["section"].startswith("3.3") else "trainable")
    texts = {row["paper"]: row for row in large if row["section"].startswith("4 ")}
    found = {p: (row["parameters"], row["total"], row["published_percent"]) for p, row in texts.items()}
    assert found == CLASSIFICATION_ROWS
    printed = [row for row in large if row["published_percent"] is not None]
    assert len(printed) == 20 + 6 + 1
    for row in printed:
        compared = row["total"] if row["percent_of"] == "total" else row["parameters"]
        assert row["percent"] == pytest.approx(100 * compared / 335_143_938)
        met = f"{row['percent']:.3f}" == f"{row['published_percent']:.3f}"
        assert met == (row["section"] not in NOT_AS_PRINTED), row


H, L, A = 1024, 25, 64


@pytest.mark.parametrize(
    ("text", "geometry", "count"),
    [
        ("adapter:size=384,gelu=erf", Geometry(13, 768), 305_282),
        ("pooled_adapter:skip=false", Geometry(25, 1024), 396_450),
        # down, its biases, gates; rung; query, key, value and out; two norms; output with the last state
        ("ladder", Geometry(L, H), A * H + 2 * L * A + 6 * (A * A + A) + 4 * A + 2 * (A + H) + 2),
        ("ladder:rung=0,heads=0,skip=false", Geometry(L, H), A * H + 2 * L * A + 2 * A + 2 * A + 2),
        # down, its biases; gates from the layer and from the state, their biases; candidate; output
        ("recurrent", Geometry(L, H), A * H + L * A + 4 * A * A + L * 2 * A + A * A + 2 * (A + H) + 2),
        # query; key, its biases; biases of layers; values of 4 mixes; last state
        ("layer_attention", Geometry(L, H), 2 * (A * H + A) + (L - 1) * A + L * 4 + 4 * 2 * H + 2 * H + 2),
        ("head2toe", Geometry(L, H), 2 * L * H + 2),
        ("biaffine", Geometry(L, H), A * H + A + 34 * (A * L + H + 1)),
        ("ap_glue", Geometry(13, 768, unit="window"), 58_154),
        ("ap_glue:size=16,tokens=128", Geometry(13, 768, unit="window"), 65_554),
        ("minbert", Geometry(13, 768, 5, "window"), 2_372_357),
        ("minbert:vectors=2", Geometry(13, 768, 1, "window", True), 2_959_105),
        ("cacnn", Geometry(13, 768), 11_802_630),
        ("cacnn:kernel=3,n=2", Geometry(13, 768), 3 * 768 * 1536 + 2 * 1536 + 2 * 2),
        ("cacnn:variant=ctx", Geometry(13, 768), 15 * 768 * 256 + 768 + 5 * 40 + 40 + 2 * 5),
        ("cacnn:variant=ctx,fill=tile,filters=10,maps=7,bank=4,n=2", Geometry(13, 768), 4 * 7680 + 56),
        ("attention_pooler:queries=3", Geometry(13, 768, unit="window"), 769 * 64 + 3 * (64 + 1536) + 2 + 14),
        ("mean_pooler", Geometry(13, 768, unit="window"), 13 + 1 + 769 * 2),
    ],
)
def test_sizes_by_formula(text: str, geometry: Geometry, count: int) -> None:
    found = cost(parse_head(text), geometry)
    assert found.parameters == found.total == count


@pytest.mark.parametrize(("control", "like"), [("last_state_mlp", "adapter"), ("cls_mlp", "adapter_pooler")])
@pytest.mark.parametrize("match", [1, 64, 386])
def test_controls_have_as_many_parameters_as_adapters(control: str, like: str, match: int) -> None:
    """No other width of the hidden layer would come nearer."""
    for states, hidden, outputs in ((25, 1024, 2), (3, 9, 2), (7, 384, 5)):
        shape = Geometry(states, hidden, outputs, "window" if "cls" in control else "token", "cls" in control)

        def count(text: str, shape: Geometry = shape) -> int:
            return cost(parse_head(text), shape).parameters

        own: Any = parse_head(f"{control}:match={match}").build(shape, seed=0)
        target, widths = count(f"{like}:size={match}"), (own.width, max(1, own.width - 1), own.width + 1)
        off = [abs(count(f"{control}:width={width}") - target) for width in widths]
        assert abs(own.num_parameters - target) == off[0] == min(off)


def test_flags_of_the_encoder_count() -> None:
    """A pooler is one channel more; the percentage is of a BERT of that size, or of what is given."""
    channels, states = (
        {row["head"]: row["parameters"] for row in rows("--unit", "window", *flags)}
        for flags in ((), ("--no-pooler",))
    )
    assert (channels["tenney_small"], states["tenney_small"]) == (26 + 1 + 2_050, 25 + 1 + 2_050)
    assert channels["xception_abbr"] - states["xception_abbr"] == 64 * 3
    assert channels["cls_linear"] == states["cls_linear"]
    assert (bert_parameters(24, 1024), bert_parameters(12, 768)) == (335_143_938, 109_483_778)
    assert rows("adapter", "--encoder-parameters", "41495200")[0]["percent"] == pytest.approx(1)


# ---- rows and sets


def test_every_registered_head_has_a_row_and_every_row_is_one_head() -> None:
    specs = [parse_head(row.head) for row in CATALOGUE]
    assert {spec.name for spec in specs} == set(head_names())
    for row, spec in zip(CATALOGUE, specs, strict=True):
        assert row.unit in head_class(spec.name).units
        assert find_row(spec) is row
        assert (row.origin == "ours") == (not row.section), row
    for text in ("adapter.v1:skip=true", "adapter:skip,size=386,lr=3e-4,seed=7"):
        assert find_row(parse_head(text)) is find_row(parse_head("adapter:skip"))
    assert find_row(parse_head("adapter:size=385")) is None


def test_sets() -> None:
    token, window = SETS["token"], SETS["window"]
    sizes = {"papers": 20, "pooling+adapters": 12, "controls": 4, "beyond": 5, "default": 5, "each_layer": 1}
    assert {name: len(heads) for name, heads in token.items() if name != "all"} == sizes
    sizes = {"papers": 8, "controls": 3, "default": 6, "each_layer": 1}
    assert {name: len(heads) for name, heads in window.items() if name != "all"} == sizes
    assert {row.head for row in CATALOGUE} - {*token["all"], *window["all"]} == {"minbert:vectors=2"}
    for unit, sets in SETS.items():
        for name, heads in sets.items():
            assert list(expand([name, "layer_reader:lr=1"], unit))[:-1] == [(head, True) for head in heads]
            for head in heads:
                with torch.device("meta"):
                    built = parse_head(head).build(Geometry(3, 8, 2, unit), seed=0)
                assert built.windows == 1, "one fit reads all heads of a set through the same windows"
        readers = [(f"layer_reader:layer={k}", True) for k in range(3)]
        assert list(expand(["each_layer"], unit, states=3)) == readers


def test_a_fit_takes_sets_beside_heads_and_every_head_once() -> None:
    def names(*heads: str, **more: Any) -> list[str]:
        return [name for name, _, _ in zoo_members(FitConfig(heads=heads, **more))]

    members = names("papers", "ladder:size=8", "controls", seeds=(0, 1))
    assert len(members) == len(set(members)) == (20 + 1 + 4) * 2
    alone = set(names("pooling+adapters"))
    assert set(names("pooling+adapters", "adapter", "pooling+adapters")) == alone, "adapter is row 11"
    other = set(names("pooling+adapters", "adapter:lr=0.1", "adapter:seed=5"))
    assert other - alone == {"adapter-386-lr=0.1.seed0", "adapter-386.seed5"}
    with pytest.raises(ConfigError, match=r"adapter-386\.seed0 twice"):
        names("papers", "adapter", "adapter:size=386")


# ---- the verb


def test_help_and_sets_need_no_torch() -> None:
    code = (
        "import sys; from bertvision.cli import main\n"
        "from bertvision.heads.spec import CATALOGUE, expand\n"
        "assert len(list(expand(['papers', 'controls']))) == 24\n"
        "try: main(['heads', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)


def test_a_mistake_is_one_sentence() -> None:
    assert "takes no options" in refused("heads", "papers:skip")
    assert "another kind of task" in refused("heads", "beyond", "--unit", "window")
    assert "nothing to fit" in refused("heads", "triplet")
    assert "--tokens" in refused("heads", "--tokens", "9999999")


# ---- fits


def test_a_wrong_head_is_refused_before_anything_is_loaded_or_written(
    tiny_bert: Path, tmp_path: Path
) -> None:
    nowhere = ("fit", tmp_path / "no-encoder", "--train", "demo:train", "--out", tmp_path / "out", "--heads")
    assert "did you mean papers" in refused(*nowhere, "papres")
    short = ("--max-train-examples", "2", "--max-seq-length", "96", "--max-query-length", "60")
    here = ("fit", tiny_bert, "--train", "demo:train", *short, "--out", tmp_path / "out", "--heads")
    assert "tenney_small" in refused(*here, "tenney_small"), "of another unit"
    assert "numbered 0 to 2" in refused(*here, "layer_reader:layer=9")
    assert tree(tmp_path) == {}


def test_a_fit_lists_its_heads_best_first(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    flags = ("fit", tiny_bert, "--train", toy_squad, "--max-seq-length", "96", "--out", tmp_path / "fit", "--heads",
             "last_state", "controls", "average_pooling")  # fmt: skip
    listed = json.loads(bertvision(*flags, "--dev", toy_squad, "--json").out)["heads"]
    scores = [row["scores"]["tuned_f1"] for row in listed]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    last = next(row for row in listed if row["head"] == "last-state.seed0")
    assert (last["parameters"], last["total"], last["flops_per_token"]) == (66, 66, 2 * 32 * 2)
    losses = [row["loss"] for row in json.loads(bertvision(*flags, "--json").out)["heads"]]
    assert losses == sorted(losses), "without dev"


def test_a_fit_of_each_layer_gives_each_state_its_reader(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    """The last state's reader is last_state under another name: the same seed gives the same weights."""
    short = shlex.split("--max-seq-length 64 --max-query-length 16 --doc-stride 24 --states.source live")
    flags = ("--train", toy_squad, *short, "--out", tmp_path, "--heads", "last_state", "each_layer")
    assert bertvision("fit", tiny_bert, *flags, "--states.layers", "1", "2").code == 0
    readers = [load_head(tmp_path / f"layer-reader-layer={k}.seed0")[0] for k in (0, 1)]
    assert [layer_of(head) for head in readers] == [0, 1]
    last = load_head(tmp_path / "last-state.seed0")[0]
    torch.testing.assert_close(readers[1].state_dict(), last.state_dict())


def test_an_encoder_of_another_size_is_refused_with_both_sizes(
    finished_run: Path, toy_squad: Path, tmp_path: Path
) -> None:
    other = save_encoder(tmp_path / "other", hidden_size=16, num_hidden_layers=3)
    head = finished_run / "fit" / "snapshot-1" / "adapter-4.seed0"
    said = refused("eval", head, "--data", toy_squad, "--encoder", other)
    assert "4 states of 16 and not 3 of 32" in said


# ---- docs/heads.md


def test_the_tables_of_the_docs_are_those_of_the_verb(large: list[dict[str, Any]]) -> None:
    """On failure the difference shows the lines that should stand there."""
    right = []
    for row in large:
        star = "*" if row["percent_of"] == "total" else ""
        printed = "" if row["published_percent"] is None else f"{row['published_percent']:.3f}"
        cells = (
            f"`{row['head']}`", row["section"], row["paper"], row["origin"],
            f"{row['parameters']:,}", f"{row['total']:,}", f"{row['percent']:.3f}{star}", printed,
            words.compact(row["flops_per_token"]),
        )  # fmt: skip
        right.append(f"| {' | '.join(cells)} |")
    listed = re.compile(r"\| `[^|]*\|[^|]*\|[^|]*\| (exact|recons|ours)")
    found = [line for line in DOCS.splitlines() if listed.match(line)]
    assert found == right


def test_the_docs_name_every_set_option_and_training_setting() -> None:
    before, options_, training = re.split(r"^## (?:Options|Training)$", DOCS, flags=re.MULTILINE)
    row = re.compile(r"^\| `([\w+]+)` \| (.*) \|$", re.MULTILINE)
    assert dict(row.findall(before)).keys() >= SETS["token"].keys() | SETS["window"].keys()
    assert dict(row.findall(training)).keys() >= {field.name for field in dataclasses.fields(TrainOverrides)}
    said = dict(row.findall(options_))
    for name in head_names():
        bare = name.removesuffix(".v1")
        options = set(re.findall(r"`(\w+)(?:=[^`]*)?`", said[bare]))
        for field in dataclasses.fields(head_class(name).config_class):
            assert field.name in options, name
            default = re.search(rf"`{field.name}=([^`]+)`", said[bare])
            if default:
                text = f"{bare}:{field.name}={default[1]}"
                assert getattr(parse_head(text).config, field.name) == field.default, text
            else:
                assert field.default is False, f"{name}: the default of {field.name} is missing"


def test_the_commands_of_the_docs_parse() -> None:
    for command in (shlex.split(line, comments=True) for kind, block in BLOCKS if kind == "bash"
                  for line in block.splitlines() if line.startswith("bertvision")):  # fmt: skip
        args, _ = parse(*find_command(command[1:]))
        for text, _ in expand(getattr(getattr(args, "fit", args), "heads", ())):
            parse_head(text)


def test_the_head_of_the_docs_is_a_head_like_any_other(
    toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's own code, run as it stands."""
    head_names()  # what ships is registered
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))  # the head is gone after this test
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "my-encoder", max_position_embeddings=384)
    (tmp_path / "train.json").symlink_to(toy_squad)
    [code] = [block for kind, block in BLOCKS if kind == "python"]
    namespace: dict[str, Any] = {"__name__": "docs"}
    exec(compile(code, "docs/heads.md", "exec"), namespace)
    folders = [folder.name for folder in namespace["folders"]]
    assert folders == ["top-layers-layers=2.seed0", "learned-pooling.seed0"]
    head: Any = load_head(namespace["folders"][0])[0]
    states = torch.randn(3, 2, 5, 32)
    logits = head(bare_batch(states, torch.ones(2, 5, dtype=torch.bool)))
    torch.testing.assert_close(logits, head.project((states[1] + states[2]) / 2))
