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
    """softmax(f(n) q k^T / tau), n the number of keys that a query may attend to, counted row by row from the mask.

        log_n: f = log n          sqrt_log_ratio: f = sqrt(log n / log T)
        learned: f = s log n / log T + b, s and b learned per head; s starts at 1 and b at 0

    T is the trained length: at n = T the last two forms leave softmax as it is ("learned" at its start). Under softmax,
    a single key has the weight 1 whatever f is. Under a normaliser with a sink, f counts at n = 1, too, where it is 0
    in the first two forms.

    Source: Chiang & Cholak 2022 (log_n; "softmax is not enough", section 3); Jin et al. 2023 (sqrt_log_ratio); scalable
    softmax, Nakanishi 2025, whose s is s / log T here ("Softmax attention is a fluke", proposal 1: learned, or by an
    equation).

    Args:
        form: form of f.
        trained_length: T; None is the number of keys the model is made for: its tokens, or the largest set it is
            trained on.

    Raises:
        ValueError: if a trained length is given for log_n, which does not use one.
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
            raise ValueError("softmax.form=log_n does not use a trained length: leave softmax.trained_length out")
        self.form: Form = form
        self.trained_length = trained_length
        learned = form == "learned"
        self.scale = nn.Parameter(torch.ones(heads, 1, 1)) if learned else None
        self.bias = nn.Parameter(torch.zeros(heads, 1, 1)) if learned else None

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.factor(key_counts(mask, k_BHMD)) / self.tau

    def factor(self, n: Tensor) -> Tensor:
        """f of ``n`` keys; in the form "learned", ``n`` is broadcast with [H, 1, 1]."""
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
