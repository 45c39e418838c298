"""Work on scores in chunks of queries, where no fused kernel does it: memory stays bounded in the number of queries.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lab.attention.masks import Mask, rows_of, written_out
from lab.attention.recompute import recomputed

# Scores held at once: 16 MiB in float32. These stay in a CPU's cache, which makes up for computing them twice: at 1,025
# tokens a step takes 2.3 s, 3.3 s with 2**24, 2.4 s with all at once (four layers).
CHUNK_ELEMENTS = 2**22


def over_queries(work: Callable[..., Tensor], q_BHND: Tensor, k_BHMD: Tensor, mask: Mask, *more: Tensor) -> Tensor:
    """``work(q, k, mask, *more)`` for all queries; its result for one query must not depend on the others.

    With more than one chunk, nothing but the results is kept: each chunk is computed again in the backward pass.
    """
    rows = q_BHND.shape[:-2].numel() * k_BHMD.shape[-2]
    queries, step = q_BHND.shape[-2], max(1, CHUNK_ELEMENTS // max(1, rows))
    if step >= queries:
        return work(q_BHND, k_BHMD, written_out(mask), *more)
    parts = [
        recomputed(work, q_BHND[..., start : start + step, :], k_BHMD, rows_of(mask, start, start + step), *more)
        for start in range(0, queries, step)
    ]
    return torch.cat(parts, dim=-2)
