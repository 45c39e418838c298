"""Colour or fashion: do two digits match? Then name the garment, else its colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from lab.datasets.scenes import BOTTOM_LEFT, BOTTOM_RIGHT, TOP_LEFT, TOP_RIGHT, ImageBank, Scenes, tint
from lab.datasets.tasks.task import MatchTask, check_counts, on_tiles

# The ten colours that A.9 names; it gives no numbers.
COLORS = {
    "brown": (0.6, 0.3, 0.1),
    "blue": (0.0, 0.0, 1.0),
    "yellow": (1.0, 1.0, 0.0),
    "orange": (1.0, 0.55, 0.0),
    "red": (1.0, 0.0, 0.0),
    "green": (0.0, 0.8, 0.0),
    "purple": (0.55, 0.0, 0.75),
    "gray": (0.5, 0.5, 0.5),
    "pink": (1.0, 0.6, 0.8),
    "turquoise": (0.25, 0.88, 0.82),
}


class ColorOrFashion(MatchTask):
    """Digits 1 and 2 as indicators, garments as targets, every tile in one of ten colours.

    z = [indicator_1 = indicator_2]; y = garment top-right if z else colour of the garment top-right. So both
    targets belong to one image: ``target_1`` is its garment, ``target_2`` its colour.

    Source: Eureka-moments in Transformers, A.9 ("Color or fashion classification") and Table 9.

    Args:
        digits: digit classes of the indicators.
        separate_labels: garments are labels 0 to 9 and colours 10 to 19; otherwise both are 0 to 9, as in the
            paper, whose model has ten outputs.

    Raises:
        ValueError: if fewer than two digit classes are given.
    """

    label_source = "garments"
    locations: ClassVar[tuple[str, ...]] = ("garment", "color")

    def __init__(self, digits: Sequence[int] = (1, 2), separate_labels: bool = False) -> None:
        if len(set(digits)) < 2:
            raise ValueError(f"data.task.digits needs at least two different digit classes, got {list(digits)}")
        self.digits = tuple(digits)
        self.second_label = len(COLORS) if separate_labels else 0

    def label_names(self, class_names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        garments = class_names["garments"]
        check_counts("garments", garments, "colours", COLORS)
        if self.second_label:
            return (*garments, *COLORS)
        return tuple(f"{garment} / {color}" for garment, color in zip(garments, COLORS, strict=True))

    def sample(self, bank: ImageBank, walk: Tensor, generator: torch.Generator) -> Scenes:
        size = len(walk)
        images = torch.empty(size, 4, dtype=torch.int64)
        images[:, [TOP_LEFT, BOTTOM_RIGHT]] = bank.draw("digits", [size, 2], generator, self.digits)
        images[:, TOP_RIGHT] = bank.walk("garments", walk)
        images[:, BOTTOM_LEFT] = bank.draw("garments", [size], generator)
        color = torch.randint(len(COLORS), (size, 4), generator=generator)
        kind = bank.labels[images]
        latents = {
            "indicator_1": kind[:, TOP_LEFT],
            "indicator_2": kind[:, BOTTOM_RIGHT],
            "target_1": kind[:, TOP_RIGHT],
            "target_2": color[:, TOP_RIGHT],
            "target_location": (kind[:, TOP_LEFT] != kind[:, BOTTOM_RIGHT]).long(),
            "color_1": color[:, TOP_LEFT],
            "color_2": color[:, BOTTOM_RIGHT],
            **on_tiles(size, indicator_1=TOP_LEFT, indicator_2=BOTTOM_RIGHT, target_1=TOP_RIGHT, target_2=TOP_RIGHT),
        }
        return Scenes(images, tint(torch.tensor(list(COLORS.values())), color, generator), latents)
