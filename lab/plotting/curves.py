"""Accuracy curves of several runs in one picture, with the plateau and the Eureka-moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from lab.plotting.figures import count_axis, legend_below, literal, name_left, new_figure, panels, shade_before
from lab.plotting.style import GUIDE, QKV, line_styles, line_widths, styled
from lab.runs.metrics import FILE as METRICS
from lab.runs.metrics import read_metrics
from lab.runs.summary import Eureka, Summary, read_summary


@styled()
def accuracy_figure(runs: Mapping[str, Path], axis: str = "epoch", title: str = "") -> Figure:
    """Validation accuracy against epochs, with the accuracy that the prior p(z) alone reaches, if all learn one task.

    Args:
        runs: name in the legend -> run folder; the colour is that of its softmax.
        axis: name of the horizontal axis.

    Raises:
        ValueError: if a run has no validation accuracy yet.
    """
    figure, axes = new_figure(5.5, 3.4)
    told = {name: read_summary(folder) for name, folder in runs.items()}
    own = line_styles([summary.softmax if summary else name for name, summary in told.items()])
    for (name, folder), style, width in zip(runs.items(), own, line_widths(len(runs)), strict=True):
        rows = [row for row in read_metrics(folder / METRICS) if "val/accuracy" in row]
        if not rows:
            raise ValueError(f"{folder} has no validation accuracy yet")
        epochs, accuracies = [row["epoch"] + 1 for row in rows], [100 * row["val/accuracy"] for row in rows]
        label = literal(name) + _told_of_moment(told[name])
        axes.plot(epochs, accuracies, label=label, linewidth=width, **style.of_line)
        mark_moments(axes, [summary.eureka] if (summary := told[name]) else [], style.color)
    known = [one for one in told.values() if one is not None]
    if len({(one.experiment, *(typed for typed in one.overrides if typed.startswith("data"))) for one in known}) == 1:
        for prior, name in over_seeds([one.eureka.prior_accuracy for one in known], "plateau: the prior p(z) alone"):
            guide(axes, 100 * prior, "--", f"{name} ({prior:.1%})")
    axes.set(ylabel="validation accuracy in %", ylim=(0, 102), title=literal(title))
    count_axis(axes, axis)
    legend_below(figure)
    return figure


def _told_of_moment(summary: Summary | None) -> str:
    """Legend text about a run's moment; "" where nobody looked for one."""
    if summary is None or summary.eureka.happened is None:
        return ""
    if summary.moment is not None:
        return f": Eureka-moment at epoch {summary.moment:,}"
    return ": no Eureka-moment" + ("" if summary.finished else f" by epoch {summary.epochs:,}")


def _eureka(folder: Path) -> Eureka:
    """Reads what the summary tells of the Eureka-moment."""
    summary = read_summary(folder)
    return summary.eureka if summary is not None else Eureka()


def over_seeds(heights: Iterable[float | None], name: str) -> list[tuple[float, str]]:
    """Mean of a height that seeds tell, with a name that says so where they differ; nothing where none tells it."""
    known = [height for height in heights if height is not None]
    if len(set(known)) < 2:  # a mean of equal numbers may be rounded
        return [(height, name) for height in known[:1]]
    return [(fmean(known), f"{name}, mean over seeds")]


def guide(axes: Any, height: float, line: str, label: str) -> None:
    """Draws a thin horizontal line to compare curves with; without a label it is in no legend."""
    axes.axhline(height, color=GUIDE, linewidth=0.8, linestyle=line, label=label)


def mark_moments(
    axes: Any, moments: Sequence[Eureka], color: str, quantity: str = "accuracy", scale: float = 100
) -> None:
    """Draws a star at each Eureka-moment, at the value that curves of ``quantity`` have there."""
    found = [
        (one.epoch, scale * height)
        for one in moments
        if one.epoch is not None and (height := height_at(one, quantity)) is not None
    ]
    if found:
        own = {"color": color, "markersize": 8, "markeredgecolor": "white", "markeredgewidth": 0.5, "zorder": 3}
        axes.plot(*zip(*found, strict=True), "*", **own)
        # One star in the legend, grey, as it stands for all softmaxes.
        axes.plot([], [], "*", color=GUIDE, markersize=8, label="Eureka-moment")


def height_at(moment: Eureka, quantity: str) -> float | None:
    """Value of a curve of ``quantity`` ("accuracy", "loss") at a moment; None where the summary does not hold it."""
    if moment.value is not None and moment.metric == moment.drawn(quantity):
        return moment.value
    return moment.accuracy if moment.drawn(quantity) == "val/accuracy" else None


def gradient_figure(folder: Path) -> Figure:
    """:func:`gradients_figure` of a run's metrics and of the moment in its summary.

    Raises:
        ValueError: if the run has logged no gradient norms.
    """
    rows = gradient_rows(folder)
    if not rows:
        raise ValueError(f"{folder} has logged no gradient norms: run it with the callback gradient_norms")
    return gradients_figure(rows, _eureka(folder).shown_step)


@styled()
def gradients_figure(rows: Sequence[Mapping[str, float]], moment: float | None) -> Figure:
    """Mean |gradient| of W_Q, W_K and W_V over training, one panel per layer; the time before the moment in grey.

    Args:
        rows: of ``metrics.csv``, those with gradients, one or more.
        moment: step of the Eureka-moment.

    Source: Eureka-moments in Transformers, Figures 4 and 14.
    """
    layers = sorted({int(key.rsplit("_", 1)[1]) for key in rows[0] if key.startswith("gradient/")})
    figure, axes = panels(len(layers), sharex=True, sharey=True)
    for panel, layer in zip(axes, layers, strict=True):
        gradient_panel(panel, rows, layer, moment)
        panel.set_title(f"layer {layer}")
    name_left(axes, "mean |gradient|")
    legend_below(figure)
    return figure


def gradient_rows(folder: Path) -> list[dict[str, float]]:
    """Rows of a run's metrics that hold the gradients of W_Q, W_K and W_V, at least those of the first layer."""
    keys = {f"gradient/{name}/layer_0" for name in QKV}
    return [row for row in read_metrics(folder / METRICS) if keys <= row.keys()]


def gradient_panel(axes: Any, rows: Sequence[Mapping[str, float]], layer: int, moment: float | None) -> None:
    """Draws mean |gradient| of W_Q, W_K and W_V of a layer against steps, the time before the moment in grey.

    Args:
        axes: where to draw.
        rows: of ``metrics.csv``, those with gradients.
        layer: which one.
        moment: step of the Eureka-moment.
    """
    for name, color in QKV.items():
        values = [row[f"gradient/{name}/layer_{layer}"] for row in rows]
        axes.plot([row["step"] for row in rows], values, label=f"$W_{name.upper()}$", color=color, linewidth=0.8)
    shade_before(axes, moment)
    axes.set(yscale="log")
    count_axis(axes, "step")
