"""Local attention: softmax within a window."""

from __future__ import annotations

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from lab.attention.masks import both
from lab.attention.normalisers.softmax import Softmax


class Local(Softmax):
    """Softmax over the keys that are no more than ``window`` places from the query, and the first ``first`` ones.

    Queries among the first ``first`` (a CLS token) see all keys. Places are those in the sequence: patches of a picture
    are counted row by row. Where there are fewer queries than keys, the queries are the last ones; the one query of max
    retrieval so sees the last ``window`` + 1 items.

    The window is a mask to the fused kernel: it saves no time, which takes a kernel of its own.

    Source: "softmax is not enough", section 5 (local attention); Beltagy et al. 2020, "Longformer", section 3.1.

    Args:
        window: keys on each side of the query's own.
        first: tokens that see all and are seen by all.
    """

    def __init__(self, heads: int, head_dim: int, window: NonNegativeInt = 2, first: NonNegativeInt = 1) -> None:
        super().__init__(heads, head_dim)
        self.window = int(window)
        self.first = int(first)

    def allowed(self, mask: Tensor | None, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor | None:
        queries, keys = q_BHND.shape[-2], k_BHMD.shape[-2]
        of_key = torch.arange(keys, device=k_BHMD.device)
        of_query = torch.arange(keys - queries, keys, device=k_BHMD.device).unsqueeze(-1)
        near = (of_query - of_key).abs() <= self.window
        sees_all = (of_query >= 0) & (of_query < self.first)
        return both(mask, near | sees_all | (of_key < self.first))
