"""Entropy matching: a row of Gaussian logits is as sharp as at the trained length, however many keys there are."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from lab.attention.masks import key_counts
from lab.attention.precision import at_least_float32, without_autocast
from lab.attention.rule import Length, Tau, TemperatureRule
from lab.attention.score_variance import rounding_variance, score_variance

Anchor = Literal["entropy", "share"]

# The least f^2: a row that would have to be less sharp than uniform becomes all but uniform.
_LEAST = 1e-4


class EntropyMatched(TemperatureRule):
    """softmax(f q k^T / tau) with the f that gives a row of n keys the entropy it would have at the trained length T.

    The entropy of n Gaussian logits of standard deviation u is H(n) = log n - u^2 / 2, as long as u < sqrt(2 log n).
    Scaled by f, they have

        entropy: H(n) = H(T)                    where f^2 = 1 + 2 log(n / T) / u^2,
        share:   H(n) / log n = H(T) / log T    where f^2 = log n / log T,

    with u the standard deviation of the row's own q k^T / tau; n is counted row by row from the mask. f is 1 at n = T;
    with "entropy" it tends to 1 where a row is sharp already, and gradients flow through u. Rows of fewer keys than T
    are flattened; with "entropy" they become all but uniform where log T - u^2 / 2 is more than log n, so causal masks
    call for "share". A row without spread stays as it is. The formula is an approximation: N(0, 1) logits have 2.8 nats
    at 25 keys and 6.4 at 1,000; with T = 25 they have 3.5 at 1,000, not 2.8. A row with a winner gets sharper instead:
    one logit of 2 among zeros has 2.4 nats at T = 16 keys, 0.2 at 32 and 0.0 at 100, since u falls as n grows.

    Source: "Softmax attention is a fluke", "Sequence-Length Dependent Temperature", after Jin et al. 2023, whose
    sqrt(log_T n) is "share".

    Args:
        anchor: what keeps its value at the trained length: the "entropy", or its "share" of the largest one, log n.
        trained_length: T; None is the number of keys the model is made for: its tokens, or the largest set it is
            trained on.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        tau: Tau | None = None,
        anchor: Anchor = "entropy",
        trained_length: Length | None = None,
    ) -> None:
        super().__init__(heads, head_dim, tau)
        self.anchor: Anchor = anchor
        self.trained_length = trained_length

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        n = key_counts(mask, k_BHMD)
        if self.anchor == "share":
            return (n.log() / math.log(self.length())).sqrt() / self.tau
        with without_autocast(q_BHND):
            q, k = at_least_float32(q_BHND, k_BHMD)
            variance, _ = score_variance(q, k, mask)
            spread = variance > rounding_variance(q, k, mask)
            # Below this, the square of 1 / u^2, which is part of its gradient, would overflow.
            least = torch.finfo(variance.dtype).max ** -0.4
            squared = torch.where(spread, variance / self.tau.square(), 1.0).clamp_min(least)
            gained = 2 * (n / self.length()).log() / squared  # 0 at the trained length, exactly
            factor = torch.where(spread, (1 + gained).clamp_min(_LEAST), 1.0).sqrt()
            return factor / self.tau
