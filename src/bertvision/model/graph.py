"""What is exported: encoder and heads as one torch module of padded tokens, without windows and Python around it."""

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.data.cutting import make_windows
from bertvision.data.load import load_span_data
from bertvision.data.tokenise import probe_template
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.batch import TokenBatch, collate, pooled_by, read_tokens
from bertvision.encoder.captured import forget_widths
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads.base import Head, bare_batch
from bertvision.model.model import Model
from bertvision.shapes import Int
from bertvision.tasks.walk import Reader

_REAL = 12
"""Questions of the demo set that a graph is checked on."""


class Graph(nn.Module):
    """(input_ids, attention_mask, token_type_ids?, context?) -> a tensor for every head, from one encoder pass."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.source = model.encoder
        readers = model.readers(layers=True)
        for name, reader in readers.items():
            _check_reader(name, reader, self.source)
        # Copies: tracing wants everything on a CPU in float32, and whoever holds the model goes on using it.
        self.encoder = self.source.copy().model.cpu().float().eval()
        forget_widths(self.encoder)
        self._heads = nn.ModuleList([copy.deepcopy(r.head).cpu().float().eval() for r in readers.values()])
        self._readers = readers
        self.names = tuple(readers)
        used = ["input_ids", "attention_mask"]
        if self.source.passes_types:
            used.append("token_type_ids")
        if any(reader.head.reads_context for reader in readers.values()):
            used.append("context")
        self.inputs = tuple(used)
        self.most_tokens = max(system.windows.max_seq_length for system in model.systems.values())
        """No window is longer; some heads can read no more either."""

    @property
    def heads(self) -> dict[str, Head]:
        """The model's own heads by their outputs' names."""
        return {name: reader.head for name, reader in self._readers.items()}

    def only(self, name: str) -> "Graph":
        """The same with one head alone."""
        one = copy.copy(self)
        one._modules = self._modules | {"_heads": nn.ModuleList([self._heads[self.names.index(name)]])}
        one._readers, one.names = {name: self._readers[name]}, (name,)
        return one

    def called(self, name: str) -> str:
        """A head as messages name it."""
        return f"the head {name} ({self._readers[name].head.name})"

    def of_tokens(self, name: str) -> bool:
        """Whether an output has a row for every token."""
        return self._readers[name].task.unit == "token"

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
        bounds = _bounds(attention_mask if context is None else context)
        outputs = []
        for head, reader in zip(self._heads, self._readers.values(), strict=True):
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
        size = self.source.model.config.vocab_size
        ids = torch.randint(0, size, (rows, tokens), generator=draw)
        mask = torch.ones(rows, tokens, dtype=torch.long)
        for row in range(1, rows):
            mask[row, max(2, tokens // (row + 1)) :] = 0
        ids = torch.where(mask.bool(), ids, self.source.pad_id)
        place = torch.arange(tokens)
        given = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": (place >= tokens // 2).long() * mask,
            "context": (place >= tokens // 2).long() * mask,
        }
        return {name: given[name] for name in self.inputs}


def _bounds(context: Int[Tensor, "B T"]) -> Int[Tensor, "B 2"]:
    """First token of the paragraph and one past its last."""
    first = context.argmax(1)
    return torch.stack([first, first + context.sum(1)], dim=1)


def _check_reader(name: str, reader: Reader, encoder: Encoder) -> None:
    """Refuse what a graph of padded tokens cannot hold."""
    called = f"the head {name} ({reader.head.name})"
    if reader.head.windows > 1 or reader.task.group > 1:
        raise ConfigError(
            f"{called} reads pairs encoded apart, which ONNX cannot hold: leave it out of the package"
        )
    if reader.selection.positions == "context":
        raise ConfigError(
            f"{called} reads paragraphs alone (--states.positions context), which ONNX cannot hold: leave it out of "
            "the package"
        )
    first = {probe_template(encoder.tokenizer, pair=False).null, probe_template(encoder.tokenizer).null}
    if (reader.selection.positions == "cls" or reader.head.cls_only) and first != {0}:
        raise ConfigError(
            f"{called} reads a [CLS] that does not stand first, which ONNX cannot hold: leave it out of the package"
        )


def sample_windows(graph: Graph) -> Iterator[dict[str, Tensor]]:
    """Real windows: of questions of the demo set, in one padded batch and the longest of them alone."""
    encoder = graph.source
    longest = min(384, graph.most_tokens)
    config = WindowConfig(max_seq_length=longest, max_query_length=longest * 2 // 3, doc_stride=longest // 8)
    with quiet("bertvision.data.cutting"):  # whether a sample's questions are cut is nobody's business
        windows = make_windows(load_span_data("demo:dev", max_examples=_REAL), encoder.tokenizer, config)
    for rows in (np.arange(min(8, len(windows))), np.array([windows.lengths.argmax()])):
        tokens = collate(windows, rows, pad_id=encoder.pad_id, device=torch.device("cpu"))
        yield window_inputs(tokens, windows, graph.inputs)


def window_inputs(tokens: TokenBatch, windows: Windows, names: Sequence[str]) -> dict[str, Tensor]:
    """The inputs of these names for a batch of windows."""
    place = torch.arange(tokens.ids.shape[1])
    bounds = torch.from_numpy(windows.context[tokens.windows].astype(np.int64))
    given = {
        "input_ids": tokens.ids,
        "attention_mask": tokens.mask.long(),
        "token_type_ids": tokens.types,
        "context": ((place >= bounds[:, :1]) & (place < bounds[:, 1:])).long(),
    }
    return {name: given[name] for name in names}


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Without what these loggers say below an error."""
    loud = {name: logging.getLogger(name).level for name in loggers}
    for name in loud:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in loud.items():
            logging.getLogger(name).setLevel(level)
