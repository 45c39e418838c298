"""Plain softmax at a fixed temperature."""

from __future__ import annotations

from torch import Tensor

from lab.attention.masks import Mask
from lab.attention.rule import TemperatureRule


class Fixed(TemperatureRule):
    """softmax(q k^T / tau), tau = sqrt(d_k) by default.

    Source: Vaswani et al. 2017; Eureka-moments in Transformers, equation 1. "tau = 1/3" in Table 1 there is
    ``tau=0.3333``: raw scores are multiplied by 3 with no further 1/sqrt(d_k); "1/0.025" is ``tau=40``.
    """

    takes_causal = True
    reads_keys = False

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Mask = None) -> Tensor:
        return 1.0 / self.tau
