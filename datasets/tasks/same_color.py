"""Same colour: four digits; are those on the diagonal of one colour?"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.datasets.scenes import BLUE, BOTTOM_LEFT, BOTTOM_RIGHT, RED, TOP_LEFT, TOP_RIGHT, ImageBank, Scenes, tint
from lab.datasets.tasks.task import MatchTask, on_tiles


class SameColor(MatchTask):
    """Four digits of all classes, each blue or red with probability 1/2.

    z = [colour of top-left = colour of bottom-right]; y = digit top-right if z else digit bottom-left. The
    indicators of this task are colours: ``indicator_1`` and ``indicator_2`` are 0 for red and 1 for blue.

    Source: Eureka-moments in Transformers, A.9 ("Same color decision task") and Table 8.
    """

    label_source = "digits"
    sources = ("digits",)

    def sample(self, bank: ImageBank, walk: Tensor, generator: torch.Generator) -> Scenes:
        size = len(walk)
        images = bank.draw("digits", [size, 4], generator)
        images[:, TOP_RIGHT] = bank.walk("digits", walk)
        color = torch.randint(2, (size, 4), generator=generator)
        digit = bank.labels[images]
        latents = {
            "indicator_1": color[:, TOP_LEFT],
            "indicator_2": color[:, BOTTOM_RIGHT],
            "target_1": digit[:, TOP_RIGHT],
            "target_2": digit[:, BOTTOM_LEFT],
            "target_location": (color[:, TOP_LEFT] != color[:, BOTTOM_RIGHT]).long(),
            "color_1": color[:, TOP_RIGHT],
            "color_2": color[:, BOTTOM_LEFT],
            **on_tiles(size, indicator_1=TOP_LEFT, indicator_2=BOTTOM_RIGHT, target_1=TOP_RIGHT, target_2=BOTTOM_LEFT),
        }
        return Scenes(images, tint(torch.tensor([RED, BLUE]), color, generator), latents)
