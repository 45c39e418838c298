"""Private functions of PyTorch that attention calls, each behind one of ours with a test."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_backward(grad_weights: Tensor, weights: Tensor) -> Tensor:
    """Gradient of the logits from that of ``weights = softmax(logits, -1)``, in the precision of the weights.

    In one pass, where the formula w (g - sum g w) takes three.
    """
    return torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
