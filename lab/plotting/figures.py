"""Figures: made without a window, laid out once, saved atomically; and their shared panels."""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from PIL import Image

from lab.console import LabError, printable, tell
from lab.files import write_atomically
from lab.plotting.style import GUIDE, MAP, styled

# Dots per inch of files: sharp on a screen with twice the usual resolution, small enough for a page.
DPI = 150
# What matplotlib warns of where no font has a letter.
_NO_GLYPH = r"Glyph \d+ .* missing from font"
# Other warnings that were given once.
_WARNED: dict[Any, Any] = {}


def literal(text: str) -> str:
    """The text as it stands, on one line: a dollar sign begins no formula."""
    return printable(text).replace("$", r"\$")


def new_figure(
    width: float, height: float, rows: int = 0, columns: int = 0, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, Any]:
    """A figure without a window, and its axes: one, or an array [rows, columns].

    Args:
        width, height: inches. The text of a two-column page is 7 inches wide, and letters have the size of that text.
        rows, columns: of axes; 0 for one alone.
        sharex, sharey: all panels share one horizontal, or one vertical axis, so that they can be compared.
    """
    with styled():
        # Widths of letters depend on the resolution: lay the figure out at the one that it is saved at.
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        if not rows:
            return figure, figure.subplots()
        return figure, figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False)


def lay_out(figure: Figure) -> None:
    """Lays a finished figure out once and for all.

    Laying out takes longer than drawing. Without this, ``savefig`` draws the figure once more to lay it out, and every
    further drawing (on a board, in another format) lays it out again.
    """
    if (engine := figure.get_layout_engine()) is not None:
        with styled(), _missing_letters_told():
            engine.execute(figure)
        figure.set_layout_engine(None)


