"""Statistics of each query's row of scores q k^T, taken from the scores themselves, chunk by chunk.

Shapes: B batch, H heads, N queries, M keys, D head dimension. ``mask`` is as in
:func:`lab.attention.functional.attend`; a query that may attend to nothing has a gradient of 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.attention.chunks import over_queries
from lab.attention.masks import fully_masked_rows


def row_entropy(q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Entropy in nats of each row of softmax(q k^T), [B, H, N, 1]."""
    return over_queries(_entropy, q_BHND, k_BHMD, mask)


def row_concentration(q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sum of squared weights of each row of softmax(q k^T), the Herfindahl-Hirschman index, [B, H, N, 1]."""
    return over_queries(_concentration, q_BHND, k_BHMD, mask)


def row_extremes(q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Largest and smallest score of each row, [B, H, N, 2]; -inf and inf in a row without keys."""
    return over_queries(_extremes, q_BHND, k_BHMD, mask)


def row_absolute_deviation(
    q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None, centre: Tensor | None = None
) -> Tensor:
    """Mean absolute deviation [B, H, N, 1] of each row's scores from their mean, or from ``centre`` [B, H, 1, 1]."""
    more = () if centre is None else (centre,)
    return over_queries(_absolute_deviation, q_BHND, k_BHMD, mask, *more)


def _logits(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores twice: with -inf, and with 0, where a query may not attend."""
    scores = q @ k.transpose(-2, -1)
    if mask is None:
        return scores, scores
    # In a row of nothing but -inf, softmax would have a gradient of NaN.
    zeroed = scores.masked_fill(~mask, 0.0)
    return scores.masked_fill(~mask, float("-inf")).masked_fill(fully_masked_rows(mask), 0.0), zeroed


def _entropy(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    logits, zeroed = _logits(q, k, mask)
    return logits.logsumexp(-1, keepdim=True) - (logits.softmax(-1) * zeroed).sum(-1, keepdim=True)


def _concentration(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    logits, _ = _logits(q, k, mask)
    return logits.softmax(-1).square().sum(-1, keepdim=True)


def _extremes(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    high = low = q @ k.transpose(-2, -1)
    if mask is not None:
        high, low = high.masked_fill(~mask, float("-inf")), low.masked_fill(~mask, float("inf"))
    return torch.cat([high.amax(-1, keepdim=True), low.amin(-1, keepdim=True)], -1)


def _absolute_deviation(q: Tensor, k: Tensor, mask: Tensor | None, *centre: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    middle = centre[0] if centre else _mean_of(scores, mask)
    return _mean_of((scores - middle).abs(), mask)


def _mean_of(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores.mean(-1, keepdim=True)
    count = mask.expand_as(scores).sum(-1, keepdim=True).clamp_min(1)
    return scores.masked_fill(~mask, 0.0).sum(-1, keepdim=True) / count
