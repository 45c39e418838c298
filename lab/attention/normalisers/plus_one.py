"""Softmax plus one and its variants: a sink that attention may go to in place of any key."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from lab.attention import fused
from lab.attention.masks import key_counts
from lab.attention.normaliser import Normaliser

Bias = Literal["fixed", "learned", "length"]


class PlusOne(Normaliser):
    """w_j = exp(l_j) / (b + sum_i exp(l_i)): if all logits are far below log b, nothing is attended to.

        fixed: b = initial          learned: b = exp(theta), per head
        length: b(n) = exp(theta + gamma log n), per head, n the number of keys that a row may see; gamma starts at 0

    The null mass b / (b + sum) is the weight of one more key, whose value is 0 and whose score is log b: that is how it
    runs on the fused kernel.

    Source: "Softmax attention is a fluke", "Achieving Null Attention" (b = 1) and proposal 2 (b learned, b a function
    of the sequence's length). The source leaves open what has a b of its own: here each head of each layer.

    Args:
        bias: form of b, see above.
        initial: b at the start.
    """

    total = "at most one"
    exponential = True
    shift_invariant = False
    couples_queries = False

    def __init__(self, heads: int, head_dim: int, bias: Bias = "fixed", initial: PositiveFloat = 1.0) -> None:
        super().__init__(heads, head_dim)
        self.bias: Bias = bias
        self.initial = float(initial)
        start = torch.full((heads, 1, 1), math.log(initial))
        self.theta = nn.Parameter(start) if bias != "fixed" else None
        self.gamma = nn.Parameter(torch.zeros(heads, 1, 1)) if bias == "length" else None

    def log_bias(self, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """log b, broadcastable to [B, H, N, 1]; None where b is always 1."""
        if self.theta is None:
            if self.initial == 1:
                return None
            return torch.full((), math.log(self.initial), dtype=k_BHMD.dtype, device=k_BHMD.device)
        if self.gamma is None:
            return self.theta
        return self.theta + self.gamma * key_counts(mask, k_BHMD).log()

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        # The keys are not known here, but ``log_bias`` needs only their number, which the logits tell.
        log_b = self.log_bias(logits_BHNM.transpose(-2, -1), mask)
        sink_BHN1 = logits_BHNM.new_zeros(()) if log_b is None else log_b.to(logits_BHNM.dtype)
        with_sink = torch.cat([sink_BHN1.expand(*logits_BHNM.shape[:-1], 1), logits_BHNM], -1)
        return with_sink.softmax(-1)[..., 1:]

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        D = v_BHMD.shape[-1]
        log_b = self.log_bias(k_BHMD, mask)
        # One more key, before the others: of score 0 and value 0.
        k, v = F.pad(k_BHMD, (0, 0, 1, 0)), F.pad(v_BHMD, (0, 0, 1, 0))
        if log_b is not None:
            # One more channel, 0 for every key but this one, makes its score log b.
            own = F.pad(k.new_ones(1), (0, k.shape[-2] - 1))
            k = torch.cat([k, own.unsqueeze(-1).expand(*k.shape[:-1], 1)], -1)
            q_BHND = torch.cat([q_BHND, log_b.to(q_BHND.dtype).expand(*q_BHND.shape[:-1], 1)], -1)
            # Fused kernels of a GPU take multiples of 8 channels: further channels of 0 fill up to the next multiple.
            empty = -(D + 1) % 8 if k.device.type == "cuda" else 0
            q_BHND, k, v = F.pad(q_BHND, (0, empty)), F.pad(k, (0, empty)), F.pad(v, (0, 1 + empty))
        if mask is not None:
            mask = F.pad(mask.expand(*mask.shape[:-1], k_BHMD.shape[-2]), (1, 0), value=True)
        return fused.attend(q_BHND, k, v, mask)[..., :D]

    def quantities(self) -> dict[str, Tensor]:
        if self.theta is None:
            return {}
        found = {"sink_bias": self.theta.detach().exp().flatten().clone()}
        return found if self.gamma is None else {**found, "sink_gamma": self.gamma.detach().flatten().clone()}
