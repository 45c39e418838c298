"""CIFAR task 1: do two natural images match? Then read the digit, else name the garment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from lab.datasets.scenes import BLUE, RED, WHITE, ImageBank, Scenes, tint
from lab.datasets.tasks.task import MatchTask, check_counts

DIGITS = 10


class CifarTask1(MatchTask):
    """Two CIFAR-10 images as indicators, a digit and a garment (red or blue) as targets, on shuffled tiles.

    z = [indicator_1 = indicator_2]; y = the digit if z else the garment. Nothing is told by position.

    Source: Eureka-moments in Transformers, A.9 ("Cifar task 1") and Table 6; docs/published_runs.md, "Other tasks".

    Args:
        indicators: names of the classes of the source ``objects`` that indicators are drawn from.
        separate_labels: digits are labels 0 to 9 and garments 10 to 19; otherwise both are 0 to 9, as in the
            paper, whose model has ten outputs.

    Raises:
        ValueError: if fewer than two classes are named.
    """

    label_source = "garments"
    locations: ClassVar[tuple[str, ...]] = ("digit", "garment")

    def __init__(self, indicators: Sequence[str] = ("automobile", "bird"), separate_labels: bool = False) -> None:
        if len(set(indicators)) < 2:
            raise ValueError(f"data.task.indicators needs at least two different classes, got {list(indicators)}")
        self.indicators = tuple(indicators)
        self.second_label = DIGITS if separate_labels else 0

    def label_names(self, class_names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        digits, garments = class_names["digits"], class_names["garments"]
        check_counts("digits", digits, "garments", garments)
        check_counts("digits", digits, "labels of a target", range(DIGITS))
        if self.second_label:
            return (*digits, *garments)
        return tuple(f"{digit} / {garment}" for digit, garment in zip(digits, garments, strict=True))

    def sample(self, bank: ImageBank, walk: Tensor, generator: torch.Generator) -> Scenes:
        size = len(walk)
        names = bank.class_names.get("objects", ())
        if missing := [name for name in self.indicators if name not in names]:
            raise ValueError(
                f"data.task.indicators: source objects has no {missing}; it has {', '.join(names) or 'none'}"
            )
        objects = bank.draw("objects", [size, 2], generator, [names.index(name) for name in self.indicators])
        digit = bank.draw("digits", [size], generator)
        garment = bank.walk("garments", walk)
        # Parts in the order of the latents' names below, each on a tile of its own.
        parts = torch.stack([objects[:, 0], objects[:, 1], digit, garment], dim=1)
        tiles = torch.rand(size, 4, generator=generator).argsort(1)
        color = torch.randint(1, 3, (size, 2), generator=generator)
        choice = torch.cat([torch.zeros_like(color), color], dim=1)
        kind = bank.labels[parts]
        latents = {
            "indicator_1": kind[:, 0],
            "indicator_2": kind[:, 1],
            "target_1": kind[:, 2],
            "target_2": kind[:, 3],
            "target_location": (kind[:, 0] != kind[:, 1]).long(),
            "color_1": color[:, 0] - 1,
            "color_2": color[:, 1] - 1,
            **{
                f"{part}_tile": tiles[:, place]
                for place, part in enumerate(("indicator_1", "indicator_2", "target_1", "target_2"))
            },
        }
        images = torch.empty_like(parts).scatter(1, tiles, parts)
        palette = torch.tensor([WHITE, RED, BLUE])
        return Scenes(images, tint(palette, torch.empty_like(choice).scatter(1, tiles, choice), generator), latents)
