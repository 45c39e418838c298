"""Top if above: two garments; does the one stand right above the other?"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lab.datasets.scenes import WHITE, ImageBank, Scenes, tint
from lab.datasets.tasks.task import MatchTask, coin


class TopIfAbove(MatchTask):
    """One garment in each row, in a random column; the other two tiles are black.

    z = [same column]; y = the top garment if z else the bottom one. The indicators of this task are places:
    ``indicator_1`` and ``indicator_2`` are the columns of the top and of the bottom garment.

    Source: Eureka-moments in Transformers, A.9 ("Top if above") and Table 7.
    """

    label_source = "garments"
    sources = ("garments",)
    locations: ClassVar[tuple[str, ...]] = ("top", "bottom")
    placeless: ClassVar[tuple[str, ...]] = ("indicator_1", "indicator_2")

    def sample(self, bank: ImageBank, walk: Tensor, generator: torch.Generator) -> Scenes:
        size = len(walk)
        top, bottom = bank.walk("garments", walk), bank.draw("garments", [size], generator)
        column_top, column_bottom = coin(size, generator), coin(size, generator)
        tiles = torch.stack([column_top, 2 + column_bottom], dim=1)
        images = torch.zeros(size, 4, dtype=torch.int64).scatter(1, tiles, torch.stack([top, bottom], dim=1))
        shown = torch.zeros(size, 4).scatter(1, tiles, 1.0)
        white = tint(torch.tensor([WHITE]), torch.zeros(size, 4, dtype=torch.int64), generator)
        latents = {
            "indicator_1": column_top,
            "indicator_2": column_bottom,
            "target_1": bank.labels[top],
            "target_2": bank.labels[bottom],
            "target_location": (column_top != column_bottom).long(),
            "target_1_tile": tiles[:, 0],
            "target_2_tile": tiles[:, 1],
        }
        # A factor of 0 leaves a tile black, without noise.
        return Scenes(images, white * shown.unsqueeze(-1), latents)
