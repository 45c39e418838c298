"""The heart: inverse temperature -> rescaled queries -> fused or explicit attention.

Shapes: B batch, H heads, N queries, M keys, D head dimension, W = H D width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.attention.rule import TemperatureRule, at_least_float32, is_narrow, samples_first, samples_last, scores_of

# Below this many keys a fused CPU kernel costs more than the N x M matrix it saves: for the reasoning task
# (5 keys, heads of 4) it takes 25 of 45 ms a step. `python -m lab.bench` shows both over N.
_FEW_KEYS = 16
# Up to so many keys, products of bfloat16 numbers are quicker than a fused kernel in float32, on a CPU that has them.
_KEYS_IN_BFLOAT16 = 256


def _multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16 numbers; torch 2.6 cannot tell, which is a no."""
    told = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(bool(told.get(name)) for name in ("avx512_bf16", "amx_bf16"))


_CPU_MULTIPLIES_BFLOAT16 = _multiplies_bfloat16()


class Attended(NamedTuple):
    """What the explicit path lets one see: z [B, H, N, D], logits and weights [B, H, N, M].

    ``logits`` are what the softmax is taken of, temperature included; masked ones are -inf.
    """

    z: Tensor
    logits: Tensor
    weights: Tensor


def attend(q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, rule: TemperatureRule, mask: Tensor | None = None) -> Tensor:
    """softmax((beta q) k^T) v by a fused kernel, beta = ``rule.inverse_temperature(q, k, mask)``.

    On a CPU numbers in 16 bit are raised to float32, and a handful of keys takes the explicit path, which is faster
    there. Where the processor multiplies bfloat16, up to 256 keys in it take :class:`Weights`, faster again.

    Args:
        mask: bool, True where a query may attend to a key, broadcastable to [B, H, N, M].

    Returns:
        z_BHND, in the dtype of v.
    """
    if k_BHMD.device.type == "cpu" and k_BHMD.shape[-2] <= _FEW_KEYS:
        return attend_explicit(q_BHND, k_BHMD, v_BHMD, rule, mask).z
    dtype = v_BHMD.dtype
    if _in_bfloat16(q_BHND, k_BHMD, v_BHMD):
        beta = rule.inverse_temperature(q_BHND, k_BHMD, mask)
        with torch.autocast("cpu", enabled=False):
            return _weights(q_BHND.float() * beta.float(), k_BHMD, mask) @ v_BHMD
    q, k, v = _kernel_precision(q_BHND, k_BHMD, v_BHMD)
    beta = rule.inverse_temperature(q, k, mask)
    with torch.autocast(q.device.type, enabled=False):
        scaled = (q * beta).to(v.dtype)
        return F.scaled_dot_product_attention(scaled, k, v, attn_mask=mask, scale=1.0).to(dtype)


def attend_explicit(
    q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, rule: TemperatureRule, mask: Tensor | None = None
) -> Attended:
    """The same numbers as :func:`attend` (but for rounding to 16 bit there), with logits and weights for the eye.

    A query that may attend to nothing has weights and z of 0, as in the fused kernel.
    """
    dtype = v_BHMD.dtype
    q, k, v = _kernel_precision(q_BHND, k_BHMD, v_BHMD)
    beta = rule.inverse_temperature(q, k, mask)
    with torch.autocast(q.device.type, enabled=False):
        logits = scores_of((q * beta).to(v.dtype), k)
        if mask is not None:
            logits = logits.masked_fill(~mask, float("-inf"))
            blind = ~mask.any(-1, keepdim=True)
            # Filled before the softmax too: a row of -inf alone would make its gradient NaN.
            weights = logits.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
        elif is_narrow(q):
            weights_H1MB = samples_last(logits).softmax(2)
            z_HDB = (weights_H1MB.transpose(1, 2) * samples_last(v)).sum(1)
            return Attended(samples_first(z_HDB.unsqueeze(1)).to(dtype), logits, samples_first(weights_H1MB))
        else:
            weights = logits.softmax(-1)
        return Attended((weights @ v).to(dtype), logits, weights)


