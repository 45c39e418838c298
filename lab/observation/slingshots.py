"""Slingshots: spikes of the training loss after a model has learnt its task."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Of a float32 of 1.
_PRECISION = 2.0**-23


def slingshots(losses: Sequence[float], factor: float = 10.0) -> list[int]:
    """Finds the slingshots of a run: the indices in ``losses`` at which one begins.

    A slingshot begins where the loss rises above ``factor`` times the lowest loss so far. It ends, so that another one
    can begin, once the loss is back below that. Pass the losses from the Eureka-moment on: before it, the model has
    learnt nothing that a slingshot could throw it out of.

    Source: Thilak et al. 2022, "The Slingshot Mechanism", whose phases begin with such a spike; Eureka-moments in
    Transformers, A.17, which saw slingshots and did not count them.

    Losses below float32's precision count as that: from an exact 0, any loss at all would be a spike.

    Args:
        losses: training losses in the order of time; the more often they are taken, the fewer slingshots are missed.
        factor: how far above the lowest loss a spike has to go.

    Raises:
        ValueError: if the factor is not above 1.
    """
    if not factor > 1:
        raise ValueError(f"a slingshot is a rise of the loss: factor must be above 1, got {factor}")
    lowest, above, found = float("inf"), False, []
    for place, loss in enumerate(losses):
        if loss > factor * lowest:
            found += [] if above else [place]
            above = True
        elif not math.isnan(loss):
            above = False
        lowest = min(lowest, max(loss, _PRECISION))
    return found
