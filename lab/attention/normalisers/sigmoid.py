"""Sigmoid attention: each key is weighted by itself."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from lab.attention.masks import key_counts
from lab.attention.normaliser import Normaliser

Bias = Literal["log_n", "learned", "fixed"]


class Sigmoid(Normaliser):
    """w_j = sigmoid(l_j + b): a key's weight does not depend on the other logits, and a row may have any sum.

        log_n: b = initial - log n, n the number of keys that a row may see, so that equal logits get about the weights
            of softmax
        learned: b = theta - log n, theta learned per head, initial at the start          fixed: b = initial

    Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", section 2; named
    in "softmax is not enough", section 5. The learned b is an addition of the lab: the source keeps b at -log n.

    Args:
        bias: form of b, see above.
        initial: constant in b, or theta at the start, see above.
    """

    shift_invariant = False
    couples_queries = False

    def __init__(self, heads: int, head_dim: int, bias: Bias = "log_n", initial: float = 0.0) -> None:
        super().__init__(heads, head_dim)
        self.bias: Bias = bias
        self.initial = float(initial)
        self.theta = nn.Parameter(torch.full((heads, 1, 1), self.initial)) if bias == "learned" else None

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        start = self.initial if self.theta is None else self.theta.to(logits_BHNM.dtype)
        if self.bias == "fixed":
            return (logits_BHNM + start).sigmoid()
        return (logits_BHNM + (start - key_counts(mask, logits_BHNM.transpose(-2, -1)).log())).sigmoid()

    def quantities(self) -> dict[str, Tensor]:
        return {} if self.theta is None else {"sigmoid_bias": self.theta.detach().flatten().clone()}
