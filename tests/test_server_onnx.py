"""`serve --backend onnx`: the graph of a package gives over HTTP what torch gives, layers and counters included."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import bertvision
from serve_cases import MOOD, save_span, save_system
from serving import Server, serving
from test_server import LONG, MILL, assert_same, plain

from bertvision.encoder.encoder import Encoder
from bertvision.model.load import load

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

INPUTS = [{"question": "Who built it?", "context": text, "n_best": 2} for text in (MILL, LONG)]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    home, encoder = tmp_path_factory.mktemp("graph"), Encoder.load(str(tiny_bert))
    save_span(home / "fit" / "qa", encoder, "learned_pooling")
    save_span(home / "fit" / "reader", encoder, "layer_reader:layer=1")
    save_system(home / "mood", encoder, "cls_linear", MOOD)
    words = ("--out", home / "pkg", "--reference", "--onnx")
    outcome = bertvision("export", home / "fit" / "qa", home / "mood", *words)
    assert outcome.code == 0, outcome.err
    return home / "pkg"


@pytest.fixture(scope="module")
def server(package: Path) -> Iterator[Server]:
    with serving(package, "--backend", "onnx") as running:
        yield running


def test_the_graph_answers_as_torch_does(server: Server, package: Path) -> None:
    torch = load(package)
    expected = [plain(torch.predict(one["question"], one["context"], n_best=2)) for one in INPUTS]
    for body, wanted in zip(INPUTS, expected, strict=True):
        assert_same(server.post("/v1/predict", body).json()["predictions"], wanted)
    mood = {"text": MILL}
    answer = server.post("/v1/predict/batch", {"inputs": [*INPUTS, mood]}).json()["results"]
    expected.append(plain(torch.predict(MILL)))
    assert_same(answer, [{"predictions": one} for one in expected])


def test_the_graph_explains_as_torch_does(server: Server, package: Path) -> None:
    torch = load(package)
    told = server.post("/v1/explain", INPUTS[1]).json()
    assert [row["layer"] for row in told["layers"]["qa"]] == [1]
    assert_same(told, torch.explain("Who built it?", LONG, n_best=2))
    assert_same(server.post("/v1/explain", {"text": MILL}).json(), torch.explain(MILL))


def test_a_folder_without_a_graph_is_told_how_to_get_one(package: Path) -> None:
    outcome = bertvision("serve", package / "heads" / "qa", "--port", "0", "--backend", "onnx")
    assert outcome.code == 2
    assert "holds no ONNX graph: make a package of it with `bertvision export" in outcome.err
    assert outcome.err.count("\n") == 1
