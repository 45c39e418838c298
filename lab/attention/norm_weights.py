"""Weights of NormSoftmax in bfloat16, in one autograd function: on a CPU a step costs hardly more than with softmax.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from lab.attention.precision import without_autocast
from lab.attention.score_variance import rounding_variance
from lab.attention.torch_internals import softmax_backward


class NormWeights(torch.autograd.Function):
    """softmax(q k^T / min(sigma, tau)) of queries and keys in bfloat16, [B, H, N, M] in bfloat16.

        sigma = factor Var(row), or its root

    Scores are taken with keys minus their mean, which does not change softmax: the variance of a row is then the mean
    square of its scores. Scores and logits are in float32; what is kept for the backward pass, and multiplied there, is
    in bfloat16.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor, tau_1111: Tensor, factor: float, root: bool) -> tuple[Tensor, ...]:
        queries, keys = q.float(), k.float()
        centred = keys - keys.mean(-2, keepdim=True)
        scores = queries @ centred.transpose(-2, -1)
        scale = factor / k.shape[-2]
        variance = torch.linalg.vector_norm(scores, dim=-1, keepdim=True).square() * scale
        spread = variance > factor * rounding_variance(queries, keys)
        sigma, least = torch.where(spread, variance, 1.0), torch.finfo(variance.dtype).max ** -0.5
        sigma = sigma.sqrt() if root else sigma
        beta = 1 / torch.where(spread, sigma, tau_1111).minimum(tau_1111).clamp_min(least)
        # Factor of the gradient that reaches scores through sigma, per unit of a logit; 0 where sigma is not in use.
        used = spread & (sigma < tau_1111) & (sigma > least)
        by_sigma = torch.where(used, -scale * (beta if root else 2.0), 0.0)
        logits = scores * beta if torch.is_grad_enabled() else scores.mul_(beta)
        return logits.softmax(-1).to(k.dtype), centred.to(k.dtype), logits.to(k.dtype), beta, by_sigma

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        *tensors, ctx.factor, ctx.root = inputs
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        q, k, tau, weights, centred, logits, beta, by_sigma = ctx.saved_tensors
        if torch.is_grad_enabled():
            # A second derivative may be asked for: it goes by way of the inputs.
            with without_autocast(q):
                back = vjp(lambda q, k: NormWeights.forward(q, k, tau, ctx.factor, ctx.root)[0], q, k)[1]
                return *back(grad_output), None, None, None
        of_logits = softmax_backward(grad_output, weights)
        of_sigma = torch.linalg.vecdot(of_logits, logits).unsqueeze(-1).float() * by_sigma
        of_scores = of_logits.mul_(beta.to(q.dtype)).addcmul_(logits, of_sigma.to(q.dtype))
        # Rows of ``of_scores`` sum to 0, so that the gradient of k needs no centring.
        return of_scores @ centred, of_scores.transpose(-2, -1) @ q, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
        # Only the last two dimensions are worked on: models side by side are one more leading dimension.
        stacked = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(given[:3], in_dims, strict=False)
        ]
        return NormWeights.apply(*stacked, *given[3:]), (0, 0, 0, 0, 0)


# Under torch.compile over vmap (seeds side by side) Dynamo would trace into the function and lose its backward pass.
@torch.compiler.allow_in_graph
def norm_weights(q: Tensor, k: Tensor, tau_1111: Tensor, factor: float, root: bool) -> Tensor:
    """Weights of :class:`NormWeights`, without its other outputs."""
    return NormWeights.apply(q, k, tau_1111, factor, root)[0]
