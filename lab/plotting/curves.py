"""Accuracy curves of several runs in one picture, with the plateau and the Eureka-moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lab.plotting.figures import literal, new_figure, panels, shade_before
from lab.runs.metrics import read_metrics
from lab.runs.summary import Eureka, read_summary


def accuracy_figure(runs: Mapping[str, Path], axis: str = "epoch", title: str = "") -> Figure:
    """Validation accuracy against epochs, with the accuracy that the prior p(z) alone reaches on the first run's task.

    Args:
        runs: name in the legend -> run folder.
        axis: name of the horizontal axis.

    Raises:
        ValueError: if a run has no validation accuracy yet.
    """
    figure, axes = new_figure(8, 4.5)
    prior = next((_eureka(folder).prior_accuracy for folder in runs.values()), None)
    if prior is not None:
        label = f"the prior p(z) alone ({prior:.1%})"
        axes.axhline(100 * prior, color="0.5", linestyle="--", linewidth=1, label=label)
    for name, folder in runs.items():
        rows = [row for row in read_metrics(folder / "metrics.csv") if "val/accuracy" in row]
        if not rows:
            raise ValueError(f"{folder} has no validation accuracy yet")
        (line,) = axes.plot(
            [row["epoch"] + 1 for row in rows], [100 * row["val/accuracy"] for row in rows], label=literal(name)
        )
        moment = _eureka(folder)
        if moment.happened:
            mark_moment(axes, moment, line.get_color())
    axes.set(xlabel=axis, ylabel="validation accuracy in %", ylim=(0, 102), title=literal(title))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return figure


def _eureka(folder: Path) -> Eureka:
    """Reads what the summary tells of the Eureka-moment."""
    summary = read_summary(folder)
    return summary.eureka if summary is not None else Eureka()


def mark_moment(axes: Any, moment: Eureka, color: Any) -> None:
    """Draws a star at a Eureka-moment and a line down to its epoch."""
    if moment.epoch is None or moment.accuracy is None:
        return
    epoch, accuracy = moment.epoch, 100 * moment.accuracy
    axes.plot([epoch, epoch], [0, accuracy], color=color, linestyle=":", linewidth=1)
    axes.plot([epoch], [accuracy], marker="*", markersize=14, color=color, markeredgecolor="white")
    start, end = axes.get_xlim()
    # Before its moment a run is below it, so that above and left of the star there is room, unless it comes at once.
    early = epoch - start < 0.2 * (end - start)
    axes.annotate(
        f"Eureka-moment\nepoch {epoch:,}",
        (epoch, accuracy),
        xytext=(12, -30) if early else (-10, 8),
        textcoords="offset points",
        ha="left" if early else "right",
        color=color,
    )


def gradient_figure(folder: Path, layers: Sequence[int] | None = None, moment: float | None = None) -> Figure:
    """Mean |gradient| of W_Q, W_K and W_V over training, a panel a layer; the time before the moment in grey.

    The moment (a step) is the summary's where it is not given.

    Source: Eureka-moments in Transformers, Figures 4 and 14.

    Raises:
        ValueError: if the run has logged no gradient norms.
    """
    rows = [row for row in read_metrics(folder / "metrics.csv") if "gradient/q/layer_0" in row]
    if not rows:
        raise ValueError(f"{folder} has logged no gradient norms: run it with the callback gradient_norms")
    found = sorted({int(key.rsplit("_", 1)[1]) for key in rows[0] if key.startswith("gradient/")})
    shown = found if layers is None else list(layers)
    if moment is None:
        moment = _eureka(folder).step
    figure, axes = panels(len(shown))
    for panel, layer in zip(axes, shown, strict=True):
        for name in "qkv":
            values = [row[f"gradient/{name}/layer_{layer}"] for row in rows]
            panel.plot([row["step"] for row in rows], values, label=f"$W_{name.upper()}$", linewidth=1)
        shade_before(panel, moment)
        panel.set(yscale="log", title=f"layer {layer}", xlabel="step")
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("mean |gradient|")
    axes[0].legend()
    return figure
