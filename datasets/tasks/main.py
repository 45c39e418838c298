"""The main task: do two digits match? Then classify the top-right garment, else the bottom-left one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.datasets.scenes import (
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
from lab.datasets.tasks.task import MatchTask, Probability, on_tiles


class MainTask(MatchTask):
    """Indicators top-left and bottom-right (digits 1 and 2, blue or red), garments on the other two tiles.

    z = [indicator_1 == indicator_2]; y = target_1 if z else target_2.

    Source: Eureka-moments in Transformers, section 4 and Figure 1a; docs/published_runs.md, "Main task"; the prior p(z)
    of section A.7 is ``top_right_probability``.

    Args:
        digits: the digit classes that indicators are drawn from (uniformly over their *images*).
        top_right_probability: probability that the indicators match. None leaves both indicators
            independent, as published (digit 1 is a little more frequent than 2, so z is not quite 1/2);
            a number first draws z with that probability, then a second indicator that fits.

    Raises:
        ValueError: if fewer than two digit classes are given.
    """

    label_source = "garments"

    def __init__(self, digits: Sequence[int] = (1, 2), top_right_probability: Probability | None = None) -> None:
        self.digits = tuple(digits)
        if len(set(self.digits)) < 2:
            raise ValueError(f"data.task.digits needs at least two different digit classes, got {list(digits)}")
        self.top_right_probability = top_right_probability

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
        latents = {
            **classes,
            "target_location": (~self.match(classes["indicator_1"], classes["indicator_2"])).long(),
            "color_1": choice[:, TOP_LEFT] - 1,
            "color_2": choice[:, BOTTOM_RIGHT] - 1,
            **on_tiles(size, indicator_1=TOP_LEFT, indicator_2=BOTTOM_RIGHT, target_1=TOP_RIGHT, target_2=BOTTOM_LEFT),
        }
        images = torch.stack([first, top_right, bottom_left, second], dim=1)
        return Scenes(images, tint(palette, choice, generator), latents)

    def _second_indicator(self, bank: ImageBank, first: Tensor, generator: torch.Generator) -> Tensor:
        free = bank.draw("digits", [len(first)], generator, self.digits)
        if self.top_right_probability is None:
            return free
        match = torch.rand(len(first), generator=generator) < self.top_right_probability
        second = torch.empty_like(first)
        for digit in self.digits:
            here = bank.labels[first] == digit
            fits = {same: self._drawn_to(bank, digit, same, len(first), generator) for same in (True, False)}
            second = torch.where(here, torch.where(match, fits[True], fits[False]), second)
        return second

    def _drawn_to(self, bank: ImageBank, digit: int, same: bool, size: int, generator: torch.Generator) -> Tensor:
        """Draws ``size`` indicators that match a digit if ``same``, or that do not."""
        one = torch.tensor(digit)
        fitting = [other for other in self.digits if bool(self.match(one, torch.tensor(other))) == same]
        return bank.draw("digits", [size], generator, fitting)
