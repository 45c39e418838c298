"""Hard attention: the key of the largest logit alone."""

from __future__ import annotations

from torch import Tensor

from lab.attention.normaliser import Normaliser
from lab.attention.normalisers.softmax import softmax


class Hard(Normaliser):
    """w = 1 on the largest logit and 0 elsewhere: softmax in the limit of tau -> 0.

    Keys whose largest logits are equal share the weight, as in that limit, so that no order of the keys counts. The
    gradient is softmax's ("straight through"), since argmax has none; tau is its temperature, and changes no weight.

    Source: "softmax is not enough", sections 1 and 3 (hard attention, put on a trained model); straight-through
    gradient: Bengio et al. 2013.
    """

    total = "one"
    shift_invariant = True
    couples_queries = False

    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        soft = softmax(logits_BHNM, mask)
        largest = logits_BHNM == logits_BHNM.amax(-1, keepdim=True)
        if mask is not None:
            largest = largest & mask  # where nothing may be seen, all are -inf
        hard = largest.to(soft.dtype) / largest.sum(-1, keepdim=True).clamp_min(1)
        # Exactly ``hard``: the difference is 0.
        return hard + (soft - soft.detach())
