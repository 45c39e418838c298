"""The middle of a setting's seeds: the median curve, and where half of the seeds lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from lab.report.outcomes import given_up
from lab.report.records import Record

# With fewer seeds, a median says no more than the seeds themselves.
_SEEDS = 3


@dataclass(frozen=True)
class Middle:
    """Median of the finished seeds, and their quartiles.

    Attributes:
        seeds: how many finished seeds it is of.
        epochs: [n], rising.
        median, low, high: [n].
    """

    seeds: int
    epochs: NDArray[np.float64]
    median: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def points(run: Record, name: str, aligned: bool = False) -> NDArray[np.float32]:
    """Reads a curve of a run as [n, 2], epochs (since the Eureka-moment if aligned) and values, without its gaps."""
    epoch = run.curve("epoch") - (run.moment or 0 if aligned else 0)
    found = np.stack([epoch, run.curve(name)], axis=1)
    return found[np.isfinite(found).all(1)]


def middle(runs: Sequence[Record], name: str, aligned: bool = False) -> Middle | None:
    """Median of the finished seeds at each epoch that all of them were trained to; None for fewer than three seeds.

    Aligned, of those with a moment, by epochs since it.

    None, too, where a search gave up seeds by how they did, as the others are no fair sample. Runs may stop soon after
    their moment: a median at later epochs would be that of the runs without one.
    """
    chosen = [run for run in runs if run.finished and (run.moment is not None or not aligned)]
    curves = [own for run in chosen if len(own := points(run, name, aligned))]
    if len(curves) < _SEEDS or given_up(runs):
        return None
    shared = reduce(np.intersect1d, (curve[:, 0] for curve in curves))
    if len(shared) < 2:
        return None
    values = np.stack([curve[np.searchsorted(curve[:, 0], shared), 1] for curve in curves]).astype(np.float64)
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
    return Middle(len(curves), shared.astype(np.float64), median, low, high)


def of_the_finished(found: Middle | None, runs: Sequence[Record]) -> str:
    """Suffix ", median of the 4 finished seeds" where more seeds are drawn than the median is of; else ""."""
    return f", median of the {found.seeds} finished seeds" if found is not None and found.seeds < len(runs) else ""
