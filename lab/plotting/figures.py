"""Figures: made without a window, laid out once, saved atomically, shown in TensorBoard; and their shared panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lab.console import printable
from lab.runs.files import write_atomically

if TYPE_CHECKING:
    import lightning as L


def literal(text: str) -> str:
    """The text as it stands, on one line: a dollar sign begins no formula."""
    return printable(text).replace("$", r"\$")


def new_figure(
    width: float, height: float, rows: int = 0, columns: int = 0, sharey: bool = False
) -> tuple[Figure, Any]:
    """A figure without a window, and its axes: one, or an array [rows, columns], of one vertical axis if asked for."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, sharey=sharey, squeeze=False) if rows else figure.subplots()


def lay_out(figure: Figure) -> None:
    """Puts the panels of a finished figure where they are to stay.

    Laying out takes longer than drawing: without this, ``savefig`` draws once more for it, and whoever draws the
    figure again (TensorBoard, another format) lays it out again.
    """
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def save_figure(figure: Figure, path: Path, dpi: int = 130) -> None:
    """Lays a figure out for good and writes it atomically as PNG."""
    lay_out(figure)
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=dpi))


def show_figure(trainer: L.Trainer, tag: str, figure: Figure) -> None:
    """Gives a figure to those of the trainer's loggers that take one, at the step reached."""
    from lightning.pytorch.loggers import TensorBoardLogger  # takes seconds, and reports draw without it

    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            writer: Any = logger.experiment
            writer.add_figure(tag, figure, global_step=trainer.global_step, close=False)


def panels(count: int, width: float = 3.2, height: float = 2.6, columns: int = 4) -> tuple[Figure, list[Any]]:
    """A grid of so many panels; places left over are empty."""
    across = min(columns, count)
    down = -(-count // across)
    figure, axes = new_figure(width * across + 1, height * down + 0.6, down, across)
    for empty in axes.flatten()[count:]:
        empty.set_axis_off()
    return figure, list(axes.flatten()[:count])


def shade_before(axes: Any, moment: float | None) -> None:
    """The time before the Eureka-moment in grey, as in the paper's figures; all of it where there was none."""
    axes.axvspan(0, moment if moment is not None else axes.get_xlim()[1], color="0.9", zorder=0)


def lines_by_layer(
    table: pd.DataFrame,
    columns: Sequence[str],
    label: str,
    moment: float | None,
    by: str | None = None,
    log: bool = False,
) -> Figure:
    """A panel a layer; a line a column (mean over its rows), or a line for each value of ``by``."""
    layers = sorted(table["layer"].unique())
    figure, axes = panels(len(layers))
    for panel, layer in zip(axes, layers, strict=True):
        own = table[table["layer"] == layer]
        for column in columns:
            groups = own.groupby(by) if by else [(column, own)]
            for name, rows in groups:
                mean = rows.groupby("step")[column].mean()
                panel.plot(mean.index, mean.to_numpy(), linewidth=1, label=f"{by} {name}" if by else str(name))
        panel.set(title=f"layer {layer}", xlabel="step", **({"yscale": "log"} if log else {}))
        panel.grid(alpha=0.3)
        shade_before(panel, moment)
    axes[0].set_ylabel(label)
    axes[0].legend(fontsize=8)
    return figure


def bars_by_layer(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], label: str, log: bool = False) -> Figure:
    """One moment: a bar a layer and column, the mean over its rows, with their spread (over heads)."""
    table = pd.DataFrame(rows)
    layers = sorted(table["layer"].unique())
    figure, panel = new_figure(max(4.0, 0.8 * len(layers) + 2), 2.8)
    by_layer = table.set_index("layer")
    grouped_bars(panel, layers, {column: by_layer[column] for column in columns})
    panel.set_xticks(range(len(layers)), [str(layer) for layer in layers])
    panel.set(xlabel="layer", ylabel=label, **({"yscale": "log"} if log else {}))
    panel.legend(fontsize=7)
    return figure


def grouped_bars(axes: Any, layers: Sequence[int], groups: Mapping[str, pd.Series]) -> None:
    """Bars side by side at each layer, a colour a group: the mean of its values there, with their spread.

    Args:
        axes: where to draw.
        layers: those that have bars, from left to right.
        groups: name in the legend -> values, indexed by layer.
    """
    width = 0.8 / len(groups)
    for place, (name, values) in enumerate(groups.items()):
        per_layer = values.groupby(level=0)
        mean = per_layer.mean().reindex(list(layers)).to_numpy(float)
        spread = per_layer.std(ddof=0).reindex(list(layers)).fillna(0).to_numpy(float)
        where = np.arange(len(layers)) + (place - (len(groups) - 1) / 2) * width
        axes.bar(where, mean, width, yerr=spread, capsize=2, label=name)


def maps(pictures: Sequence[np.ndarray], titles: Sequence[str], columns: int = 4) -> Figure:
    """Small pictures in a grid, each with its own grey scale from black (low) to white."""
    figure, axes = panels(len(pictures), width=1.8, height=1.9, columns=columns)
    for panel, picture, title in zip(axes, pictures, titles, strict=True):
        panel.imshow(picture, interpolation="nearest", cmap="gray")
        panel.set_title(title, fontsize=8)
        panel.set_xticks([])
        panel.set_yticks([])
    return figure
