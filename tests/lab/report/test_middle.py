"""The bold line of every curve: the median of the seeds, and the band around it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from report_runs import EPOCHS

from lab.report.charts import curves_chart
from lab.report.drawings import drawings_of
from lab.report.figures import curves, line_styles_of
from lab.report.gather import gather
from lab.report.middle import middle, points
from lab.report.outcomes import outcome
from lab.report.rows import setting_row
from lab.report.settings import settings


def run(value: float, moment: int | None = None, finished: bool = True, epochs: int = 4) -> Any:
    curves = {"epoch": np.arange(1.0, epochs + 1), "val/accuracy": np.full(epochs, value)}
    return SimpleNamespace(finished=finished, pruned=False, moment=moment, curve=curves.__getitem__)


def test_the_middle_is_of_finished_seeds_while_all_of_them_train() -> None:
    runs = [run(0.1), run(0.2), run(0.3), run(0.4), run(0.9, epochs=2), run(7.0, finished=False)]
    found = middle(runs, "val/accuracy")
    assert found is not None and found.epochs.tolist() == [1, 2]
    for values, expected in ((found.low, 0.2), (found.median, 0.3), (found.high, 0.4)):
        assert np.allclose(values, expected)


def test_epochs_are_counted_from_the_moment_where_curves_are_aligned() -> None:
    assert points(run(0.5, moment=3), "val/accuracy", aligned=True)[:, 0].tolist() == [-2, -1, 0, 1]


def test_a_median_of_some_seeds_says_so_wherever_it_is_drawn(write, tmp_path: Path) -> None:
    """Six seeds were stopped after their moment, and the four that finished have none."""
    for seed in range(10):
        ended = {"status": "stopped", "epochs": EPOCHS - 1} if seed > 3 else {}
        write(seed, 12 if seed > 3 else None, **ended)
        write(seed, 12, softmax="norm_softmax")
    own = settings(gather(tmp_path).runs)
    figure = curves(own, "accuracy", aligned=False)
    chart = curves_chart(own, "accuracy", line_styles_of(own))
    assert figure is not None and chart is not None
    titles = [axes.get_title().replace("\n", " ") for axes in figure.axes]
    assert titles == ["softmax (10 seeds, median of the 4 finished seeds)", "norm_softmax (10 seeds)"]
    names = [group["name"] for group in chart["groups"]]
    assert names == ["softmax, median of the 4 finished seeds", "norm_softmax"]
    (mixed, *_), (whole, *_) = drawings_of("all", own, 0.95), drawings_of("one", own[1:], 0.95)
    for drawing, words in ((mixed, "median of the finished seeds"), (whole, "median of the seeds")):
        assert any(words in text.get_text() for text in drawing.figure.legends[0].get_texts())
    # True of every figure, also of one whose settings have too few seeds for a bold line.
    for drawing in (mixed, whole):
        assert "A bold line is the median of a setting's finished seeds" in drawing.reading
        assert "where they are three or more" in drawing.reading
    # The ratio tells of the moments that it leaves out.
    assert setting_row(outcome(own[0]), None)["Eureka-ratio"].endswith("; not counted: 6 with a moment")
    assert "not counted" not in setting_row(outcome(own[1]), None)["Eureka-ratio"]
