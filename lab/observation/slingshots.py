"""Slingshots: spikes of the training loss after a model has learnt its task."""

from __future__ import annotations

from collections.abc import Sequence


def slingshots(losses: Sequence[float], factor: float = 10.0) -> list[int]:
    """Finds the slingshots of a run: places in ``losses`` at which one begins.

    One begins where the loss rises above ``factor`` times the lowest so far, and ends, so that another can begin, once
    it is back below that. Give it the losses from the Eureka-moment on: before it there is nothing to be thrown out of.

    Source: Thilak et al. 2022, "The Slingshot Mechanism", whose phases begin with such a spike; Eureka-moments in
    Transformers, A.17, which saw them and did not count.

    Args:
        losses: of training, in the order of time; the finer, the fewer are missed.
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
        else:
            above = False
        lowest = min(lowest, loss)
    return found
