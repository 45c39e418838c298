"""Layouts of what happens over training: accuracies, losses, gradients and attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from lab.plotting.curves import accuracy_figure
from lab.plotting.figures import new_figure, shade_before
from lab.runs.summary import load_summary
from scripts.reproduce.drawings.runs import Shown, curves, layers_logged


def accuracies(runs: Sequence[Shown]) -> Figure:
    """Validation accuracy by epoch, a line a run, moments starred (Figures 6 and 15)."""
    return accuracy_figure({run.label: run.folder for run in runs})


def accuracy_and_loss(runs: Sequence[Shown]) -> Figure:
    """Validation accuracy and training loss by epoch, a line a seed (Figures 1b and 17)."""
    figure, axes = new_figure(9, 3.4, 1, 2)
    for run in runs:
        for folder in run.folders:
            seed = load_summary(folder).seed
            label = f"{run.label}, seed {seed}" if len(run.folders) > 1 else run.label
            for panel, metric, factor in zip(axes[0], ("val/accuracy", "train/loss"), (100, 1), strict=True):
                rows = curves(folder, metric)
                panel.plot(rows["epoch"], factor * rows[metric], label=label, linewidth=1.2)
    axes[0, 0].set(xlabel="epoch", ylabel="validation accuracy in %", ylim=(0, 102))
    axes[0, 1].set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    for panel in axes[0]:
        panel.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    return figure


def gradient_norms(runs: Sequence[Shown], layers: Sequence[int] | None = None) -> Figure:
    """Mean |gradient| of W_Q, W_K and W_V: a row a layer, a column a run, grey before the moment (Figures 4 and 14)."""
    shown = layers_logged(runs[0].folder, "gradient/q/layer_") if layers is None else list(layers)
    figure, axes = _grid(runs, [f"layer {layer}" for layer in shown])
    for column, run in enumerate(runs):
        for row, layer in enumerate(shown):
            names = {f"gradient/{of}/layer_{layer}": of.upper() for of in "qkv"}
            found = run.curves(*names)
            panel = axes[row, column]
            for name, of in names.items():
                panel.plot(found["step"], found[name], linewidth=1, label=f"$W_{of}$")
            panel.set(yscale="log")
            shade_before(panel, run.moment())
    axes[0, 0].legend(fontsize=8)
    return figure


def derivatives_by_region(runs: Sequence[Shown]) -> Figure:
    """Mean |dZ/dQ|, |dZ/dK|, |dZ/dV| on indicators and targets: a row a layer, a column a run (Figure 13)."""
    tables = [run.table("attention_gradients") for run in runs]
    layers = sorted(tables[0]["layer"].unique())
    figure, axes = _grid(runs, [f"layer {layer}" for layer in layers])
    for column, (run, table) in enumerate(zip(runs, tables, strict=True)):
        for row, layer in enumerate(layers):
            panel, in_layer = axes[row, column], table[table["layer"] == layer]
            for color, of in zip(("tab:blue", "tab:orange", "tab:green"), "qkv", strict=True):
                for style, region in (("-", "indicator"), ("--", "target")):
                    own = in_layer[(in_layer["of"] == of) & (in_layer["region"] == region)]
                    label = f"{of.upper()} {region}"
                    panel.plot(own["step"], own["derivative"], style, color=color, linewidth=1, label=label)
            panel.set(yscale="log")
            shade_before(panel, run.moment())
    axes[0, 0].legend(fontsize=7)
    return figure


def attention_scores(runs: Sequence[Shown]) -> Figure:
    """Numbers of attention weights that lie in each of 25 bins, over training, a panel a run (Figure 10)."""
    tables = [run.table("attention_scores") for run in runs]
    bins = [str(name) for name in tables[0] if str(name).startswith("count_")]
    counts = [table.groupby("epoch")[bins].sum() for table in tables]
    largest = max(float(one.to_numpy().max()) for one in counts)
    figure, axes = _grid(runs, ["attention weight"], xlabel="epoch")
    for panel, run, own in zip(axes[0], runs, counts, strict=True):
        values = own.to_numpy(float).T
        epochs = own.index.to_numpy(float)
        picture = panel.pcolormesh(
            epochs,
            (np.arange(len(bins)) + 0.5) / len(bins),
            np.where(values > 0, values, np.nan),
            norm=LogNorm(vmin=1, vmax=largest),
            shading="nearest",
        )
        if (moment := run.moment("epoch")) is not None:
            panel.axvline(moment, color="tab:red", linestyle=":", label="Eureka-moment")
            panel.legend(loc="upper right", fontsize=8)
    figure.colorbar(picture, ax=axes, label="weights in the bin")
    return figure


def _grid(runs: Sequence[Shown], rows: Sequence[str], xlabel: str = "step") -> tuple[Figure, Any]:
    figure, axes = new_figure(2.9 * len(runs) + 0.8, 2.2 * len(rows) + 0.6, len(rows), len(runs))
    for panel, run in zip(axes[0], runs, strict=True):
        panel.set_title(run.label, fontsize=10)
    for panel, name in zip(axes[:, 0], rows, strict=True):
        panel.set_ylabel(name)
    for panel in axes[-1]:
        panel.set_xlabel(xlabel)
    return figure, axes
