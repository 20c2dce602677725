"""What an answer was made of: `Model.explain(first, second)`, for a page or a person to look at.

Everything comes from the walk that answers, of which nothing else is kept; the dict goes into JSON as it stands.

    text        the paragraph that was read, or the text
    tokens      [{"start", "end"}] characters of the paragraph's tokens in the window that holds the best candidate of
                the first task that finds spans; [] without such a task
    tasks       by name, in the order they were asked:
      span      kind, prediction, nbest, start and end (a probability for each of `tokens`), no_answer, score_diff,
                threshold (no answer is given where score_diff exceeds it), shift and temperature (of no_answer; null:
                not calibrated), layer_weights (how much each hidden state counts, null: the head has no such weights),
                pooled_weight (how much the pooler's vector counts beside them, null: it is not one of them)
      label     kind, label, probabilities by class, layer_weights, pooled_weight
      score     kind, score, layer_weights, pooled_weight
    layers      by task, where a package holds readers of its hidden states, lowest first:
      span      layer, answer (text, start, end; of the best candidate, whatever no answer scores), probability,
                no_answer, start, end
      label     layer, probabilities
      score     layer, score

Probabilities of starts and ends are over all tokens of the window; what is missing to 1 lies on the question and on the
token that means no answer.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from bertvision.model.model import Model, Walked
    from bertvision.model.trained import Trained


def explain(model: "Model", walked: "Mapping[str, Walked]", *, text: str, n_best: int) -> dict[str, Any]:
    """The dict for one example, from the walk of each task; see the module for what it holds."""
    answers = {name: model.merged(own, name, own.logits[name]) for name, own in walked.items()}
    shown = (model.systems[name].task.shown_tokens(own) for name, own in answers.items())
    chars = next((found for found in shown if found is not None), np.zeros((0, 2), np.int32))
    tasks: dict[str, Any] = {}
    layers: dict[str, list[dict[str, Any]]] = {}
    for name, own in walked.items():
        system = model.systems[name]
        member = answers[name], system.tuning
        told = system.task.explain(member, own.logits[name], chars, n_best=n_best)
        tasks[name] = told | _layer_weights(system, model.encoder.num_states)
        if own.layers.get(name):
            readers = zip(own.layers[name].items(), model.layers[name], strict=True)
            rows = [
                {"layer": layer}
                | system.task.explain(
                    (model.merged(own, name, logits, reader.tuning), reader.tuning), logits, chars, layer=True
                )
                for (layer, logits), reader in readers
            ]
            layers[name] = sorted(rows, key=lambda row: row["layer"])
    return {
        "text": text,
        "tokens": [{"start": begin, "end": end} for begin, end in chars.tolist()],
        "tasks": tasks,
        "layers": layers,
    }


def _layer_weights(system: "Trained", num_states: int) -> dict[str, Any]:
    """How much each hidden state of the encoder counts, 0 for those the head does not read, and the pooled vector."""
    own = system.heads[0].layer_weights() if len(system.heads) == 1 else None
    if own is None:
        return {"layer_weights": None, "pooled_weight": None}
    numbers = system.selections[0].numbers(num_states)
    shares, pooled = [float(weight) for weight in own], None
    if len(shares) == len(numbers) + 1:  # one channel more, before the others
        pooled = shares.pop(0)
    weights = [0.0] * num_states
    for number, weight in zip(numbers, shares, strict=True):
        weights[number] = weight
    return {"layer_weights": weights, "pooled_weight": pooled}
