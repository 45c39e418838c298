"""Attention layers under any temperature rule and normaliser, and the tap through which the recorder reads them.

Shapes: B batch, H heads, N queries, M keys, D head dimension, W = H D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, distributed, nn

from lab.attention.functional import attend, attend_explicit
from lab.attention.masks import Causal, Mask, both, rows_of, written_out
from lab.attention.normaliser import Normaliser, check_causal
from lab.attention.normalisers.softmax import Softmax
from lab.attention.rule import TemperatureRule
from lab.attention.single_query import last_token, one_query


class Tap(dict[str, Tensor]):
    """Quantities that an attention layer sees, by name, while the recorder listens.

    Args:
        explicit: take the explicit path, the only one that has logits and weights.
    """

    def __init__(self, explicit: bool) -> None:
        super().__init__()
        self.explicit = explicit
        self.calls = 0

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rule: TemperatureRule,
        mask: Mask,
        normaliser: Normaliser,
        dropout: float = 0.0,
        bias: Tensor | None = None,
    ) -> Tensor:
        """z_BHND of :func:`lab.attention.functional.attend`; keeps it, with all that it was computed from."""
        self.calls += 1
        self.update(q=q, k=k, v=v, **({} if bias is None else {"bias": bias}))
        # The mask that the rule is given, too: a window (Local) allows less than the mask of the model.
        if (allowed := written_out(normaliser.allowed(written_out(mask), q, k))) is not None:
            self["mask"] = allowed.reshape((1,) * (4 - allowed.dim()) + allowed.shape)
        if self.explicit:
            self["z"], self["logits"], self["weights"] = attend_explicit(q, k, v, rule, mask, normaliser, dropout, bias)
        else:
            self["z"] = attend(q, k, v, rule, mask, normaliser, dropout, bias)
        return self["z"]


class MultiHead(nn.Module):
    """Base of the attention layers: heads that divide the width, a rule, a normaliser, and a tap.

    Args:
        dim: width W.
        num_heads: heads H; must divide W.
        rule: temperature rule of this layer.
        normaliser: of this layer; None is softmax.

    Raises:
        ValueError: if the heads do not divide the width.
    """

    def __init__(self, dim: int, num_heads: int, rule: TemperatureRule, normaliser: Normaliser | None = None) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide a width of {dim}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rule = rule
        self.normaliser = normaliser or Softmax(num_heads, self.head_dim)
        # Set while the recorder listens; the layer leaves there what it computes.
        self.tap: Tap | None = None

    @property
    def in_use(self) -> bool:
        """False for a copy that the model does not call, as PEFT keeps one."""
        return True

    def attend(
        self,
        q_BHND: Tensor,
        k_BHMD: Tensor,
        v_BHMD: Tensor,
        mask: Mask = None,
        dropout: float = 0.0,
        bias: Tensor | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """z_BHND under the layer's rule and normaliser; ``tap``, else the layer's own, keeps its parts."""
        tap = self.tap if tap is None else tap
        through = attend if tap is None else tap.attend
        return through(q_BHND, k_BHMD, v_BHMD, self.rule, mask, self.normaliser, dropout, bias)

    @property
    def couples_queries(self) -> bool:
        """False where one query can be computed without the others."""
        return self.rule.couples_queries is not False or self.normaliser.couples_queries is not False

    def heads_of(self, x: Tensor) -> Tensor:
        """[B, N, W] -> [B, H, N, D], a view."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def projections(self) -> dict[str, Tensor]:
        """W_Q, W_K and W_V by "q", "k", "v", each with a row for every channel of every head; {} if unknown."""
        return self.of_projections(lambda linear: linear.weight)

    def projection_biases(self) -> dict[str, Tensor]:
        """Biases of the projections, likewise; {} where there are none."""
        return self.of_projections(lambda linear: linear.bias)

    def projection_gradients(self) -> dict[str, Tensor]:
        """Gradients of W_Q, W_K and W_V, likewise; {} before a backward pass."""
        return self.of_projections(lambda linear: linear.weight.grad)

    def of_projections(self, of: Callable[[Any], Tensor | None]) -> dict[str, Tensor]:
        """Parts of the linear layers that project to queries, keys and values, by "q", "k", "v"; views.

        Args:
            of: gives the part of a layer, rows first; where it gives None there are none.
        """
        return {}

    def keep(self, queries: Tensor, tokens: Tensor, attended: Tensor) -> Tensor:
        """Returns ``attended``; leaves it in the tap, with the inputs of the queries and of the keys (``tokens``)."""
        if self.tap is not None:
            self.tap.update(queries=queries, tokens=tokens, attended=attended)
        return attended


