"""Hidden states: encoded in every pass, kept in memory, or stored on disk."""
