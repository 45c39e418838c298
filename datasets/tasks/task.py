"""What every vision task is: a sampler of scenes and a rule that labels them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from datasets.scenes import ImageBank, Scenes


class Task(ABC):
    """A two-step task p(y | x, z) p(z | x): the scene hides z, the rule turns scene and z into the label y.

    A new task is one file with one subclass and one config naming it (``_target_``). The random draws and
    the label rule are kept apart, so that a test can check one against the other.
    """

    # What z chooses between, in the order of the latent ``target_location``; metrics are split by it.
    locations: ClassVar[tuple[str, ...]] = ("top_right", "bottom_left")

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the labels, where they are no plain classes of ``label_source``."""

    @property
    @abstractmethod
    def label_source(self) -> str:
        """The source whose classes are the labels and whose images the epoch walks through."""

    @abstractmethod
    def sample(self, bank: ImageBank, walk: Tensor, generator: torch.Generator) -> Scenes:
        """Draws len(walk) scenes.

        Args:
            bank: the images of one split.
            walk: [B] int64, positions in this epoch's walk through ``label_source``; each image of it comes
                once an epoch, everything else is drawn from ``generator``.
        """

    @abstractmethod
    def label(self, latents: dict[str, Tensor]) -> Tensor:
        """The rule: [B] int64 labels from the latents alone."""


def probability(name: str, value: float) -> float:
    """``value`` if it is a probability; ValueError naming the option otherwise."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be a probability between 0 and 1, got {value}")
    return value


def choose(first: Tensor, second: Tensor, location: Tensor) -> Tensor:
    """``first`` where the target location is 0, ``second`` where it is 1; all [B]."""
    return torch.where(location == 0, first, second)
