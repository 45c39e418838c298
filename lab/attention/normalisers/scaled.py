"""A learned scale after the softmax."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lab.attention.masks import Mask
from lab.attention.normalisers.softmax import Softmax


class Scaled(Softmax):
    """w_j = s exp(l_j) / sum_i exp(l_i), s a learned number per head; the fused kernel can still be used.

    Source: "Introducing a learnable temperature value", among what did not help (scaling after the softmax).

    Args:
        initial: s at the start.
    """

    total = "anything"
    is_softmax = False
    exponential = False
    takes_causal = True

    def __init__(self, heads: int, head_dim: int, initial: float = 1.0) -> None:
        super().__init__(heads, head_dim)
        self.scale = nn.Parameter(torch.full((heads, 1, 1), float(initial)))

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.scale.to(logits_BHNM.dtype) * super().weights(logits_BHNM, mask)

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, mask: Mask = None) -> Tensor:
        return self.scale.to(v_BHMD.dtype) * super().attend(q_BHND, k_BHMD, v_BHMD, mask)

    def quantities(self) -> dict[str, Tensor]:
        return {"post_softmax_scale": self.scale.detach().flatten().clone()}
