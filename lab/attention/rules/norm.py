"""NormSoftmax: logits divided by their own spread, where it is below tau."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lab.attention.masks import Mask, mean_key, written_out
from lab.attention.norm_weights import norm_weights
from lab.attention.precision import at_least_float32, without_autocast
from lab.attention.row_statistics import row_absolute_deviation, row_extremes
from lab.attention.rule import Tau, TemperatureRule
from lab.attention.score_variance import Over, rounding_variance, score_variance

Statistic = Literal["var", "std", "range", "mad", "max"]


class NormSoftmax(TemperatureRule):
    """softmax(q k^T / min(sigma(q k^T), tau)).

    sigma is a statistic of the raw scores s, over each query's row ("row", as the experiments were run) or over all
    rows of a head ("block", as the equation is written):

        var: biased variance          std: unbiased standard deviation
        range: max s - min s          mad: mean |s - mean s|          max: max |s|

    var and std need no N x M matrix without a mask (:mod:`lab.attention.score_variance`); the others are computed from
    chunks of scores.

    Two measures keep value and gradient finite (in float16 only the value: a gradient is a sum and may overflow).
    First, scores that deviate by no more than the rounding of their dtype, for their size |q| |k|, count as without
    spread (equal scores, a single key): there is nothing to normalise, and tau is used. Second, sigma is never so small
    that its inverse, rescaled queries or logits overflow.

    Source: Jiang et al. 2023; Eureka-moments in Transformers, equation 2 and A.15 (which leaves further statistics
    open); docs/published_runs.md, "Temperatures".

    Args:
        tau: cap on sigma; None is sqrt(D).
        statistic: sigma.
        over: "row" or "block".
    """

    takes_causal = True

    def __init__(
        self,
        heads: int,
        head_dim: int,
        tau: Tau | None = None,
        statistic: Statistic = "var",
        over: Over = "row",
    ) -> None:
        super().__init__(heads, head_dim, tau)
        self.statistic: Statistic = statistic
        self.over: Over = over
        if over == "block":  # known without a trial
            self.couples_queries = True

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Mask = None) -> Tensor:
        given = q_BHND.dtype
        if self.over == "block":
            mask = written_out(mask)
        with without_autocast(q_BHND):
            q_BHND, k_BHMD = at_least_float32(q_BHND, k_BHMD)
            tau = self.tau.to(q_BHND.dtype)
            rounding = rounding_variance(q_BHND, k_BHMD, mask, self.over)
            if self.statistic in ("var", "std"):
                variance, count = score_variance(q_BHND, k_BHMD, mask, self.over)
                sigma = self._of_variance(variance, count, rounding, tau)
            else:
                sigma = self._of_chunks(q_BHND, k_BHMD, written_out(mask))
                sigma = torch.where(sigma > rounding.sqrt(), sigma, tau)
            sigma = _bounded(sigma, tau)
            if given == torch.float16:
                sigma = torch.maximum(sigma, self._least_in_float16(q_BHND, k_BHMD))
            return 1.0 / sigma

    def weights_in_bfloat16(self, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor | None:
        if self.statistic not in ("var", "std") or self.over == "block":
            return None
        root = self.statistic == "std"
        factor = _unbiased(k_BHMD.shape[-2]) if root else 1.0
        assert isinstance(factor, float)
        return norm_weights(q_BHND, k_BHMD, self.tau.float().view(1, 1, 1, 1), factor, root)

    def _of_variance(self, variance: Tensor, count: Tensor | int, rounding: Tensor, tau: Tensor) -> Tensor:
        spread = variance > rounding
        if self.statistic == "var":
            return torch.where(spread, variance, tau)
        # tau is filled in before the root, since the slope of the root at 0 is infinite.
        return torch.where(spread, variance * _unbiased(count), tau.square()).sqrt()

    def _of_chunks(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None) -> Tensor:
        """The statistics that need the scores themselves, chunk by chunk, [B, H, N or 1, 1]."""
        block = self.over == "block"
        if self.statistic == "mad":
            row_mean_BHN1 = (q_BHND * mean_key(k_BHMD, mask)).sum(-1, keepdim=True)
            centre = _mean_over_rows(row_mean_BHN1, k_BHMD, mask) if block else None
            deviation = row_absolute_deviation(q_BHND, k_BHMD, mask, centre)
            return _mean_over_rows(deviation, k_BHMD, mask) if block else deviation
        high, low = row_extremes(q_BHND, k_BHMD, mask).split(1, dim=-1)
        if block:
            high, low = high.amax(-2, keepdim=True), low.amin(-2, keepdim=True)
        return high - low if self.statistic == "range" else torch.maximum(high, -low)

    def _least_in_float16(self, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
        """The sigma at which rescaled queries, logits or their slopes reach a quarter of the largest float16 number."""
        q, k = (torch.linalg.vector_norm(x.detach(), dim=-1, keepdim=True) for x in (q_BHND, k_BHMD))
        if self.over == "block":
            q = q.amax(-2, keepdim=True)
        k = k.amax(-2, keepdim=True)
        return 4 / torch.finfo(torch.float16).max * torch.maximum(q * k, torch.maximum(q, k))


def _bounded(sigma: Tensor, tau: Tensor) -> Tensor:
    """min(sigma, tau), bounded below: for a smaller sigma, (1 / sigma)^2, which its gradient holds, would overflow."""
    return torch.minimum(sigma, tau).clamp_min(torch.finfo(tau.dtype).max ** -0.5)


def _mean_over_rows(of_rows_BHN1: Tensor, k_BHMD: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over all scores of a head, from the means of its rows, weighted by their numbers of scores, [B, H, 1, 1]."""
    if mask is None:
        return of_rows_BHN1.mean(-2, keepdim=True)
    counts = mask.expand(*of_rows_BHN1.shape[:-1], k_BHMD.shape[-2]).sum(-1, keepdim=True)
    return (of_rows_BHN1 * counts).sum(-2, keepdim=True) / counts.sum(-2, keepdim=True).clamp_min(1)


def _unbiased(count: Tensor | int) -> Tensor | float:
    """Factor from the biased variance of ``count`` scores to the unbiased one; 1 for a single score."""
    return count / (count - 1).clamp_min(1) if isinstance(count, Tensor) else count / max(count - 1, 1)
