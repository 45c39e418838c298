"""The main task with harder indicators: are two digits of one group?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.datasets.tasks.main import MainTask
from lab.datasets.tasks.task import Probability

# Limit of a digit: the table of groups has a row for every number up to the largest one.
_MOST = 100_000


class DigitGrouping(MainTask):
    """Indicators are digits of several groups; they match where both are of one group.

    z = [group(indicator_1) = group(indicator_2)]; y = target_1 if z else target_2.

    Source: Eureka-moments in Transformers, A.9 ("Digit grouping") and Table 10: groups {1, 2} and {3, 4}.

    Args:
        groups: digit classes by group.
        top_right_probability: as in the main task.

    Raises:
        ValueError: if there are fewer than two groups, a digit is in two of them, or one is larger than in any source.
    """

    def __init__(
        self, groups: Sequence[Sequence[int]] = ((1, 2), (3, 4)), top_right_probability: Probability | None = None
    ) -> None:
        digits = [digit for group in groups for digit in group]
        if max(digits, default=0) >= _MOST:
            raise ValueError(f"data.task.groups names digit {max(digits)}, and no source has {_MOST:,} classes")
        if len(groups) < 2 or len(set(digits)) < len(digits) or not all(len(group) for group in groups):
            raise ValueError(f"data.task.groups needs two groups or more, with no digit twice, got {groups}")
        super().__init__(digits, top_right_probability)
        table = torch.full((max(digits) + 1,), -1)
        for number, group in enumerate(groups):
            table[list(group)] = number
        self._group_of = table

    def match(self, first: Tensor, second: Tensor) -> Tensor:
        table = self._group_of.to(first.device, non_blocking=True)
        return table[first] == table[second]
