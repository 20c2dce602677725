"""Encoder and heads as one ONNX graph: written, checked against torch, and answering in its place.

    PKG/onnx/model.onnx     inputs   input_ids, attention_mask, token_type_ids?, context?      (batch, length)
                            outputs  a head each: (batch, length, C) of spans, (batch, C) of labels and scores
    PKG/onnx/info.json      {"format": 1, "bertvision", "opset", "fingerprint": of the encoder, "max_difference",
                             "heads": {OUTPUT: hash of the head's weights}}

An output is called TASK/0 (TASK/1 ... of an ensemble's members) or TASK/layers/0 (readers of hidden states). `context`
is 1 on the paragraph's tokens, for heads that want to know; inputs no head needs are not there. The encoder runs once
for all of them. Windows, decoding, merging and calibration are not part of the graph: they are bertvision's own, so
texts of any length give the answers that torch gives.

Heads that read paragraphs alone (--states.positions context) or several windows side by side (pairs encoded apart) are
refused, and so is any head whose outputs differ from torch's on windows of other lengths than it was traced with.
"""

import hashlib
import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision._version import __version__
from bertvision.artifacts import atomic_folder, read_json, write_json
from bertvision.console import progress
from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.heads.base import Head
from bertvision.model.graph import Graph, quiet, sample_windows, window_inputs
from bertvision.model.model import Model
from bertvision.states.plan import cut_by_tokens
from bertvision.tasks.logits import Logits, Seen
from bertvision.tasks.walk import Reader

FORMAT = 1
_OPSET = 20
_TOKENS = 256
"""Of one call, pads included; see tasks/walk.py."""
_TOLERANCE = 1e-3
"""Most that an output may differ from torch's, as a share of the largest logit (of 1 at least)."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OnnxReport:
    """What was exported, and how true it is."""

    max_difference: float
    """The most that any output differed from torch's, on random and on real windows."""
    outputs: tuple[str, ...]
    bytes: int
    """Size of the graph with its weights."""


# ---- writing


def export_onnx(model: Model, path: Path) -> OnnxReport:
    """Write encoder, heads and readers of layers into `path` (a .onnx file), and info.json beside it.

    The folder of `path` is made anew, and only once the graph has answered as torch does.
    """
    _need("onnx", "onnxscript", "onnxruntime")
    graph = Graph(model)
    with atomic_folder(path.parent) as temporary:
        file = temporary / path.name
        _write(graph, file)
        differences = _check(graph, file)
        report = OnnxReport(
            max(differences.values()), tuple(graph.names), sum(f.stat().st_size for f in temporary.iterdir())
        )
        about = {
            "format": FORMAT,
            "bertvision": __version__,
            "opset": _OPSET,
            "fingerprint": model.encoder.fingerprint,
            "max_difference": report.max_difference,
            "heads": {name: weights_hash(head) for name, head in graph.heads.items()},
        }
        write_json(temporary / "info.json", about)
    return report


def _write(graph: Graph, file: Path) -> None:
    """Trace the graph; where that fails, each head is tried alone, so that the one to leave out is named."""
    from torch.onnx import OnnxExporterError

    try:
        _trace(graph, file)
    except OnnxExporterError as error:
        for name in graph.names:
            try:
                _trace(graph.only(name), file)
            except OnnxExporterError:
                raise ConfigError(
                    f"{graph.called(name)} cannot be exported to ONNX: leave it out of the package"
                ) from error
        raise OutputError(f"the heads cannot be exported to ONNX as one graph: {_line(error)}") from error


def _trace(graph: Graph, file: Path) -> None:
    from torch.export import Dim

    batch, length = Dim("batch", min=1, max=1 << 16), Dim("length", min=2, max=graph.most_tokens)
    shapes = {name: {0: batch, 1: length} for name in graph.inputs}
    with _silence(), torch.no_grad():
        program = torch.onnx.export(
            graph,
            kwargs=graph.random_inputs(2, min(11, graph.most_tokens - 1), seed=0),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(graph.inputs),
            output_names=list(graph.names),
            opset_version=_OPSET,
            verbose=False,
        )
        assert program is not None
        program.save(file)


