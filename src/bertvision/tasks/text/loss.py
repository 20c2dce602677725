"""The loss of label and score tasks, window by window.

    ce    log sum_c exp z_c - z_label
    bce   log(1 + exp z) - label * z
    mse   (y - (label - shift) / scale) ** 2

A head gives one row of logits an example; where an example is several windows side by side (`task.group`) its loss
stands at each of them, so that the mean over windows is the mean over examples. A label that is not known (-1, NaN)
costs nothing and has no gradient; with `task.weights` a class counts for more or less. Everything is computed in
float32, whatever the logits came in, and nothing depends on the values: the loss can be vmapped over stacked heads and
captured in a CUDA graph.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bertvision.shapes import Float
from bertvision.tasks.text.task import TextTask

__all__ = ["text_loss"]


def text_loss(logits: Float[Tensor, "E C"], labels: Tensor, task: TextTask) -> Float[Tensor, " B"]:
    """Loss of each window, E = B / task.group; `labels` (B, 1) are class numbers or raw scores."""
    label = labels.reshape(-1, task.group)[:, 0]  # (E,) the windows of an example agree
    known = ~torch.isnan(label) if task.loss == "mse" else label >= 0
    # Replaced before the loss, not behind it: the gradient of a NaN times zero is NaN.
    label = torch.where(known, label, torch.zeros_like(label))
    values = logits.float()
    if task.loss == "ce":
        log_probs = F.log_softmax(values, dim=-1)
        loss = -log_probs.gather(-1, label.long().unsqueeze(-1)).squeeze(-1)
    elif task.loss == "bce":
        logit = values.squeeze(-1)
        loss = F.softplus(logit) - label.float() * logit
    else:
        loss = (values.squeeze(-1) - (label.float() - task.shift) / task.scale).square()
    if task.weights:  # class by class: a tensor of them would have to be sent to the device in every step
        loss = loss * sum((label == c) * weight for c, weight in enumerate(task.weights))
    loss = loss * known
    return loss.unsqueeze(-1).expand(-1, task.group).reshape(-1)
