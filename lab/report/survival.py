"""Time to the Eureka-moment, with runs that had none by their end as censored: arrays in, numbers out.

A mean over the runs that succeeded misleads: a softmax whose slow seeds never get there looks fast. Here a run
without a moment counts with what is known of it: its moment comes later than its last epoch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray
from scipy.stats import CensoredData, ecdf

from lab.report.statistics import check_confidence

# Of log_rank: most ways to deal out the runs that are all tried; number of random ways where there are more; ways that
# are computed at once.
_EXACT, _DRAWN, _AT_ONCE = 200_000, 20_000, 2_000


@dataclass(frozen=True)
class Times:
    """Epochs of Eureka-moments, and last epochs at which runs without one were looked at.

    Attributes:
        moments: epoch of each moment.
        ends: last epoch of each run without a moment.

    Raises:
        ValueError: if there is no run, or an epoch is not a finite number of 0 or more.
    """

    moments: tuple[float, ...]
    ends: tuple[float, ...]

    def __post_init__(self) -> None:
        epochs = (*self.moments, *self.ends)
        if not epochs:
            raise ValueError("times to the Eureka-moment need one run or more, got none")
        if wrong := [epoch for epoch in epochs if not 0 <= epoch < math.inf]:
            raise ValueError(f"epochs of moments and ends are finite numbers, 0 or more, got {wrong[0]}")

    @property
    def censored(self) -> CensoredData:
        """The times in SciPy's form."""
        return CensoredData(uncensored=list(self.moments), right=list(self.ends))


@dataclass(frozen=True)
class Curve:
    """Share of seeds without a Eureka-moment yet, after each epoch at which one came; 1 before the first.

    Attributes:
        epochs: [n], rising.
        share, low, high: [n], the Kaplan-Meier estimate and its interval.
        end: last epoch that any run was watched at.
    """

    epochs: NDArray[np.float64]
    share: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    end: float


def no_moment_yet(times: Times, confidence: float = 0.95) -> Curve:
    """Kaplan-Meier curve of "no Eureka-moment yet", with its log-log interval (SciPy's ``ecdf``).

    Raises:
        ValueError: if there is no such confidence.
    """
    check_confidence(confidence)
    end = max((*times.moments, *times.ends))
    if not times.moments:
        empty = np.array([], dtype=np.float64)
        return Curve(empty, empty, empty, empty, end)
    survival = ecdf(times.censored).sf
    with warnings.catch_warnings():
        # Where every seed has had its moment the interval is NaN; that is dealt with below.
        warnings.filterwarnings("ignore", message="The confidence interval is undefined")
        interval = survival.confidence_interval(confidence, method="log-log")
    epochs = np.asarray(survival.quantiles, dtype=np.float64)
    share = np.asarray(survival.probabilities, dtype=np.float64)
    low = np.asarray(interval.low.probabilities, dtype=np.float64)
    high = np.asarray(interval.high.probabilities, dtype=np.float64)
    # Where every seed has had its moment Greenwood's variance is NaN: low falls to 0, high to the exact bound
    # (Clopper-Pearson) of none that is left, or to its last finite value. Elsewhere a bound that is NaN says nothing: 0
    # for low, 1 for high.
    none_left = min(_last_finite(high), 1 - ((1 - confidence) / 2) ** (1 / len(times.moments)))
    low = np.where(np.isfinite(low), low, 0.0)
    high = np.where(share > 0, np.where(np.isfinite(high), high, 1.0), none_left)
    own = np.isin(epochs, times.moments)
    return Curve(epochs[own], share[own], low[own], high[own], end)