@contextmanager
def _missing_letters_told() -> Iterator[None]:
    """Tells in one sentence of letters that no font has: matplotlib warns of each of them, at each drawing."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.filterwarnings("always", message=_NO_GLYPH)
        yield
    for one in seen:
        if re.match(_NO_GLYPH, str(one.message)):
            _tell_of_missing_letters()
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, registry=_WARNED)


@cache
def _tell_of_missing_letters() -> None:
    tell(
        "pictures have boxes in place of letters that no font of this machine has: install the font Noto Sans CJK (for "
        "Chinese, Japanese and Korean) or Noto Emoji, and delete matplotlib's list of fonts, "
        f"{Path(matplotlib.get_cachedir()) / 'fontlist-*.json'}"
    )


def rendered(figure: Figure, kind: str, dpi: int = DPI, few_colors: bool = False) -> bytes:
    """A laid-out figure as a file of this kind; the same figure gives the same bytes.

    Args:
        figure: what to draw.
        kind: "png", or "pdf", whose fonts are embedded.
        dpi: dots per inch; in a PDF, of the pictures in it.
        few_colors: 256 colours: a drawing of lines looks the same, and takes a third of the bytes.
    """
    buffer = io.BytesIO()
    with styled(), _missing_letters_told():
        # No date, so that the same figure gives the same bytes.
        figure.savefig(buffer, format=kind, dpi=dpi, metadata={"CreationDate": None} if kind == "pdf" else {})
    if kind == "pdf" or not few_colors:
        return buffer.getvalue()
    small = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def save_figure(
    figure: Figure, path: str | Path, dpi: int = DPI, pdf: bool = False, few_colors: bool = False
) -> list[Path]:
    """Lays a figure out once and for all and writes it atomically; returns the files written.

    Args:
        figure: what to write.
        path: PNG to write.
        dpi: dots per inch.
        pdf: writes a PDF beside it, for a paper.
        few_colors: as in :func:`rendered`.
    """
    lay_out(figure)
    png = Path(path)
    written = [png, *([png.with_suffix(".pdf")] if pdf else [])]
    for file, kind in zip(written, ("png", "pdf"), strict=False):
        _write(file, rendered(figure, kind, dpi, few_colors))
    return written


def save_as_asked(figure: Figure, path: Path) -> None:
    """Saves the figure of a command, a PDF beside it, and prints which files it has written.

    Raises:
        LabError: if they cannot be written.
    """
    try:
        written = save_figure(figure, path, pdf=True)
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error}") from error
    for file in written:
        print(file)


def png(text: str) -> Path:
    """Reads the path of a PNG from a command line (``type=png`` of argparse)."""
    path = Path(text)
    if path.suffix != ".png":
        raise ArgumentTypeError(f"{text} is no PNG file: give it a name that ends in .png")
    return path


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))


def panels(
    count: int, width: float = 2.4, height: float = 1.9, columns: int = 3, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Any]]:
    """A grid of ``count`` panels, ``width`` by ``height`` inches each; places left over are empty."""
    across = min(columns, count)
    down = -(-count // across)
    if count == 1:
        # A panel alone is larger: it takes about the room of two.
        width, height = 1.7 * width, 1.4 * height
    figure, axes = new_figure(width * across + 0.4, height * down + 0.2, down, across, sharex, sharey)
    for empty in axes.flatten()[count:]:
        empty.set_axis_off()
    shown = list(axes.flatten()[:count])
    for place, panel in enumerate(shown):
        # A shared axis has its numbers in the last row alone; above an empty place they would be missing.
        panel.tick_params(labelbottom=not sharex or place + across >= count)
    return figure, shown


def name_left(axes: Sequence[Any], label: str) -> None:
    """Names the vertical axis of a grid, on the panels of its first column."""
    for panel in axes:
        if panel.get_subplotspec().is_first_col():
            panel.set_ylabel(label)


def count_axis(axes: Any, name: str, ticks: int = 4) -> None:
    """Names the horizontal axis, which counts epochs or steps: a few whole numbers, 10,000 with its comma.

    Called after the curves are drawn: one that has a single point so far gets a dot, as a line would show nothing.
    """
    if axes.xaxis.get_tick_params().get("labelbottom", True):
        axes.set_xlabel(name)
    axes.xaxis.set_major_locator(_WholeNumbers(ticks, integer=True, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.autoscale_view(scaley=False)
    for line in axes.lines:
        if line.get_marker() in ("", "None") and np.isfinite(np.array(line.get_xydata(), float)).all(1).sum() == 1:
            line.set(marker="o", markevery=None)


class _WholeNumbers(MaxNLocator):
    """Ticks at whole numbers, on an axis that is at least 1 wide: a narrower one would repeat one number."""

    def nonsingular(self, v0: float, v1: float) -> tuple[float, float]:
        return (v0 - 0.5, v1 + 0.5) if v1 - v0 < 1 else super().nonsingular(v0, v1)


@styled()
def legend_below(figure: Figure) -> None:
    """Puts one legend of all axes below them, where it covers no curve: each label once, in order, in lines that fit.

    The figure grows by the height of the legend.
    """
    # Inches: width of a letter, of the sign before each label, and of the figure.
    letter, sign, room = 0.062, 0.5, figure.get_figwidth()
    fits = int((room - sign) / letter)
    named: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            lines = [part for line in label.splitlines() for part in textwrap.wrap(line, fits)]
            named.setdefault("\n".join(lines), handle)
    if named:
        widths = [letter * max(map(len, label.splitlines())) + sign for label in named]
        columns = len(named) if sum(widths) < room else max(1, int(room / max(widths)))
        height = sum(max(len(label.splitlines()) for label in named) for _ in range(0, len(named), columns))
        figure.set_figheight(figure.get_figheight() + 0.16 * height + 0.1)
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=columns)


def same_axes(figures: Sequence[Figure]) -> None:
    """Gives figures that lie side by side common axis limits and colour scales, wide enough for all, panel by panel.

    Figures with different numbers of panels are left as they are.
    """
    if len({len(figure.axes) for figure in figures}) > 1:
        return
    for together in zip(*(figure.axes for figure in figures), strict=True):
        # Colours first: their bars are panels, too, and take the limits of what they explain.
        for maps in zip(*([*axes.images, *axes.collections] for axes in together), strict=False):
            scales = [one.get_clim() for one in maps]
            if any(None in scale for scale in scales):
                continue  # of one colour
            for one in maps:
                one.set_clim(min(low for low, _ in scales), max(high for _, high in scales))
        for get, put in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
            limits = [getattr(axes, get)() for axes in together]
            for axes in together:
                getattr(axes, put)(min(low for low, _ in limits), max(high for _, high in limits))


def shade_before(axes: Any, moment: float | None) -> None:
    """Shades the time before the Eureka-moment grey, as in the paper's figures; all of it where there was none (None).

    Shades nothing where nobody looked out for a moment (NaN), or where nothing is drawn before it.
    """
    first, last = axes.dataLim.intervalx
    end = moment if moment is not None else last
    if math.isfinite(last - first) and end > first:
        axes.axvspan(first, end, color="0.92", zorder=0, label="before any Eureka-moment")


@styled()
def lines_by_layer(
    table: pd.DataFrame,
    columns: Sequence[str],
    label: str,
    moment: float | None,
    by: str | None = None,
    log: bool = False,
) -> Figure:
    """One panel per layer, with one line per column (the mean over its rows), or one per value of ``by``."""
    layers = sorted(table["layer"].unique())
    figure, axes = panels(len(layers), sharex=True, sharey=True)
    for panel, layer in zip(axes, layers, strict=True):
        own = table[table["layer"] == layer]
        for column in columns:
            groups = own.groupby(by) if by else [(column, own)]
            for name, rows in groups:
                mean = rows.groupby("step")[column].mean()
                told = f"{by} {name}" if by else str(name).replace("_", " ")
                panel.plot(mean.index, mean.to_numpy(), label=told)
        panel.set(title=f"layer {layer}", **({"yscale": "log"} if log else {}))
        count_axis(panel, "step")
        shade_before(panel, moment)
    name_left(axes, label)
    legend_below(figure)
    return figure


@styled()
def bars_by_layer(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], label: str, log: bool = False) -> Figure:
    """Bars of one point in training: per layer and column, the mean over its rows (heads), with their spread.

    On a logarithmic axis, where the length of a bar says nothing, a dot for each row and a line at their median.
    """
    table = pd.DataFrame(rows)
    layers = sorted(table["layer"].unique())
    figure, panel = new_figure(max(3.4, 0.4 * len(layers) * min(len(columns), 2) + 1), 2.6)
    by_layer = table.set_index("layer")
    # The axis names a single column.
    groups = {column.replace("_", " ") if len(columns) > 1 else "": by_layer[column] for column in columns}
    (grouped_dots if log else grouped_bars)(panel, layers, groups)
    panel.set_xticks(range(len(layers)), [str(layer) for layer in layers])
    panel.set(xlabel="layer", ylabel=label, xlim=(-0.5, len(layers) - 0.5), **({"yscale": "log"} if log else {}))
    legend_below(figure)
    return figure


def grouped_bars(axes: Any, layers: Sequence[int], groups: Mapping[str, pd.Series]) -> None:
    """Draws bars side by side at each layer, one colour per group: the mean over heads, with their spread.

    Args:
        axes: where to draw.
        layers: those that have bars, from left to right.
        groups: name in the legend -> values, indexed by layer.
    """
    width, spreads = 0.8 / len(groups), False
    axes.grid(visible=False, axis="x")
    for place, (name, values) in enumerate(groups.items()):
        per_layer = values.groupby(level=0)
        mean = per_layer.mean().reindex(list(layers)).to_numpy(float)
        spread = per_layer.std(ddof=0).reindex(list(layers)).fillna(0).to_numpy(float)
        # Where every spread is 0 (one head, or one value per block) there are no error bars.
        error = {"yerr": spread, "capsize": 1.5, "error_kw": {"linewidth": 0.7}} if spread.any() else {}
        axes.bar(_beside(layers, place, len(groups)), mean, width, label=name, **error)
        spreads |= bool(spread.any())
    if spreads:
        told = "mean, standard deviation over heads"
        axes.errorbar([], [], [], color="black", fmt="none", elinewidth=0.7, label=told)


def grouped_dots(axes: Any, layers: Sequence[int], groups: Mapping[str, pd.Series]) -> None:
    """Draws values as dots side by side at each layer, one colour per group, with a line at the median of several.

    Args:
        axes, layers, groups: as in :func:`grouped_bars`.
    """
    axes.grid(visible=False, axis="x")
    for place, (name, values) in enumerate(groups.items()):
        where = pd.Series(_beside(layers, place, len(groups)), list(layers))
        own = values[values.index.isin(layers)]
        axes.plot(where[own.index], own, "o", color=f"C{place}", markersize=3, alpha=0.7, label=name)
        if not own.index.is_unique:
            median = own.groupby(level=0).median()
            axes.plot(where[median.index], median, "_", color=f"C{place}", markersize=12, markeredgewidth=1.5)
    if not all(values.index.is_unique for values in groups.values()):
        axes.plot([], [], "o", color=GUIDE, markersize=3, label="a head")
        axes.plot([], [], "_", color=GUIDE, markersize=12, markeredgewidth=1.5, label="median of the heads")


def _beside(layers: Sequence[int], place: int, groups: int) -> np.ndarray:
    """Positions of the group at ``place``, of ``groups`` side by side at each layer."""
    return np.arange(len(layers)) + (place - (groups - 1) / 2) * 0.8 / groups


@styled()
def maps(
    pictures: Sequence[np.ndarray], titles: Sequence[str], label: str, columns: int = 4, log: bool = False
) -> Figure:
    """Small pictures in a grid: maps [rows, columns], all on one scale, and photographs [rows, columns, 3].

    Args:
        pictures, titles: what to show; "" for a place that is left empty.
        label: what the scale measures.
        columns: of the grid.
        log: a logarithmic scale, for maps whose values lie far apart.
    """
    figure, axes = panels(len(pictures), width=0.95, height=1.1, columns=columns)
    values = np.concatenate([picture.ravel() for picture in pictures if picture.ndim == 2]).astype(float)
    shown = values[np.isfinite(values) & (values > 0 if log else True)]
    # A few patches far above all others would leave the rest black.
    low, high = np.quantile(shown, (0.005, 0.995)) if len(shown) else (0.0, 1.0)
    scale = LogNorm(low, max(high, low * 1.01)) if log and low > 0 else Normalize(0, high or 1)
    for panel, picture, title in zip(axes, pictures, titles, strict=True):
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_visible(False)
        panel.set_title(title, fontsize=7)
        if title:
            panel.imshow(
                picture, interpolation="nearest", **({"cmap": MAP, "norm": scale} if picture.ndim == 2 else {})
            )
    mappable = ScalarMappable(scale, MAP)
    # An arrow only for values that would have a colour of their own.
    over = "max" if scale.vmax < 0.99 * values.max() else "neither"
    # Letters are 0.07 inches wide.
    label = textwrap.fill(label, int(figure.get_figheight() / 0.07))
    figure.colorbar(mappable, ax=axes, label=label, extend=over, fraction=0.03, aspect=30, pad=0.02)
    return figure
