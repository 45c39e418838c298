"""Statistics over seeds: arrays in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import binomtest, fisher_exact, t, ttest_rel


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


def fisher(one: tuple[int, int], other: tuple[int, int]) -> float:
    """p-value of Fisher's exact test that two Eureka-ratios, each (moments, seeds), are the same.

    Raises:
        ValueError: if a ratio has no seed, or more moments than seeds.
    """
    for count, seeds in (one, other):
        if not 0 <= count <= seeds or seeds < 1:
            raise ValueError(f"a Eureka-ratio needs 0 <= count <= seeds and one seed or more, got {count} of {seeds}")
    table = [[count, seeds - count] for count, seeds in (one, other)]
    return float(fisher_exact(table).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of a whole table, corrected so that one false alarm among all of them is as rare as it says.

    Source: Holm 1979: the i-th smallest of m is multiplied by m - i + 1; none falls below the one before it.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its confidence interval.

    Attributes:
        value: the mean.
        std: standard deviation over the seeds (divided by n, as in the papers: one seed has 0).
        low, high: bounds of Student's interval; None for a single seed, which says nothing of its spread.
        seeds: how many.
    """

    value: float
    std: float
    low: float | None
    high: float | None
    seeds: int


def mean_over_seeds(
    values: Sequence[float], confidence: float = 0.95, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> Mean:
    """Mean, spread and Student's t-interval of a number per seed.

    Args:
        values: one a seed.
        confidence: of the interval.
        bounds: what the number can be at all; the interval ends there.

    Raises:
        ValueError: if there is no value.
    """
    if not len(values):
        raise ValueError("a mean over seeds needs one seed or more, got none")
    array = np.asarray(values, dtype=np.float64)
    mean, count = float(array.mean()), len(array)
    if count < 2:
        return Mean(mean, 0.0, None, None, count)
    half = float(t.ppf((1 + confidence) / 2, count - 1)) * float(array.std(ddof=1)) / math.sqrt(count)
    return Mean(mean, float(array.std()), max(bounds[0], mean - half), min(bounds[1], mean + half), count)


@dataclass(frozen=True)
class Paired:
    """A difference over equal seeds.

    Attributes:
        difference: mean of one minus other.
        low, high: bounds of its interval.
        p: of the paired t-test; None where every difference is the same but 0: without spread there is no test.
        seeds: how many there are in both.
    """

    difference: float
    low: float
    high: float
    p: float | None
    seeds: int


def paired(one: Mapping[int, float], other: Mapping[int, float], confidence: float = 0.95) -> Paired:
    """Compares two settings seed by seed; seeds that only one of them has are left out.

    Raises:
        ValueError: if fewer than two seeds are in both.
    """
    shared = sorted(one.keys() & other.keys())
    if len(shared) < 2:
        raise ValueError(f"a paired comparison needs two seeds in both settings, got {len(shared)}")
    differences = [one[seed] - other[seed] for seed in shared]
    if max(differences) == min(differences):
        # The t-test divides by the spread.
        same = differences[0] == 0
        return Paired(differences[0], differences[0], differences[0], 1.0 if same else None, len(shared))
    result = ttest_rel([one[seed] for seed in shared], [other[seed] for seed in shared])
    interval = result.confidence_interval(confidence)
    mean = sum(differences) / len(differences)
    return Paired(mean, float(interval.low), float(interval.high), float(result.pvalue), len(shared))


@dataclass(frozen=True)
class Reach:
    """Speed at which a setting reaches 95 % of the baseline's accuracy (Table 4).

    Attributes:
        percent_of_steps: mean epoch of getting there, in % of the baseline's mean; None where either never does.
        reached: runs that got there.
        runs: runs in all.
    """

    percent_of_steps: float | None
    reached: int
    runs: int


def reach(
    accuracies: Sequence[Sequence[float]],
    baseline: Sequence[Sequence[float]],
    share: float = 0.95,
    threshold: float = 0.7,
) -> Reach:
    """ "% of steps" and "95 %-ratio" of validation accuracies by epoch, a sequence a run.

    The goal is ``share`` of the baseline's mean final accuracy over its runs with a Eureka-moment; means are over the
    runs that reach it.

    Source: Eureka-moments in Transformers, Table 4.
    """
    finals = [run[-1] for run in baseline if run and max(run) > threshold]
    if not finals:
        return Reach(None, 0, len(accuracies))
    goal = share * sum(finals) / len(finals)

    def epochs(runs: Sequence[Sequence[float]]) -> list[int]:
        return [
            next(i for i, value in enumerate(run, start=1) if value >= goal) for run in runs if run and max(run) >= goal
        ]

    ours, theirs = epochs(accuracies), epochs(baseline)
    if not ours or not theirs:
        return Reach(None, len(ours), len(accuracies))
    percent = 100 * (sum(ours) / len(ours)) / (sum(theirs) / len(theirs))
    return Reach(percent, len(ours), len(accuracies))
