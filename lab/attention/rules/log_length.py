"""Length-dependent temperature: sharper the more keys there are."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from lab.attention.masks import key_counts
from lab.attention.rule import Length, Tau, TemperatureRule

Form = Literal["log_n", "sqrt_log_ratio", "learned"]


class LogLength(TemperatureRule):
    """softmax(f(n) q k^T / tau), n the keys that a query may attend to, counted row by row from the mask.

        log_n: f = log n          sqrt_log_ratio: f = sqrt(log n / log T)
        learned: f = s log n / log T + b, a head; s starts at 1 and b at 0

    T is the trained length, of which the last two forms leave softmax as it is (the third at its start). A single key
    has the weight 1 whatever f is, under softmax; under a sink f of the first two forms is 0 there.

    Source: Chiang & Cholak 2022 (log_n; "softmax is not enough", section 3); Jin et al. 2023 (sqrt_log_ratio); scalable
    softmax, Nakanishi 2025, whose s is s / log T here ("Softmax attention is a fluke", proposal 1: learned, or by an
    equation).

    Args:
        form: of f.
        trained_length: T; None is what the model is made for: its tokens, or the largest set it is trained on.

    Raises:
        ValueError: if a trained length is given for log_n, which knows none.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        tau: Tau | None = None,
        form: Form = "learned",
        trained_length: Length | None = None,
    ) -> None:
        super().__init__(heads, head_dim, tau)
        if form == "log_n" and trained_length is not None:
            raise ValueError("softmax.form=log_n knows no trained length: leave softmax.trained_length out")
        self.form: Form = form
        self.trained_length = trained_length
        learned = form == "learned"
        self.scale = nn.Parameter(torch.ones(heads, 1, 1)) if learned else None
        self.bias = nn.Parameter(torch.zeros(heads, 1, 1)) if learned else None

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.factor(key_counts(mask, k_BHMD)) / self.tau

    def factor(self, n: Tensor) -> Tensor:
        """f of so many keys; [H, 1, 1] with ``n`` where it is learned."""
        if self.form == "log_n":
            return n.log()
        ratio = n.log() / math.log(self.length())
        if self.scale is None or self.bias is None:
            return ratio.sqrt()
        return self.scale * ratio + self.bias

    def temperatures(self) -> dict[str, Tensor]:
        found = super().temperatures()
        if self.scale is not None and self.bias is not None:
            found |= {"scale": self.scale.detach().flatten().clone(), "bias": self.bias.detach().flatten().clone()}
        return found
