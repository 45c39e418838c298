"""Polynomial attention: a power of the logits in place of their exponential."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lab.attention.masks import key_counts
from lab.attention.normaliser import Normaliser


class Polynomial(Normaliser):
    """Odd powers p of the logits, which keep their signs:

        scaled: w_j = l_j^p / sqrt(n)          normalised: w_j = x_j^p / sum_i |x_i|^p,   x = l - mean(l)

    over the n keys that a row may see. With "normalised", logits that differ by no more than rounding get weights of 0.

    Source: scaled: Saratchandran et al. 2024, "Rethinking Softmax: Self-Attention with Polynomial Activations";
    normalised: "Softmax attention is a fluke", "Why Softmax?" (correlations minus their mean, cubed). There the divisor
    is a sum of signed numbers, which may be 0; here it is a sum of absolute values.

    Args:
        power: p.
        form: which of the two formulas.
    """

    couples_queries = False

    def __init__(
        self,
        heads: int,
        head_dim: int,
        power: Literal[1, 3, 5, 7] = 3,
        form: Literal["scaled", "normalised"] = "scaled",
    ) -> None:
        super().__init__(heads, head_dim)
        self.power = int(power)
        self.form = form
        self.shift_invariant = form == "normalised"

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = logits_BHNM if mask is None else logits_BHNM.masked_fill(~mask, 0.0)
        n_BHN1 = key_counts(mask, logits.transpose(-2, -1))
        if self.form == "scaled":
            return logits.pow(self.power) / n_BHN1.sqrt()
        x = logits - logits.sum(-1, keepdim=True) / n_BHN1
        x = x if mask is None else x.masked_fill(~mask, 0.0)
        # Divided by the largest size first: otherwise powers of small numbers would be 0, those of large ones infinite.
        largest = x.detach().abs().amax(-1, keepdim=True)
        rounding = 4 * torch.finfo(x.dtype).eps * logits.detach().abs().amax(-1, keepdim=True)
        spread = largest > rounding
        powers = (x / torch.where(spread, largest, 1.0)).pow(self.power)
        return torch.where(spread, powers / torch.where(spread, powers.abs().sum(-1, keepdim=True), 1.0), 0.0)
