"""From text to windows: readers, the embedded demo set, tokenising and cutting."""

from bertvision.data.examples import Answer, Example, SpanData
from bertvision.data.load import Columns, load_data, load_span_data
from bertvision.data.reframe import Reframe, reframe
from bertvision.data.squad import read_squad, write_squad
from bertvision.data.texts import TextData, TextExample
from bertvision.data.windows import WindowConfig, Windows, make_windows

__all__ = [
    "Answer",
    "Columns",
    "Example",
    "Reframe",
    "SpanData",
    "TextData",
    "TextExample",
    "WindowConfig",
    "Windows",
    "load_data",
    "load_span_data",
    "make_windows",
    "read_squad",
    "reframe",
    "write_squad",
]
