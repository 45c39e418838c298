"""A model that is looked at afterwards, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from lab.observation.gradients import TrainingState


@dataclass(frozen=True)
class Subject:
    """A model to look at, with what a diagnostic may need of it beside.

    Attributes:
        model: under a softmax of the lab.
        trained: the checkpoint that it is, with data and loss of its run; None of a model without a loss.
        encode: tokens of a text; None of a model that reads none.
        longest: how many tokens it takes; None where that is not known.
    """

    model: nn.Module
    trained: TrainingState | None = None
    encode: Callable[[str], Sequence[int]] | None = None
    longest: int | None = None
