"""Signed attention ("cog attention"): a softmax of absolute logits, multiplied by their signs."""

from __future__ import annotations

from torch import Tensor

from lab.attention.normaliser import Normaliser
from lab.attention.normalisers.softmax import softmax


class Signed(Normaliser):
    """w_j = sign(l_j) exp(|l_j|) / sum_i exp(|l_i|): weights may be negative, and their absolute values add up to one.

    sign(0) = 0, so that a logit of 0 has no weight, but counts in the sum.

    Source: Lv et al. 2024, "More Expressive Attention with Negative Weights"; one of the ways out of the "convex
    cage" of "Softmax attention is a fluke".
    """

    shift_invariant = False
    couples_queries = False

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return logits_BHNM.sign() * softmax(logits_BHNM.abs(), None)
        sizes = logits_BHNM.abs().masked_fill(~mask, float("-inf"))
        return logits_BHNM.masked_fill(~mask, 0.0).sign() * softmax(sizes, mask)
