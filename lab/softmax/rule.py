"""What every temperature rule is.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn


class TemperatureRule(nn.Module):
    """Maps queries and keys to an inverse temperature beta; attention is softmax((beta q) k^T) v.

    Since beta belongs to a query (or is coarser), attention under any rule is plain attention on rescaled
    queries and runs on any fused kernel.

    Args:
        heads: number of heads H of the layer.
        head_dim: dimension D of a head.
        tau: temperature; None is the default sqrt(D).

    Raises:
        ValueError: if tau is not positive and finite.
    """

    tau: Tensor

    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim
        self.default_tau = math.sqrt(head_dim) if tau is None else float(tau)
        # A buffer, not a number: a schedule moves it without torch.compile compiling anew.
        self.register_buffer("tau", torch.tensor(_valid(self.default_tau)))

    def set_tau(self, value: float) -> None:
        """Sets the temperature, in place."""
        self.tau.fill_(_valid(value))

    @property
    def couples_queries(self) -> bool:
        """Whether the temperature of one query depends on the others."""
        return False

    @property
    def weighs_channels(self) -> bool:
        """Whether beta differs between the channels of a query, so that q may not be taken in another basis."""
        return False

    @abstractmethod
    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        """beta, broadcastable to q_BHND.

        Args:
            mask: bool, True where a query may attend to a key, broadcastable to [B, H, N, M].
        """

    def share(self, first: TemperatureRule) -> None:
        """Called on the rules of all later layers with the first layer's; ties what layers share."""

    def temperatures(self) -> dict[str, Tensor]:
        """Detached values worth logging, by name."""
        return {"tau": self.tau.detach().clone()}


def _valid(tau: float) -> float:
    if not (tau > 0 and math.isfinite(tau)):
        raise ValueError(f"softmax.tau must be positive and finite, got {tau}")
    return tau


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, half precision raised to float32: statistics of 16-bit numbers are too coarse."""
    return tuple(t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors)
