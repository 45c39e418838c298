"""The main task without positions: indicator and target of a row may have swapped places."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from lab.datasets.scenes import ImageBank, Scenes
from lab.datasets.tasks.main import MainTask


class NoPosition(MainTask):
    """The main task; in each row, with probability 1/2, the indicator and the target swap places.

    y is the garment of the top row if the digits match, else that of the bottom row.

    Source: Eureka-moments in Transformers, Figure 7; docs/published_runs.md, "Other tasks".
    """

    locations: ClassVar[tuple[str, ...]] = ("top_row", "bottom_row")

    def sample(self, bank: ImageBank, walk: Tensor, generator: torch.Generator) -> Scenes:
        scenes = super().sample(bank, walk, generator)
        swapped = torch.randint(2, (len(walk), 2), generator=generator)
        # Tiles 2 r and 2 r + 1 are a row: to swap is to flip the last bit.
        order = torch.arange(4) ^ swapped.repeat_interleave(2, dim=1)
        latents = {
            name: order.gather(1, value.unsqueeze(1)).squeeze(1) if name.endswith("_tile") else value
            for name, value in scenes.latents.items()
        }
        colors = torch.take_along_dim(scenes.colors, order.unsqueeze(-1), 1)
        return replace(scenes, images=scenes.images.gather(1, order), colors=colors, latents=latents)
