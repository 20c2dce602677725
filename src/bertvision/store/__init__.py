"""Hidden states on disk: ragged shards without pads. Nothing here runs an encoder, and listing needs no torch.

store = open_store("states/8d5a49b0d94c940417a3d75a7e7768b8")
states, scales = store.read(17)     # (tokens, L, H) of window 17
"""

from bertvision.store.store import Store, open_store

__all__ = ["Store", "open_store"]
