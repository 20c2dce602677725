"""The paper's scorer: exact match and F1 on lists of token ids, without the official normalisation.

No articles or punctuation are removed and nothing is turned back into text, so these numbers are *not*
official SQuAD scores; they exist to stand beside the paper's tables. No answer is the empty list. A list
that is exactly the null token also means no answer, and so does an end before the start.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bertvision.data.examples import SpanData
from bertvision.tasks.span_answers import SpanAnswers
from bertvision.tasks.squad import Scores, check_complete, summary, token_f1


def answer_ids(answers: SpanAnswers) -> dict[str, list[int]]:
    """Question id to the token ids of its answer as the encoder read them, [] for no answer."""
    windows, (window, first, last) = answers.windows, answers.nbest_token[:, 0].T
    begin = windows.offsets[window]
    rows = zip(answers.ids, begin + first, begin + last + 1, answers.is_null(), strict=True)
    return {key: [] if null else windows.ids[start:stop].tolist() for key, start, stop, null in rows}


def score_wordpiece(
    data: SpanData,
    predictions: Mapping[str, Sequence[int] | str],
    *,
    tokenize: Callable[[list[str]], list[list[int]]],
) -> Scores:
    """Percentages under the official keys; a prediction is a list of ids (`answer_ids`) or a text.

    `tokenize` turns texts into lists of ids without special tokens; it is called once, with all texts.
    """
    check_complete(data, predictions)
    texts = {answer.text for example in data.examples for answer in example.answers}
    texts |= {value for value in predictions.values() if isinstance(value, str)}
    known = sorted(texts - {""})
    ids = {"": []} | dict(zip(known, tokenize(known), strict=True))
    scores = []
    for example in data.examples:
        given = predictions[example.id]
        said = ids[given] if isinstance(given, str) else list(given)
        accepted = [ids[answer.text] for answer in example.answers] or [[]]
        scores.append((said in accepted, max(token_f1(gold, said) for gold in accepted)))
    exact, f1 = np.array(scores, np.float64).reshape(-1, 2).T
    return summary(exact, f1, np.array([example.answerable for example in data.examples]))
