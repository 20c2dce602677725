"""One walk over a feed gives the logits of any number of heads."""

from collections.abc import Mapping

import numpy as np
import torch

from bertvision.console import progress
from bertvision.encoder.batch import padded_positions
from bertvision.feed.batches import Feed
from bertvision.heads.base import Head, run_head
from bertvision.tasks.span.logits import SpanLogits

__all__ = ["span_logits"]


@torch.no_grad()
def span_logits(feed: Feed, heads: Mapping[str, Head], *, label: str = "evaluate") -> dict[str, SpanLogits]:
    """Start and end logits of every head for every real token of the feed."""
    tokens = feed.windows.num_tokens
    logits = {name: np.empty((2, tokens), dtype=np.float32) for name in heads}
    for head in heads.values():
        head.eval()
    with progress(label, len(feed.windows), unit="windows") as bar:
        for batch in feed.walk():
            flat, mask = padded_positions(feed.windows, batch.windows)
            for name, head in heads.items():
                with feed.encoder.autocast():
                    output = run_head(head, batch)  # (B, T, 2)
                logits[name][:, flat[mask]] = output.float()[batch.mask].T.cpu().numpy()
            bar.advance(len(batch.windows))
    return {name: SpanLogits(start=both[0], end=both[1]) for name, both in logits.items()}
