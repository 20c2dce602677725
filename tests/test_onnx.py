"""One ONNX graph of encoder and heads answers as torch does; what it cannot hold is refused by name."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serve_cases import ALIKE, ANSWERABLE, MOOD, WINDOWS, assert_same, plain, save_span, save_system

from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads import StateBatch, base, head_names, parse_head
from bertvision.heads.base import Head, head_class
from bertvision.heads.papers import cnn
from bertvision.heads.papers.cnn import XceptionBlock
from bertvision.heads.spec import CATALOGUE
from bertvision.model import onnx
from bertvision.model.model import Model
from bertvision.model.onnx import Graph, export_onnx, use_onnx
from bertvision.model.trained import read_trained
from bertvision.states.config import Selection
from bertvision.tasks.span import SPAN

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

MILL = "The mill in Arden was built by Ada Holt in 1871."
LONG = " ".join(f"Part {i} of the text." for i in range(9)) + " " + MILL


@pytest.fixture(scope="module")
def encoder(tiny_bert: Path) -> Encoder:
    return Encoder.load(str(tiny_bert))


def model_of(folders: dict[str, Path], layers: list[Path], encoder: Encoder) -> Model:
    systems = {name: read_trained(folder) for name, folder in folders.items()}
    if layers:
        systems["span"] = replace(systems["span"], layers=[read_trained(folder) for folder in layers])
    return Model(systems, encoder)


CATALOGUED = {
    "adapter": "adapter:size=3,unshared,skip",
    "pooled": "pooled_adapter:size=3",
    "twin": "twin_adapter:size=3",
    "average": "average_pooling:of=first-last",
    "mlp": "last_state_mlp:width=4",
    "last": "last_state",
    "reader": "layer_reader:layer=1",
    "cnn": "cnn",
    "square-cnn": "cnn:kernel=nxn,input=learned,adapter=6,skip=false",
    "inception": "inception:adapter=6",
    "xception-mod": "xception_mod:adapter=4",
    "cacnn": "cacnn:n=2,rows=2",
    "cacnn-ctx": "cacnn:variant=ctx,n=2,rows=3,mask_question",
    "ladder": "ladder:size=4,rung=3,heads=2",
    "recurrent": "recurrent:size=3",
    "attention": "layer_attention:size=4,heads=2",
    "toe": "head2toe",
    "adapter-label": "adapter_pooler",
    "attention-label": "attention_pooler:over=layers+tokens",
    "mlp-label": "cls_mlp",
    "glue": "ap_glue:tokens=32",
    "minbert": "minbert",
    "abbr": "xception_abbr:cls",
    "xception": "xception",
}
"""Small heads of all kinds of the catalogue that `Exported` has not already."""


class Shallow(XceptionBlock):
    """With the last of its convolutions alone."""

    def __init__(self, inputs: int, widths: tuple[int, ...], kernel: int, **options: Any) -> None:
        super().__init__(inputs, widths[-1:], kernel, **options)


def shorten_deep_heads(patch: pytest.MonkeyPatch) -> None:
    """Heads of dozens of equal blocks with one or two of each kind: tracing takes its time for every operation."""
    patch.setattr(cnn, "XceptionBlock", Shallow)
    patch.setattr(cnn, "_middle_blocks", lambda number, kernel: [])
    patch.setattr(cnn, "STAGES", (cnn.STAGES[0], cnn.STAGES[-1]))
    patch.setattr(cnn, "MODULES", {"3a": cnn.MODULES["3a"]})
    patch.setattr(cnn, "POOL_AFTER", {"3a": 3})


class Exported:
    """Heads of all kinds, and their graph: all layers and some, all tokens and [CLS], pairs of tokens, the pooler."""

    def __init__(self, encoder: Encoder, home: Path) -> None:
        self.encoder, self.home = encoder, home
        cls, some = Selection(positions="cls"), Selection((0, 2))
        self.folders = {
            "span": save_span(home / "span", encoder, "learned_pooling"),
            "pairs": save_span(home / "pairs", encoder, "biaffine:size=4,rank=2"),
            "sure": save_system(home / "sure", encoder, "cls_linear", ANSWERABLE),
            "mood": save_system(home / "mood", encoder, "tenney_small", MOOD, selection=cls, temperature=2.0),
            "alike": save_system(home / "alike", encoder, "mean_pooler", ALIKE, selection=some),
        }
        self.catalogued = {}
        for name, text in CATALOGUED.items():
            task = SPAN if "token" in head_class(parse_head(text).name).units else MOOD
            self.catalogued[name] = save_system(home / name, encoder, text, task)
        self.layers = [
            save_system(home / "layers" / str(k), encoder, f"layer_reader:layer={k}", SPAN, seed=k)
            for k in range(encoder.num_states)
        ]
        self.path = home / "onnx" / "model.onnx"
        self.whole = model_of(self.folders | self.catalogued, self.layers, encoder)
        self.report = export_onnx(self.whole, self.path)

    def model(self) -> Model:
        return model_of(self.folders, self.layers, self.encoder)

    def served(self) -> Model:
        model = self.model()
        use_onnx(model, self.path)
        return model


@pytest.fixture(scope="module")
def exported(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    with pytest.MonkeyPatch.context() as patch:
        shorten_deep_heads(patch)
        return Exported(encoder, tmp_path_factory.mktemp("onnx"))


# ---- the same answers


def test_predictions_are_those_of_torch(exported: Exported) -> None:
    """One text, a pair, many of all lengths in one call, and paragraphs of several windows."""
    torch_, graph = exported.model(), exported.served()
    texts = [MILL, "a", LONG, "x " * 90]
    asked: list[Any] = [(texts,), (["Who built the mill?"] * 4, texts)]
    expected = [torch_.predict(*one, n_best=3) for one in asked]
    told = torch_.explain("Who built the mill?", LONG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exported.encoder, "layer_states", None)
        found = [graph.predict(*one, n_best=3) for one in asked]
        seen = graph.explain("Who built the mill?", LONG)
    for rows, others in zip(expected, found, strict=True):
        for row, other in zip(rows, others, strict=True):
            assert list(row) == list(other)
            assert_same(plain(other), plain(row), absolute=1e-4)
    for a, b in zip(told["layers"]["span"], seen["layers"]["span"], strict=True):
        assert b["start"] == pytest.approx(a["start"], abs=1e-3)


def test_every_head_of_the_catalogue_says_what_it_says_in_torch(exported: Exported) -> None:
    """Batches and lengths other than those it was traced with (2 windows of 11 tokens), pads among them."""
    import onnxruntime

    names = {parse_head(text).name for text in CATALOGUED.values()}
    names |= {head.name for system in exported.model().systems.values() for head in system.heads}
    assert names == {parse_head(row.head).name for row in CATALOGUE}
    session = onnxruntime.InferenceSession(str(exported.path), providers=["CPUExecutionProvider"])
    graph = Graph.of(exported.whole)
    for rows, tokens in ((1, 7), (5, 7), (1, 30), (5, 30)):
        given = graph.random_inputs(rows, tokens, seed=rows)
        inputs = {name: given[name] for name in graph.inputs}
        real = inputs["attention_mask"].bool().numpy()
        with torch.no_grad():
            expected = dict(zip(graph.readers, graph(**inputs), strict=True))
        found = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        for name, theirs in zip(graph.readers, found, strict=True):
            both = np.stack([expected[name].numpy(), np.asarray(theirs)])
            ours, theirs = both[:, real] if graph.readers[name].task.unit == "token" else both
            assert np.abs(ours).max() > 0, name
            assert np.abs(ours - theirs).max() <= 1e-4 * max(1, np.abs(ours).max()), (name, rows, tokens)


def test_the_file_is_a_sound_graph(exported: Exported) -> None:
    import onnx as library

    model = library.load(exported.path)
    library.checker.check_model(model)
    assert [one.name for one in model.graph.output] == [
        *(f"{name}/0" for name in exported.folders | exported.catalogued),
        *(f"span/layers/{k}" for k in range(exported.encoder.num_states)),
    ]
    for one in model.graph.input:
        assert all(part.dim_param for part in one.type.tensor_type.shape.dim), "batch and length are free"
    info = json.loads((exported.path.parent / "info.json").read_text())
    # Of the deep heads, whose weights here make logits of tens of thousands; the check itself is relative to them.
    assert 0 < info["max_difference"] == exported.report["max_difference"] < 1
    assert exported.report["bytes"] >= exported.path.stat().st_size > 4 * exported.encoder.num_parameters


# ---- what is refused


def test_heads_of_other_windows_are_refused(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "_trace", None)  # it is not asked
    apart = replace(ALIKE, group=2, pairs=True)
    windows = replace(WINDOWS, apart=True)
    two = save_system(tmp_path / "two", encoder, "minbert:vectors=2", apart, windows=windows)
    with pytest.raises(ConfigError, match=r"the head two/0 \(minbert.v1\) reads pairs encoded apart"):
        export_onnx(model_of({"two": two}, [], encoder), tmp_path / "onnx" / "model.onnx")
    assert not (tmp_path / "onnx").exists()


@dataclass(frozen=True)
class NoConfig:
    pass


class Undecided(Head):
    """What it computes hangs on what it is given, which no graph can hold."""

    def forward(self, batch: StateBatch) -> torch.Tensor:
        return batch.states[-1, ..., :2] * (2 if bool(batch.states.sum() > 0) else 3)


def test_a_head_that_cannot_be_traced_is_named(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real exporter's failure, and of several heads the one that fails."""
    head_names()  # what ships is registered
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    base.register("undecided.v1", NoConfig)(Undecided)
    heads = {name: save_span(tmp_path / name, encoder, name) for name in ("last_state", "undecided")}
    with pytest.raises(
        ConfigError, match=r"undecided/0 \(undecided.v1\) cannot be exported to ONNX: leave it"
    ):
        export_onnx(model_of(heads, [], encoder), tmp_path / "onnx" / "model.onnx")
    assert not (tmp_path / "onnx").exists()


