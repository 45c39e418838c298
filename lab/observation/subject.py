"""A model that is inspected after training, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from lab.observation.gradients import TrainingState


@dataclass(frozen=True)
class Subject:
    """A model to inspect, with all else that a diagnostic may need.

    Attributes:
        model: model under a softmax of the lab.
        trained: its checkpoint, with data and loss of its run; None for a model without a loss.
        encode: turns a text into tokens; None for a model that reads no text.
        longest: largest number of tokens that the model takes; None where it is unknown.
    """

    model: nn.Module
    trained: TrainingState | None = None
    encode: Callable[[str], Sequence[int]] | None = None
    longest: int | None = None
