"""Where hidden states come from: the encoder itself, or a copy in memory."""

from bertvision.feed.batches import Feed, FeedConfig, StateBatch
from bertvision.feed.live import LiveFeed
from bertvision.feed.memory import MemoryFeed
from bertvision.feed.open import kept_in_memory, open_feed

__all__ = ["Feed", "FeedConfig", "LiveFeed", "MemoryFeed", "StateBatch", "kept_in_memory", "open_feed"]
