"""The settings of tasks that a user chooses: how texts are read and learned from, how spans are found in logits."""

import math
from dataclasses import dataclass
from typing import Literal

from bertvision.data.texts import TableConfig
from bertvision.errors import ConfigError

Merge = Literal["mean", "min", "max", "any_null"]
Decoding = Literal["google", "nbest", "bertvision"]
Merging = Literal["min", "max", "prod_max", "any_null"]

_OWN_MERGING: dict[str, Merging] = {"google": "min", "nbest": "max", "bertvision": "prod_max"}


@dataclass(frozen=True)
class TextConfig(TableConfig):
    """How texts with labels or scores are read; datasets that are known by name need none of it."""

    loss: str = "auto"
    """ce: cross-entropy; bce: one logit for two classes; mse: scores. auto: ce or mse."""
    merge: Literal["auto", "mean", "min", "max", "any_null"] = "auto"
    """How the windows of a long text become one answer: the mean of their probabilities, the least or the greatest one
    of the positive class, or any_null, the papers' vote. auto: mean, and min for answer / no answer."""

    metric: str = "auto"
    """What heads are chosen and compared by: accuracy, f1 or mcc for labels, pearson or spearman for scores. auto:
    GLUE's own for GLUE, else accuracy, and Pearson for scores."""
    positive: str = ""
    """Of two classes, the name of the positive one, whose F1 is reported and that --text.merge refers to; by default
    the rarer one."""
    balance: bool = False
    """Count all classes alike in the loss, however many windows each has."""

    @property
    def learning(self) -> "TextConfig":
        """The same without what only says how the source is read."""
        names = ("loss", "merge", "metric", "positive", "balance")
        return TextConfig(**{name: getattr(self, name) for name in names})


PLAIN = TextConfig()


@dataclass(frozen=True)
class DecodeConfig:
    """How the logits of spans become answers (span_decode.py)."""

    decoding: Decoding = "google"
    """How a window's logits become candidates: the n best valid spans, with (google) or without (nbest)
    the max-context rule, or the paper's independent argmaxes (bertvision)."""
    merging: Merging | None = None
    """How the windows of a question agree on no answer: its lowest (min) or highest (max) score over the
    windows, the highest-scoring window of all (prod_max), or no answer as soon as one window says so
    (any_null). By default that of the decoding: min for google, max for nbest, prod_max for bertvision."""
    n_best_size: int = 20
    """How many starts and ends are paired in a window, and how many candidates a question keeps."""
    max_answer_length: int = 30
    """The most tokens an answer may have; not used by bertvision decoding."""
    null_score_diff_threshold: float = 0.0
    """No answer is predicted where its score exceeds the best candidate's by more than this."""
    max_context: bool = True
    """Accept a span only from the window that shows the most context around its first token; google only."""

    def __post_init__(self) -> None:
        threshold = self.null_score_diff_threshold
        if self.n_best_size < 1:
            raise ConfigError(f"--n-best-size must be at least 1, not {self.n_best_size}")
        if self.max_answer_length < 1:
            raise ConfigError(f"--max-answer-length must be at least 1 token, not {self.max_answer_length}")
        if not math.isfinite(threshold):
            raise ConfigError(f"--null-score-diff-threshold must be a finite number, not {threshold}")

    @property
    def resolved_merging(self) -> Merging:
        return self.merging or _OWN_MERGING[self.decoding]
