"""Span question answering: loss, decoding, merging of windows, thresholds and scores.

Flow: logits (`SpanLogits`) -> `decode` -> `SpanAnswers` -> `score`; beside it `combine` for ensembles,
`best_threshold` for no answer, `paired_bootstrap` and `mcnemar` for comparisons. Only `span_loss` needs
torch, and is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

from bertvision.tasks.span.answers import SpanAnswers
from bertvision.tasks.span.compare import Difference, mcnemar, paired_bootstrap
from bertvision.tasks.span.decode import DecodeConfig, decode, second_best
from bertvision.tasks.span.ensemble import combine
from bertvision.tasks.span.files import write_answers
from bertvision.tasks.span.logits import SpanLogits
from bertvision.tasks.span.score import per_question, score
from bertvision.tasks.span.threshold import Threshold, best_threshold
from bertvision.tasks.span.wordpiece import answer_ids, score_wordpiece

if TYPE_CHECKING:
    from bertvision.tasks.span.loss import span_loss

__all__ = [
    "DecodeConfig",
    "Difference",
    "SpanAnswers",
    "SpanLogits",
    "Threshold",
    "answer_ids",
    "best_threshold",
    "combine",
    "decode",
    "mcnemar",
    "paired_bootstrap",
    "per_question",
    "score",
    "score_wordpiece",
    "second_best",
    "span_loss",
    "write_answers",
]


def __getattr__(name: str) -> Any:
    if name == "span_loss":
        from bertvision.tasks.span.loss import span_loss

        return span_loss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
