"""Entropy scaling: a first softmax determines how sharp the second one is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from lab.attention.masks import key_counts
from lab.attention.precision import at_least_float32, without_autocast
from lab.attention.row_statistics import row_concentration, row_entropy
from lab.attention.rule import Length, Tau, TemperatureRule
from lab.attention.score_variance import score_variance

Statistic = Literal["entropy", "hhi", "variance"]
Bias = Literal["constant", "linear", "log"]


class EntropyScaled(TemperatureRule):
    """softmax(t q k^T / tau) with t computed from a statistic S of each row of softmax(q k^T / tau).

        t = scale1 sigmoid(scale2 (S - bias)), scale1 and scale2 learned per head

        entropy: S = -sum p log p, in nats    hhi: S = sum p^2    variance: S = Var(q k^T / tau) over the row
        constant: bias = b    linear: bias = b + log M (n - 1) / (M - 1)    log: bias = b + log n

    b is learned per head and 0 at the start. n is the number of keys that a row may attend to, and M the trained
    length. In a causal sequence of this length, bias - b goes from 0 to log M over the rows, under "linear" and "log".
    t is an inverse temperature. Gradients flow through S.

    Source: "Introducing a learnable temperature value", section "What didn't work"
    (sigmoid-entropy-scaling-corrected-bias-.3-scales), which does not say which variance is meant.

    Args:
        statistic: S.
        bias: form of the bias that S is compared with; linear and log are entropies.
        scale1: its value at the start.
        scale2: its value at the start.
        trained_length: M, for bias "linear"; None is the number of keys the model is made for.

    Raises:
        ValueError: if bias is "linear" or "log" (an entropy) and statistic is not "entropy", or if a trained length is
            given for a bias that does not use one.
    """

    couples_queries = False

    def __init__(
        self,
        heads: int,
        head_dim: int,
        tau: Tau | None = None,
        statistic: Statistic = "entropy",
        bias: Bias = "constant",
        scale1: float = 0.3,
        scale2: float = 0.3,
        trained_length: Length | None = None,
    ) -> None:
        super().__init__(heads, head_dim, tau)
        if bias != "linear" and trained_length is not None:
            raise ValueError(f"softmax.bias={bias} does not use a trained length: leave softmax.trained_length out")
        self.trained_length = trained_length
        if statistic != "entropy" and bias != "constant":
            raise ValueError(
                f"softmax.bias={bias} is an entropy of n keys, but softmax.statistic={statistic} is not an "
                "entropy: take softmax.bias=constant with it"
            )
        self.statistic: Statistic = statistic
        self.bias: Bias = bias
        self.assumes_softmax = statistic != "variance"
        self.scale1 = nn.Parameter(torch.full((heads, 1, 1), float(scale1)))
        self.scale2 = nn.Parameter(torch.full((heads, 1, 1), float(scale2)))
        self.offset = nn.Parameter(torch.zeros(heads, 1, 1))

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        with without_autocast(q_BHND):
            q, k = at_least_float32(q_BHND, k_BHMD)
            of_row = self._statistic(q / self.tau, k, mask)
            centred = of_row - self.offset - self._ramp(k, mask)
            return self.scale1 * (self.scale2 * centred).sigmoid() / self.tau

    def _statistic(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        if self.statistic == "variance":
            return score_variance(q, k, mask)[0]
        of: Callable[..., Tensor] = row_entropy if self.statistic == "entropy" else row_concentration
        return of(q, k, mask)

    def _ramp(self, k_BHMD: Tensor, mask: Tensor | None) -> Tensor | float:
        """The part of the bias that is not learned: 0, or 0 to log M, growing with the number of keys of a row."""
        if self.bias == "constant":
            return 0.0
        n = key_counts(mask, k_BHMD)
        if self.bias == "log":
            return n.log()
        # Not the keys at hand: a token of a causal sequence must not depend on how many come after it.
        return math.log(self.length()) * (n - 1) / (self.length() - 1)

    def temperatures(self) -> dict[str, Tensor]:
        learned = {"scale1": self.scale1, "scale2": self.scale2, "bias": self.offset}
        return {**super().temperatures(), **{name: one.detach().flatten().clone() for name, one in learned.items()}}