@contextmanager
def _silence() -> Iterator[None]:
    """Without the exporter's notes on libraries that are not installed and on names of axes."""
    with quiet("torch.onnx", "torch.__trace", "onnxscript", "onnx_ir"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _check(graph: Graph, file: Path) -> dict[str, float]:
    """By output the most it differs from torch's; one that differs too much is refused by name."""
    session = _session(file)
    worst = dict.fromkeys(graph.names, 0.0)
    cases = [
        graph.random_inputs(rows, tokens, seed=i)
        for i, (rows, tokens) in enumerate(((1, 2), (1, 9), (3, 24), (2, graph.most_tokens)))
    ]
    for inputs in (*cases, *sample_windows(graph)):
        with torch.no_grad():
            expected = graph(**inputs)
        found = _outputs(session, list(graph.names), {name: one.numpy() for name, one in inputs.items()})
        real = inputs["attention_mask"].bool().numpy()
        for name, ours, theirs in zip(graph.names, expected, found, strict=True):
            wanted = ours.numpy()
            if theirs.shape != wanted.shape:
                raise ConfigError(
                    f"{graph.called(name)} gives other shapes as ONNX than in torch: leave it out of the package"
                )
            apart = np.abs(wanted - theirs)
            wanted = wanted[real] if graph.of_tokens(name) else wanted
            most = float((apart[real] if graph.of_tokens(name) else apart).max(initial=0.0))
            if not most <= _TOLERANCE * max(1.0, float(np.abs(wanted).max(initial=0.0))):
                raise ConfigError(
                    f"{graph.called(name)} differs by {most:.3g} as ONNX from torch: leave it out of the package"
                )
            worst[name] = max(worst[name], most)
    return worst


def weights_hash(head: Head) -> str:
    """Of a head's weights, wherever they lie."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in head.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


# ---- answering


def use_onnx(model: Model, path: Path) -> None:
    """From now on `model` answers from the graph at `path`, which must be of its encoder and heads."""
    _need("onnxruntime")
    info = path.parent / "info.json"
    if not path.is_file() or not info.is_file():
        raise ArtifactError(f"{path.parent} holds no ONNX graph: export the package with --onnx")
    about = read_json(info)
    if not isinstance(about, Mapping) or about.get("format") != FORMAT:
        raise ArtifactError(f"{info} does not describe a graph of this version: export the package again")
    if about.get("fingerprint") != model.encoder.fingerprint:
        raise ArtifactError(f"{path} was made of another encoder than {model.encoder.name}: export it again")
    known = about.get("heads")
    if not isinstance(known, Mapping):
        raise ArtifactError(
            f"{info} does not say of which heads the graph was made: export the package again"
        )
    for name, reader in model.readers(layers=True).items():
        if known.get(name) != weights_hash(reader.head):
            raise ArtifactError(f"{path} was made of another head than {name} is now: export it again")
    model.walk = OnnxWalk(path)


class OnnxWalk:
    """Does what `walk_windows` does, with onnxruntime."""

    def __init__(self, path: Path) -> None:
        self._session = _session(path)
        self._inputs = [one.name for one in self._session.get_inputs()]

    def __call__(
        self,
        encoder: Encoder,
        windows: Windows,
        readers: Mapping[str, Reader],
        *,
        label: str = "",
    ) -> dict[str, Logits]:
        collectors = {name: reader.task.collector(windows) for name, reader in readers.items()}
        with progress(label, len(windows), unit="windows") if label else nullcontext() as bar:
            for call in cut_by_tokens(windows.lengths, _TOKENS):
                tokens = collate(windows, call, pad_id=encoder.pad_id, device=torch.device("cpu"))
                inputs = window_inputs(tokens, windows, self._inputs)
                found = _outputs(self._session, list(readers), {k: one.numpy() for k, one in inputs.items()})
                seen = Seen(windows, call, tokens.mask)
                for collector, values in zip(collectors.values(), found, strict=True):
                    collector.add(seen, torch.from_numpy(values))
                if bar is not None:
                    bar.update(len(call))
        return {name: collector.logits() for name, collector in collectors.items()}


def _session(path: Path) -> Any:
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except _troubles() as error:
        raise ArtifactError(
            f"{path} cannot be read as an ONNX graph ({_line(error)}): export it again"
        ) from error


def _outputs(session: Any, names: list[str], inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    try:
        return session.run(names, inputs)
    except _troubles() as error:
        rows, tokens = inputs["input_ids"].shape
        raise ArtifactError(
            f"the ONNX graph cannot read {rows} windows of {tokens} tokens ({_line(error)}): use torch, or leave out "
            "the head that reads only as many as it was exported with"
        ) from error


def _troubles() -> tuple[type[Exception], ...]:
    """The errors of onnxruntime, which have no base of their own."""
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    return tuple(one for one in vars(state).values() if isinstance(one, type) and issubclass(one, Exception))


def _need(*modules: str) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"ONNX needs {module}, which is not installed: pip install 'bertvision[onnx]'"
            ) from error


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
