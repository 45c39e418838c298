"""Statistics over seeds: arrays in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scipy.stats import binomtest


@dataclass(frozen=True)
class Ratio:
    """A Eureka-ratio with its confidence interval.

    Attributes:
        count: seeds with a Eureka-moment.
        seeds: seeds in all.
        low, high: bounds of the interval, in [0, 1].
    """

    count: int
    seeds: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.count}/{self.seeds} ({self.low:.0%} to {self.high:.0%})"


def eureka_ratio(
    count: int, seeds: int, confidence: float = 0.95, method: Literal["wilson", "exact"] = "wilson"
) -> Ratio:
    """The share of seeds that had a Eureka-moment, with Wilson's score interval or the exact one (Clopper-Pearson).

    Source: Eureka-moments in Transformers, section 4 ("Metrics"); the interval is SciPy's.

    Raises:
        ValueError: if there is no seed, or more moments than seeds.
    """
    if not 0 <= count <= seeds or seeds < 1:
        raise ValueError(f"a Eureka-ratio needs 0 <= count <= seeds and one seed or more, got {count} of {seeds}")
    interval = binomtest(count, seeds).proportion_ci(confidence, method=method)
    return Ratio(count, seeds, float(interval.low), float(interval.high))
