"""The base of every vision task: a sampler of scenes and a rule that labels them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from lab.datasets.scenes import ImageBank, Scenes
from lab.datasets.sources import Source

Probability = Annotated[float, Field(ge=0, le=1)]


class Task:
    """A two-step task p(y | x, z) p(z | x): the scene hides z, the rule turns scene and z into the label y.

    A new task is one file with one subclass and one config naming it (``_target_``): ``label_source``, :meth:`sample`
    and :meth:`label`, and ``locations`` if they are not those below. The random draws and the label rule are kept
    apart, so that a test can check one against the other. :mod:`lab.datasets.tasks.check` says what is missing.
    """

    # The source whose classes are the labels and whose images the epoch walks through.
    label_source: str
    # What z chooses between, in the order of the latent ``target_location``; metrics are split by it.
    locations: ClassVar[tuple[str, ...]] = ("top_right", "bottom_left")
    # The sources whose images it shows, the only ones that are loaded; None loads all.
    sources: ClassVar[tuple[str, ...] | None] = None
    # Parts that stand on no tile of their own (a column, say); every other part has a latent ``<part>_tile``.
    placeless: ClassVar[tuple[str, ...]] = ()

    def label_names(self, class_names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """Names of the labels: those of ``label_source``, unless a task says otherwise.

        Args:
            class_names: names of the classes of every source.
        """
        return class_names[self.label_source]

    def sample(self, bank: ImageBank, walk: Tensor, generator: torch.Generator) -> Scenes:
        """Draws len(walk) scenes.

        Args:
            bank: the images of one split.
            walk: [B] int64, positions in this epoch's walk through ``label_source``, whose images are shown in
                turn; everything else is drawn from ``generator``.
        """
        raise NotImplementedError

    def label(self, latents: dict[str, Tensor]) -> Tensor:
        """The rule: [B] int64 labels from the latents alone, on whichever device they are."""
        raise NotImplementedError


class MatchTask(Task):
    """z = do the two indicators match? y = ``target_1`` if they do, else ``target_2``."""

    # Added to the second target where its labels are not those of the first.
    second_label = 0

    def label(self, latents: dict[str, Tensor]) -> Tensor:
        match = self.match(latents["indicator_1"], latents["indicator_2"])
        return choose(latents["target_1"], latents["target_2"] + self.second_label, (~match).long())

    def match(self, first: Tensor, second: Tensor) -> Tensor:
        """True where two indicators count as the same; all [B]."""
        return first == second


def sources_of(task: Task, source: Mapping[str, Source]) -> dict[str, Source]:
    """Picks the sources that a task shows: those that it names, or all."""
    return {name: one for name, one in source.items() if task.sources is None or name in task.sources}


def check_counts(one: str, names: Collection[Any], other: str, others: Collection[Any]) -> None:
    """Raises ValueError unless two kinds of answers, which share labels or are numbered in turn, are equally many."""
    if len(names) != len(others):
        raise ValueError(f"this task needs as many {one} as {other}, and there are {len(names)} and {len(others)}")


def choose(first: Tensor, second: Tensor, location: Tensor) -> Tensor:
    """``first`` where the target location is 0, ``second`` where it is 1; all [B]."""
    return torch.where(location == 0, first, second)


def on_tiles(size: int, **tiles: int) -> dict[str, Tensor]:
    """Latents ``<part>_tile`` of parts that always stand on the same tile; all [size] int64."""
    return {f"{part}_tile": torch.full((size,), tile) for part, tile in tiles.items()}


def coin(size: int, generator: torch.Generator) -> Tensor:
    """[size] int64, 0 or 1 with probability 1/2 each."""
    return torch.randint(2, (size,), generator=generator)
