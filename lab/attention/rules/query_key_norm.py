"""Query-key normalisation: scores that do not grow with the size of queries and keys."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from lab.attention.precision import at_least_float32, without_autocast
from lab.attention.rule import Length, Tau, TemperatureRule

Norm = Literal["l2", "layer_norm"]

_EPS = 1e-5  # of a layer norm


class QueryKeyNorm(TemperatureRule):
    """softmax of scores between normalised queries and keys.

        l2: g q.k / (|q| |k|) sqrt(D) / tau, g learned per head
        layer_norm: (LN(q) w).(LN(k) v) / tau, w and v learned per channel of each head; LN has no bias

    tau is sqrt(D) unless it is set or scheduled. If LN(k) w v is centred in place of q, LN(q) is q divided by its
    standard deviation: one number per query, as a rule gives it.

    Source: Henry et al. 2020 (l2; g starts at log2(L^2 - L), L the length of sequences); Dehghani et al. 2023
    (layer_norm); both by way of "Introducing a learnable temperature value" and Eureka-moments in Transformers.

    Args:
        norm: how queries and keys are normalised.
        initial: g at the start; None is log2(L^2 - L).
        trained_length: L; None is the number of keys the model is made for: its tokens, or the largest set it is
            trained on.

    Raises:
        ValueError: if g or L is given for layer_norm, which has none.
    """

    # Normalised queries and keys depend on the basis of their channels, and each query is normalised by itself.
    weighs_channels = True
    couples_queries = False
    reads_keys = False

    def __init__(
        self,
        heads: int,
        head_dim: int,
        tau: Tau | None = None,
        norm: Norm = "l2",
        initial: PositiveFloat | None = None,
        trained_length: Length | None = None,
    ) -> None:
        super().__init__(heads, head_dim, tau)
        if norm == "layer_norm" and (initial is not None or trained_length is not None):
            raise ValueError("softmax.norm=layer_norm has no g: leave softmax.initial and softmax.trained_length out")
        self.norm: Norm = norm
        self.initial = initial
        l2 = norm == "l2"
        self.gain = nn.Parameter(torch.empty(heads, 1, 1)) if l2 else None
        self.query_gain = nn.Parameter(torch.ones(heads, 1, head_dim)) if not l2 else None
        self.key_gain = nn.Parameter(torch.ones(heads, 1, head_dim)) if not l2 else None
        self.trained_length = trained_length
        self._start()

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        with without_autocast(q_BHND):
            (q,) = at_least_float32(q_BHND)
            if self.gain is not None:
                if self.initial is None:
                    self.length()  # raises if L is unknown, since g does not start at its default then
                return self.gain * math.sqrt(self.head_dim) / (self.tau * q.norm(dim=-1, keepdim=True).clamp_min(1e-12))
            deviation = (q.var(-1, correction=0, keepdim=True) + _EPS).sqrt()
            return 1.0 / (self.tau * deviation)

    def keys(self, k_BHMD: Tensor) -> Tensor:
        with without_autocast(k_BHMD):
            (k,) = at_least_float32(k_BHMD)
            if self.query_gain is None or self.key_gain is None:
                return F.normalize(k, dim=-1).to(k_BHMD.dtype)
            k = F.layer_norm(k, k.shape[-1:], eps=_EPS) * (self.query_gain * self.key_gain)
            return (k - k.mean(-1, keepdim=True)).to(k_BHMD.dtype)

    def set_trained_length(self, keys: int) -> None:
        told = self.trained_length is not None
        super().set_trained_length(keys)
        if not told:
            self._start()

    def temperatures(self) -> dict[str, Tensor]:
        gains = {"gain": self.gain, "query_gain": self.query_gain, "key_gain": self.key_gain}
        learned = {name: value.detach().flatten().clone() for name, value in gains.items() if value is not None}
        return {**super().temperatures(), **learned}

    def _start(self) -> None:
        if self.gain is not None:
            L = self.trained_length
            start = self.initial if self.initial is not None else math.log2(L * L - L) if L else 1.0
            nn.init.constant_(self.gain, start)
