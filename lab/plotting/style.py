"""Style of every picture: sizes and fonts, and for each softmax one style that it has in every figure of every page."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.font_manager import fontManager

# Colours of softmaxes, which people with colour-blindness can tell apart: those of Okabe and Ito 2008 without yellow
# and black, which vanish on white and on black paper, then some of Tol's "muted" scheme.
_COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#332288", "#999933", "#767676",
)  # fmt: skip
# A softmax keeps its style when others are added at the end. One that is not here has one by hash of its name, with a
# marker, which these have not.
_KNOWN = (
    "softmax", "norm_softmax", "heat_treatment", "norm_softmax_heat_treatment", "learnable_temperature",
    "adaptive_temperature", "log_length", "query_key_norm", "softmax_plus_one", "sigmoid",
    "entmax", "sparsemax", "entropy_scaled", "entropy_matched", "hard", "linear", "local", "polynomial", "signed",
    "post_softmax_scale",
)  # fmt: skip
_LINES = ("-", "--", ":", "-.")
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")

# Colours of all else (heads, regions, matrices): Tol's "bright" scheme, so that no colour means two things.
_OTHERS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#AA3377", "#66CCEE", "#777777")
QKV = dict(zip("qkv", _OTHERS, strict=False))
# Lines that a curve is compared with: chance, a plateau, a threshold.
GUIDE = "0.35"
# Colour map of maps and counts.
MAP = "viridis"


def layer_colors(layers: int) -> Any:
    """Colours of layers, from the first to the last one, [layers, 4] (RGBA); the map's end is too light for a line."""
    return matplotlib.colormaps[MAP](np.linspace(0, 0.9, layers))


_SETTINGS: Any = {
    # Text stays text in a PDF, with its font embedded: it can be searched, and journals accept it.
    "pdf.fonttype": 42,
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "figure.labelsize": 8.5,
    "axes.prop_cycle": cycler(color=list(_OTHERS)),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.88",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 4,
}


# Fonts for letters that matplotlib's own lacks, as names of softmaxes may have: Chinese, Japanese, Korean, emoji.
_FURTHER_FONTS = (
    *(f"{family} {letters}" for family in ("Noto Sans CJK", "Noto Sans") for letters in ("SC", "JP", "KR", "TC")),
    "Source Han Sans", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "IPAexGothic",
    "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "PingFang SC", "PingFang HK", "Hiragino Sans",
    "Apple SD Gothic Neo", "Arial Unicode MS", "Noto Emoji", "Symbola", "Segoe UI Emoji",
)  # fmt: skip


@cache
def _fonts() -> list[str]:
    """Families of fonts in the order in which a letter is looked for; one that is not installed would be warned of."""
    installed = set(fontManager.get_font_names())
    return ["sans-serif", *(name for name in _FURTHER_FONTS if name in installed)]


@contextmanager
def styled() -> Iterator[None]:
    """Draws in this style: ``with styled(): ...``, or ``@styled()`` above a function that makes a figure."""
    with matplotlib.rc_context({**_SETTINGS, "font.family": _fonts()}):
        yield


@dataclass(frozen=True)
class LineStyle:
    """Colour, line style and marker of a line, in matplotlib's terms.

    Attributes:
        color: "#rrggbb".
        line: line style.
        marker: "" for none.
    """

    color: str
    line: str = "-"
    marker: str = ""

    @property
    def of_line(self) -> dict[str, Any]:
        """Keyword arguments of ``plot`` and ``step``."""
        return {"color": self.color, "linestyle": self.line, "marker": self.marker, "markevery": 0.1}


def line_style(softmax: str) -> LineStyle:
    """Style of a softmax's lines: the same wherever it is drawn, also for names that the lab does not know.

    >>> line_style("softmax")
    LineStyle(color='#0072B2', line='-', marker='')
    """
    if softmax in _KNOWN:
        turn, place = divmod(_KNOWN.index(softmax), len(_COLORS))
        return LineStyle(_COLORS[place], _LINES[turn])
    digest = hashlib.blake2b(softmax.encode(errors="backslashreplace"), digest_size=2).digest()
    return LineStyle(_COLORS[digest[0] % len(_COLORS)], _LINES[digest[1] % len(_LINES)], MARKERS[1])


def line_widths(lines: int, last: float = 1.1) -> list[float]:
    """Widths of lines in points, in the order of drawing, down to ``last``: of two that coincide, both are seen."""
    return [float(width) for width in np.linspace(last if lines == 1 else 2.2 * last, last, lines)]


def _from(first: str, all_of: tuple[str, ...]) -> tuple[str, ...]:
    """All of them in their order, from one on and round again."""
    place = all_of.index(first)
    return all_of[place:] + all_of[:place]


def line_styles(softmaxes: Sequence[str]) -> list[LineStyle]:
    """Styles of the lines of one figure, by their softmax; all differ as long as there are enough styles.

    The colour is always that of the softmax. Further lines of one colour (a softmax under several options) get the
    next line style; after all line styles, a marker as well.

    Args:
        softmaxes: the softmax of each line, in the order of the legend.
    """
    taken: set[LineStyle] = set()
    found = []
    for softmax in softmaxes:
        own = line_style(softmax)
        lines, markers = _from(own.line, _LINES), _from(own.marker, MARKERS)
        every = (LineStyle(own.color, line, marker) for marker in markers for line in lines)
        style = next((one for one in every if one not in taken), own)
        taken.add(style)
        found.append(style)
    return found