class Tap(dict[str, Tensor]):
    """Where an attention layer leaves what it sees, by quantity, while the recorder listens.

    Args:
        explicit: take the explicit path, which alone knows logits and weights.
    """

    def __init__(self, explicit: bool) -> None:
        super().__init__()
        self.explicit = explicit

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: TemperatureRule, mask: Tensor | None = None) -> Tensor:
        """z_BHND of :func:`attend`, kept with what it came of."""
        self.update(q=q, k=k, v=v)
        if self.explicit:
            self["z"], self["logits"], self["weights"] = attend_explicit(q, k, v, rule, mask)
        else:
            self["z"] = attend(q, k, v, rule, mask)
        return self["z"]


def _in_bfloat16(q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor) -> bool:
    """Whether products of bfloat16 numbers are to be taken: all three are such, the keys few, the CPU has them."""
    if not _CPU_MULTIPLIES_BFLOAT16 or k_BHMD.device.type != "cpu" or k_BHMD.shape[-2] > _KEYS_IN_BFLOAT16:
        return False
    return q_BHND.dtype == k_BHMD.dtype == v_BHMD.dtype == torch.bfloat16


def _kernel_precision(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """On a CPU the fused kernel's backward is ten times slower in 16 bit than in float32 (reference)."""
    if q.device.type == "cpu":
        q, k, v = at_least_float32(q, k, v)
    return q, k, v


class Weights(torch.autograd.Function):
    """softmax(q k^T) as a fused kernel has it in 16 bit: from logits in float32, rounded for the product with v.

    Rescaled queries in float32 [B, H, N, D], keys in 16 bit [B, H, M, D] -> weights in 16 bit [B, H, N, M]. The
    backward pass is written out because autograd would keep the softmax in float32 and multiply in it, at twice the
    time. First derivatives only.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:  # type: ignore[override]
        logits = q @ k.float().transpose(-2, -1)
        if mask is None:
            return logits.softmax(-1).to(k.dtype)
        weights = logits.masked_fill(~mask, float("-inf")).softmax(-1)
        return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0).to(k.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        q, k, _ = inputs
        ctx.save_for_backward(q.to(k.dtype), k, output)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:
        q, k, weights = ctx.saved_tensors
        of_logits = torch._softmax_backward_data(slope, weights, -1, weights.dtype)
        return (of_logits @ k).float(), of_logits.transpose(-2, -1) @ q, None


# Under torch.compile over vmap (seeds side by side) Dynamo would look into it and lose the backward pass.
@torch.compiler.allow_in_graph
def _weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    return Weights.apply(q, k, mask)  # type: ignore[no-any-return]


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
        # Set while the recorder listens: what was seen is left there.
        self.tap: Tap | None = None

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
            z_BHND = self.tap.attend(q, k, v, self.rule, attn_mask)
        attended = self.proj_drop(self.proj(z_BHND.transpose(1, 2).reshape(B, N, W)))
        if self.tap is not None:
            self.tap.update(queries=x, tokens=x, attended=attended)
        return attended

    def last(self, x: Tensor) -> Tensor:
        """x: [B, N, W] -> [B, 1, W]: the last token of :meth:`forward`, without working out the others.

        For a model that is read at its last token; the same numbers, since a query's row does not depend on
        the other queries. Where it does (a statistic over all queries), or where somebody watches, the whole
        is worked out.
        """
        if not self.reads_one_query:
            return self(x)[:, -1:]
        return self.attend_projected(self.project("q", x[:, -1:]), self.project("k", x), self.project("v", x))

    @property
    def reads_one_query(self) -> bool:
        """Whether one query can be worked out alone: nobody watches, and queries do not depend on each other."""
        return self.tap is None and not self.rule.couples_queries

    def project(self, names: str, x: Tensor) -> Tensor:
        """[..., W] -> the queries ("q"), keys ("k") or values ("v") of all heads, [..., W]; of "kv" both, [..., 2W]."""
        place, W = "qkv".index(names), x.shape[-1]
        rows = slice(place * W, (place + len(names)) * W)
        return F.linear(x, self.qkv.weight[rows], None if self.qkv.bias is None else self.qkv.bias[rows])

    def attend_projected(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """What :meth:`forward` does after its projections: [B, N, W], [B, M, W], [B, M, W] -> [B, N, W]."""
        B, N, W = queries.shape
        q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for x in (queries, keys, values))
        z_BHND = attend(q, k, v, self.rule)
        return self.proj_drop(self.proj(z_BHND.transpose(1, 2).reshape(B, N, W)))

    def projections(self) -> dict[str, Tensor]:
        """W_Q, W_K and W_V as views of the fused weight, each [W, W], by "q", "k", "v"."""
        return dict(zip("qkv", self.qkv.weight.chunk(3), strict=True))

    def projection_biases(self) -> dict[str, Tensor] | None:
        """Their biases [W]; None where there are none."""
        return None if self.qkv.bias is None else dict(zip("qkv", self.qkv.bias.chunk(3), strict=True))

    def projection_gradients(self) -> dict[str, Tensor] | None:
        """Their gradients as views; None before a backward pass."""
        gradient = self.qkv.weight.grad
        return None if gradient is None else dict(zip("qkv", gradient.chunk(3), strict=True))


class CrossAttention(nn.Module):
    """Multi-head attention of queries to a set of other tokens, under any temperature rule.

    Args:
        dim: width W of queries and tokens.
        num_heads: heads H; must divide W.
        rule: temperature rule.

    Raises:
        ValueError: if the heads do not divide the width.
    """

    def __init__(self, dim: int, num_heads: int, rule: TemperatureRule) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide a width of {dim}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rule = rule
        self.query, self.key, self.value, self.proj = (nn.Linear(dim, dim) for _ in range(4))
        self.tap: Tap | None = None

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """queries [B, N, W], tokens [B, M, W] -> [B, N, W]."""
        if self.tap is None and queries.shape[1] == 1 and not self.rule.weighs_channels:
            return self._one_query(queries, tokens)
        q, k, v = (
            projection(x).view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for projection, x in ((self.query, queries), (self.key, tokens), (self.value, tokens))
        )
        z_BHND = attend(q, k, v, self.rule) if self.tap is None else self.tap.attend(q, k, v, self.rule)
        attended = self.proj(z_BHND.transpose(1, 2).reshape(queries.shape))
        if self.tap is not None:
            self.tap.update(queries=queries, tokens=tokens, attended=attended)
        return attended

    def _one_query(self, query: Tensor, tokens: Tensor) -> Tensor:
        """The same for a single query without projecting a token: q^T (W_K x) = (W_K^T q)^T x, and W_V comes last.

        The bias of the keys adds one number to all scores of the query, of which no rule and no softmax knows.
        """
        B, _, W = query.shape
        H, D = self.num_heads, self.head_dim
        q_BHD = self.query(query).view(B, H, D)
        q_BH1W = torch.einsum("bhd,hdw->bhw", q_BHD, self.key.weight.view(H, D, W)).unsqueeze(2)
        shared_BHMW = tokens.unsqueeze(1).expand(B, H, -1, W)
        mixed_BHW = attend(q_BH1W, shared_BHMW, shared_BHMW, self.rule).squeeze(2)
        z_BHD = torch.einsum("bhw,hdw->bhd", mixed_BHW, self.value.weight.view(H, D, W)) + self.value.bias.view(H, D)
        return self.proj(z_BHD.reshape(B, 1, W))

    def projections(self) -> dict[str, Tensor]:
        """W_Q, W_K and W_V, each [W, W], by "q", "k", "v"."""
        return {"q": self.query.weight, "k": self.key.weight, "v": self.value.weight}

    def projection_biases(self) -> dict[str, Tensor] | None:
        """Their biases [W]."""
        return {"q": self.query.bias, "k": self.key.bias, "v": self.value.bias}

    def projection_gradients(self) -> dict[str, Tensor] | None:
        """Their gradients; None before a backward pass."""
        gradients = {name: weight.grad for name, weight in self.projections().items()}
        return None if None in gradients.values() else gradients  # type: ignore[return-value]
