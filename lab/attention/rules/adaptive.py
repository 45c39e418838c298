"""Adaptive temperature: sharper where the softmax would be spread out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lab.attention.precision import at_least_float32, without_autocast
from lab.attention.row_statistics import row_entropy
from lab.attention.rule import Tau, TemperatureRule


class AdaptiveTemperature(TemperatureRule):
    """softmax(beta(H) q k^T / tau), where H is the Shannon entropy (nats) of softmax(q k^T / tau).

        beta(H) = max(polynomial(H), 1) where H > gate, else 1: entropy is never raised.

    Source: "softmax is not enough", section 3 and Figure 5 (coefficients, gate 0.5, never below 1).

    Args:
        coefficients: coefficients of the polynomial in H, highest power first.
        gate: rows of at most this entropy stay as they are.
        when: at "inference" only (the module's eval mode), as in max retrieval, or "always", as in CLRS-Text.
    """

    assumes_softmax = True

    def __init__(
        self,
        heads: int,
        head_dim: int,
        tau: Tau | None = None,
        coefficients: Annotated[Sequence[float], Field(min_length=1)] = (-0.037, 0.481, -2.3, 4.917, -1.791),
        gate: float = 0.5,
        when: Literal["inference", "always"] = "inference",
    ) -> None:
        super().__init__(heads, head_dim, tau)
        self.coefficients = [float(c) for c in coefficients]
        self.gate = gate
        self.when = when

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        base = 1.0 / self.tau
        if self.training and self.when == "inference":
            return base
        with without_autocast(q_BHND):
            q, k = at_least_float32(q_BHND, k_BHMD)
            base = base.to(q.dtype)
            entropy = row_entropy(q * base, k, mask)
            return base * self.beta(entropy)

    def beta(self, entropy: Tensor) -> Tensor:
        """The factor on the inverse temperature at an entropy in nats; at least 1."""
        value = torch.zeros_like(entropy)
        for coefficient in self.coefficients:
            value = value * entropy + coefficient
        return torch.where(entropy > self.gate, value.clamp_min(1.0), torch.ones_like(value))
