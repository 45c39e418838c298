"""Linear attention: a product of feature maps in place of the exponential, in time linear in the tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.attention.normaliser import Normaliser
from lab.attention.precision import at_least_float32


class Linear(Normaliser):
    """w_j = phi(q) phi(k_j)^T / sum_i phi(q) phi(k_i)^T,   phi(x) = elu(x) + 1, which is positive.

    So z = phi(q) (phi(k)^T v) / (phi(q) phi(k)^T 1), in O(N + M). A mask that is the same for all queries (padding)
    keeps this form; under any other, weights are written out over chunks of queries.

    Queries are divided by tau, as under every normaliser, but tau does not act as a temperature here; the config has
    tau = 1, as in the source.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", equations 4 to 7; named in "softmax is not enough",
    section 5.

    Args:
        normalised: False leaves the sum out, z = phi(q) (phi(k)^T v).
    """

    takes_temperature = False
    shift_invariant = False
    couples_queries = False

    def __init__(self, heads: int, head_dim: int, normalised: bool = True) -> None:
        super().__init__(heads, head_dim)
        self.normalised = normalised
        self.total = "one" if normalised else "anything"

    def scores(self, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
        return super().scores(_phi(q_BHND), _phi(k_BHMD))

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        weights = logits_BHNM if mask is None else logits_BHNM.masked_fill(~mask, 0.0)
        return _divided(weights, weights.sum(-1, keepdim=True)) if self.normalised else weights

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None and torch.atleast_2d(mask).shape[-2] > 1:
            return super().attend(q_BHND, k_BHMD, v_BHMD, mask)
        q, k, v = at_least_float32(q_BHND, k_BHMD, v_BHMD)
        q, k = _phi(q), _phi(k)
        if mask is not None:
            k = k.masked_fill(~torch.atleast_2d(mask).transpose(-2, -1), 0.0)
        z = q @ (k.transpose(-2, -1) @ v)
        if self.normalised:
            z = _divided(z, q @ k.sum(-2, keepdim=True).transpose(-2, -1))
        return z.to(v_BHMD.dtype)


def _phi(x: Tensor) -> Tensor:
    """elu(x) + 1, exact to the last digit where x is far below 0."""
    return torch.where(x > 0, x + 1, x.clamp_max(0).exp())


def _divided(numbers: Tensor, by: Tensor) -> Tensor:
    """``numbers / by``, 0 where ``by`` is 0: nothing may be seen, or every feature has underflowed."""
    return torch.where(by > 0, numbers / torch.where(by > 0, by, 1.0), 0.0)
