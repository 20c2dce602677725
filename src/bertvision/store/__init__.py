"""Hidden states on disk: ragged shards without pads. Nothing here runs an encoder, and listing needs no torch."""
