"""Heat treatment: a temperature that rises over training, for any rule's tau."""

from __future__ import annotations

import copy
import inspect
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from lab.attention.rule import Tau
from lab.console import name_of


class TauSchedule(Protocol):
    """Schedule of tau over training: any object with these two.

    Attributes:
        by: when a new value is set, each "epoch" or each "step".
    """

    @property
    def by(self) -> str: ...

    def __call__(self, progress: float, default_tau: float) -> float:
        """tau when the share ``progress`` in [0, 1] of training is done; ``default_tau`` is the rule's own."""
        ...


def check_schedule(schedule: object, default_tau: float = 8.0) -> None:
    """Tries a copy of a schedule at each percent of training, for a rule whose own tau is ``default_tau``.

    Raises:
        ValueError: if it is none, cannot be called with a progress and ``default_tau``, its ``by`` is neither epoch nor
            step, a tau is not a positive number, or it gives another one when it is asked again, as each layer does.
    """
    if schedule is None or isinstance(schedule, type | str):
        raise ValueError(f"{schedule!r} is not a schedule: give one, such as HeatTreatment()")
    name, by = name_of(type(schedule)), getattr(schedule, "by", None)
    if by not in ("epoch", "step"):
        raise ValueError(f"{name}.by must say when tau is set anew, epoch or step, and is {by!r}")
    if not callable(schedule):
        raise ValueError(f"{name} needs __call__(self, progress, default_tau), which returns tau")
    try:
        inspect.signature(schedule).bind(0.0, default_tau)
    except TypeError as error:
        raise ValueError(
            f"{name}.__call__ does not take what the lab calls it with: begin it with "
            "def __call__(self, progress, default_tau)"
        ) from error
    tried: Any = schedule
    with suppress(Exception):  # one that cannot be copied is tried itself
        tried = copy.deepcopy(schedule)
    for progress in (percent / 100 for percent in range(101)):
        tau: object = tried(progress, default_tau)
        if isinstance(tau, bool) or not isinstance(tau, int | float) or not 0 < tau < math.inf:
            raise ValueError(
                f"{name} gives tau={tau!r} when {progress:.0%} of training is done: it must be a positive number"
            )
        if (again := tried(progress, default_tau)) != tau:
            raise ValueError(
                f"{name} gives tau={tau!r} when {progress:.0%} of training is done, and {again!r} when asked again: "
                "each layer asks, and so does a resumed run, so tau may depend on nothing but what it is called with"
            )


@dataclass(frozen=True)
class HeatTreatment:
    """tau after a share p of training: moves from ``start`` to ``end`` over the first ``share``, then stays at ``end``.

    With x = 1/tau or tau itself and s = min(p / share, 1),

        half_cosine: x = end + (start - end) (1 + cos(pi s)) / 2,          linear: x = start + (end - start) s.

    Source: Eureka-moments in Transformers, section 3 ("Heat Treatment"); as run: a half cosine in 1/tau from
    3 to 0.125 over the first half of the epochs, one value an epoch for all layers and heads (docs/published_runs.md).

    Args:
        start: tau at the beginning.
        end: tau at the end; None is the rule's own tau, sqrt(D) by default.
        share: share of training that the change takes, in (0, 1].
        shape: shape of the curve.
        quantity: x, the quantity that follows the curve.
        by: when a new value is set, each epoch or each step.
    """

    start: Tau = 1 / 3
    end: Tau | None = None
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    shape: Literal["half_cosine", "linear"] = "half_cosine"
    quantity: Literal["inverse_temperature", "temperature"] = "inverse_temperature"
    by: Literal["epoch", "step"] = "epoch"

    def __call__(self, progress: float, default_tau: float) -> float:
        """tau when the share ``progress`` in [0, 1] of training is done."""
        end = default_tau if self.end is None else self.end
        done = min(max(progress, 0.0) / self.share, 1.0)
        left = (1 + math.cos(math.pi * done)) / 2 if self.shape == "half_cosine" else 1 - done
        if self.quantity == "temperature":
            return end + (self.start - end) * left
        return 1 / (1 / end + (1 / self.start - 1 / end) * left)
