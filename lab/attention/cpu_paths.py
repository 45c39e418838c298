"""Quicker paths on a CPU to the same numbers; results differ from those of the plain paths by rounding alone.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lab.attention.masks import Mask, fully_masked_rows, written_out
from lab.attention.precision import at_least_float32
from lab.attention.rule import inverse_temperature
from lab.attention.torch_internals import softmax_backward

if TYPE_CHECKING:
    from lab.attention.normaliser import Normaliser
    from lab.attention.rule import TemperatureRule

# Below this many keys a fused CPU kernel costs more than the N x M matrix it saves: for the reasoning task
# (5 keys, heads of 4) the kernel takes 25 of 45 ms a step. `python -m lab.bench` shows both over N.
_FEW_KEYS = 16
# Up to this many keys, products in bfloat16 are quicker than a fused kernel in float32, on a CPU that has instructions
# for them.
_KEYS_IN_BFLOAT16 = 256


def _multiplies_bfloat16() -> bool:
    """Tells if this CPU has instructions for products of bfloat16 numbers; torch 2.9 cannot tell: taken as no."""
    told = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(bool(told.get(name)) for name in ("avx512_bf16", "amx_bf16"))


_CPU_MULTIPLIES_BFLOAT16 = _multiplies_bfloat16()


def attend(
    q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, rule: TemperatureRule, mask: Mask, normaliser: Normaliser
) -> Tensor:
    """:func:`lab.attention.functional.attend` of tensors on a CPU, by the quickest path for their sizes.

    - Softmax over 17 to 256 keys in bfloat16, on a CPU with instructions for it: :class:`SoftmaxIn16Bit`; without a
      mask, the rule's own ``weights_in_bfloat16`` where it has them.
    - Everything else in float32 at least: the backward pass of the fused kernel is ten times slower in 16 bit
      (256 scenes, 4 heads, 17 tokens: 38 ms against 2.7 ms).
    """
    keys, dtype = k_BHMD.shape[-2], v_BHMD.dtype
    in_bfloat16 = q_BHND.dtype == k_BHMD.dtype == dtype == torch.bfloat16
    if in_bfloat16 and _CPU_MULTIPLIES_BFLOAT16 and _FEW_KEYS < keys <= _KEYS_IN_BFLOAT16 and normaliser.is_softmax:
        # Heads are strided views of their projection: each product would copy them, forward and backward.
        q_BHND, k_BHMD, v_BHMD = (x.contiguous() for x in (q_BHND, k_BHMD, v_BHMD))
        if mask is None:
            with torch.autocast("cpu", enabled=False):
                if (weights := rule.weights_in_bfloat16(q_BHND, k_BHMD)) is not None:
                    return weights @ v_BHMD
        beta = inverse_temperature(rule, q_BHND, k_BHMD, mask)
        with torch.autocast("cpu", enabled=False):
            weights = _weights(q_BHND.float() * beta.float(), rule.keys(k_BHMD), written_out(mask))
            return weights @ v_BHMD
    q, k, v = at_least_float32(q_BHND, k_BHMD, v_BHMD)
    beta = inverse_temperature(rule, q, k, mask)
    with torch.autocast("cpu", enabled=False):
        return normaliser.attend((q * beta).to(v.dtype), rule.keys(k), v, mask).to(dtype)


def few_keys(q_BHND: Tensor, k_BHMD: Tensor) -> bool:
    """Tells if writing out softmax(q k^T) v is quicker than the fused kernel."""
    return q_BHND.device.type == "cpu" and k_BHMD.shape[-2] <= _FEW_KEYS


def softmax_of_few_keys(q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor) -> Tensor:
    """softmax(q k^T) v, written out, [B, H, N, D]."""
    if not _is_narrow(q_BHND):
        return (q_BHND @ k_BHMD.transpose(-2, -1)).softmax(-1) @ v_BHMD
    weights_HMB = _narrow_scores(q_BHND, k_BHMD).softmax(1)
    return _samples_first((weights_HMB.unsqueeze(2) * _samples_last(v_BHMD)).sum(1).unsqueeze(1))


def scores(q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
    """q k^T, [B, H, N, M]."""
    if _is_narrow(q_BHND) and k_BHMD.shape[-2] <= _FEW_KEYS:
        return _samples_first(_narrow_scores(q_BHND, k_BHMD).unsqueeze(1))
    return q_BHND @ k_BHMD.transpose(-2, -1)


def mix(weights_BHNM: Tensor, v_BHMD: Tensor) -> Tensor:
    """The weighted sum of values, [B, H, N, D]."""
    if _is_narrow(weights_BHNM) and v_BHMD.shape[-1] <= _FEW_KEYS:
        weights_HMB = _samples_last(weights_BHNM).squeeze(1)
        return _samples_first((weights_HMB.unsqueeze(2) * _samples_last(v_BHMD)).sum(1).unsqueeze(1))
    return weights_BHNM @ v_BHMD


class SoftmaxIn16Bit(torch.autograd.Function):
    """softmax(q k^T) as a fused kernel computes it in 16 bit: in float32, then rounded for the product with v.

    Rescaled queries in float32 [B, H, N, D], keys in 16 bit [B, H, M, D] -> weights in 16 bit [B, H, N, M]. The
    backward pass is written out because autograd would keep the softmax in float32 and multiply in it, at twice the
    time.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        logits = q @ k.float().transpose(-2, -1)
        if mask is None:
            return logits.softmax(-1).to(k.dtype)
        weights = logits.masked_fill(~mask, float("-inf")).softmax(-1)
        return weights.masked_fill(fully_masked_rows(mask), 0.0).to(k.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        q, k, _ = inputs
        # Inputs and outputs as they are: a second derivative would miss the way through a tensor made of one here.
        ctx.save_for_backward(q, k, output)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        q, k, weights = ctx.saved_tensors
        of_logits = softmax_backward(grad_output, weights)
        return (of_logits @ k).float(), of_logits.transpose(-2, -1) @ q.to(k.dtype), None


# Under torch.compile over vmap (seeds side by side) Dynamo would trace into it and lose its backward pass.
@torch.compiler.allow_in_graph
def _weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    return SoftmaxIn16Bit.apply(q, k, mask)


def score_variance(q_BHND: Tensor, k_BHMD: Tensor, over: tuple[int, ...]) -> Tensor:
    """Biased variance of the scores q k^T over the last axis (-1,) or the last two (-2, -1), kept with size 1."""
    if _is_narrow(q_BHND):
        scores_H1MB = _narrow_scores(q_BHND, k_BHMD).unsqueeze(1)
        return _samples_first(_variance(scores_H1MB, tuple(axis - 1 for axis in over)))
    return _variance(q_BHND @ k_BHMD.transpose(-2, -1), over)


def _variance(scores: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Biased variance over ``axes``; torch.var's Welford update is not vectorised on a CPU."""
    return (scores - scores.mean(axes, keepdim=True)).square().mean(axes, keepdim=True)


def _is_narrow(q_BHND: Tensor) -> bool:
    """Tells if queries are so few and narrow that elementwise arithmetic is quicker than matrix products."""
    return q_BHND.device.type == "cpu" and q_BHND.shape[-2] == 1 and q_BHND.shape[-1] <= 8


def _narrow_scores(q_BH1D: Tensor, k_BHMD: Tensor) -> Tensor:
    """Scores q k^T of a single narrow query, [H, M, B], by elementwise arithmetic.

    For the reasoning task (5 keys, heads of 4) a matrix product of each sample costs more in calls than in arithmetic.
    """
    return (_samples_last(q_BH1D) * _samples_last(k_BHMD)).sum(-2)


def _samples_last(x: Tensor) -> Tensor:
    """[B, H, N, M] -> [H, N, M, B], a view: arithmetic along samples is vectorised however small other axes are."""
    return x.permute(1, 2, 3, 0)


def _samples_first(x: Tensor) -> Tensor:
    """[H, N, M, B] -> [B, H, N, M], a view."""
    return x.permute(3, 0, 1, 2)
