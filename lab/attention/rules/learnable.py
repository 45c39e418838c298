"""A learned factor on the scores."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from lab.attention.masks import Mask
from lab.attention.rule import Tau, TemperatureRule

Granularity = Literal["layer_head", "layer", "head", "channel"]
Parametrisation = Literal["raw", "log", "tanh", "sigmoid"]

_LIMIT = 2.0


class LearnableTemperature(TemperatureRule):
    """softmax(t q k^T / tau) with a learned t, 1 at the start.

    The factor t is an inverse temperature: a large t gives a peaked softmax. tau remains as well, sqrt(D) by default.

        raw: t = theta          log: t = exp(theta)
        tanh: t = limit tanh(theta)          sigmoid: t = limit sigmoid(theta)

    Source: "Introducing a learnable temperature value into the softmax self-attention scores".

    Args:
        granularity: what has a t of its own: each "layer_head", each "layer", each "head" across all layers,
            or each "channel" of each head of each layer.
        parametrisation: how t is computed from the parameter theta.
        initial: t at the start.
        limit: bound of t for tanh and sigmoid.

    Raises:
        ValueError: if no theta gives ``initial``, or a limit is given where t has none.
    """

    takes_causal = True
    reads_keys = False

    def __init__(
        self,
        heads: int,
        head_dim: int,
        tau: Tau | None = None,
        granularity: Granularity = "layer_head",
        parametrisation: Parametrisation = "raw",
        initial: float = 1.0,
        limit: PositiveFloat = _LIMIT,
    ) -> None:
        super().__init__(heads, head_dim, tau)
        if parametrisation in ("raw", "log") and limit != _LIMIT:
            raise ValueError(
                f"softmax.limit={limit} bounds t under softmax.parametrisation=tanh and sigmoid, not under "
                f"{parametrisation}: leave it out"
            )
        shapes = {
            "layer_head": (heads, 1, 1),
            "layer": (1, 1, 1),
            "head": (heads, 1, 1),
            "channel": (heads, 1, head_dim),
        }
        self.granularity = granularity
        self.parametrisation: Parametrisation = parametrisation
        self.limit = limit
        self.theta = nn.Parameter(torch.full(shapes[granularity], float(self._theta_of(initial))))

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Mask = None) -> Tensor:
        return self.factor() / self.tau

    def factor(self) -> Tensor:
        """t, [H or 1, 1, D or 1]."""
        if self.parametrisation == "raw":
            return self.theta
        if self.parametrisation == "log":
            return self.theta.exp()
        if self.parametrisation == "tanh":
            return self.limit * self.theta.tanh()
        return self.limit * self.theta.sigmoid()

    def share(self, first: TemperatureRule) -> None:
        if self.granularity == "head":
            assert isinstance(first, LearnableTemperature)
            self.theta = first.theta

    def temperatures(self) -> dict[str, Tensor]:
        return {**super().temperatures(), "factor": self.factor().detach().flatten().clone()}

    def _theta_of(self, initial: float) -> float:
        """The parameter whose t is ``initial``."""
        bound = f"softmax.initial={initial} cannot be reached by softmax.parametrisation={self.parametrisation}"
        match self.parametrisation:
            case "raw":
                return initial
            case "log":
                if initial <= 0:
                    raise ValueError(f"{bound}: it must be positive")
                return math.log(initial)
            case "tanh":
                if abs(initial) >= self.limit:
                    raise ValueError(f"{bound}: it must lie between -{self.limit} and {self.limit}")
                return math.atanh(initial / self.limit)
            case "sigmoid":
                if not 0 < initial < self.limit:
                    raise ValueError(f"{bound}: it must lie between 0 and {self.limit}")
                return -math.log(self.limit / initial - 1)
