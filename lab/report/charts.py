"""Charts of a report's page: the same curves as its figures, as data that the browser draws (``charts.js``)."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from lab.console import printable
from lab.plotting.curves import height_at
from lab.plotting.style import MARKERS, LineStyle
from lab.report.figures import Event, Waiting, guides, other_title, title_of, validated, waiting
from lab.report.middle import Middle, middle, of_the_finished, points
from lab.report.records import Record
from lab.report.settings import Setting
from lab.report.survival import no_moment_yet

Chart = dict[str, Any]

Quantity = Literal["accuracy", "loss"]

# Most values of one chart, over all its curves, two bytes each; with more, only every second, third, ... epoch is kept.
_MOST = 150_000
# Fewest points of a chart's longest curve: fewer would hide an abrupt rise.
_FEWEST = 60
# Number that stands for "nothing was logged".
_NONE = 65_535
_SCALE = {"accuracy": 100, "loss": 1}
_DASHES: dict[str, list[float]] = {"-": [], "--": [6, 4], ":": [2, 3], "-.": [7, 3, 2, 3]}

# Largest difference between the heights of a line in several settings, relative to them, at which they share it; of
# others none. Plateaus differ by validation set, and so by seed.
_ALIKE = {"--": 0.02}


def curves_chart(settings: Sequence[Setting], quantity: Quantity, styles: Mapping[Setting, LineStyle]) -> Chart | None:
    """Curves of all seeds of all settings, by epoch; None where there are none, or too many for a page.

    Args:
        settings: of one experiment.
        quantity: what is drawn.
        styles: of each setting.
    """
    chosen = _validated(settings, quantity)
    grids = [_grid(runs, quantity) for runs in chosen.values()]
    longest = max(map(len, grids), default=0)
    values = sum(2 * len(grid) * len(runs) for grid, runs in zip(grids, chosen.values(), strict=True))
    every = max(1, -(-values // _MOST))
    if not longest or (every > 1 and longest / every < _FEWEST):
        return None
    scale, groups = _SCALE[quantity], []
    first = next(iter(chosen.values()))
    for (setting, runs), whole in zip(chosen.items(), grids, strict=True):
        grid, found = whole[::every], middle(runs, f"val/{quantity}")
        moments = [run.summary.eureka for run in runs if run.moment is not None]
        heights = [(moment.epoch, height_at(moment, quantity)) for moment in moments]
        groups.append(
            {
                **_named(setting, styles[setting], of_the_finished(found, runs) + other_title(runs, first, quantity)),
                "x": _places(grid),
                "seeds": [
                    {
                        "y": packed(scale * _on(grid, run, f"val/{quantity}")),
                        "training": packed(scale * _on(grid, run, f"train/{quantity}")),
                    }
                    for run in runs
                ],
                "middle": _middle(found, quantity, every),
                "stars": [[epoch, scale * height] for epoch, height in heights if height is not None],
            }
        )
    return _chart("epoch", title_of(first, quantity), groups, _guides(chosen, quantity))


def aligned_chart(
    settings: Sequence[Setting], quantity: Quantity, styles: Mapping[Setting, LineStyle], of: str
) -> Chart | None:
    """Curves of :func:`curves_chart` by epochs since the moment, of the seeds that have one; None without any.

    Args:
        settings, quantity, styles: as in :func:`curves_chart`.
        of: id of the chart of :func:`curves_chart`, which holds the data of the curves.
    """
    groups = []
    chosen = _validated(settings, quantity)
    for place, (setting, runs) in enumerate(chosen.items()):
        moved = [[number, run.moment] for number, run in enumerate(runs) if run.moment is not None]
        own = [run for run in runs if run.moment is not None]
        if moved:
            found = middle(runs, f"val/{quantity}", aligned=True)
            shown = {"of": place, "moved": moved, "middle": _middle(found, quantity), "stars": []}
            groups.append(_named(setting, styles[setting], of_the_finished(found, own)) | shown)
    if not groups:
        return None
    y = title_of(next(iter(chosen.values())), quantity)
    return {**_chart("epochs since the Eureka-moment", y, groups, _guides(chosen, quantity)), "of": of}


def _guides(chosen: Mapping[Setting, Sequence[Record]], quantity: Quantity) -> list[dict[str, Any]]:
    """Lines that curves are compared with, those that all settings share, nearly: they have one axis for all."""
    watched = [own for runs in chosen.values() if (own := [run for run in runs if run.watched_for])]
    guided = [{line: height for height, line, _ in guides(own, quantity)} for own in watched]

    def shared(line: str) -> bool:
        heights = [own[line] for own in guided if line in own]
        return len(heights) == len(guided) and math.isclose(min(heights), max(heights), rel_tol=_ALIKE.get(line, 0.0))

    every = [run for own in watched for run in own]
    found = [one for one in guides(every, quantity) if shared(one[1])] if every else []
    return [{"y": _SCALE[quantity] * y, "name": name, "dash": _DASHES[line]} for y, line, name in found]


def _chart(x: str, y: str, groups: list[dict[str, Any]], guides: list[dict[str, Any]]) -> Chart:
    limits = [0, 102] if y.endswith("in %") else None
    return {"x": x, "y": y, "range": limits, "groups": groups, "guides": guides}


def _middle(found: Middle | None, quantity: Quantity, every: int = 1) -> dict[str, Any] | None:
    if found is None:
        return None
    y, low, high = (packed(_SCALE[quantity] * own[::every]) for own in (found.median, found.low, found.high))
    return {"x": _places(found.epochs[::every]), "y": y, "low": low, "high": high}


def survival_chart(
    settings: Sequence[Setting], confidence: float, of: Event, styles: Mapping[Setting, LineStyle]
) -> Chart | None:
    """Share of seeds of each setting without the event ``of`` yet (Kaplan-Meier); None without runs."""
    lines = waiting(settings, of, styles)
    if not lines:
        return None
    return {
        "x": "epoch",
        "y": f"share with no {of} yet",
        "range": [-0.02, 1.04],
        "steps": f"{100 * confidence:g} % interval",
        "groups": [_steps(line, confidence) for line in lines],
        "guides": [],
    }


def _steps(line: Waiting, confidence: float) -> dict[str, Any]:
    curve, ends = no_moment_yet(line.times, confidence), line.times.ends
    x = [0.0, *curve.epochs.tolist(), float(curve.end)]

    def whole(values: Iterable[float], first: float) -> Any:
        between = list(values)
        return packed([first, *between, between[-1] if between else first])

    share = np.array([1.0, *curve.share])
    return {
        **_named(line, line.style),
        "x": x,
        "seeds": [],
        # Before the first event, and without any, the interval of Kaplan and Meier has no width: it says nothing.
        "middle": {
            "x": x,
            "y": whole(curve.share, 1.0),
            "low": whole(curve.low, np.nan),
            "high": whole(curve.high, np.nan),
        },
        "ends": [[end, float(share[np.searchsorted(curve.epochs, end, side="right")])] for end in sorted(set(ends))],
        "stars": [],
    }


def _named(who: Setting | Waiting, style: LineStyle, further: str = "") -> dict[str, Any]:
    return {"name": printable(who.name + further), "color": style.color, "dash": _dash(style)}


def _dash(style: LineStyle) -> list[float]:
    """Dashes of a line; a marker becomes so many dots behind each dash, since a browser's charts have no markers."""
    dots = MARKERS.index(style.marker)
    return [*(_DASHES[style.line] or ([12, 3] if dots else [])), *([1.5, 3] * dots)]


