"""Sparsemax: the point of the simplex nearest to the logits; on a face of the simplex, some keys have no weight."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.attention.masks import fully_masked_rows
from lab.attention.normaliser import Normaliser


class Sparsemax(Normaliser):
    """w_j = max(l_j - t, 0), t such that a row adds up to one: the projection of the logits onto the simplex.

    The keys that have weight (the support) are found by sorting. Over them, t = (sum l - 1) / (their number), and the
    gradient goes through this formula. The package entmax computes the same, but does not work under
    ``torch.func.vmap``, which ``seeds=`` needs; tests compare the two implementations.

    Source: Martins and Astudillo 2016, "From Softmax to Sparsemax", Algorithm 1.
    """

    total = "one"
    shift_invariant = True
    couples_queries = False

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        x = below_largest(logits_BHNM, mask)
        ranked, ranks = ranked_logits(x)
        size = (ranks * ranked > ranked.cumsum(-1) - 1).sum(-1, keepdim=True)
        support = x >= ranked.gather(-1, size - 1)
        threshold = (torch.where(support, x, 0.0).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
        return seen((x - threshold).clamp_min(0), mask)


def below_largest(logits_BHNM: Tensor, mask: Tensor | None) -> Tensor:
    """Logits minus the largest of their row, clamped at -4: no lower one has weight, and masked ones become finite."""
    logits = logits_BHNM if mask is None else logits_BHNM.masked_fill(fully_masked_rows(mask), 0.0)
    return (logits - logits.detach().amax(-1, keepdim=True)).clamp_min(-4.0)


def ranked_logits(x_BHNM: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of a row from the largest to the smallest, detached, and their ranks 1 to M."""
    ranked = x_BHNM.detach().sort(dim=-1, descending=True).values
    return ranked, torch.arange(1, x_BHNM.shape[-1] + 1, dtype=x_BHNM.dtype, device=x_BHNM.device)


def seen(weights_BHNM: Tensor, mask: Tensor | None) -> Tensor:
    """The weights, 0 for a query that may attend to nothing."""
    return weights_BHNM if mask is None else weights_BHNM.masked_fill(fully_masked_rows(mask), 0.0)