def _last_finite(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else 1.0


@dataclass(frozen=True)
class Median:
    """Median epoch of the Eureka-moment; ``inf`` where half of the seeds have had none by ``end``.

    Attributes:
        epoch: the median.
        low, high: bounds of its interval; NaN where there are too few seeds for one.
        end: last epoch at which it is known for at least half of the seeds whether they have had their moment.
    """

    epoch: float
    low: float
    high: float
    end: float

    def __str__(self) -> str:
        # While runs are still trained, ``end`` may lie before the moments of other runs.
        last = max(self.end, *(epoch for epoch in (self.low, self.epoch) if math.isfinite(epoch)), 0)
        middle, low, high = (
            f"later than {last:,.0f}" if math.isinf(epoch) else f"{epoch:,.0f}"
            for epoch in (self.epoch, self.low, self.high)
        )
        if math.isinf(self.epoch) and not math.isfinite(self.low):
            return middle
        return f"{middle} (too few seeds for an interval)" if math.isnan(self.low) else f"{middle} ({low} to {high})"


def median_time(times: Times, confidence: float = 0.95) -> Median:
    """Median time to the Eureka-moment and its interval: where the curve and its bounds fall to one half.

    Few runs have no interval: by chance alone all of n runs lie on one side of the median in 2 of 2^n cases, which is
    more than 5 % below six runs. A run that was watched only before the first moment tells nothing of it.

    Source: Brookmeyer and Crowley 1982, with the interval taken from the curve's own bounds.

    Raises:
        ValueError: if there is no such confidence.
    """
    curve = no_moment_yet(times, confidence)
    middle, low, high = (_first_at_half(curve.epochs, bound) for bound in (curve.share, curve.low, curve.high))
    runs = len(times.moments) + len(times.ends)
    telling = len(times.moments) + sum(end >= min(times.moments, default=0) for end in times.ends)
    if 0.5**telling > (1 - confidence) / 2:
        low = high = math.nan
    unknown = sorted(times.ends)[runs // 2 :]
    return Median(middle, low, high, unknown[0] if unknown else curve.end)


def _first_at_half(epochs: NDArray[np.float64], share: NDArray[np.float64]) -> float:
    reached = np.flatnonzero(share <= 0.5 + 1e-9)  # the share is a product, with rounding errors
    return float(epochs[reached[0]]) if len(reached) else math.inf


def log_rank(one: Times, other: Times) -> float:
    """p-value of the log-rank test that two settings are equally early; 1 where nothing tells them apart.

    The usual normal approximation is wrong for few moments: for one early seed against ten it gives p = 0.002, though
    by chance alone that seed is the first of eleven in 1 of 11 cases, and for 2 moments on 30 seeds against none on 120
    p = 0.004 in place of 0.04. So this is a permutation test: the runs are dealt out to the two settings anew, in every
    way if there are 200,000 or fewer, else in 20,000 random ways (always the same; p is then 5e-5 or more), and p is
    the share of ways that set the settings at least as far apart.

    Source: Heimann and Neuhaus 1998 (permutations of the studentised statistic): exact where all runs were watched
    equally long, else correct in the limit.
    """
    # In one order, so that random ways give the same p whichever comes first.
    one, other = sorted((one, other), key=lambda own: (len(own.moments) + len(own.ends), own.moments, own.ends))
    sizes = [len(group.moments) + len(group.ends) for group in (one, other)]
    ends = np.array([*one.moments, *one.ends, *other.moments, *other.ends])
    had = np.repeat([True, False] * 2, [len(part) for group in (one, other) for part in (group.moments, group.ends)])
    found = np.concatenate([_log_rank_statistic(ends, had, ways) for ways in _ways(sum(sizes), sizes[0])])
    # The first way is the one that was run. The tolerance is for sums in another order, which round differently.
    return float((found >= found[0] * (1 - 1e-9)).mean())


def _ways(runs: int, own: int) -> Iterator[NDArray[np.int64]]:
    """Ways to deal the runs out, first the one that was run: indices of the first setting's runs, [ways, own]."""
    if math.comb(runs, own) > _EXACT:
        yield np.arange(own)[None]
        generator = np.random.default_rng(0)
        for _ in range(0, _DRAWN, _AT_ONCE):
            yield np.argsort(generator.random((_AT_ONCE, runs)), axis=1)[:, :own]
        return
    every = combinations(range(runs), own)
    while part := list(islice(every, _AT_ONCE)):
        yield np.array(part, dtype=np.int64).reshape(len(part), own)


def _log_rank_statistic(
    ends: NDArray[np.float64], had: NDArray[np.bool_], ways: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The log-rank statistic, chi-squared, of each way [ways]; 0 where nothing tells the two settings apart.

    Args:
        ends: moment of each run, or the epoch that it was watched to, [runs].
        had: True where ``ends`` is a moment, [runs].
        ways: indices of the first setting's runs, [ways, own].
    """
    first = np.zeros((len(ways), len(ends)))
    np.put_along_axis(first, ways, 1.0, axis=1)
    moments = np.unique(ends[had])
    watched = (ends[:, None] >= moments).astype(np.float64)
    now = ((ends[:, None] == moments) & had[:, None]).astype(np.float64)
    at_risk, having = watched.sum(0), now.sum(0)
    share = first @ watched / at_risk
    surplus = (first @ now).sum(1) - share @ having
    variance = (share * (1 - share)) @ (having * (at_risk - having) / np.maximum(at_risk - 1, 1))
    return np.divide(surplus**2, variance, out=np.zeros_like(surplus), where=variance > 1e-12)


def times_of(moments: Sequence[float | None], ends: Sequence[float]) -> Times:
    """Times of runs, each with its moment (None: it had none) and its last epoch.

    Raises:
        ValueError: if there is no run, one has no end, an epoch is no number, or a moment comes after the run's end.
    """
    if len(moments) != len(ends):
        raise ValueError(f"moments and ends have one epoch for each run, got {len(moments)} and {len(ends)}")
    if late := [(m, end) for m, end in zip(moments, ends, strict=True) if m is not None and m > end]:
        raise ValueError(f"a moment comes no later than the end of its run, got {late[0][0]} after {late[0][1]}")
    had = tuple(float(m) for m in moments if m is not None)
    return Times(had, tuple(float(end) for m, end in zip(moments, ends, strict=True) if m is None))
