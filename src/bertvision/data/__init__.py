"""From text to windows: readers, the embedded demo set, tokenising and cutting."""

from bertvision.data.examples import Answer, Example, SpanData
from bertvision.data.load import load_span_data
from bertvision.data.squad import read_squad, write_squad
from bertvision.data.windows import WindowConfig, Windows, make_windows

__all__ = [
    "Answer",
    "Example",
    "SpanData",
    "WindowConfig",
    "Windows",
    "load_span_data",
    "make_windows",
    "read_squad",
    "write_squad",
]
