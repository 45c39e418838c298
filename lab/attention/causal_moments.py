"""Variance of each query's scores under a causal mask, without an N x M matrix.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.attention.masks import Causal

# Queries in one chunk: only the scores between tokens of the same chunk are written out.
_CHUNK = 128


def causal_variance(q_BHND: Tensor, k_BHMD: Tensor, mask: Causal) -> Tensor:
    """Biased variance of the scores of each query with the keys that it sees, [B, H, N, 1].

    Works chunk by chunk, and carries along the mean m and the sum of squares S = sum (k - m)^T (k - m) of the n keys
    before the chunk. A query sees w keys of its own chunk; their scores q (k - m)^T have the mean u and the sum of
    squared deviations s. Then

        (n + w) Var = q S q^T + s + u^2 n w / (n + w).

    Only means are subtracted, so that float32 is enough (Chan, Golub and LeVeque 1979). Time and memory grow with
    N D (D + chunk), under autograd, too.
    """
    before = mask.keys - mask.queries
    n, mean, squares = 0, k_BHMD.new_zeros(()), k_BHMD.new_zeros(())
    if before:
        n, mean, squares = _joined(n, mean, squares, k_BHMD[..., :before, :])
    parts: list[Tensor] = []
    stop = 0
    while stop < mask.queries:  # not a range, of which torch.compile would make a graph for each number of queries
        start, stop = stop, min(stop + _CHUNK, mask.queries)
        q, k = q_BHND[..., start:stop, :], k_BHMD[..., before + start : before + stop, :]
        scores = q @ (k - mean).transpose(-2, -1)
        seen = torch.ones(stop - start, stop - start, dtype=scores.dtype, device=scores.device).tril()
        w = seen.sum(-1, keepdim=True)
        u = (scores * seen).sum(-1, keepdim=True) / w
        total = ((scores - u).square() * seen).sum(-1, keepdim=True)  # s
        if n:
            total = total + ((q @ squares) * q).sum(-1, keepdim=True) + u.square() * (n * w / (n + w))
        parts.append(total / (n + w))
        if stop < mask.queries:
            n, mean, squares = _joined(n, mean, squares, k)
    return torch.cat(parts, dim=-2)


def _joined(n: int, mean: Tensor, squares: Tensor, k: Tensor) -> tuple[int, Tensor, Tensor]:
    """Number, mean [.., 1, D] and sum of squares [.., D, D] of the first n keys and the keys ``k`` together."""
    w = k.shape[-2]
    further = k - mean
    step = further.mean(-2, keepdim=True)
    centred = further - step
    squares = squares + centred.transpose(-2, -1) @ centred + step.transpose(-2, -1) @ step * (n * w / (n + w))
    return n + w, mean + step * (w / (n + w)), squares
