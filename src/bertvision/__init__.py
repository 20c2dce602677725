"""Tiny heads on all hidden states of a text encoder.

    import bertvision as bv
    model = bv.load("runs/demo")
    print(model.predict("Who built it?", "The mill was built by Ada Holt in 1871.").text)

Nothing heavy is imported before it is used.
"""

from typing import TYPE_CHECKING, Any

from bertvision._version import __version__

if TYPE_CHECKING:
    from bertvision import heads
    from bertvision.data.examples import SpanData
    from bertvision.data.load import load_span_data as load_data
    from bertvision.encoder.encoder import Encoder
    from bertvision.errors import BertvisionError
    from bertvision.serve.predictor import Prediction, Predictor, load
    from bertvision.train.api import fit

__all__ = [
    "BertvisionError",
    "Encoder",
    "Prediction",
    "Predictor",
    "SpanData",
    "__version__",
    "fit",
    "heads",
    "load",
    "load_data",
]

_WHERE = {
    "BertvisionError": "bertvision.errors",
    "Encoder": "bertvision.encoder.encoder",
    "Prediction": "bertvision.serve.predictor",
    "Predictor": "bertvision.serve.predictor",
    "SpanData": "bertvision.data.examples",
    "fit": "bertvision.train.api",
    "load": "bertvision.serve.predictor",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "heads":
        return importlib.import_module("bertvision.heads")
    if name == "load_data":
        return importlib.import_module("bertvision.data.load").load_span_data
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'bertvision' has no attribute {name!r}")
