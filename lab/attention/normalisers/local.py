"""Local attention: softmax within a window."""

from __future__ import annotations

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from lab.attention import gpu_paths
from lab.attention.masks import Mask, both, written_out
from lab.attention.normalisers.softmax import Softmax


class Local(Softmax):
    """Softmax over the keys that are no more than ``window`` places from the query, and the first ``first`` keys.

    Queries among the first ``first`` (a CLS token) see all keys. Places are counted in the sequence, after padding at
    its start, and in each sequence of a packed row by itself; patches of a picture are counted row by row. Where there
    are fewer queries than keys, the queries stand at the last places, or, under a mask with a row for each query, each
    at the last key that it may see. So the one query of max retrieval sees the last ``window`` + 1 items.

    The fused kernel gets the window as a mask, which limits what a query sees, but saves no time. FlexAttention skips
    blocks of 128 tokens that no window reaches; only long sequences have such blocks.

    Source: "softmax is not enough", section 5 (local attention); Beltagy et al. 2020, "Longformer", section 3.1.

    Args:
        window: keys on each side of the query's own.
        first: tokens that see all and are seen by all.
        flex: use FlexAttention on a GPU. Elsewhere it has no backward pass, so the fused kernel is used; the numbers
            are the same.
    """

    is_softmax = True  # within its mask
    takes_causal = True

    def __init__(
        self, heads: int, head_dim: int, window: NonNegativeInt = 2, first: NonNegativeInt = 1, flex: bool = False
    ) -> None:
        super().__init__(heads, head_dim)
        self.window = int(window)
        self.first = int(first)
        self.flex = bool(flex)

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, mask: Mask = None) -> Tensor:
        if self.flex and q_BHND.device.type == "cuda" and isinstance(mask, Tensor):
            return gpu_paths.by_blocks(q_BHND, k_BHMD, v_BHMD, mask)
        return super().attend(q_BHND, k_BHMD, v_BHMD, mask)

    def allowed(self, mask: Mask, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor | None:
        queries, keys = q_BHND.shape[-2], k_BHMD.shape[-2]
        of_key = torch.arange(keys, device=k_BHMD.device)
        of_query = torch.arange(keys - queries, keys, device=k_BHMD.device).unsqueeze(-1)
        rows = _rows(mask, keys)
        if rows is not None and queries < keys and rows.shape[-2] == queries:
            # In a cache of fixed size the last places may still be empty: a query stands at the last key it sees.
            of_query = torch.where(rows, of_key, 0).amax(-1, keepdim=True)
        # No difference of places is written out: in int64 it would take eight times the mask.
        near = (of_key >= of_query - self.window) & (of_key <= of_query + self.window)
        if self.first:
            start = 0 if rows is None else _starts(rows, of_query)
            sees_all = (of_query >= start) & (of_query < start + self.first)
            near = near | sees_all | (of_key < start + self.first)
        return both(written_out(mask), near)


def _rows(mask: Mask, keys: int) -> Tensor | None:
    """The rows of a mask, [..., N or 1, M]; None where all sequences are known to begin at the first key."""
    if not isinstance(mask, Tensor):
        return None
    rows = torch.atleast_2d(mask)
    return rows.expand(*rows.shape[:-1], keys)


def _starts(rows: Tensor, of_query: Tensor) -> Tensor:
    """The key at which the sequence of each query begins, [..., N, 1]: after padding, or after packed sequences.

    It is the last place, no later than the query, that no query sees across: neither one from there on a key before it,
    nor an earlier one a key from there on. Not simply the first key that the query sees: under a window of the model's
    own, that moves with the query.
    """
    keys = rows.shape[-1]
    of_query = of_query.clamp_min(0).expand(*rows.shape[:-2], -1, 1)
    # bool has no argmax, and as numbers of eight bits it needs no copy.
    sees, numbers = rows.any(-1, keepdim=True), rows.view(torch.uint8)
    first = torch.where(sees, numbers.argmax(-1, keepdim=True), keys).expand_as(of_query)
    last = torch.where(sees, keys - 1 - numbers.flip(-1).argmax(-1, keepdim=True), -1).expand_as(of_query)
    # By place: the first key that queries from there on see, and the last one that queries up to there see.
    least, most = (first.new_full((*rows.shape[:-2], keys, 1), fill) for fill in (keys, -1))
    least = least.scatter_reduce(-2, of_query, first, "amin").flip(-2).cummin(-2).values.flip(-2)
    most = most.scatter_reduce(-2, of_query, last, "amax").cummax(-2).values
    places = torch.arange(keys, device=rows.device).unsqueeze(-1)
    across = (least < places) | (most.roll(1, -2) >= places)  # what the roll brings to place 0 does not matter
    starts = torch.where(across, 0, places).cummax(-2).values
    return torch.maximum(starts.gather(-2, of_query), least[..., :1, :])
