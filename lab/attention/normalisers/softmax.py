"""Softmax, the normaliser of plain attention."""

from __future__ import annotations

from torch import Tensor

from lab.attention import fused
from lab.attention.masks import Mask, fully_masked_rows
from lab.attention.normaliser import Normaliser, Total


class Softmax(Normaliser):
    """w_j = exp(l_j) / sum_i exp(l_i), by a fused kernel; all 0 for a query that may attend to nothing.

    Source: Vaswani et al. 2017; Eureka-moments in Transformers, equation 1.
    """

    total: Total = "one"
    is_softmax = True
    exponential = True
    takes_causal = True
    shift_invariant = True
    couples_queries = False

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        return softmax(logits_BHNM, mask)

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, mask: Mask = None) -> Tensor:
        return fused.attend(q_BHND, k_BHMD, v_BHMD, mask)


def softmax(logits_BHNM: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax of masked logits; 0 for a query that may attend to nothing."""
    if mask is None:
        return logits_BHNM.softmax(-1)
    empty = fully_masked_rows(mask)
    # Filled before the softmax too: in a row of nothing but -inf its gradient would be NaN.
    return logits_BHNM.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
