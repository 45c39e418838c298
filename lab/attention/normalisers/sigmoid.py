"""Sigmoid attention: each key is weighed by itself."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from lab.attention.masks import key_counts
from lab.attention.normaliser import Normaliser

Bias = Literal["log_n", "learned", "fixed"]


class Sigmoid(Normaliser):
    """w_j = sigmoid(l_j + b): a key's weight says nothing of the other keys, and a row adds up to anything.

        log_n: b = initial - log n, n the keys that a row may see, so that equal logits weigh about as under softmax
        learned: b = theta - log n, theta a head, from initial          fixed: b = initial

    Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", section 2; named
    in "softmax is not enough", section 3. A learned b is the lab's: they leave b at -log n.

    Args:
        bias: what b is.
        initial: see above.
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
