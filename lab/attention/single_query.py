"""A layer's output for a single query, without the work for the others; the same numbers up to rounding.

Shapes: B batch, H heads, N queries, M keys, D head dimension, W = H D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lab.attention.layers import Attention, CrossAttention


def last_token(layer: Attention, x: Tensor) -> Tensor:
    """The last token of ``layer(x)``, [B, N, W] -> [B, 1, W], without computing the other queries.

    Only for a layer that ``reads_one_query``, where the row of a query does not depend on the other queries.
    """
    return layer.attend_projected(layer.project("q", x[:, -1:]), layer.project("k", x), layer.project("v", x))


def one_query(layer: CrossAttention, query: Tensor, tokens: Tensor) -> Tensor:
    """``layer(query, tokens)`` for a single query, [B, 1, W] and [B, M, W] -> [B, 1, W], without projecting tokens.

    The query is moved to the basis of the tokens: q^T (W_K x) = (W_K^T q)^T x. W_V is applied last, and the bias of the
    values is added once, since weights add up to one. The bias of the keys is left out: it adds one number to all
    scores of the query, which changes no weight of a ``shift_invariant`` normaliser, and no beta of a rule with
    ``weighs_channels = False``.
    """
    B, _, W = query.shape
    H, D = layer.num_heads, layer.head_dim
    q_BHD = layer.query(query).view(B, H, D)
    q_BH1W = torch.einsum("bhd,hdw->bhw", q_BHD, layer.key.weight.view(H, D, W)).unsqueeze(2)
    shared_BHMW = tokens.unsqueeze(1).expand(B, H, -1, W)
    mixed_BHW = layer.attend(q_BH1W, shared_BHMW, shared_BHMW).squeeze(2)
    z_BHD = torch.einsum("bhw,hdw->bhd", mixed_BHW, layer.value.weight.view(H, D, W)) + layer.value.bias.view(H, D)
    return layer.proj(z_BHD.reshape(B, 1, W))
