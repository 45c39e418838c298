"""NormSoftmax: logits divided by their own spread, where it is below tau."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lab.softmax.rule import TemperatureRule, at_least_float32


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
        eps: floor of sigma. It keeps rows of equal scores (sigma = 0) finite, in value and gradient.

    Raises:
        ValueError: if an option is unknown or eps not positive.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        tau: float | None = None,
        statistic: Literal["var", "std"] = "var",
        over: Literal["row", "block"] = "row",
        eps: float = 1e-6,
    ) -> None:
        super().__init__(heads, head_dim, tau)
        if statistic not in ("var", "std"):
            raise ValueError(f"softmax.statistic must be 'var' or 'std', got {statistic!r}")
        if over not in ("row", "block"):
            raise ValueError(f"softmax.over must be 'row' or 'block', got {over!r}")
        if not eps > 0:
            raise ValueError(f"softmax.eps must be positive, got {eps}")
        self.statistic = statistic
        self.over = over
        self.eps = eps

    @property
    def couples_queries(self) -> bool:
        return self.over == "block"

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        with torch.autocast(q_BHND.device.type, enabled=False):
            q_BHND, k_BHMD = at_least_float32(q_BHND, k_BHMD)
            if mask is None:
                variance, count = self._variance(q_BHND, k_BHMD)
            else:
                variance, count = self._masked_variance(q_BHND, k_BHMD, mask)
            if self.statistic == "var":
                sigma = variance.clamp_min(self.eps)
            else:
                unbiased = variance * (count / (count - 1).clamp_min(1))
                # The floor is inside the root, whose slope at 0 is infinite.
                sigma = unbiased.clamp_min(self.eps**2).sqrt()
            return 1.0 / torch.minimum(sigma, self.tau.to(sigma.dtype))

    def _variance(self, q_BHND: Tensor, k_BHMD: Tensor) -> tuple[Tensor, Tensor]:
        """Biased variance of the raw scores, [B, H, N or 1, 1], and the number of scores behind each."""
        queries, keys = q_BHND.shape[-2], k_BHMD.shape[-2]
        if queries * keys <= self.head_dim**2:
            # Scores of so few tokens are no larger than the covariance that would spare them.
            axes = (-1,) if self.over == "row" else (-2, -1)
            scores_BHNM = q_BHND @ k_BHMD.transpose(-2, -1)
            variance = scores_BHNM.var(axes, correction=0, keepdim=True)
            return variance, variance.new_tensor(float(keys if self.over == "row" else keys * queries))
        mean_BH1D = k_BHMD.mean(-2, keepdim=True)
        centred_BHMD = k_BHMD - mean_BH1D
        covariance_BHDD = centred_BHMD.transpose(-2, -1) @ centred_BHMD / keys
        variance = ((q_BHND @ covariance_BHDD) * q_BHND).sum(-1, keepdim=True)
        if self.over == "row":
            return variance, variance.new_tensor(float(keys))
        means = (q_BHND * mean_BH1D).sum(-1, keepdim=True)
        total = variance.mean(-2, keepdim=True) + means.var(-2, correction=0, keepdim=True)
        return total, variance.new_tensor(float(keys * queries))

    def _masked_variance(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        scores_BHNM = q_BHND @ k_BHMD.transpose(-2, -1)
        allowed = mask.expand_as(scores_BHNM).to(scores_BHNM.dtype)
        axes = (-1,) if self.over == "row" else (-2, -1)
        count = allowed.sum(axes, keepdim=True).clamp_min(1)
        mean = (scores_BHNM * allowed).sum(axes, keepdim=True) / count
        variance = ((scores_BHNM - mean).square() * allowed).sum(axes, keepdim=True) / count
        return variance, count
