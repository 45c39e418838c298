"""Masks of attention: bool, True where a query may attend to a key, broadcastable to [B, H, N, M].

A causal mask may come as :class:`Causal`, which takes no memory and lets a fused kernel skip half of the work. A rule
or normaliser is given it only where its class says ``takes_causal``; all others get it written out as a tensor.

Shapes: B batch, H heads, N queries, M keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Causal:
    """Causal mask without a tensor: query i of N may attend to the first M - N + i + 1 of M keys.

    The queries are the last N of the M tokens, as when earlier keys come from a cache.

    Args:
        queries: their number N.
        keys: their number M.
        device: of queries and keys.
    """

    queries: int
    keys: int
    device: torch.device

    def rows(self, start: int, stop: int) -> Tensor:
        """The mask of the queries ``start`` to ``stop``, bool [stop - start, M]."""
        before = self.keys - self.queries + start
        return torch.ones(min(stop, self.queries) - start, self.keys, dtype=torch.bool, device=self.device).tril(before)


# Types of mask that attention accepts.
Mask = Tensor | Causal | None


def written_out(mask: Mask) -> Tensor | None:
    """Returns the mask as a tensor, whatever it comes as."""
    return mask.rows(0, mask.queries) if isinstance(mask, Causal) else mask


def key_counts(mask: Mask, k_BHMD: Tensor) -> Tensor:
    """Counts the keys that each query may attend to, in the dtype of the keys, float32 at least.

    Under a causal mask each row has a count of its own; a query without a key to attend to gets a count of 1.

    Returns:
        [B or 1, H or 1, N or 1, 1] under a mask, a single number without one.
    """
    keys, dtype = k_BHMD.shape[-2], torch.promote_types(k_BHMD.dtype, torch.float32)  # bfloat16 is exact only up to 256
    if mask is None:
        return torch.full((), max(keys, 1), dtype=dtype, device=k_BHMD.device)
    if isinstance(mask, Causal):
        first = mask.keys - mask.queries + 1
        counts = torch.arange(first, mask.keys + 1, dtype=dtype, device=mask.device)
        return counts.clamp_min(1).unsqueeze(-1)
    # A mask may be one column for all keys, or one row for all queries.
    counts = torch.atleast_2d(mask).expand(*torch.atleast_2d(mask).shape[:-1], keys).sum(-1, keepdim=True)
    return counts.clamp_min(1).to(dtype)


def mean_key(of_keys_BHMC: Tensor, mask: Mask) -> Tensor:
    """Mean of ``of_keys`` over the keys that each query may attend to, [B, H, N, C]; without a mask N is 1."""
    if mask is None:
        return of_keys_BHMC.mean(-2, keepdim=True)
    if isinstance(mask, Causal) and mask.queries <= mask.keys:
        return of_keys_BHMC.cumsum(-2)[..., mask.keys - mask.queries :, :] / key_counts(mask, of_keys_BHMC)
    rows = torch.atleast_2d(written_out(mask))
    allowed = rows.expand(*rows.shape[:-1], of_keys_BHMC.shape[-2]).to(of_keys_BHMC.dtype)
    return allowed @ of_keys_BHMC / key_counts(mask, of_keys_BHMC)


def rows_of(mask: Mask, start: int, stop: int) -> Tensor | None:
    """Cuts the rows of queries ``start`` to ``stop`` out of a mask; of a causal one only these rows are written out."""
    if mask is None:
        return None
    if isinstance(mask, Causal):
        return mask.rows(start, stop)
    rows = torch.atleast_2d(mask)
    return rows if rows.shape[-2] == 1 else rows[..., start:stop, :]


def both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Returns the mask of what two masks allow together."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def fully_masked_rows(mask: Tensor) -> Tensor:
    """Finds the queries that may attend to nothing, [B or 1, H or 1, N or 1, 1]."""
    return ~mask.any(-1, keepdim=True)


def forget_causal(cls: type, *methods: str) -> None:
    """Sets ``takes_causal`` to False for a class that overrides one of the methods and does not declare it itself."""
    if "takes_causal" not in vars(cls) and any(name in vars(cls) for name in methods):
        cls.takes_causal = False  # type: ignore[attr-defined]
