"""Layouts of maps on the patches of a scene: attention, and the derivatives of its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from numpy.typing import NDArray

from lab.console import LabError
from lab.plotting.figures import new_figure
from lab.plotting.style import styled
from scripts.reproduce.drawings.runs import Shown


@styled()
def attention(runs: Sequence[Shown]) -> Figure:
    """Attention to each patch of a scene, over queries and heads; a row per run, a column per layer (Figure 3)."""
    pictures = {}
    for run in runs:
        received_LBHM = run.arrays("attention_maps")["received"].astype(float)
        pictures[run.label] = [_on_grid(layer) for layer in received_LBHM[:, 0].mean(1)]
    figure, axes = _maps(pictures)
    most = max(picture.max() for layers in pictures.values() for picture in layers)
    for run, panels in zip(runs, axes, strict=True):
        for panel, picture in zip(panels, pictures[run.label], strict=True):
            image = panel.imshow(picture, vmin=0, vmax=most, cmap="gray", interpolation="nearest")
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of attention")
    return figure


@styled()
def derivatives(runs: Sequence[Shown], of: Sequence[str], epoch: int | str) -> Figure:
    """Mean |dZ/dQ|, |dZ/dK| or |dZ/dV| of each patch at an epoch; rows of runs, a column per layer (Figures 5, 11, 12).

    Args:
        runs: of models whose tokens lie on a grid.
        of: which of "q", "k" and "v".
        epoch: after which maps are shown; "moment of <setting>" is the epoch of that setting's Eureka-moment.

    Raises:
        LabError: if a run did not look at that epoch, or the setting has no moment.
    """
    at = _epoch(runs, epoch)
    pictures: dict[str, list[NDArray[Any]]] = {}
    for run in runs:
        arrays = run.arrays("attention_gradients", at)
        pictures |= {f"{run.label}\n{name.upper()}": [_on_grid(layer) for layer in arrays[name]] for name in of}
    figure, axes = _maps(pictures)
    for panels, maps in zip(axes, pictures.values(), strict=True):
        low, high = min(one.min() for one in maps), max(one.max() for one in maps)
        for panel, picture in zip(panels, maps, strict=True):
            image = panel.imshow(picture, vmin=low, vmax=high, interpolation="nearest")
        figure.colorbar(image, ax=panels, shrink=0.8, label="mean |derivative|")
    figure.suptitle(f"epoch {at}; each row has its own scale", fontsize=8)
    return figure


def _epoch(runs: Sequence[Shown], asked: int | str) -> int:
    if isinstance(asked, int):
        return asked
    name = asked.removeprefix("moment of ")
    moments = [run.moment("epoch") for run in runs if run.name == name]
    if not moments or moments[0] is None:
        raise LabError(f"{name} has had no Eureka-moment at whose epoch maps could be drawn")
    return moments[0]


def _on_grid(values: NDArray[Any]) -> NDArray[Any]:
    """Reshapes [tokens] to [rows, columns]; tokens before the patches (CLS) are left out."""
    side = int(len(values) ** 0.5)
    return values[len(values) - side * side :].reshape(side, side)


def _maps(pictures: dict[str, list[NDArray[Any]]]) -> tuple[Figure, Any]:
    across = max(len(maps) for maps in pictures.values())
    # Room for names on the left and a colour bar on the right: where it is short, the layout cuts names off.
    figure, axes = new_figure(1.6 * across + 1.9, 1.6 * len(pictures) + 0.6, len(pictures), across)
    for panels, name in zip(axes, pictures, strict=True):
        panels[0].set_ylabel(name, fontsize=9)
        for panel in panels:
            panel.set(xticks=[], yticks=[])
    for layer, panel in enumerate(axes[0]):
        panel.set_title(f"layer {layer}", fontsize=9)
    return figure, axes
