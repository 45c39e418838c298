"""1.5-entmax, half way between softmax and sparsemax."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.attention.normaliser import Normaliser
from lab.attention.normalisers.sparsemax import below_largest, ranked_logits, seen


class Entmax(Normaliser):
    """w_j = max(l_j / 2 - t, 0)^2, t such that a row adds up to one: sparse, and smooth where a key drops out.

    Over the k keys that have weight, with mean m and sum of squared deviations S of l / 2,

        t = m - sqrt((1 - S) / k),

    and the gradient goes through this formula. The package entmax computes the same, but does not work under
    ``torch.func.vmap``.

    Source: Peters et al. 2019, "Sparse Sequence-to-Sequence Models", section 4.2 (alpha = 1.5), Algorithm 2.
    """

    total = "one"
    shift_invariant = True
    couples_queries = False

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        x = below_largest(logits_BHNM, mask) / 2
        ranked, ranks = ranked_logits(x)
        mean = ranked.cumsum(-1) / ranks
        left = 1 - (ranked.square().cumsum(-1) - ranks * mean.square())
        size = (mean - (left / ranks).clamp_min(0).sqrt() <= ranked).sum(-1, keepdim=True)
        support = x >= ranked.gather(-1, size - 1)
        return seen((x - _threshold(x, support)).clamp_min(0).square(), mask)


def _threshold(x_BHNM: Tensor, support: Tensor) -> Tensor:
    k = support.sum(-1, keepdim=True)
    mean = torch.where(support, x_BHNM, 0.0).sum(-1, keepdim=True) / k
    squares = torch.where(support, x_BHNM - mean, 0.0).square().sum(-1, keepdim=True)
    # The slope of the root at 0 is infinite; a radicand below eps is rounding error.
    return mean - ((1 - squares).clamp_min(torch.finfo(x_BHNM.dtype).eps) / k).sqrt()
