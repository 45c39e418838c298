"""NormSoftmax: logits divided by their own spread, where it is below tau."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd.function import once_differentiable

from lab.attention.cpu_paths import score_variance
from lab.attention.precision import at_least_float32
from lab.attention.rule import Tau, TemperatureRule


class NormSoftmax(TemperatureRule):
    """softmax(q k^T / min(sigma(q k^T), tau)).

    sigma is the biased variance ("var") or the unbiased standard deviation ("std") of the raw scores, over
    each query's row ("row", as the experiments were run) or over all rows of a head ("block", as written).
    No N x M matrix is built: with C the biased covariance of a head's keys and m their mean,

        Var(row of q)  = q C q^T,
        Var(block)     = mean over q of q C q^T + Var over q of (q m^T)     (law of total variance).

    Under a mask each row has keys of its own and the scores are built once for the statistic.

    Source: Jiang et al. 2023; Eureka-moments in Transformers, equation 2 and A.15; reference, "Temperatures".

    Args:
        tau: cap on sigma; None is sqrt(D).
        statistic: "var" or "std".
        over: "row" or "block".
        eps: a sigma below it counts as no spread at all (equal scores, a single key): nothing is to be
            normalised there, and tau is taken. It keeps value and gradient finite.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        tau: Tau | None = None,
        statistic: Literal["var", "std"] = "var",
        over: Literal["row", "block"] = "row",
        eps: Annotated[float, Field(gt=0)] = 1e-6,
    ) -> None:
        super().__init__(heads, head_dim, tau)
        self.statistic = statistic
        self.over = over
        self.eps = eps

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        with torch.autocast(q_BHND.device.type, enabled=False):
            q_BHND, k_BHMD = at_least_float32(q_BHND, k_BHMD)
            if mask is None:
                variance, count = self._variance(q_BHND, k_BHMD)
            else:
                variance, count = self._masked_variance(q_BHND, k_BHMD, mask)
            if self.statistic == "std":
                variance = variance * _unbiased(count)
            tau = self.tau.to(variance.dtype)
            spread = variance > (self.eps if self.statistic == "var" else self.eps**2)
            # What stands for sigma without spread has to be put in before the root, whose slope at 0 is infinite.
            sigma = torch.where(spread, variance, tau if self.statistic == "var" else tau.square())
            sigma = sigma if self.statistic == "var" else sigma.sqrt()
            return 1.0 / torch.minimum(sigma, tau)

    def _variance(self, q_BHND: Tensor, k_BHMD: Tensor) -> tuple[Tensor, Tensor | int]:
        """Biased variance of the raw scores, [B, H, N or 1, 1], and the number of scores behind each."""
        queries, keys = q_BHND.shape[-2], k_BHMD.shape[-2]
        if queries * keys <= self.head_dim**2:
            # Scores of so few tokens are no larger than the covariance that would spare them.
            if self.over == "row":
                return score_variance(q_BHND, k_BHMD, (-1,)), keys
            return score_variance(q_BHND, k_BHMD, (-2, -1)), keys * queries
        variance = _row_variance(q_BHND, k_BHMD)
        if self.over == "row":
            return variance, keys
        means = (q_BHND * k_BHMD.mean(-2, keepdim=True)).sum(-1, keepdim=True)
        return variance.mean(-2, keepdim=True) + means.var(-2, correction=0, keepdim=True), keys * queries

    def _masked_variance(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | int]:
        scores_BHNM = q_BHND @ k_BHMD.transpose(-2, -1)
        allowed = mask.expand_as(scores_BHNM).to(scores_BHNM.dtype)
        axes = (-1,) if self.over == "row" else (-2, -1)
        count = allowed.sum(axes, keepdim=True).clamp_min(1)
        mean = (scores_BHNM * allowed).sum(axes, keepdim=True) / count
        variance = ((scores_BHNM - mean).square() * allowed).sum(axes, keepdim=True) / count
        return variance, count


class RowVariance(torch.autograd.Function):
    """q C q^T of each query, C the biased covariance of the keys: [..., N, D], [..., M, D] -> [..., N, 1].

    The backward pass is written out because C is symmetric, which autograd cannot know: two matrix products
    instead of four and half the overhead of NormSoftmax in a training step. First derivatives only.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # Heads lie between tokens in memory: copied once here, not in each of the four products. Always a copy,
        # since an output must not be an input.
        q = q.clone(memory_format=torch.contiguous_format)
        centred = (k - k.mean(-2, keepdim=True)).contiguous()
        qC = q @ (centred.transpose(-2, -1) @ centred / centred.shape[-2])
        return (qC * q).sum(-1, keepdim=True), q, centred, qC

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        q, centred, qC = ctx.saved_tensors
        of_C = (q * (slope * (2 / centred.shape[-2]))).transpose(-2, -1) @ q
        # Columns of ``centred`` sum to 0, and so do those of the second gradient: nothing is left to centre.
        return qC * (2 * slope), centred @ of_C

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], q: Tensor, k: Tensor) -> tuple[Any, Any]:
        # Only the last two dimensions are worked on: models side by side are one more leading dimension.
        q, k = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((q, k), in_dims, strict=True)
        )
        return RowVariance.apply(q, k), (0, 0, 0, 0)


# Under torch.compile over vmap (seeds side by side) Dynamo would look into it and lose the backward pass.
@torch.compiler.allow_in_graph
def _row_variance(q: Tensor, k: Tensor) -> Tensor:
    return RowVariance.apply(q, k)[0]


def _unbiased(count: Tensor | int) -> Tensor | float:
    """Factor from the biased variance of so many scores to the unbiased one; 1 for a single score."""
    return count / (count - 1).clamp_min(1) if isinstance(count, Tensor) else count / max(count - 1, 1)
