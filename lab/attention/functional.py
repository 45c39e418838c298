"""Attention under any temperature rule: softmax((beta q) k^T) v.

A rule gives each query an inverse temperature beta. Attention is then plain attention on rescaled queries, which any
fused kernel computes.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.attention import cpu_paths
from lab.attention.precision import at_least_float32
from lab.attention.rule import TemperatureRule


class Attended(NamedTuple):
    """All that the explicit path knows: z [B, H, N, D], logits and weights [B, H, N, M].

    ``logits`` are what the softmax is taken of, temperature included; masked ones are -inf.
    """

    z: Tensor
    logits: Tensor
    weights: Tensor


def attend(q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, rule: TemperatureRule, mask: Tensor | None = None) -> Tensor:
    """softmax((beta q) k^T) v by a fused kernel, beta = ``rule.inverse_temperature(q, k, mask)``.

    On a CPU there are quicker ways to the same numbers (:mod:`lab.attention.cpu_paths`).

    Args:
        mask: bool, True where a query may attend to a key, broadcastable to [B, H, N, M]. A query that may attend to
            nothing has a z of 0.

    Returns:
        z_BHND, in the dtype of v.
    """
    if q_BHND.device.type == "cpu":
        return cpu_paths.attend(q_BHND, k_BHMD, v_BHMD, rule, mask)
    beta = rule.inverse_temperature(q_BHND, k_BHMD, mask)
    with torch.autocast(q_BHND.device.type, enabled=False):
        scaled = (beta * q_BHND).to(v_BHMD.dtype)
        return F.scaled_dot_product_attention(scaled, k_BHMD, v_BHMD, attn_mask=mask, scale=1.0)


def attend_explicit(
    q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, rule: TemperatureRule, mask: Tensor | None = None
) -> Attended:
    """The same numbers as :func:`attend`, with logits and weights to look at, in float32 or better."""
    q, k, v = at_least_float32(q_BHND, k_BHMD, v_BHMD)
    beta = rule.inverse_temperature(q, k, mask)
    with torch.autocast(q.device.type, enabled=False):
        logits = (beta * q).to(v.dtype) @ k.transpose(-2, -1)
        if mask is not None:
            logits = logits.masked_fill(~mask, float("-inf"))
        weights = softmax(logits, mask)
        return Attended((weights @ v).to(v_BHMD.dtype), logits, weights)


def softmax(logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
    """Weights [B, H, N, M] of logits; all 0 for a query that may attend to nothing, as in the fused kernel."""
    if mask is None:
        return logits_BHNM.softmax(-1)
    blind = ~mask.any(-1, keepdim=True)
    # Filled before the softmax too: a row of -inf alone would make its gradient NaN.
    return logits_BHNM.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
