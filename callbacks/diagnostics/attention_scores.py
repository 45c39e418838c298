"""The distribution of attention weights over training."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.observation.observe import Chunk, Findings
from lab.plotting.figures import count_axis, legend_below, new_figure
from lab.plotting.style import MAP, layer_colors, styled

BINS = 25
# Edges of bins lie so far below multiples of 1 / 25: uniform attention over five tokens, 1/5, would lie in two bins.
_BELOW = 0.001


class AttentionScores(Diagnostic):
    """Counts of attention weights in 25 bins over [0, 1], per layer; of |w| / sum |w| where they may have any sum.

    Keys that a mask hides have no weight and are not counted.

    Table: layer, then count_00 ... count_24. The picture has one column per look; colours show counts on a log scale.

    Source: Eureka-moments in Transformers, Figure 10.
    """

    reads = ("logits", "weights")

    def see(self, chunk: Chunk) -> tuple[Tensor, list[Tensor]]:
        counts, samples = [], []
        for weights, layer in zip(chunk.shares, chunk.layers, strict=True):
            flat, hidden = weights.flatten(), (layer["logits"].isneginf() | weights.isnan()).flatten()
            # A copy: a view would keep every chunk's weights in memory.
            samples.append(flat.masked_fill(hidden, math.nan)[:: max(1, len(flat) // 10_000)].clone().cpu())
            # Hidden keys get a bin of their own: to drop them would make the CPU wait for the GPU to count them.
            place = ((flat + _BELOW) * BINS).long().clamp_(0, BINS - 1).masked_fill_(hidden, BINS)
            counts.append(torch.bincount(place, minlength=BINS + 1)[:BINS])
        return torch.stack(counts).cpu(), samples

    def conclude(self, seen: list[Any]) -> Findings:
        counts = torch.stack([own for own, _ in seen]).sum(0)
        # Of the first chunk only; TensorBoard bins the weights by itself.
        samples = {f"layer_{index}": own[~own.isnan()] for index, own in enumerate(seen[0][1])}
        found = Findings(histograms=samples)
        for index, layer in enumerate(counts.tolist()):
            found.rows.append({"layer": index, **{f"count_{place:02d}": count for place, count in enumerate(layer)}})
            # This share falls when attention weights leave the first bin.
            found.scalars[f"share_in_first_bin/layer_{index}"] = layer[0] / sum(layer) if any(layer) else math.nan
        found.figures["layers"] = partial(_histogram, counts.numpy())
        return found

    @styled()
    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        counts = all_counts(table, "step")
        figure, axes = new_figure(5.5, 2.9)
        picture = scores_panel(axes, counts, moment, counts.to_numpy().max())
        axes.set(ylabel="attention weight", title="all layers and heads")
        count_axis(axes, "step", ticks=8)
        legend_below(figure)
        figure.colorbar(picture, label="weights in the bin")
        return figure


def all_counts(table: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Counts of all layers together: one row per look, by its "step" or "epoch", and one column per bin."""
    return table.groupby(axis, sort=True)[[f"count_{place:02d}" for place in range(BINS)]].sum()


def scores_panel(axes: Any, counts: pd.DataFrame, moment: float | None, most: float) -> Any:
    """Draws the counts of :func:`all_counts` as colours, one column per look; returns the mesh, for a colour bar.

    Args:
        axes: where to draw.
        counts: the counts of :func:`all_counts`.
        moment: step or epoch of the Eureka-moment; None without one, NaN if no callback looked for it.
        most: count at the end of the colour scale.
    """
    axes.grid(visible=False)
    looks, values = counts.index.to_numpy(float), counts.to_numpy(float).T
    mesh = axes.pcolormesh(
        # Looks are at least 1 apart; a single one has a column, too.
        np.concatenate([looks[:1] - 0.5, (looks[1:] + looks[:-1]) / 2, looks[-1:] + 0.5]),
        np.linspace(0, 1, BINS + 1),
        np.where(values > 0, values, np.nan),
        norm=LogNorm(vmin=1, vmax=most),
        cmap=MAP,
    )
    if moment is not None and not math.isnan(moment):
        axes.axvline(moment, color="white", linewidth=2.5)
        axes.axvline(moment, color="black", linestyle="--", label="Eureka-moment")
    return mesh


@styled()
def _histogram(counts_LX: np.ndarray) -> Figure:
    figure, axes = new_figure(5.5, 2.9)
    colors = layer_colors(len(counts_LX))
    middles = (np.arange(BINS) + 0.5) / BINS
    for layer, counts in enumerate(counts_LX):
        share = np.where(counts > 0, counts / counts.sum(), np.nan)
        axes.plot(middles, share, marker=".", color=colors[layer], label=f"layer {layer}")
    axes.set(yscale="log", xlabel="attention weight", ylabel="share of weights")
    legend_below(figure)
    return figure
