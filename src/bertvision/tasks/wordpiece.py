"""The paper's scorer: exact match and F1 on lists of token ids, without the official normalisation.

No articles or punctuation are removed and nothing is turned back into text, so these numbers are *not*
official SQuAD scores; they exist to stand beside the paper's tables. No answer is the empty list. A list
that is exactly the null token also means no answer, and so does an end before the start.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import SpanData
from bertvision.errors import DataError
from bertvision.tasks.span_answers import SpanAnswers
from bertvision.tasks.squad import Scores, summary, token_f1

Tokenize = Callable[[list[str]], list[list[int]]]


def answer_ids(answers: SpanAnswers, *, threshold: float | None = None) -> dict[str, list[int]]:
    """Question id to the token ids of its answer as the encoder read them, [] for no answer."""
    windows = answers.windows
    begin = windows.offsets[answers.nbest_token[:, 0, 0]]
    first = (begin + answers.nbest_token[:, 0, 1]).tolist()
    last = (begin + answers.nbest_token[:, 0, 2]).tolist()
    null = answers.is_null(threshold).tolist()
    return {
        key: [] if null[q] else windows.ids[first[q] : last[q] + 1].tolist()
        for q, key in enumerate(answers.ids)
    }


def wordpiece_per_question(
    data: SpanData, predictions: Mapping[str, Sequence[int]], *, tokenize: Tokenize
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(Q,) exact match and (Q,) F1 of token lists, each the best over the accepted answers.

    `tokenize` turns texts into lists of ids without special tokens; it is called once, with all answers.
    """
    missing = [example.id for example in data.examples if example.id not in predictions]
    if missing:
        raise DataError(f"the predictions lack {len(missing)} questions of {data.name}, first {missing[0]!r}")
    texts = list({answer.text: None for example in data.examples for answer in example.answers})
    ids = dict(zip(texts, tokenize(texts) if texts else [], strict=True))
    exact, f1 = np.zeros(len(data)), np.zeros(len(data))
    for q, example in enumerate(data.examples):
        said = list(predictions[example.id])
        accepted = [ids[answer.text] for answer in example.answers] or [[]]
        exact[q] = said in accepted
        f1[q] = max(token_f1(gold, said) for gold in accepted)
    return exact, f1


def score_wordpiece(
    data: SpanData, predictions: Mapping[str, Sequence[int] | str], *, tokenize: Tokenize
) -> Scores:
    """Percentages under the official keys; a prediction is a list of ids (`answer_ids`) or a text."""
    texts = [value for value in predictions.values() if isinstance(value, str) and value]
    ids = dict(zip(texts, tokenize(texts) if texts else [], strict=True))
    lists = {
        key: (ids[value] if value else []) if isinstance(value, str) else value
        for key, value in predictions.items()
    }
    exact, f1 = wordpiece_per_question(data, lists, tokenize=tokenize)
    return summary(exact, f1, np.array([example.answerable for example in data.examples]))
