"""The main task: do two digits match? Then classify the top-right garment, else the bottom-left one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from datasets.scenes import (
    BLUE,
    BOTTOM_LEFT,
    BOTTOM_RIGHT,
    RED,
    TOP_LEFT,
    TOP_RIGHT,
    WHITE,
    ImageBank,
    Scenes,
    tint,
)
from datasets.tasks.task import Task, choose, probability


class MainTask(Task):
    """Indicators top-left and bottom-right (digits 1 and 2, blue or red), garments on the other two tiles.

    z = [indicator_1 == indicator_2]; y = target_1 if z else target_2.

    Source: Eureka-moments in Transformers, section 4 and Figure 1a; reference, "Main task"; the prior p(z)
    of section A.7 is ``top_right_probability``.

    Args:
        digits: the digit classes that indicators are drawn from (uniformly over their *images*).
        top_right_probability: probability that the indicators match. None leaves both indicators
            independent, as published (digit 1 is a little more frequent than 2, so z is not quite 1/2);
            a number first draws z with that probability, then a second indicator that fits.

    Raises:
        ValueError: if fewer than two digit classes are given or the probability is none.
    """

    def __init__(self, digits: Sequence[int] = (1, 2), top_right_probability: float | None = None) -> None:
        self.digits = tuple(digits)
        if len(set(self.digits)) < 2:
            raise ValueError(f"data.task.digits needs at least two different digit classes, got {list(digits)}")
        if top_right_probability is not None:
            probability("data.task.top_right_probability", top_right_probability)
        self.top_right_probability = top_right_probability

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return None

    @property
    def label_source(self) -> str:
        return "garments"

    def sample(self, bank: ImageBank, walk: Tensor, generator: torch.Generator) -> Scenes:
        size = len(walk)
        first = bank.draw("digits", [size], generator, self.digits)
        second = self._second_indicator(bank, first, generator)
        top_right = bank.walk("garments", walk)
        bottom_left = bank.draw("garments", [size], generator)
        palette = torch.tensor([WHITE, RED, BLUE])
        choice = torch.zeros(size, 4, dtype=torch.int64)
        choice[:, [TOP_LEFT, BOTTOM_RIGHT]] = torch.randint(1, 3, (size, 2), generator=generator)
        classes = {
            "indicator_1": bank.labels[first],
            "indicator_2": bank.labels[second],
            "target_1": bank.labels[top_right],
            "target_2": bank.labels[bottom_left],
        }
        tiles = dict(zip(classes, (TOP_LEFT, BOTTOM_RIGHT, TOP_RIGHT, BOTTOM_LEFT), strict=True))
        latents = {
            **classes,
            "target_location": (classes["indicator_1"] != classes["indicator_2"]).long(),
            "color_1": choice[:, TOP_LEFT] - 1,
            "color_2": choice[:, BOTTOM_RIGHT] - 1,
            **{f"{part}_tile": torch.full((size,), tile) for part, tile in tiles.items()},
        }
        images = torch.stack([first, top_right, bottom_left, second], dim=1)
        return Scenes(images, tint(palette, choice, generator), latents)

    def label(self, latents: dict[str, Tensor]) -> Tensor:
        match = latents["indicator_1"] == latents["indicator_2"]
        return choose(latents["target_1"], latents["target_2"], (~match).long())

    def _second_indicator(self, bank: ImageBank, first: Tensor, generator: torch.Generator) -> Tensor:
        free = bank.draw("digits", [len(first)], generator, self.digits)
        if self.top_right_probability is None:
            return free
        match = torch.rand(len(first), generator=generator) < self.top_right_probability
        second = torch.empty_like(first)
        for digit in self.digits:
            others = [other for other in self.digits if other != digit]
            here = bank.labels[first] == digit
            same = bank.draw("digits", [len(first)], generator, [digit])
            different = bank.draw("digits", [len(first)], generator, others)
            second = torch.where(here, torch.where(match, same, different), second)
        return second
