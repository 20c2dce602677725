"""One hidden state by itself: which one is read, `each_layer` in a fit of spans and of labels, what is refused."""

import json
from pathlib import Path

import pytest
import torch
from cli_runner import bertvision

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, load_head, parse_head
from bertvision.heads.catalogue import expand
from bertvision.heads.layer_reader import layer_of
from bertvision.train.fit import FitConfig
from bertvision.train.zoo import zoo_members

SMALL_SPECS = ["layer_reader:layer=0", "layer_reader"]
SHORT = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24")


@pytest.mark.parametrize("task", ["span", "label", "score"])
@pytest.mark.parametrize("layer", [0, 2, -1])
def test_one_state_decides_and_no_other(task: str, layer: int) -> None:
    geometry = Geometry(4, 6, 1 if task == "score" else 2, task)  # pyright: ignore[reportArgumentType]
    head = parse_head(f"layer_reader:layer={layer}").build(geometry, seed=0)
    states = torch.randn(4, 2, 3, 6, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 3, dtype=torch.bool)
    read = states[layer] if task == "span" else states[layer, :, 0]
    own = dict(head.named_parameters())
    expected = read @ own["project.weight"].T + own["project.bias"]
    assert torch.allclose(head(states, mask), expected, atol=1e-6)
    assert head.cls_only == (task != "span")
    assert layer_of(head) == layer % 4
    assert layer_of(parse_head("last_state").build(Geometry(4, 6), seed=0)) is None


def test_the_set_has_a_reader_for_every_state() -> None:
    for task in ("span", "label", "score"):
        assert list(expand(["each_layer"], task, states=3)) == [
            (f"layer_reader:layer={k}", True) for k in range(3)
        ]
    members = zoo_members(FitConfig(heads=("default", "each_layer", "layer_reader:layer=1")), states=3)
    assert [name for name, _, _ in members if "reader" in name] == [
        f"layer-reader-layer={k}.seed0" for k in range(3)
    ]


def test_a_state_there_is_not_is_refused(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"reads a state there is not: the encoder gives 3, numbered 0 to 2"
    ):
        parse_head("layer_reader:layer=3").build(Geometry(3, 8), seed=0)
    with pytest.raises(ConfigError, match="layer of layer_reader must be at least -1, not -2"):
        parse_head("layer_reader:layer=-2")
    with pytest.raises(ConfigError, match="each_layer is a set of heads and takes no options"):
        list(expand(["each_layer:lr=1"]))
    said = bertvision(
        "fit",
        tiny_bert,
        "--train",
        toy_squad,
        "--out",
        tmp_path / "heads",
        "--heads",
        "layer_reader:layer=9",
        *SHORT,
    )
    assert said.code == 2
    assert "numbered 0 to 2" in said.err
    assert not (tmp_path / "heads").exists()


def test_a_fit_of_spans_gives_each_state_its_reader(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    """The last state's reader is last_state under another name: the same seed gives the same weights."""
    flags = ("--train", toy_squad, *SHORT)
    told = bertvision(
        "fit", tiny_bert, *flags, "--out", tmp_path / "all", "--heads", "last_state", "each_layer"
    )
    assert told.code == 0, told.err
    readers = [load_head(tmp_path / "all" / f"layer-reader-layer={k}.seed0")[0] for k in range(3)]
    assert [layer_of(head) for head in readers] == [0, 1, 2]
    last = load_head(tmp_path / "all" / "last-state.seed0")[0].state_dict()
    assert all(torch.allclose(value, readers[2].state_dict()[name]) for name, value in last.items())
    # With some of the layers there are as many readers as are read.
    told = bertvision(
        "fit",
        tiny_bert,
        *flags,
        "--out",
        tmp_path / "two",
        "--heads",
        "each_layer",
        "--states.layers",
        "1",
        "2",
    )
    assert told.code == 0, told.err
    assert sorted(path.name for path in (tmp_path / "two").glob("layer-reader*")) == [
        "layer-reader-layer=0.seed0", "layer-reader-layer=1.seed0",
    ]  # fmt: skip
    # The card says which of the encoder's states were read.
    for folder, said in (("all", False), ("two", True)):
        text = (tmp_path / folder / "layer-reader-layer=0.seed0" / "README.md").read_text()
        assert ("Hidden states: layers 1, " in text) == said
    first = load_head(tmp_path / "two" / "layer-reader-layer=0.seed0")[0].state_dict()
    assert all(torch.allclose(value, readers[1].state_dict()[name]) for name, value in first.items())


def test_a_fit_of_labels_reads_the_first_token_alone(tiny_bert: Path, tmp_path: Path) -> None:
    data = tmp_path / "moods.jsonl"
    rows = [{"text": f"the mill is {word}", "label": word} for word in ("good", "bad") * 8]
    data.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    told = bertvision(
        "fit", tiny_bert, "--train", data, "--out", tmp_path / "heads", "--heads", "each_layer", *SHORT
    )
    assert told.code == 0, told.err
    for k in range(3):
        head, config = load_head(tmp_path / "heads" / f"layer-reader-layer={k}.seed0")
        assert (layer_of(head), head.cls_only) == (k, True)
        assert config["states"]["positions"] == "cls"
