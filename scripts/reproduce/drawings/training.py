"""Layouts of what happens over training: accuracies, losses, gradients and attention weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from lab.callbacks.diagnostics.attention_gradients import derivatives_panel
from lab.callbacks.diagnostics.attention_scores import all_counts, scores_panel
from lab.plotting.curves import accuracy_figure, gradient_panel
from lab.plotting.figures import count_axis, legend_below, name_left, panels
from lab.plotting.style import QKV, line_widths, styled
from lab.runs.summary import load_summary
from scripts.reproduce.drawings.runs import Shown, curves, layers_logged


def accuracies(runs: Sequence[Shown]) -> Figure:
    """Validation accuracy by epoch, one line per run, moments starred (Figures 6 and 15)."""
    return accuracy_figure({run.label: run.folder for run in runs})


@styled()
def accuracy_and_loss(runs: Sequence[Shown]) -> Figure:
    """Validation accuracy and training loss by epoch, one line per seed (Figures 1b and 17)."""
    figure, axes = panels(2, width=3.4, height=2.4)
    every = [(run, folder) for run in runs for folder in run.folders]
    for (run, folder), width in zip(every, line_widths(len(every)), strict=True):
        label = f"{run.label}, seed {load_summary(folder).seed}" if len(run.folders) > 1 else run.label
        for panel, metric, factor in zip(axes, ("val/accuracy", "train/loss"), (100, 1), strict=True):
            rows = curves(folder, metric)
            panel.plot(rows["epoch"], factor * rows[metric], label=label, linewidth=width)
    axes[0].set(ylabel="validation accuracy in %", ylim=(0, 102))
    axes[1].set(ylabel="training loss", ylim=(0, None))
    for panel in axes:
        count_axis(panel, "epoch")
    legend_below(figure)
    return figure


@styled()
def gradient_norms(runs: Sequence[Shown], layers: Sequence[int] | None = None) -> Figure:
    """Mean |gradient| of W_Q, W_K, W_V; a row per layer, a column per run; grey before the moment (Figures 4, 14)."""
    shown = layers_logged(runs[0].folder, "gradient/q/layer_") if layers is None else list(layers)
    names = [f"gradient/{of}/layer_{layer}" for of in QKV for layer in shown]
    rows: list[Any] = [run.curves(*names).to_dict("records") for run in runs]

    def draw(panel: Any, column: int, layer: int) -> None:
        gradient_panel(panel, rows[column], layer, runs[column].moment())

    return _by_layer(runs, shown, draw, "mean |gradient|")


@styled()
def derivatives_by_region(runs: Sequence[Shown]) -> Figure:
    """Mean |dZ/dQ|, |dZ/dK|, |dZ/dV| on indicators and targets; a row per layer, a column per run (Figure 13)."""
    tables = [run.table("attention_gradients") for run in runs]

    def draw(panel: Any, column: int, layer: int) -> None:
        in_layer = tables[column][tables[column]["layer"] == layer]
        derivatives_panel(panel, in_layer, ("indicator", "target"), runs[column].moment())

    return _by_layer(runs, sorted(tables[0]["layer"].unique()), draw, "mean |derivative of Z|")


@styled()
def attention_scores(runs: Sequence[Shown]) -> Figure:
    """Number of attention weights in each of 25 bins over training, one panel per run (Figure 10)."""
    counts = [all_counts(run.table("attention_scores"), "epoch") for run in runs]
    most = max(float(one.to_numpy().max()) for one in counts)
    figure, axes = panels(len(runs), columns=len(runs))
    for panel, run, own in zip(axes, runs, counts, strict=True):
        mesh = scores_panel(panel, own, run.moment("epoch"), most)
        panel.set_title(run.label)
        count_axis(panel, "epoch")
    name_left(axes, "attention weight")
    figure.colorbar(mesh, ax=axes, label="weights in the bin")
    legend_below(figure)
    return figure


def _by_layer(
    runs: Sequence[Shown], layers: Sequence[int], draw: Callable[[Any, int, int], None], quantity: str
) -> Figure:
    """Figure with a row per layer and a column per run, all on one scale; ``draw(panel, column, layer)`` draws one."""
    figure, axes = panels(len(layers) * len(runs), columns=len(runs), sharex=True, sharey=True)
    places = [(layer, column) for layer in layers for column in range(len(runs))]
    for panel, (layer, column) in zip(axes, places, strict=True):
        draw(panel, column, layer)
        if layer == layers[0]:
            panel.set_title(runs[column].label)
        if column == 0:
            panel.set_ylabel(f"{quantity}\nlayer {layer}")
    legend_below(figure)
    return figure
