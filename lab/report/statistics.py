"""Statistics over seeds: arrays in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal

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

    @property
    def interval(self) -> str:
        """The interval in percent; in tenths where a bound would else be told as 0 % or 100 % that is neither."""
        rounded = any(bound not in (0, 1) and round(bound, 2) in (0, 1) for bound in (self.low, self.high))
        low, high = (f"{bound:.{1 if rounded else 0}%}" for bound in (self.low, self.high))
        return f"{low} to {high}"

    def __str__(self) -> str:
        return f"{self.count}/{self.seeds} ({self.interval})"


def eureka_ratio(
    count: int, seeds: int, confidence: float = 0.95, method: Literal["wilson", "exact"] = "wilson"
) -> Ratio:
    """The share of seeds that had a Eureka-moment, with Wilson's score interval or the exact one (Clopper-Pearson).

    Source: Eureka-moments in Transformers, section 4 ("Metrics"); the interval is SciPy's.

    Raises:
        ValueError: if there is no seed, more moments than seeds, or no such confidence.
    """
    _check_ratio(count, seeds)
    check_confidence(confidence)
    interval = binomtest(count, seeds).proportion_ci(confidence, method=method)
    return Ratio(count, seeds, float(interval.low), float(interval.high))


def fisher(one: tuple[int, int], other: tuple[int, int]) -> float:
    """p-value of Fisher's exact test that two Eureka-ratios, each (moments, seeds), are the same.

    Raises:
        ValueError: if a ratio has no seed, or more moments than seeds, or is not two whole numbers.
    """
    for ratio in (one, other):
        if np.shape(ratio) != (2,):
            raise ValueError(f"a Eureka-ratio is (moments, seeds), as (7, 10) is, got {ratio!r}")
        _check_ratio(*ratio)
    table = [[count, seeds - count] for count, seeds in (one, other)]
    return float(fisher_exact(table).pvalue)


def _check_ratio(count: int, seeds: int) -> None:
    whole = isinstance(count, Integral) and isinstance(seeds, Integral)
    if not whole or not 0 <= count <= seeds or seeds < 1:
        raise ValueError(
            f"a Eureka-ratio needs whole numbers 0 <= count <= seeds and one seed or more, got {count} of {seeds}"
        )


def check_confidence(confidence: float) -> None:
    """Refuses what is no confidence, such as 95.

    Raises:
        ValueError: if it does not lie between 0 and 1.
    """
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, as 0.95 does, got {confidence}")


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Corrects the p-values of a whole table: even one false alarm among all of them is then as rare as p says.

    None or NaN, where no test was possible, stays as it is and does not count.

    Source: Holm 1979: the i-th smallest of m is multiplied by m - i + 1; none falls below the one before it.

    Raises:
        ValueError: if a number is no p-value.
    """
    if np.ndim(p_values) != 1:  # type: ignore[arg-type]
        raise ValueError(f"p-values are a list, as [0.01, None, 0.2], got {p_values!r}")
    corrected = list(p_values)
    there = [(p, place) for place, p in enumerate(corrected) if p is not None]
    if wrong := [p for p, _ in there if not isinstance(p, Real) or p < 0 or p > 1]:
        raise ValueError(f"a p-value lies between 0 and 1, got {wrong[0]!r}")
    rising = sorted((p, place) for p, place in there if not math.isnan(p))
    largest = 0.0
    for before, (p, place) in enumerate(rising):
        largest = max(largest, min(1.0, (len(rising) - before) * p))
        corrected[place] = largest
    return corrected


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its confidence interval.

    Attributes:
        value: the mean.
        std: standard deviation over the seeds (divided by n, as in the papers: one seed has 0).
        low, high: bounds of Student's interval; None for a single seed, where all seeds have the same value (both say
            nothing about the spread), and where a value is not finite, as the mean is then not.
        seeds: how many.
    """

    value: float
    std: float
    low: float | None
    high: float | None
    seeds: int

    def interval(self, digits: int) -> str:
        """ "88.70 to 90.26"; empty where there is none."""
        return "" if self.low is None else f"{self.low:.{digits}f} to {self.high:.{digits}f}"

    def told(self, digits: int) -> str:
        """ "89.48 ± 1.10 (88.70 to 90.26)"; a single seed, and seeds without any spread, say so instead."""
        if self.low is None:
            return f"{self.value:.{digits}f} ({'one seed' if self.seeds == 1 else f'all {self.seeds} seeds'})"
        return f"{self.value:.{digits}f} ± {self.std:.{digits}f} ({self.interval(digits)})"


def mean_over_seeds(
    values: Sequence[float], confidence: float = 0.95, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> Mean:
    """Mean, spread and Student's t-interval of a number per seed.

    Args:
        values: one per seed.
        confidence: of the interval.
        bounds: smallest and largest possible value; the interval is cut off there.

    Raises:
        ValueError: if there is no value, or not one number per seed, or no such confidence or bounds.
    """
    if np.ndim(values) != 1 or not all(isinstance(value, Real) for value in np.asarray(values).tolist()):
        raise ValueError(f"a mean over seeds takes a list of one number per seed, got {values!r}")
    if not len(values):
        raise ValueError("a mean over seeds needs one seed or more, got none")
    check_confidence(confidence)
    if not bounds[0] < bounds[1]:
        raise ValueError(f"bounds are the smallest and the largest possible value, as (0, 100), got {bounds}")
    array = np.asarray(values, dtype=np.float64)
    mean, count = float(array.mean()), len(array)
    if not math.isfinite(mean):
        return Mean(mean, math.nan, None, None, count)
    if float(np.ptp(array)) <= 1e-9 * float(np.abs(array).max()):
        return Mean(mean, 0.0, None, None, count)
    half = float(t.ppf((1 + confidence) / 2, count - 1)) * float(array.std(ddof=1)) / math.sqrt(count)
    return Mean(mean, float(array.std()), max(bounds[0], mean - half), min(bounds[1], mean + half), count)


@dataclass(frozen=True)
class Paired:
    """Difference between two settings over the seeds that both have.

    Attributes:
        difference: mean of ``one`` minus ``other``.
        low, high: bounds of its interval.
        p: of the paired t-test; None where all differences are the same and not 0: without spread there is no test.
        seeds: how many seeds both have.
    """

    difference: float
    low: float
    high: float
    p: float | None
    seeds: int


def paired(one: Mapping[int, float], other: Mapping[int, float], confidence: float = 0.95) -> Paired:
    """Compares two settings seed by seed; seeds that only one of them has are left out.

    Raises:
        ValueError: if fewer than two seeds are in both, a value is no finite number, or there is no such confidence.
    """
    check_confidence(confidence)
    shared = sorted(_in_both(one, other))
    if len(shared) < 2:
        raise ValueError(f"a paired comparison needs two seeds in both settings, got {len(shared)}")
    for seed in shared:
        for value in (one[seed], other[seed]):
            if not isinstance(value, Real) or not math.isfinite(value):
                raise ValueError(f"a paired comparison needs finite numbers, got {value!r} for seed {seed}")
    differences = [one[seed] - other[seed] for seed in shared]
    size = max(abs(value) for seed in shared for value in (one[seed], other[seed]))
    if max(differences) - min(differences) <= 1e-9 * size:
        # The t-test divides by the spread, which is only rounding error here.
        same = abs(differences[0]) <= 1e-9 * size
        return Paired(differences[0], differences[0], differences[0], 1.0 if same else None, len(shared))
    result = ttest_rel([one[seed] for seed in shared], [other[seed] for seed in shared])
    interval = result.confidence_interval(confidence)
    mean = sum(differences) / len(differences)
    return Paired(mean, float(interval.low), float(interval.high), float(result.pvalue), len(shared))


def _in_both(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> set[Any]:
    for given in (one, other):
        if not isinstance(given, Mapping):
            raise ValueError(f"a paired comparison takes a dict for each setting, seed -> value, got {given!r}")
    return one.keys() & other.keys()


@dataclass(frozen=True)
class PairedRatios:
    """Two Eureka-ratios over the pairs that both settings have (a pair is a seed, or a seed at a learning rate).

    Attributes:
        gained: pairs with a moment in ``one`` alone.
        lost: pairs with a moment in ``other`` alone.
        pairs: how many pairs both settings have.
        difference: ratio of ``one`` minus ratio of ``other``.
        low, high: bounds of its interval.
        p: of McNemar's exact test.
    """

    gained: int
    lost: int
    pairs: int
    difference: float
    low: float
    high: float
    p: float


def paired_ratios(one: Mapping[Any, bool], other: Mapping[Any, bool], confidence: float = 0.95) -> PairedRatios:
    """Compares the Eureka-moments of two settings pair by pair; pairs that only one of them has are left out.

    Source: McNemar 1947, exact; the interval is Newcombe's (1998, method 10), made from Wilson's two intervals.

    Args:
        one: whether there was a moment, by pair.
        other: the same for the other setting.
        confidence: of the interval.

    Raises:
        ValueError: if no pair is in both, or a value is neither True nor False.
    """
    shared = _in_both(one, other)
    if not shared:
        raise ValueError("a paired comparison needs one or more pairs that are in both settings, got none")
    if wrong := [value for key in shared for value in (one[key], other[key]) if value not in (True, False)]:
        raise ValueError(f"whether a pair had its Eureka-moment is True or False, got {wrong[0]!r}")
    n = len(shared)
    both = sum(one[key] and other[key] for key in shared)
    gained, lost = (sum(x[key] and not y[key] for key in shared) for x, y in ((one, other), (other, one)))
    neither = n - both - gained - lost
    first, second = eureka_ratio(both + gained, n, confidence), eureka_ratio(both + lost, n, confidence)
    # phi: correlation of the two settings' moments, shrunk towards 0 for small n.
    product = float(both * neither - gained * lost)
    product = max(product - n / 2, 0.0) if product > 0 else product
    margins = first.count * (n - first.count) * second.count * (n - second.count)
    phi = product / math.sqrt(margins) if margins else 0.0

    def distance(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))

    p1, p2 = first.count / n, second.count / n
    return PairedRatios(
        gained,
        lost,
        n,
        p1 - p2,
        p1 - p2 - distance(p1 - first.low, second.high - p2),
        p1 - p2 + distance(first.high - p1, p2 - second.low),
        float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0,
    )


@dataclass(frozen=True)
class Reach:
    """Speed at which a setting reaches 95 % of the baseline's accuracy (Table 4).

    Attributes:
        percent_of_steps: mean epoch of reaching it, in % of the baseline's mean; None where no run of the setting, or
            none of the baseline, reaches it.
        reached: runs that reached it, at any epoch.
        runs: runs in all.
        stayed: runs that are there at their last epoch.
    """

    percent_of_steps: float | None
    reached: int
    runs: int
    stayed: int = 0

    @property
    def ratio_95(self) -> dict[str, str]:
        """Both readings of "95 %-ratio" by name: Table 4 does not say at which epoch a run has to be there."""
        return {"any epoch": f"{self.reached}/{self.runs}", "last epoch": f"{self.stayed}/{self.runs}"}


@dataclass(frozen=True)
class Validations:
    """Validation accuracies of a run, the epoch of each, and whether the run had its Eureka-moment."""

    epochs: Sequence[float]
    accuracies: Sequence[float]
    happened: bool


def reach(runs: Sequence[Validations], baseline: Sequence[Validations]) -> Reach:
    """ "% of steps" and "95 %-ratio" of runs beside those of the baseline.

    The goal is 95 % of the baseline's mean final accuracy over its runs with a Eureka-moment; means are over the runs
    that reach it.

    Source: Eureka-moments in Transformers, Table 4.

    Raises:
        ValueError: if a run has not one epoch for each accuracy.
    """
    for run in (*runs, *baseline):
        if len(run.epochs) != len(run.accuracies):
            raise ValueError(f"each accuracy has an epoch, got {len(run.accuracies)} and {len(run.epochs)}")
    # Lists, since the truth of an array is not whether it holds anything.
    runs, baseline = ([replace(run, accuracies=list(run.accuracies)) for run in of] for of in (runs, baseline))
    finals = [run.accuracies[-1] for run in baseline if run.happened and run.accuracies]
    if not finals:
        return Reach(None, 0, len(runs))
    # Accuracies are read as float32: a run that is exactly there is not to miss it by rounding.
    goal = 0.95 * sum(finals) / len(finals) - 1e-6

    def epochs(of: Sequence[Validations]) -> list[float]:
        there = [[x for x, y in zip(run.epochs, run.accuracies, strict=True) if y >= goal] for run in of]
        return [epochs[0] for epochs in there if epochs]

    ours, theirs = epochs(runs), epochs(baseline)
    stayed = sum(run.accuracies[-1] >= goal for run in runs if run.accuracies)
    if not ours or not theirs:
        return Reach(None, len(ours), len(runs), stayed)
    percent = 100 * (sum(ours) / len(ours)) / (sum(theirs) / len(theirs))
    return Reach(percent, len(ours), len(runs), stayed)
