"""Choose where states come from."""

import logging

from bertvision.data.windows import Windows
from bertvision.encoder.encoder import Encoder
from bertvision.feed.batches import Feed, FeedConfig
from bertvision.feed.live import LiveFeed
from bertvision.feed.memory import MemoryFeed

__all__ = ["kept_in_memory", "open_feed", "states_gb"]

logger = logging.getLogger(__name__)


def states_gb(encoder: Encoder, windows: Windows) -> float:
    """Size of all states of all windows in half precision."""
    return encoder.num_states * windows.num_tokens * encoder.hidden * 2 / 1e9


def kept_in_memory(encoder: Encoder, windows: Windows, config: FeedConfig, *, passes: int) -> bool:
    """Whether states are encoded once and kept, rounded to half precision, instead of encoded in every pass."""
    return passes > 1 and states_gb(encoder, windows) <= config.memory_gb


def open_feed(encoder: Encoder, windows: Windows, config: FeedConfig, *, label: str, passes: int = 2) -> Feed:
    """States in memory when they fit and are read more than once, else live."""
    size = states_gb(encoder, windows)
    if kept_in_memory(encoder, windows, config, passes=passes):
        logger.info("%s: keeping %.2f GB of states in memory", label, size)
        return MemoryFeed(encoder, windows, tokens_per_call=config.tokens_per_call, label=label)
    if passes > 1:
        logger.info("%s: %.2f GB of states are more than --memory-gb and encoded in every pass", label, size)
    return LiveFeed(encoder, windows, tokens_per_call=config.tokens_per_call)
