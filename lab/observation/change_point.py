"""The change point of a curve: its steepest drop between two plateaus, found without a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

# Least number of values in a plateau.
SHORTEST_PLATEAU = 6
# Least strength of a step: a straight line has 0.75 of its variance between its halves, a drop that takes as long as a
# plateau about 0.85.
_LEAST_STRENGTH = 0.85
# Least step, as a share of the range of the whole curve: a smaller one is a ripple.
_LEAST_SHARE = 0.2
# A longer curve is thinned to medians of neighbours: the time of the search grows with the square of its length.
_LONGEST = 1000
# Least step, in standard errors of the noise: so large that none of the many candidate places passes by chance.
_LEAST_ERRORS = 6.0


@dataclass(frozen=True)
class ChangePoint:
    """Place where a curve falls (or rises) from one plateau to another.

    Attributes:
        index: index of the first value after the step.
        before, after: mean of the values compared on either side; where the step takes a while, they hold parts of it.
        strength: share of the variance of both plateaus that lies between them (eta squared): 1 is a perfect step, a
            straight line has 0.75.
    """

    index: int
    before: float
    after: float
    strength: float


def change_point(values: Sequence[float], rises: bool = False) -> ChangePoint | None:
    """Finds the steepest drop (or rise) between two plateaus; None for a curve without one.

    The curve is smoothed by a running median, which short spikes (slingshots) do not move. At every place, the w values
    before it are compared with the w values after it, for w = 6, 8, 11, ... up to half of the curve. The change point
    is the place where the step between the two means, times its strength, is largest, among places where

    - the strength is that of a step, not of a slope,
    - the step is larger than a ripple of the curve and than its noise (measured by differences of neighbours),
    - the curve has not been as low before: the end of a spike is not a change point.

    Written here because libraries (``ruptures``) cut a slope into steps, and ask for the number of steps or a penalty.

    Args:
        values: one value per validation; those that are not finite are left out.
        rises: look for the steepest rise instead.

    Raises:
        ValueError: if there is not one number for each validation.
    """
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1:
        raise ValueError(f"a curve is a list of one number per validation, got {values!r}")
    there = np.flatnonzero(np.isfinite(given))
    if len(there) < 2 * SHORTEST_PLATEAU:
        return None
    whole, every = -given[there] if rises else given[there], _thinning(len(there))
    curve = np.median(whole[: len(whole) // every * every].reshape(-1, every), axis=1)
    # The median of |difference| of two normal values is 0.6745 times the standard deviation sqrt(2) sigma.
    noise = float(np.median(np.abs(np.diff(curve)))) / 0.6745 / 2**0.5
    found = [_steepest(curve, width, noise) for width in _widths(len(curve) // 2)]
    best = max((one for one in found if one is not None), key=lambda one: one[0], default=None)
    if best is None:
        return None
    _, place, before, after, strength = best
    first = place if every == 1 else _between_two(whole, (place - 1) * every, (place + 1) * every, (before + after) / 2)
    sign = -1.0 if rises else 1.0
    return ChangePoint(int(there[first]), sign * before, sign * after, strength)


def last_visible(values: int) -> int | None:
    """Index of the last of so many values at which :func:`change_point` can find one; None where it can find none.

    It takes a plateau on either side, so a step at the very end of a curve is not seen.
    """
    if values < 2 * SHORTEST_PLATEAU:
        return None
    every = _thinning(values)
    return (values // every - SHORTEST_PLATEAU) * every


def _thinning(values: int) -> int:
    """Number of neighbours that a curve of so many values is thinned to one of."""
    return -(-values // _LONGEST)


def _between_two(curve: NDArray[np.float64], start: int, end: int, middle: float) -> int:
    """Index from ``start`` to ``end`` at which the curve, by least squares, falls through the middle of two levels."""
    excess = np.cumsum(curve[start:end] - middle)
    return start + int(np.argmax(excess)) + 1 if excess.max() > 0 else start


def _widths(longest: int) -> list[int]:
    widths = [SHORTEST_PLATEAU]
    while (wider := round(widths[-1] * 2**0.5)) <= longest:
        widths.append(wider)
    return widths


def _steepest(curve: NDArray[np.float64], width: int, noise: float) -> tuple[float, int, float, float, float] | None:
    """Returns the best step between plateaus of ``width`` values: its score, place, two means and strength."""
    smooth = median_filter(curve, width // 4 | 1, mode="nearest")
    stretches = np.lib.stride_tricks.sliding_window_view(smooth, width)
    means, variances = stretches.mean(1), stretches.var(1)
    before, after = means[:-width], means[width:]
    step = before - after
    between, within = step**2 / 4, (variances[:-width] + variances[width:]) / 2
    strength = np.divide(between, between + within, out=np.zeros_like(step), where=between + within > 0)
    lowest_before = np.minimum.accumulate(smooth)[width - 1 : width - 1 + len(step)]
    counts = (
        (strength >= _LEAST_STRENGTH)
        & (step >= _LEAST_SHARE * np.ptp(smooth))
        & (step > _LEAST_ERRORS * noise * (2 / width) ** 0.5)
        & (lowest_before > (before + after) / 2)
    )
    if not counts.any():
        return None
    score = np.where(counts, step * strength, -np.inf)
    first = int(score.argmax())
    return float(score[first]), first + width, float(before[first]), float(after[first]), float(strength[first])
