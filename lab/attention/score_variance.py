"""Variance of the scores q k^T, without an N x M matrix where there is no mask.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from lab.attention import cpu_paths
from lab.attention.causal_moments import causal_variance
from lab.attention.masks import Causal, Mask, key_counts, mean_key, written_out
from lab.attention.precision import without_autocast

# Over which scores a statistic is taken: those of each query, or those of all queries of a head.
Over = Literal["row", "block"]

# Deviations of up to this many units in the last place of the scores' size count as rounding.
_ROUNDING = 16


def score_variance(
    q_BHND: Tensor, k_BHMD: Tensor, mask: Mask = None, over: Over = "row"
) -> tuple[Tensor, Tensor | int]:
    """Biased variance of the scores, [B, H, N or 1, 1], and the number of scores that each is taken over.

    With C the biased covariance of a head's keys and m their mean,

        Var(row of q)  = q C q^T,
        Var(block)     = mean over q of q C q^T + Var over q of (q m^T)     (law of total variance).

    Under a mask each row has keys of its own, so the scores are built; the rows of a causal mask do without
    (:mod:`lab.attention.causal_moments`).
    """
    if isinstance(mask, Causal) and mask.queries <= mask.keys and over == "row":
        return causal_variance(q_BHND, k_BHMD, mask), key_counts(mask, k_BHMD)
    mask = written_out(mask)
    axes = (-1,) if over == "row" else (-2, -1)
    if mask is not None:
        return _masked_variance(q_BHND, k_BHMD, mask, axes)
    queries, keys = q_BHND.shape[-2], k_BHMD.shape[-2]
    count = keys if over == "row" else keys * queries
    if queries * keys <= q_BHND.shape[-1] ** 2:
        # The N x M scores of so few tokens are no larger than the D x D covariance that would replace them.
        return cpu_paths.score_variance(q_BHND, k_BHMD, axes), count
    variance = _row_variance(q_BHND, k_BHMD)
    if over == "row":
        return variance, count
    means = (q_BHND * k_BHMD.mean(-2, keepdim=True)).sum(-1, keepdim=True)
    return variance.mean(-2, keepdim=True) + means.var(-2, correction=0, keepdim=True), count


def rounding_variance(q_BHND: Tensor, k_BHMD: Tensor, mask: Mask = None, over: Over = "row") -> Tensor:
    """Variance that equal scores may have by rounding alone, [B, H, N or 1, 1], from their dtype and size |q| |k|."""
    with torch.no_grad():
        # This matters where keys have no spread: they are alike then, and the first one tells their size.
        of_keys = _squared_length(k_BHMD[..., :1, :]) if mask is None else mean_key(_squared_length(k_BHMD), mask)
        size = _squared_length(q_BHND) * of_keys
        return (_ROUNDING * torch.finfo(size.dtype).eps) ** 2 * (size if over == "row" else size.mean(-2, keepdim=True))


def _squared_length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()


def _masked_variance(q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    scores_BHNM = q_BHND @ k_BHMD.transpose(-2, -1)
    allowed = mask.expand_as(scores_BHNM).to(scores_BHNM.dtype)
    count = allowed.sum(axes, keepdim=True).clamp_min(1)
    mean = (scores_BHNM * allowed).sum(axes, keepdim=True) / count
    variance = ((scores_BHNM - mean).square() * allowed).sum(axes, keepdim=True) / count
    return variance, count


class RowVariance(torch.autograd.Function):
    """q C q^T of each query, C the biased covariance of the keys: [..., N, D], [..., M, D] -> [..., N, 1].

    The backward pass is written out because C is symmetric, which autograd cannot know: two matrix products
    instead of four and half the overhead of NormSoftmax in a training step.

    Its relative error is of the order of eps |q|^2 |C| / (q C q^T): where keys vary a thousand times as much in a
    direction that queries do not read, float32 leaves a part in a thousand of it.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # Heads lie between tokens in memory: q is copied once here, not in each of the four products. Always a copy,
        # since an output must not be an input.
        q = q.clone(memory_format=torch.contiguous_format)
        centred, qC = RowVariance._centred(q, k)
        return (qC * q).sum(-1, keepdim=True), q, centred, qC

    @staticmethod
    def _centred(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Keys minus their mean, and q C."""
        centred = (k - k.mean(-2, keepdim=True)).contiguous()
        return centred, q @ (centred.transpose(-2, -1) @ centred / centred.shape[-2])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        q, k, *computed = ctx.saved_tensors
        # Columns of ``centred`` sum to 0, and so do those of the gradient of k, which needs no centring of its own.
        with without_autocast(q):  # a user may call backward() within autocast
            if torch.is_grad_enabled():
                # A second derivative may be asked for: it goes by way of the inputs.
                centred, qC = RowVariance._centred(q, k)
            else:
                q, centred, qC = computed
            of_C = (q * (grad_output * (2 / centred.shape[-2]))).transpose(-2, -1) @ q
            return qC * (2 * grad_output), centred @ of_C

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], q: Tensor, k: Tensor) -> tuple[Any, Any]:
        # Only the last two dimensions are worked on: models side by side are one more leading dimension.
        q, k = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((q, k), in_dims, strict=True)
        )
        return RowVariance.apply(q, k), (0, 0, 0, 0)


# Under torch.compile over vmap (seeds side by side) Dynamo would trace into the function and lose its backward pass.
@torch.compiler.allow_in_graph
def _row_variance(q: Tensor, k: Tensor) -> Tensor:
    return RowVariance.apply(q, k)[0]
