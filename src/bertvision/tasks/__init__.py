"""Tasks: what is to be learned and what logits mean; the only room that knows one kind of task from another.

`base.py` says what the library asks of a task. Kinds register themselves when this room is imported. Losses need torch,
which is imported when one is computed.
"""

from bertvision.tasks import label_score, span, triplet

__all__ = ["AnyPrediction", "label_score", "span", "triplet"]

AnyPrediction = span.Prediction | label_score.LabelPrediction | label_score.ScorePrediction
