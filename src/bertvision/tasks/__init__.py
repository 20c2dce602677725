"""Tasks: what is to be learned and what logits mean; the only room that knows one kind of task from another.

`base.py` says what the library asks of a task. A kind is one file and one line here. Losses need torch, which is
imported when one is computed.
"""

from bertvision.tasks import label, score, span, triplet

__all__ = ["AnyPrediction", "label", "score", "span", "triplet"]

AnyPrediction = span.Prediction | label.LabelPrediction | score.ScorePrediction
