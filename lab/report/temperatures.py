"""Figure of the report: the numbers that temperature rules and normalisers log, where they change over training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lab.console import LabError
from lab.plotting.figures import count_axis, legend_below, panels
from lab.plotting.style import layer_colors, styled
from lab.report.figures import seed_of
from lab.report.records import METRICS, Record
from lab.report.settings import Setting
from lab.report.titles import panel_title, titles_of
from lab.runs.metrics import read_metrics_table

# A vector over heads is logged as its mean and spread.
_KEY = re.compile(r"temperature/(?P<name>[^/]+)/layer_(?P<layer>\d+)(?P<mean>/mean)?")


@styled()
def temperatures(settings: Sequence[Setting], titles: Mapping[Setting, str] | None = None) -> Figure | None:
    """Temperatures over training, a panel for each setting (first finished seed) and quantity, a line for each layer.

    For a quantity with one value per head, the line is the mean over heads, and one standard deviation is shaded.
    Layers in which a quantity never changes are left out; None where nothing changes. ``titles`` of each setting are
    needed where these are only some of the experiment's.

    Source: "Introducing a learnable temperature" shows mean and spread over heads, layer by layer.
    """
    shown = [(setting, name, layers) for setting in settings for name, layers in _changing(setting.first).items()]
    if not shown:
        return None
    figure, axes = panels(len(shown), sharex=True)
    named = titles or titles_of(settings)
    most = max(max(layers) for *_, layers in shown)
    colors = layer_colors(most + 1)
    for panel, (setting, name, layers) in zip(axes, shown, strict=True):
        for layer, table in layers.items():
            panel.plot(table["step"], table["mean"], color=colors[layer], label=f"layer {layer}")
            low, high = table["mean"] - table["spread"], table["mean"] + table["spread"]
            panel.fill_between(table["step"], low, high, color=colors[layer], alpha=0.15, linewidth=0)
        panel.set_title(panel_title(f"{named[setting]}, {seed_of(setting.first)}"))
        panel.set_ylabel(name)
        count_axis(panel, "step")
    if any(table["spread"].any() for *_, layers in shown for table in layers.values()):
        axes[0].fill_between([], [], [], color="0.5", alpha=0.3, linewidth=0, label="one standard deviation over heads")
    legend_below(figure)
    return figure


def _changing(run: Record) -> dict[str, dict[int, pd.DataFrame]]:
    """Quantities of a run that change: quantity -> layer -> table of step, mean, spread (0 for a single number)."""
    try:
        table = read_metrics_table(run.folder / METRICS)
    except LabError:
        return {}
    found: dict[str, dict[int, pd.DataFrame]] = {}
    for column in table.columns:
        key = _KEY.fullmatch(column)
        if key is None:
            continue
        stem = column.removesuffix("/mean")
        spread = table.get(f"{stem}/spread", 0.0) if key["mean"] else 0.0
        own = pd.DataFrame({"step": table["step"], "mean": table[column], "spread": spread}).dropna()
        if len(own) and not np.allclose(own[["mean", "spread"]], own[["mean", "spread"]].iloc[0]):
            found.setdefault(key["name"], {})[int(key["layer"])] = own
    return found
