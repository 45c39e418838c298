"""Masks of attention: bool, True where a query may attend to a key, broadcastable to [B, H, N, M].

Shapes: B batch, H heads, N queries, M keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def key_counts(mask: Tensor | None, k_BHMD: Tensor) -> Tensor:
    """Counts the keys that each query may attend to, in the dtype of the keys, float32 at least.

    Under a causal mask each row has a count of its own; a query that may attend to nothing counts as 1.

    Returns:
        [B or 1, H or 1, N or 1, 1] under a mask, a single number without one.
    """
    keys, dtype = k_BHMD.shape[-2], torch.promote_types(k_BHMD.dtype, torch.float32)  # 16 bit count no further than 256
    if mask is None:
        return torch.full((), keys, dtype=dtype, device=k_BHMD.device)
    # A mask may be one column for all keys, or one row for all queries.
    counts = torch.atleast_2d(mask).expand(*torch.atleast_2d(mask).shape[:-1], keys).sum(-1, keepdim=True)
    return counts.clamp_min(1).to(dtype)


def mean_key(of_keys_BHMC: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of what belongs to a key over those that each query may attend to, [B, H, N, C]; without a mask N is 1."""
    if mask is None:
        return of_keys_BHMC.mean(-2, keepdim=True)
    mask = torch.atleast_2d(mask)
    allowed = mask.expand(*mask.shape[:-1], of_keys_BHMC.shape[-2]).to(of_keys_BHMC.dtype)
    return allowed @ of_keys_BHMC / key_counts(mask, of_keys_BHMC)


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
