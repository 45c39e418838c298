"""Masks of attention: bool, True where a query may attend to a key, broadcastable to [B, H, N, M].

Shapes: B batch, H heads, N queries, M keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def key_counts(mask: Tensor | None, k_BHMD: Tensor) -> Tensor:
    """Counts the keys that each query may attend to, in the dtype of the keys.

    Under a causal mask each row has a count of its own; a query that may attend to nothing counts as 1.

    Returns:
        [B or 1, H or 1, N or 1, 1] under a mask, a single number without one.
    """
    keys = k_BHMD.shape[-2]
    if mask is None:
        return torch.full((), keys, dtype=k_BHMD.dtype, device=k_BHMD.device)
    # A mask may be one column for all keys, or one row for all queries.
    counts = torch.atleast_2d(mask).expand(*torch.atleast_2d(mask).shape[:-1], keys).sum(-1, keepdim=True)
    return counts.clamp_min(1).to(k_BHMD.dtype)


def rows_of(mask: Tensor | None, start: int, stop: int) -> Tensor | None:
    """Cuts the queries ``start`` to ``stop`` out of a mask."""
    if mask is None:
        return None
    mask = torch.atleast_2d(mask)
    return mask if mask.shape[-2] == 1 else mask[..., start:stop, :]


def both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Returns the mask of what two masks allow together."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def blind_rows(mask: Tensor) -> Tensor:
    """Finds the queries that may attend to nothing, [B or 1, H or 1, N or 1, 1]."""
    return ~mask.any(-1, keepdim=True)
