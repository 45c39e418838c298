"""The heart: inverse temperature -> rescaled queries -> fused or explicit attention.

Shapes: B batch, H heads, N queries, M keys, D head dimension, W = H D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.softmax.rule import TemperatureRule

# Below this many keys a fused CPU kernel costs more than the N x M matrix it saves: for the reasoning task
# (5 keys, heads of 4) it takes 25 of 45 ms a step. `python -m lab.bench` shows both over N.
_FEW_KEYS = 16


class Attended(NamedTuple):
    """What the explicit path lets one see: z [B, H, N, D], logits and weights [B, H, N, M].

    ``logits`` are what the softmax is taken of, temperature included; masked ones are -inf.
    """

    z: Tensor
    logits: Tensor
    weights: Tensor


def attend(q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, rule: TemperatureRule, mask: Tensor | None = None) -> Tensor:
    """softmax((beta q) k^T) v by a fused kernel, beta = ``rule.inverse_temperature(q, k, mask)``.

    On a CPU a handful of keys takes the explicit path, which is faster there.

    Args:
        mask: bool, True where a query may attend to a key, broadcastable to [B, H, N, M].

    Returns:
        z_BHND, in the dtype of v.
    """
    if k_BHMD.device.type == "cpu" and k_BHMD.shape[-2] <= _FEW_KEYS:
        return attend_explicit(q_BHND, k_BHMD, v_BHMD, rule, mask).z
    dtype = v_BHMD.dtype
    q, k, v = _kernel_precision(q_BHND, k_BHMD, v_BHMD)
    beta = rule.inverse_temperature(q, k, mask)
    with torch.autocast(q.device.type, enabled=False):
        scaled = (q * beta).to(v.dtype)
        return F.scaled_dot_product_attention(scaled, k, v, attn_mask=mask, scale=1.0).to(dtype)


def attend_explicit(
    q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, rule: TemperatureRule, mask: Tensor | None = None
) -> Attended:
    """The same numbers as :func:`attend`, with logits and weights for the eye.

    A query that may attend to nothing has weights and z of 0, as in the fused kernel.
    """
    dtype = v_BHMD.dtype
    q, k, v = _kernel_precision(q_BHND, k_BHMD, v_BHMD)
    beta = rule.inverse_temperature(q, k, mask)
    with torch.autocast(q.device.type, enabled=False):
        logits = (q * beta).to(v.dtype) @ k.transpose(-2, -1)
        if mask is None:
            weights = logits.softmax(-1)
        else:
            logits = logits.masked_fill(~mask, float("-inf"))
            blind = ~mask.any(-1, keepdim=True)
            # Filled before the softmax too: a row of -inf alone would make its gradient NaN.
            weights = logits.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
        return Attended((weights @ v).to(dtype), logits, weights)


def _kernel_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """On a CPU the fused kernel's backward is ten times slower in 16 bit than in float32 (reference)."""
    if tensors[0].device.type == "cpu":
        return tuple(t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors)
    return tensors


class Attention(nn.Module):
    """Multi-head self-attention under any temperature rule; fits where timm has its ``Attention``.

    Args:
        dim: width W.
        num_heads: heads H; must divide W.
        rule: temperature rule of this layer.
        qkv_bias: bias of the query, key and value projections.
        proj_bias: bias of the output projection.
        proj_drop: dropout after it.

    Raises:
        ValueError: if the heads do not divide the width.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        rule: TemperatureRule,
        qkv_bias: bool = False,
        proj_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide a width of {dim}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rule = rule
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)
        # A dict while the recorder listens; then the explicit path runs and leaves what it saw there.
        self.tap: dict[str, Tensor] | None = None

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x: [B, N, W] -> [B, N, W]; ``attn_mask`` as ``mask`` in :func:`attend`."""
        B, N, W = x.shape
        if is_causal:
            causal = torch.ones(N, N, dtype=torch.bool, device=x.device).tril()
            attn_mask = causal if attn_mask is None else attn_mask & causal
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        if self.tap is None:
            z_BHND = attend(q, k, v, self.rule, attn_mask)
        else:
            z_BHND, logits, weights = attend_explicit(q, k, v, self.rule, attn_mask)
            self.tap.update(q=q, k=k, v=v, logits=logits, weights=weights, z=z_BHND)
        return self.proj_drop(self.proj(z_BHND.transpose(1, 2).reshape(B, N, W)))

    def last(self, x: Tensor) -> Tensor:
        """x: [B, N, W] -> [B, 1, W]: the last token of :meth:`forward`, without working out the others.

        For a model that is read at its last token; the same numbers, since a query's row does not depend on
        the other queries. Where it does (a statistic over all queries), or where somebody watches, the whole
        is worked out.
        """
        if self.tap is not None or self.rule.couples_queries:
            return self(x)[:, -1:]
        B, N, W = x.shape
        heads = (self.num_heads, self.head_dim)
        weight, bias = self.qkv.weight, self.qkv.bias
        of_q, of_kv = (None, None) if bias is None else (bias[:W], bias[W:])
        q = F.linear(x[:, -1:], weight[:W], of_q).view(B, 1, *heads).transpose(1, 2)
        k, v = F.linear(x, weight[W:], of_kv).view(B, N, 2, *heads).permute(2, 0, 3, 1, 4).unbind(0)
        z_BH1D = attend(q, k, v, self.rule)
        return self.proj_drop(self.proj(z_BH1D.transpose(1, 2).reshape(B, 1, W)))

    def projections(self) -> dict[str, Tensor]:
        """W_Q, W_K and W_V as views of the fused weight, each [W, W], by "q", "k", "v"."""
        return dict(zip("qkv", self.qkv.weight.chunk(3), strict=True))

    def projection_gradients(self) -> dict[str, Tensor] | None:
        """Their gradients as views; None before a backward pass."""
        gradient = self.qkv.weight.grad
        return None if gradient is None else dict(zip("qkv", gradient.chunk(3), strict=True))
