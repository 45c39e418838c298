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


def scores_of(q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
    """Raw scores q k^T, [B, H, N, M].

    A single query of a narrow head multiplies and adds number by number: for the reasoning task (5 keys, heads of
    4) a matrix product of each sample costs more in calls than in arithmetic.
    """
    if is_narrow(q_BHND):
        q_H1DB, k_HMDB = samples_last(q_BHND), samples_last(k_BHMD)
        return samples_first((q_H1DB * k_HMDB).sum(-2).unsqueeze(1))
    return q_BHND @ k_BHMD.transpose(-2, -1)


def samples_last(x: Tensor) -> Tensor:
    """[B, H, N, M] -> [H, N, M, B], a view: arithmetic along samples is vectorised however small the rest is."""
    return x.permute(1, 2, 3, 0)


def samples_first(x: Tensor) -> Tensor:
    """[H, N, M, B] -> [B, H, N, M], a view."""
    return x.permute(3, 0, 1, 2)


def is_narrow(q_BHND: Tensor) -> bool:
    """Whether queries are so few and narrow that elementwise arithmetic is quicker than matrix products."""
    return q_BHND.device.type == "cpu" and q_BHND.shape[-2] == 1 and q_BHND.shape[-1] <= 8


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, half precision raised to float32: statistics of 16-bit numbers are too coarse."""
    return tuple(t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors)
