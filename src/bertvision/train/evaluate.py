"""One walk over the states gives the logits of any number of heads.

A head that scores starts and ends together (2 + 2r numbers a token, see `tasks/span/loss.py`) is kept twice: as it
answered (`SpanLogits.pairs`), and as marginals, which stand where another head's start and end logits stand:

        start_i = log sum_{j >= i} exp score(i, j)        end_j = log sum_{i <= j} exp score(i, j)

Their softmax over a window is the probability of a start, or of an end, under the head.

Logits stand for whole windows, whatever the heads read (states/config.py): heads that read different tokens are
decoded, saved and joined alike. A token whose states were not read is neither start nor end.

Heads of labels and scores give a row of logits a window, or one for the windows that are an example side by side
(`group`); these are walked through in batches that do not part them.

A batch of a walk is as large as the encoder likes it. A head that would take more memory for it than `activation_gb`
reads it in several parts; what a training step keeps is the measure, which evaluation stays below.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.console import progress
from bertvision.data.kept import kept_tokens
from bertvision.encoder.batch import padded_positions
from bertvision.heads.base import Head
from bertvision.shapes import Bool, Float
from bertvision.states.base import States, call_tokens
from bertvision.states.batch import StateBatch
from bertvision.states.config import Selection
from bertvision.states.plan import cut_by_tokens, group_rows
from bertvision.tasks.kinds import SPAN, SpanTask, Task
from bertvision.tasks.span.logits import SpanLogits
from bertvision.tasks.span.loss import pair_scores
from bertvision.tasks.text.logits import TextLogits
from bertvision.train.group import rows_at_once

__all__ = [
    "NOT_READ",
    "Logits",
    "logits_by_reading",
    "marginals",
    "run_in_parts",
    "span_logits",
    "task_logits",
    "text_logits",
]

Logits = SpanLogits | TextLogits

# The logit of a token no head saw. Its probability is 0 in float64 beside any logit a head gives. It is finite,
# because logits are checked for that, and sums of it (start and end, the members of a product) stay far above
# -1e38, where decoding stops to take a span for one, and above the end of float32.
NOT_READ = -1e30

_CELLS = 1 << 24  # pair scores of one chunk: 64 MB


@torch.no_grad()
def span_logits(
    states: States, heads: Mapping[str, Head], *, label: str = "evaluate", activation_gb: float = 4.0
) -> dict[str, SpanLogits]:
    """Start and end logits of every head for every token of the whole windows."""
    tokens = states.windows.num_tokens
    read: NDArray[np.int64] | None = None  # (kept tokens,) where each stands in the whole windows
    if states.kept is not states.windows:
        read = np.flatnonzero(kept_tokens(states.windows, states.selection.positions))
    logits = {name: np.full((2, tokens), NOT_READ, dtype=np.float32) for name in heads}
    pairs: dict[str, NDArray[np.float32]] = {}
    for head in heads.values():
        head.eval()
    with progress(label, len(states.windows), unit="windows") as bar:
        for batch in states.walk(reuse=True):
            flat, mask = padded_positions(states.kept, batch.windows)
            own = flat[mask] if read is None else read[flat[mask]]
            for name, head in heads.items():
                with states.encoder.autocast():
                    output = run_in_parts(head, batch, activation_gb)  # (B, T, 2), or (B, T, 2 + 2r)
                if (width := output.shape[-1]) > 2:
                    if name not in pairs:
                        pairs[name] = np.zeros((tokens, width), dtype=np.float32)
                        pairs[name][:, :2] = NOT_READ
                    pairs[name][own] = output.float()[batch.mask].cpu().numpy()
                    output = marginals(output, batch.mask)
                logits[name][:, own] = output.float()[batch.mask].T.cpu().numpy()
            bar.advance(len(batch.windows))
    return {
        name: SpanLogits(start=both[0], end=both[1], pairs=pairs.get(name)) for name, both in logits.items()
    }


@torch.no_grad()
def text_logits(
    states: States,
    heads: Mapping[str, Head],
    *,
    group: int = 1,
    label: str = "evaluate",
    activation_gb: float = 4.0,
) -> dict[str, TextLogits]:
    """The row of logits of every example's windows, of every head; rows of a text stand in the order of its windows."""
    rows = len(states.windows) // group
    found: dict[str, NDArray[np.float32]] = {}
    for head in heads.values():
        head.eval()
    with progress(label, len(states.windows), unit="windows") as bar:
        for batch in states.walk(reuse=True) if group == 1 else _walk_groups(states, group):
            own = batch.windows[::group] // group
            for name, head in heads.items():
                with states.encoder.autocast():
                    output = run_in_parts(head, batch, activation_gb).float().cpu().numpy()  # (B / group, C)
                if name not in found:
                    found[name] = np.zeros((rows, output.shape[-1]), np.float32)
                found[name][own] = output
            bar.advance(len(batch.windows))
    return {name: TextLogits(values) for name, values in found.items()}


def _walk_groups(states: States, group: int) -> Iterator[StateBatch]:
    """Every window once, those of an example side by side in one batch."""
    lengths = states.windows.lengths.reshape(-1, group).max(axis=1) * group
    budget = call_tokens(states.encoder, 0)
    return states.stream([group_rows(units, group) for units in cut_by_tokens(lengths, budget)], reuse=True)


def task_logits(
    task: Task,
    states: States,
    heads: Mapping[str, Head],
    *,
    label: str = "evaluate",
    activation_gb: float = 4.0,
) -> Mapping[str, Logits]:
    """Logits of heads for a task, in the form its answers are made from."""
    if isinstance(task, SpanTask):
        return span_logits(states, heads, label=label, activation_gb=activation_gb)
    return text_logits(states, heads, group=task.group, label=label, activation_gb=activation_gb)


def logits_by_reading(
    heads: Mapping[str, tuple[Head, Selection]],
    states_of: Callable[[Selection], States],
    *,
    label: str = "evaluate",
    task: Task = SPAN,
) -> dict[str, Any]:
    """Logits of heads that may read different states: one walk for each reading."""
    logits: dict[str, Logits] = {}
    for selection in dict.fromkeys(selection for _, selection in heads.values()):
        own = {name: head for name, (head, theirs) in heads.items() if theirs == selection}
        logits |= task_logits(task, states_of(selection), own, label=label)
    return {name: logits[name] for name in heads}


def run_in_parts(head: Head, batch: StateBatch, activation_gb: float) -> Tensor:
    """The head's output for the batch, as many windows at once as fit."""
    B, T = batch.mask.shape
    rows = B
    if B > 1 and isinstance(head, Head):  # one window cannot be cut, and a plain module is not measured
        rows = max(rows_at_once(head, T, activation_gb) // head.windows, 1) * head.windows
    if rows >= B:
        return head(batch)
    return torch.cat([head(batch.rows(slice(i, i + rows))) for i in range(0, B, rows)])


def marginals(output: Float[Tensor, "B T outputs"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T 2"]:
    """Start and end of every token over all ends and starts it may be paired with; as many windows at once as fit."""
    size = max(1, _CELLS // mask.shape[1] ** 2)
    parts: list[Tensor] = []
    for rows, real in zip(output.split(size), mask.split(size), strict=True):
        scores = pair_scores(rows, real)
        parts.append(torch.stack([scores.logsumexp(2), scores.logsumexp(1)], dim=-1))
    return torch.cat(parts)