class Attention(MultiHead):
    """Multi-head self-attention under any temperature rule and normaliser; can replace the ``Attention`` of timm.

    Args:
        dim: width W.
        num_heads: heads H; must divide W.
        rule: temperature rule of this layer.
        normaliser: of this layer; None is softmax.
        qkv_bias: bias of the query, key and value projections.
        proj_bias: bias of the output projection.
        proj_drop: dropout after the output projection.

    Raises:
        ValueError: if the heads do not divide the width.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        rule: TemperatureRule,
        normaliser: Normaliser | None = None,
        qkv_bias: bool = False,
        proj_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__(dim, num_heads, rule, normaliser)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, first: bool = False
    ) -> Tensor:
        """x: [B, N, W] -> [B, N, W]; ``attn_mask`` as ``mask`` in :func:`lab.attention.functional.attend`.

        With ``first``, where the layer ``reads_any_query``, only the first token is computed, [B, 1, W].
        """
        mask: Mask = attn_mask
        if is_causal:
            mask = Causal(x.shape[1], x.shape[1], x.device)
            if attn_mask is not None:
                # Written out, a mask no longer says that it is causal: attention cannot check it.
                check_causal(self.rule, self.normaliser)
                mask = both(attn_mask, written_out(mask))
        q, k, v = (self.heads_of(one) for one in self.qkv(x).chunk(3, -1))
        if first:
            q, mask = q[:, :, :1], rows_of(mask, 0, 1)
        return self.keep(x, x, self._output(self.attend(q, k, v, mask)))

    def last(self, x: Tensor) -> Tensor:
        """The last token of :meth:`forward`, [B, N, W] -> [B, 1, W], for a model whose answer is read there."""
        return last_token(self, x) if self.reads_one_query else self(x)[:, -1:]

    @property
    def reads_one_query(self) -> bool:
        """True where one query can be computed alone: no recorder listens, and no query depends on another."""
        return self.tap is None and not self.couples_queries

    @property
    def reads_any_query(self) -> bool:
        """True where that query may be any: neither its logits nor what it sees depend on its place, as in a window."""
        own = type(self.normaliser)
        return self.reads_one_query and own.allowed is Normaliser.allowed and own.scores is Normaliser.scores

    def project(self, names: str, x: Tensor) -> Tensor:
        """[..., W] -> the queries ("q"), keys ("k") or values ("v") of all heads, [..., W]; of "kv" both, [..., 2W]."""
        place, W = "qkv".index(names), x.shape[-1]
        rows = slice(place * W, (place + len(names)) * W)
        return F.linear(x, self.qkv.weight[rows], None if self.qkv.bias is None else self.qkv.bias[rows])

    def attend_projected(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The rest of :meth:`forward` after its projections: [B, N, W], [B, M, W], [B, M, W] -> [B, N, W]."""
        q, k, v = (self.heads_of(x) for x in (queries, keys, values))
        return self._output(self.attend(q, k, v))

    def _output(self, z_BHND: Tensor) -> Tensor:
        return self.proj_drop(self.proj(z_BHND.transpose(1, 2).flatten(2)))

    def of_projections(self, of: Callable[[Any], Tensor | None]) -> dict[str, Tensor]:
        whole = of(self.qkv)
        return {} if whole is None else dict(zip("qkv", whole.chunk(3), strict=True))


def _in_processes() -> bool:
    return distributed.is_available() and distributed.is_initialized()


class CrossAttention(MultiHead):
    """Multi-head attention of queries to a set of other tokens, under any temperature rule and normaliser.

    Args:
        dim: width W of queries and tokens.
        num_heads: heads H; must divide W.
        rule: temperature rule.
        normaliser: None is softmax.

    Raises:
        ValueError: if the heads do not divide the width.
    """

    def __init__(self, dim: int, num_heads: int, rule: TemperatureRule, normaliser: Normaliser | None = None) -> None:
        super().__init__(dim, num_heads, rule, normaliser)
        self.query, self.key, self.value, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """queries [B, N, W], tokens [B, M, W] -> [B, N, W]."""
        if queries.shape[1] == 1 and self.mixes_tokens:
            mixed = one_query(self, queries, tokens)
            # DDP waits for a gradient of every parameter, and ``mixed`` does not depend on the bias of keys.
            return mixed + 0 * self.key.bias.sum() if _in_processes() else mixed
        q, k, v = (self.heads_of(x) for x in (self.query(queries), self.key(tokens), self.value(tokens)))
        return self.keep(queries, tokens, self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2)))

    @property
    def mixes_tokens(self) -> bool:
        """True where W_K and W_V may be applied to the query's side, so that tokens need no projection.

        No recorder listens, and weights depend on scores alone.
        """
        # Scores q k^T are the same in another basis, but other logits would change. The bias of values is added once,
        # which is right if weights add up to one. The bias of keys is left out: it shifts all logits of a query alike,
        # which must not matter.
        rule, normaliser = self.rule, self.normaliser
        scores = rule.weighs_channels is False and normaliser.takes_temperature
        return self.tap is None and scores and normaliser.total == "one" and normaliser.shift_invariant is True

    def of_projections(self, of: Callable[[Any], Tensor | None]) -> dict[str, Tensor]:
        found = {"q": of(self.query), "k": of(self.key), "v": of(self.value)}
        return {name: part for name, part in found.items() if part is not None}
