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
    from bertvision.data.examples import SpanData, TextData
    from bertvision.data.load import load_data
    from bertvision.encoder.encoder import Encoder
    from bertvision.errors import BertvisionError
    from bertvision.model.load import load
    from bertvision.model.model import Model
    from bertvision.pipeline.train import fit
    from bertvision.tasks.label_score import LabelPrediction, ScorePrediction
    from bertvision.tasks.span_answers import Prediction

__all__ = [
    "BertvisionError",
    "Encoder",
    "LabelPrediction",
    "Model",
    "Prediction",
    "ScorePrediction",
    "SpanData",
    "TextData",
    "__version__",
    "fit",
    "heads",
    "load",
    "load_data",
]

_WHERE = {
    "BertvisionError": "bertvision.errors",
    "Encoder": "bertvision.encoder.encoder",
    "LabelPrediction": "bertvision.tasks.label_score",
    "Model": "bertvision.model.model",
    "Prediction": "bertvision.tasks.span_answers",
    "ScorePrediction": "bertvision.tasks.label_score",
    "SpanData": "bertvision.data.examples",
    "TextData": "bertvision.data.examples",
    "fit": "bertvision.pipeline.train",
    "load": "bertvision.model.load",
    "load_data": "bertvision.data.load",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "heads":
        return importlib.import_module("bertvision.heads")
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'bertvision' has no attribute {name!r}")
