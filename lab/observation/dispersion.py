"""Dispersion: how softmax spreads over many items, and the temperature that would have been best.

Shapes: B rows, n items. Logits are what the softmax is taken of at temperature theta = 1; beta = 1 / theta.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def entropy(logits_Bn: Tensor, beta_B: Tensor | float = 1.0) -> Tensor:
    """Shannon entropy in nats of softmax(beta e), [B].

    Source: "softmax is not enough", Proposition 3.2.
    """
    beta = beta_B.unsqueeze(-1).to(logits_Bn.dtype) if isinstance(beta_B, Tensor) else beta_B
    return torch.special.entr((logits_Bn * beta).softmax(-1)).sum(-1)


def best_inverse_temperature(logits_Bn: Tensor, wanted_B: Tensor, largest: float = 1e4) -> Tensor:
    """The beta > 0 that maximises the weight of item ``wanted`` in softmax(beta e), [B] float64.

        d/d beta log softmax(beta e)_m = e_m - sum_i p_i(beta) e_i

    falls in beta (its slope is minus the variance of e under p), so that the maximum is where it crosses 0, found
    by bisection. The best beta is 0, up to rounding, where e_m lies below the mean of e (uniform weights are best), and
    ``largest`` where e_m is the largest logit (the sharper the better).

    Source: "softmax is not enough", section 3 ("the optimal value of theta that would maximise its probability").
    """
    e = logits_Bn.double()
    own = e.gather(1, wanted_B.unsqueeze(1))
    sharpest = (own == e.amax(-1, keepdim=True)) & (own > e.mean(-1, keepdim=True))
    low, high = torch.zeros_like(own[:, 0]), torch.full_like(own[:, 0], largest)
    for _ in range(60):
        middle = (low + high) / 2
        mean = ((e * middle.unsqueeze(1)).softmax(-1) * e).sum(-1, keepdim=True)
        # The weight of the largest logit always grows with beta, even where rounding hides the growth.
        rising = ((own > mean) | sharpest).squeeze(1)
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return (low + high) / 2


def fit_beta(entropies: NDArray[np.float64], betas: NDArray[np.float64], degree: int = 4) -> list[float]:
    """Coefficients, highest power first, of the least-squares polynomial beta(H): ``adaptive_temperature`` takes them.

    Source: "softmax is not enough", Figure 5 (theta as an inverse polynomial of degree 4 in the entropy).

    Raises:
        ValueError: if there are not more points than coefficients.
    """
    if len(entropies) <= degree + 1:
        raise ValueError(f"{len(entropies)} points are too few for a polynomial of degree {degree}")
    return [float(value) for value in np.polyfit(entropies, betas, degree)]
