"""Hard attention: the key of the largest logit alone."""

from __future__ import annotations

from torch import Tensor

from lab.attention.normaliser import Normaliser
from lab.attention.normalisers.softmax import softmax


class Hard(Normaliser):
    """w = 1 on the largest logit and 0 elsewhere: softmax in the limit of tau -> 0.

    Logits that tie for the largest share the weight, as in that limit; rounding may part those of equal keys.
    The gradient is that of softmax ("straight through"), since argmax has none; tau is the temperature of that softmax
    and does not change the weights.

    Source: "softmax is not enough", sections 3 and 5 (hard attention, applied to a trained model); straight-through
    gradient: Bengio et al. 2013.
    """

    total = "one"
    shift_invariant = True
    couples_queries = False

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        soft = softmax(logits_BHNM, mask)
        largest = logits_BHNM == logits_BHNM.amax(-1, keepdim=True)
        if mask is not None:
            largest = largest & mask  # in a row that may see nothing, all logits tie at -inf
        hard = largest.to(soft.dtype) / largest.sum(-1, keepdim=True).clamp_min(1)
        # The value is exactly ``hard``, since the difference is 0; the gradient is that of ``soft``.
        return hard + (soft - soft.detach())
