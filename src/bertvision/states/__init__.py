"""Hidden states: encoded in every pass, kept in memory, or stored on disk.

config.py   flags: where states come from, and which of them heads read (no torch)
batch.py    StateBatch
base.py     States, implemented by live.py (live and memory) and stored.py
source.py   open_states: the source that the settings name, or the one `auto` chooses
"""
