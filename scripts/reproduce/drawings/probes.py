"""Layouts of what can be read from representations: accuracies of linear probes, and code-lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lab.console import LabError
from lab.plotting.curves import guide
from lab.plotting.figures import count_axis, grouped_bars, legend_below, name_left, new_figure, shade_before
from lab.plotting.style import styled
from scripts.reproduce.drawings.runs import Shown

TOKENS = {"answer": "answer's token", "mean": "mean of tokens", "full": "all tokens"}
QUANTITIES = {"attended": "before residual", "residual": "after residual"}
# Quantity and tokens of which code-lengths are drawn.
REPRESENTATIONS = (("attended", "answer"), ("residual", "answer"), ("attended", "full"), ("residual", "full"))


@styled()
def accuracy(
    runs: Sequence[Shown],
    quantities: Sequence[str],
    targets: Sequence[str],
    every: Sequence[str],
    layers: Sequence[int] | None = None,
) -> Figure:
    """Accuracy of linear probes at the end of training (Figures 2 and 19 to 23).

    One row per target and kind of tokens, one column per run; bars by layer with their spread over heads, and chance as
    a line.

    Args:
        runs: what is compared.
        quantities: of "z", "q", "k", "v", "attended" (before the residual) and "residual" (after it).
        targets: latents.
        every: kinds of tokens: "answer", "mean", "full".
        layers: those that are shown; None: all.

    Raises:
        LabError: if a run has no probe of one of the targets.
    """
    rows = [(target, tokens) for target in targets for tokens in every]
    figure, axes = new_figure(4.6 * len(runs), 1.9 * len(rows) + 0.5, len(rows), len(runs), sharey=True)
    for column, run in enumerate(runs):
        table = last_look(run.table("linear_probes"))
        shown = sorted(table["layer"].unique()) if layers is None else list(layers)
        for row, (target, tokens) in enumerate(rows):
            own = table[(table["target"] == target) & (table["tokens"] == tokens)]
            if own.empty:
                raise LabError(f"{run.folder} has no probe of {target} at {TOKENS[tokens]}")
            panel = axes[row, column]
            bars = {QUANTITIES.get(name, name.upper()): own[own["quantity"] == name] for name in quantities}
            grouped_bars(panel, shown, {name: 100 * one.set_index("layer")["accuracy"] for name, one in bars.items()})
            guide(panel, 100 * own["chance"].iloc[0], "--", "chance")
            panel.set_xticks(range(len(shown)), [f"layer {layer}" for layer in shown])
            panel.set(ylim=(0, 102))
            panel.set_title(f"{run.label}: {target}, {TOKENS[tokens]}")
    name_left(axes.flat, "accuracy in %")
    legend_below(figure)
    return figure


@styled()
def code_length(
    runs: Sequence[Shown], targets: Sequence[str] = ("indicator_1", "target_location"), layers: Sequence[int] = ()
) -> Figure:
    """Code-length as a share of the uniform code over training; a row per representation, a column per run (Figure 18).

    Solid lines are of the last target, dashed ones of those before it; one colour per layer. The uniform code, 1, knows
    nothing about the target: a line below 1 shows knowledge of it.

    Args:
        runs: what is compared.
        targets: latents.
        layers: those that are shown; none: all.
    """
    down = len(REPRESENTATIONS)
    figure, axes = new_figure(3.4 * len(runs) + 0.6, 2.0 * down + 0.6, down, len(runs), True, True)
    for column, run in enumerate(runs):
        table = run.table("code_length")
        shown = list(layers) or sorted(table["layer"].unique())
        for row, (quantity, tokens) in enumerate(REPRESENTATIONS):
            panel = axes[row, column]
            for target in targets:
                for layer in shown:
                    wanted = {"target": target, "layer": layer, "quantity": quantity, "tokens": tokens}
                    own = table[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)]
                    style = "-" if target == targets[-1] else "--"
                    label = f"{target}, layer {layer}"
                    panel.plot(own["epoch"], own["bits"] / own["uniform"], style, color=f"C{layer}", label=label)
            guide(panel, 1, "-", "uniform code")
            panel.set_title(f"{run.label}: {QUANTITIES[quantity]}, {TOKENS[tokens]}")
            shade_before(panel, run.moment("epoch"))
            count_axis(panel, "epoch")
    name_left(axes.flat, "share of uniform code")
    legend_below(figure)
    return figure


def last_look(table: pd.DataFrame) -> Any:
    """Rows of the last step at which the diagnostic ran."""
    return table[table["step"] == table["step"].max()]