def packed(values: ArrayLike) -> dict[str, Any]:
    """Numbers as base64 text, scaled to two bytes each between the lowest and the highest; NaN is kept.

    >>> packed([1.0, 2.0])["low"], packed([1.0, 2.0])["high"]
    (1.0, 2.0)
    """
    own = np.asarray(values, dtype=np.float64)
    there = np.isfinite(own)
    low, high = (float(own[there].min()), float(own[there].max())) if there.any() else (0.0, 0.0)
    # A spike would leave too few steps for all other values: such a curve takes four bytes a number.
    if there.any() and high - low > 1e-4 * (_NONE - 1) * np.median(np.abs(own[there])):
        return {"wide": True, "data": base64.b64encode(np.where(there, own, np.nan).astype("<f4").tobytes()).decode()}
    share = (own - low) / (high - low) if high > low else np.zeros_like(own)
    numbers = np.where(there, np.round(np.nan_to_num(share) * (_NONE - 1)), _NONE).astype("<u2")
    return {"low": low, "high": high, "data": base64.b64encode(numbers.tobytes()).decode()}


def _validated(settings: Sequence[Setting], quantity: Quantity) -> dict[Setting, list[Record]]:
    """Runs with a validation curve of ``quantity``, by their setting."""
    return {setting: runs for setting in settings if (runs := validated(setting, quantity))}


def _grid(runs: Sequence[Record], quantity: Quantity) -> np.ndarray:
    """Epochs at which any of these runs was validated."""
    return np.unique(np.concatenate([points(run, f"val/{quantity}")[:, 0] for run in runs]))


def _places(values: np.ndarray) -> Any:
    """A rising axis: its first value, step and count (which is shorter) where its steps are equal, else all values."""
    steps = np.diff(values)
    if len(steps) and (steps == steps[0]).all():
        return {"first": float(values[0]), "step": float(steps[0]), "count": len(values)}
    return values.tolist()


def _on(grid: np.ndarray, run: Record, name: str) -> np.ndarray:
    """Values of a curve at these epochs, NaN where it has none."""
    found = points(run, name)
    values = np.full(len(grid), np.nan)
    if len(found):
        place = np.searchsorted(found[:, 0], grid).clip(max=len(found) - 1)
        there = found[place, 0] == grid
        values[there] = found[place[there], 1]
    return values
