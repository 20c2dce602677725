"""Where hidden states come from: the encoder itself, a copy in memory, or a store on disk."""

from bertvision.feed.batches import Feed, FeedConfig, FeedTimes, SourceConfig, StateBatch
from bertvision.feed.live import LiveFeed
from bertvision.feed.memory import MemoryFeed
from bertvision.feed.open import choose_source, open_feed, open_states
from bertvision.feed.reading import Reading
from bertvision.feed.stored import StoredFeed

__all__ = [
    "Feed",
    "FeedConfig",
    "FeedTimes",
    "LiveFeed",
    "MemoryFeed",
    "Reading",
    "SourceConfig",
    "StateBatch",
    "StoredFeed",
    "choose_source",
    "open_feed",
    "open_states",
]
