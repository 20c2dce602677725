"""Encoder and heads as one ONNX graph: written, checked against torch, and answering in its place.

    PKG/onnx/model.onnx     inputs   input_ids, attention_mask, token_type_ids?, context?      (batch, length)
                            outputs  a head each: (batch, length, C) of spans, (batch, C) of labels and scores
    PKG/onnx/info.json      {"format": 1, "bertvision", "opset", "fingerprint": of the encoder, "max_difference",
                             "heads": {OUTPUT: hash of the head's weights}}

An output is called TASK/0 (TASK/1 ... of an ensemble's members) or TASK/layers/0 (readers of hidden states). `context`
is 1 on the paragraph's tokens; inputs no head needs are not there. Windows, decoding, merging and calibration are
bertvision's own, so texts of any length give the answers that torch gives.

Heads that read several windows side by side (pairs encoded apart) are refused, and so is any head whose outputs differ
from torch's on windows of other lengths than it was traced with.
"""

import copy
import hashlib
import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertvision._version import __version__
from bertvision.artifacts import atomic_folder, read_json, write_json
from bertvision.console import progress
from bertvision.data.cutting import make_windows, probe_template
from bertvision.data.load import load_span_data
from bertvision.data.tables import first_line
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.batch import collate, pooled_by, read_tokens
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import hash_tensors
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.heads.base import Head, bare_batch
from bertvision.model.model import Model
from bertvision.shapes import Int
from bertvision.states.plan import cut_by_tokens
from bertvision.tasks.logits import Logits, Seen
from bertvision.tasks.walk import Reader

FORMAT = 1
_OPSET = 20
_TOKENS = 256
"""Of one call, pads included; see tasks/walk.py."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "context")
_TOLERANCE = 1e-3
"""Most that an output may differ from torch's, as a share of the largest logit (of 1 at least)."""
_REAL = 12
"""Questions of the demo set that a graph is checked on."""


