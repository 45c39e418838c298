"""The bold line of every curve: the median of the seeds, and the band around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from lab.report.middle import middle, points


def run(value: float, moment: int | None = None, finished: bool = True, epochs: int = 4) -> Any:
    curves = {"epoch": np.arange(1.0, epochs + 1), "val/accuracy": np.full(epochs, value)}
    return SimpleNamespace(finished=finished, moment=moment, curve=curves.__getitem__)


def test_the_middle_is_of_finished_seeds_while_all_of_them_train() -> None:
    runs = [run(0.1), run(0.2), run(0.3), run(0.4), run(0.9, epochs=2), run(7.0, finished=False)]
    found = middle(runs, "val/accuracy")
    assert found is not None and found.epochs.tolist() == [1, 2]
    for values, expected in ((found.low, 0.2), (found.median, 0.3), (found.high, 0.4)):
        assert np.allclose(values, expected)


def test_epochs_are_counted_from_the_moment_where_curves_are_aligned() -> None:
    assert points(run(0.5, moment=3), "val/accuracy", aligned=True)[:, 0].tolist() == [-2, -1, 0, 1]
