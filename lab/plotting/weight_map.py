"""A map of attention weights from 0 to 1, with numbers in its cells where there is room."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.plotting.style import MAP


def weight_map(axes: Any, weights: NDArray[Any], numbers: bool) -> Any:
    """Draws weights, [rows, columns]; returns the picture, for a colour bar.

    Args:
        axes: where to draw.
        weights: in [0, 1].
        numbers: write each weight into its cell.
    """
    picture = axes.imshow(weights, vmin=0, vmax=1, cmap=MAP, aspect="auto")
    axes.grid(visible=False)
    for row, column in np.ndindex(*weights.shape) if numbers else ():
        weight = weights[row, column]
        color = "black" if weight > 0.6 else "white"
        axes.text(column, row, f"{weight:.2f}", ha="center", va="center", color=color, fontsize=6)
    return picture