class Graph(nn.Module):
    """(input_ids, attention_mask, token_type_ids?, context?) -> a tensor for every head, from one encoder pass."""

    def __init__(self, encoder: Encoder, readers: Mapping[str, Reader], most_tokens: int) -> None:
        super().__init__()
        self.source, self.readers, self.most_tokens = encoder, dict(readers), most_tokens
        # Copies: tracing wants everything on a CPU in float32, and whoever holds the model goes on using it.
        self.encoder = encoder.copy().model.cpu().float().eval()
        self._heads = nn.ModuleList([copy.deepcopy(r.head).cpu().float().eval() for r in readers.values()])
        asks = any(reader.head.reads_context for reader in readers.values())
        self.inputs = [
            name for name, used in zip(_INPUTS, (1, 1, encoder.passes_types, asks), strict=True) if used
        ]

    @classmethod
    def of(cls, model: Model) -> "Graph":
        """All heads of a model, and the readers of its layers; refused what a graph of padded tokens cannot hold."""
        readers = model.readers(model.systems, layers=True)
        tokenizer = model.encoder.tokenizer
        moved = {probe_template(tokenizer, pair=pair).null for pair in (False, True)} != {0}
        for name, reader in readers.items():
            wrong, selection = "", reader.selection
            if reader.head.windows > 1 or reader.task.group > 1:
                wrong = "pairs encoded apart"
            elif moved and (selection.positions == "cls" or reader.head.cls_only):
                wrong = "a [CLS] that does not stand first"
            if wrong:
                raise _unfit(name, reader.head, f"reads {wrong}, which ONNX cannot hold")
        return cls(model.encoder, readers, max(one.windows.max_seq_length for one in model.systems.values()))

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B T"],
        token_type_ids: Int[Tensor, "B T"] | None = None,
        context: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Tensor, ...]:
        mask = attention_mask.bool()
        layers = read_tokens(self.encoder, input_ids, mask, token_type_ids)
        states = torch.stack(layers)  # (L, B, T, H)
        pooled = pooled_by(self.encoder, layers[-1])
        inside = attention_mask if context is None else context
        first = inside.argmax(1)
        # The paragraph's first token, one past its last.
        bounds = torch.stack([first, first + inside.sum(1)], dim=1)
        outputs = []
        for head, reader in zip(self._heads, self.readers.values(), strict=True):
            numbers = reader.selection.numbers(self.source.num_states)
            own = states if len(numbers) == len(layers) else torch.stack([layers[n] for n in numbers])
            seen = mask
            if reader.selection.positions == "cls":
                own, seen = own[:, :, :1], mask[:, :1]
            vector = pooled if reader.head.geometry.pooled else None
            outputs.append(head(bare_batch(own, seen, bounds=bounds, pooled=vector)))
        return tuple(outputs)

    def random_inputs(self, rows: int, tokens: int, *, seed: int) -> dict[str, Tensor]:
        """Any tokens at all; every row but the first has pads, where there is room for them."""
        draw = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, self.source.model.config.vocab_size, (rows, tokens), generator=draw)
        mask = torch.ones(rows, tokens, dtype=torch.long)
        for row in range(1, rows):
            mask[row, max(2, tokens // (row + 1)) :] = 0
        second = (torch.arange(tokens) >= tokens // 2).long() * mask
        ids = torch.where(mask.bool(), ids, self.source.pad_id)
        # A copy: one tensor for two inputs would be traced as one input.
        return dict(zip(_INPUTS, (ids, mask, second, second.clone()), strict=True))

    def real_inputs(self) -> Iterator[dict[str, Tensor]]:
        """Windows of questions of the demo set, in one padded batch and the longest of them alone."""
        longest = min(384, self.most_tokens)
        config = WindowConfig(longest, longest * 2 // 3, longest // 8)
        with _quiet():  # whether a sample's questions are cut is nobody's business
            data = load_span_data("demo:dev", max_examples=_REAL)
            windows = make_windows(data, self.source.tokenizer, config)
        for rows in (np.arange(min(8, len(windows))), np.array([windows.lengths.argmax()])):
            yield window_inputs(windows, rows, self.source.pad_id)


def window_inputs(windows: Windows, rows: NDArray[Any], pad_id: int) -> dict[str, Tensor]:
    tokens = collate(windows, rows, pad_id=pad_id, device=torch.device("cpu"))
    place = torch.arange(tokens.ids.shape[1])
    bounds = torch.from_numpy(windows.context[tokens.windows].astype(np.int64))
    inside = ((place >= bounds[:, :1]) & (place < bounds[:, 1:])).long()
    return dict(zip(_INPUTS, (tokens.ids, tokens.mask.long(), tokens.types, inside), strict=True))


def _unfit(name: str, head: Head, why: str) -> ConfigError:
    return ConfigError(f"the head {name} ({head.name}) {why}: leave it out of the package")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on missing libraries and names of axes."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def export_onnx(model: Model, path: Path) -> dict[str, Any]:
    """Write encoder, heads and readers of layers into `path` (a .onnx file), and info.json beside it.

    The folder of `path` is made anew, and only once the graph has answered as torch does. Returns the most that any
    output differed from torch's ("max_difference"), on random and on real windows, and the size of all ("bytes").
    """
    _need("onnx", "onnxscript", "onnxruntime")
    graph = Graph.of(model)
    with atomic_folder(path.parent) as temporary:
        file = temporary / path.name
        _write(graph, file)
        difference = _check(graph, file)
        size = sum(f.stat().st_size for f in temporary.iterdir())
        about = {
            "format": FORMAT,
            "bertvision": __version__,
            "opset": _OPSET,
            "fingerprint": model.encoder.fingerprint,
            "max_difference": difference,
            "heads": {name: _weights_hash(reader.head) for name, reader in graph.readers.items()},
        }
        write_json(temporary / "info.json", about)
    return {"max_difference": difference, "bytes": size}


def _write(graph: Graph, file: Path) -> None:
    """Trace the graph; where that fails, each head is tried alone, so that the one to leave out is named."""
    from torch.onnx import OnnxExporterError

    try:
        _trace(graph, file)
    except OnnxExporterError as error:
        for name, reader in graph.readers.items():
            try:
                _trace(Graph(graph.source, {name: reader}, graph.most_tokens), file)
            except OnnxExporterError:
                raise _unfit(name, reader.head, "cannot be exported to ONNX") from error
        raise OutputError(
            f"the heads cannot be exported to ONNX as one graph: {first_line(error)}"
        ) from error


def _trace(graph: Graph, file: Path) -> None:
    from torch.export import Dim

    batch, length = Dim("batch", min=1, max=1 << 16), Dim("length", min=2, max=graph.most_tokens)
    inputs = graph.random_inputs(2, min(11, graph.most_tokens - 1), seed=0)
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph,
            kwargs={name: inputs[name] for name in graph.inputs},
            dynamo=True,
            dynamic_shapes={name: {0: batch, 1: length} for name in graph.inputs},
            input_names=graph.inputs,
            output_names=list(graph.readers),
            opset_version=_OPSET,
            verbose=False,
        )
        assert program is not None
        program.save(file)


def _check(graph: Graph, file: Path) -> float:
    """The most that any output differs from torch's; one that differs too much is refused by name."""
    session, worst = _session(file), 0.0
    shapes = ((1, 2), (1, 9), (3, 24), (2, graph.most_tokens))
    cases = (graph.random_inputs(rows, tokens, seed=i) for i, (rows, tokens) in enumerate(shapes))
    for inputs in (*cases, *graph.real_inputs()):
        with torch.no_grad():
            expected = graph(**{name: inputs[name] for name in graph.inputs})
        found = _run(session, list(graph.readers), inputs)
        real = inputs["attention_mask"].bool().numpy()
        for (name, reader), ours, theirs in zip(graph.readers.items(), expected, found, strict=True):
            wanted = ours.numpy()
            if theirs.shape != wanted.shape:
                raise _unfit(name, reader.head, "gives other shapes as ONNX than in torch")
            if reader.task.unit == "token":
                wanted, theirs = wanted[real], theirs[real]
            most = float(np.abs(wanted - theirs).max(initial=0.0))
            if not most <= _TOLERANCE * max(1.0, float(np.abs(wanted).max(initial=0.0))):
                raise _unfit(name, reader.head, f"differs by {most:.3g} as ONNX from torch")
            worst = max(worst, most)
    return worst


def _weights_hash(head: Head) -> str:
    digest = hashlib.blake2b(digest_size=16)
    hash_tensors(digest, head.state_dict())
    return digest.hexdigest()


def use_onnx(model: Model, path: Path) -> None:
    """From now on `model` answers from the graph at `path`, which must be of its encoder and heads."""
    _need("onnxruntime")
    info = path.parent / "info.json"
    about = read_json(info)
    if about.get("format") != FORMAT:
        raise ArtifactError(f"{info} does not describe a graph of this version: export the package again")
    if about["fingerprint"] != model.encoder.fingerprint:
        raise ArtifactError(f"{path} was made of another encoder than {model.encoder.name}: export it again")
    for name, reader in model.readers(model.systems, layers=True).items():
        if about["heads"].get(name) != _weights_hash(reader.head):
            raise ArtifactError(f"{path} was made of another head than {name} is now: export it again")
    model.walk = partial(_walk, _session(path))


def _walk(
    session: Any, encoder: Encoder, windows: Windows, readers: Mapping[str, Reader], *, label: str = ""
) -> dict[str, Logits]:
    collectors = {name: reader.task.collector(windows) for name, reader in readers.items()}
    with progress(label, len(windows), unit="windows") if label else nullcontext() as bar:
        for call in cut_by_tokens(windows.lengths, _TOKENS):
            inputs = window_inputs(windows, call, encoder.pad_id)
            seen = Seen(windows, call, inputs["attention_mask"].bool())
            found = _run(session, list(readers), inputs)
            for collector, values in zip(collectors.values(), found, strict=True):
                collector.add(seen, torch.from_numpy(values))
            if bar is not None:
                bar.update(len(call))
    return {name: collector.logits() for name, collector in collectors.items()}


def _session(path: Path) -> Any:
    ort = importlib.import_module("onnxruntime")
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    types = [one for one in vars(state).values() if isinstance(one, type)]
    errors = tuple(one for one in types if issubclass(one, Exception))
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except errors as error:  # they have no base of their own
        raise ArtifactError(f"{path} is no ONNX graph ({first_line(error)}): export it again") from error


def _run(session: Any, names: list[str], inputs: Mapping[str, Tensor]) -> list[NDArray[Any]]:
    return session.run(names, {one.name: inputs[one.name].numpy() for one in session.get_inputs()})


def _need(*modules: str) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            way_out = "pip install 'bertvision[onnx]'"
            raise ConfigError(f"ONNX needs {module}, which is not installed: {way_out}") from error