def test_a_graph_that_says_something_else_is_refused(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check finds one changed number of one head, and nothing is left on the disk."""

    def copied(graph: Any, file: Path) -> None:
        shutil.copytree(exported.path.parent, file.parent, dirs_exist_ok=True)

    monkeypatch.setattr(onnx, "_trace", copied)
    head = exported.whole.systems["pairs"].heads[0]
    bias = next(value for name, value in head.named_parameters() if name.endswith("bias"))
    monkeypatch.setattr(bias, "data", bias.data.clone().index_add_(0, torch.tensor([0]), torch.tensor([0.5])))
    with pytest.raises(ConfigError, match=r"the head pairs/0 \(biaffine.v1\) differs by .* from torch"):
        export_onnx(exported.whole, tmp_path / "onnx" / "model.onnx")
    assert not (tmp_path / "onnx").exists()


def test_graphs_of_others_are_refused(exported: Exported, tmp_path: Path) -> None:
    info = json.loads((exported.path.parent / "info.json").read_text())
    for file, content, sentence in (
        ("info.json", None, "info.json is missing"),
        ("model.onnx", b"not a graph", r"model\.onnx is no ONNX graph"),
        ("info.json", json.dumps(info | {"fingerprint": "other"}).encode(), "was made of another encoder"),
        ("info.json", json.dumps(info | {"format": 0}).encode(), "does not describe a graph"),
    ):
        copy = tmp_path / "copy"
        shutil.copytree(exported.path.parent, copy)
        (copy / file).unlink() if content is None else (copy / file).write_bytes(content)
        with pytest.raises(ArtifactError, match=sentence):
            use_onnx(exported.model(), copy / "model.onnx")
        shutil.rmtree(copy)
    other = save_system(tmp_path / "mood", exported.encoder, "tenney_small", MOOD, seed=9)
    changed = model_of(exported.folders | {"mood": other}, exported.layers, exported.encoder)
    with pytest.raises(ArtifactError, match="was made of another head than mood/0 is now"):
        use_onnx(changed, exported.path)


def test_a_missing_library_is_named(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"onnxruntime.*pip install 'bertvision\[onnx\]'"):
        use_onnx(exported.model(), exported.path)
    with pytest.raises(ConfigError, match=r"onnxruntime.*pip install 'bertvision\[onnx\]'"):
        export_onnx(exported.model(), tmp_path / "a" / "b")
