"""The report's figures: curves of all seeds, survival, learning rates, gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from lab.console import counted
from lab.plotting.curves import gradient_panel, gradient_rows, guide, mark_moments, over_seeds
from lab.plotting.figures import count_axis, legend_below, name_left, new_figure, panels
from lab.plotting.style import GUIDE, MAP, LineStyle, line_styles, line_widths, styled
from lab.report.middle import middle, of_the_finished, points
from lab.report.outcomes import change_times, looked_at, times, undecided
from lab.report.records import Record
from lab.report.settings import Setting
from lab.report.survival import Times, no_moment_yet
from lab.report.titles import panel_title, titles_of, told_apart

Event = Literal["Eureka-moment", "change point"]

# Most panels of a figure; further settings go into the next one.
PANELS = 12
# With more settings, the bands of survival curves would hide each other.
_BANDS = 4
# Options in a setting's name that make no other method: its learning rates, and when it stops after a moment.
_NO_METHOD = {"optim.lr", "optim.min_lr", "optim/lr", "callbacks.eureka.stop_after"}
# Fewest steps that a median of gradients is told of.
_FEWEST_STEPS = 3
_LEARNING_RATE = ("optim.lr", "optim.min_lr")


def line_styles_of(settings: Sequence[Setting]) -> dict[Setting, LineStyle]:
    """Style of each setting of an experiment, in all its figures: the colour is its softmax's."""
    return dict(zip(settings, line_styles([setting.softmax for setting in settings]), strict=True))


@styled()
def curves(
    settings: Sequence[Setting],
    quantity: str,
    aligned: bool,
    styles: Mapping[Setting, LineStyle] | None = None,
    titles: Mapping[Setting, str] | None = None,
) -> Figure | None:
    """Validation curves of all seeds, one panel per setting, by epoch or epochs since the moment; None without any.

    Seeds are thin, the median of the finished ones is bold, and the middle half of these is shaded; all panels have the
    same axes.

    Source: Eureka-moments in Transformers, Figures 1b, 6 and 15.

    Args:
        settings: at most PANELS.
        quantity: "accuracy" (in %) or "loss".
        aligned: by Eureka-moment; seeds without one are left out.
        styles, titles: of each setting; needed where ``settings`` are only some of the experiment's.
    """
    chosen, named = styles or line_styles_of(settings), titles or titles_of(settings)
    shown = [
        (setting, runs)
        for setting in settings
        if (runs := [run for run in validated(setting, quantity) if run.moment or not aligned])
    ]
    if not shown:
        return None
    figure, axes = panels(len(shown), sharex=True, sharey=True)
    scale = 100 if quantity == "accuracy" else 1
    some = any(not run.finished for _, runs in shown for run in runs)
    median = f"median of the {'finished ' * some}seeds, while all {'of them ' * some}are trained"
    for panel, (setting, runs) in zip(axes, shown, strict=True):
        own = chosen[setting].color
        seeds = [points(run, f"val/{quantity}", aligned) * (1, scale) for run in runs]
        alpha = min(0.55, 8 / len(seeds))  # many lines, one on the other, would hide the median
        panel.add_collection(LineCollection(seeds, colors=own, linewidths=0.6, alpha=alpha))
        # A line through one point shows nothing.
        for seed in seeds:
            if len(seed) == 1:
                panel.plot(*seed.T, "o", color=own, markersize=3, alpha=alpha)
        panel.plot([], [], color=GUIDE, linewidth=0.6, label="a seed")
        found = middle(validated(setting, quantity), f"val/{quantity}", aligned)
        if found:
            panel.fill_between(found.epochs, scale * found.low, scale * found.high, color=own, alpha=0.2, linewidth=0)
            panel.plot(found.epochs, scale * found.median, color=own, linewidth=1.8)
            panel.plot([], [], color=GUIDE, linewidth=1.8, label=median)
            panel.fill_between([], [], [], color=GUIDE, alpha=0.2, linewidth=0, label="the middle half of them")
        for height, line, meaning in guides(runs, quantity):
            guide(panel, scale * height, line, meaning)
        if aligned:
            panel.axvline(0, color=GUIDE, linewidth=0.8)
        else:
            moments = [run.summary.eureka for run in runs if run.moment is not None]
            mark_moments(panel, moments, own, quantity, scale)
        panel.autoscale()
        count = counted(len(runs), "seed") + of_the_finished(found, runs)
        panel.set_title(panel_title(f"{named[setting]} ({count}){other_title(runs, shown[0][1], quantity)}"))
        count_axis(panel, "epochs since the Eureka-moment" if aligned else "epoch")
    if quantity == "accuracy":
        axes[0].set_ylim(0, 102)
    name_left(axes, title_of(shown[0][1], quantity))
    legend_below(figure)
    return figure


def validated(setting: Setting, quantity: str) -> list[Record]:
    """Runs of a setting that have a validation curve of "accuracy" or "loss"."""
    return [run for run in setting.runs if np.isfinite(run.curve(f"val/{quantity}")).any()]


def title_of(runs: Sequence[Record], quantity: str) -> str:
    """Title of the axis of curves of "accuracy" or "loss": the metric that they show, with its unit."""
    name = runs[0].summary.eureka.drawn(quantity).removeprefix("val/")
    name = f"validation {name}" if name == quantity else name
    return f"{name} in %" if quantity == "accuracy" else name


def other_title(runs: Sequence[Record], first: Sequence[Record], quantity: str) -> str:
    """Suffix ", <metric>" for a panel whose metric is not that of the shared axis (of ``first``); else ""."""
    own = title_of(runs, quantity)
    return "" if own == title_of(first, quantity) else f", {own}"


def guides(runs: Sequence[Record], quantity: str) -> list[tuple[float, str, str]]:
    """Lines that curves of a quantity are compared with: height (a mean over seeds), line style, name in the legend."""
    moments = [run.summary.eureka for run in runs]
    thresholds = [one.threshold for one in moments if one.metric == one.drawn(quantity)]
    # The accuracy or loss of a part of the answers has a plateau of its own, which is not known.
    whole = [one for one in moments if one.drawn(quantity) == f"val/{quantity}"]
    priors = [one.prior_accuracy if quantity == "accuracy" else one.prior_loss for one in whole]
    known = "the prior p(z)" if quantity == "accuracy" else "the prior"
    return [
        (height, line, name)
        for heights, line, meaning in (
            (thresholds, ":", "threshold of the moment"),
            (priors, "--", f"plateau: {known} alone"),
        )
        for height, name in over_seeds(heights, meaning)
    ]


@dataclass(frozen=True)
class Waiting:
    """A line of a survival figure: seeds that wait for a Eureka-moment or a change point.

    Attributes:
        name: in the legend.
        style: of the line.
        times: of the seeds.
    """

    name: str
    style: LineStyle
    times: Times


def survival(
    settings: Sequence[Setting],
    confidence: float = 0.95,
    of: Event = "Eureka-moment",
    styles: Mapping[Setting, LineStyle] | None = None,
) -> Figure | None:
    """Share of seeds without a Eureka-moment against epochs (Kaplan-Meier), one line per setting; None without runs.

    With ``of="change point"``, the share of seeds without a change point of the watched metric.
    """
    return survival_figure(waiting(settings, of, styles), confidence, of)


def waiting(settings: Sequence[Setting], of: Event, styles: Mapping[Setting, LineStyle] | None = None) -> list[Waiting]:
    """Lines of the settings that have runs which were watched for the event ``of``."""
    waited = times if of == "Eureka-moment" else change_times
    chosen = styles or line_styles_of(settings)
    found = [(setting, waited(setting.runs)) for setting in settings]
    return [Waiting(setting.name, chosen[setting], own) for setting, own in found if own is not None]


@styled()
def survival_figure(lines: Sequence[Waiting], confidence: float = 0.95, of: str = "Eureka-moment") -> Figure | None:
    """Share of seeds without the event ``of`` yet (Kaplan-Meier); None without a line.

    Up to four lines get bands of their confidence intervals and, below the axis, how many seeds are at risk just before
    an epoch, still watched and without the event: where it is one, the event of this last seed takes the line to zero.
    """
    if not lines:
        return None
    few = len(lines) <= _BANDS
    figure, axes = new_figure(6.5, 3.1 + (0.14 * len(lines) if few else 0))
    for line, width in zip(lines, line_widths(len(lines), last=1.4), strict=True):
        curve, seeds = no_moment_yet(line.times, confidence), line.times
        epochs = np.concatenate([[0], curve.epochs, [curve.end]])
        share = np.concatenate([[1], curve.share, curve.share[-1:] if len(curve.share) else [1]])
        label = f"{line.name} ({len(seeds.moments)} of {len(seeds.moments) + len(seeds.ends)} had one)"
        # The gaps of a dashed line are white, so that it is seen on a line of its own colour.
        gap = {"gapcolor": "white"} if line.style.line != "-" else {}
        own = {"linewidth": width, **gap, **line.style.of_line}
        axes.step(epochs, share, where="post", label=panel_title(label, 90), **own)
        if few and len(curve.share):
            # Before the first event the interval of Kaplan and Meier has no width: it says nothing.
            low, high = (np.concatenate([[np.nan], bound, bound[-1:]]) for bound in (curve.low, curve.high))
            axes.fill_between(epochs, low, high, step="post", color=line.style.color, alpha=0.12, linewidth=0)
        if seeds.ends:
            at = np.searchsorted(epochs, seeds.ends, side="right") - 1
            axes.plot(seeds.ends, share[at], "|", color=line.style.color, markersize=8)
    if few:
        axes.fill_between([], [], [], color=GUIDE, alpha=0.12, linewidth=0, label=f"{100 * confidence:g} % interval")
    if any(line.times.ends for line in lines):
        axes.plot([], [], "|", color=GUIDE, markersize=8, label="ended without one")
    axes.set(ylabel=f"share with no {of} yet", ylim=(-0.02, 1.04))
    below = f"; below: seeds at risk just before it, watched and without a {of}"
    count_axis(axes, f"epoch{below if few else ''}", ticks=8)
    if few:
        _seeds_left(axes, lines)
    legend_below(figure)
    return figure


def _seeds_left(axes: Any, lines: Sequence[Waiting]) -> None:
    """Writes below the ticks a row of numbers for each line, behind a piece of it: how many seeds are at risk."""
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if max(low, 0) <= tick <= high]
    axes.set_xlim(low, high)
    # Inches from the lower left corner.
    corner = axes.figure.dpi_scale_trans + ScaledTranslation(0, 0, axes.transAxes)
    for place, line in enumerate(lines):
        height = -34 - 10 * place
        style = line.style.of_line | {"markevery": [1]}
        piece = np.array([(left, height) for left in (-32, -20, -8)]) / 72
        axes.add_artist(Line2D(*piece.T, transform=corner, clip_on=False, linewidth=1.4, **style))
        ends = np.array([*line.times.moments, *line.times.ends])
        for tick in ticks:
            axes.annotate(
                str(int((ends >= tick).sum())), (tick, 0), xycoords=axes.get_xaxis_transform(),
                xytext=(0, height), textcoords="offset points", ha="center", va="center", fontsize=7.5,
            )  # fmt: skip


@styled()
def learning_rates(settings: Sequence[Setting]) -> Figure | None:
    """Eureka-ratio of each method at each learning-rate schedule; None where there are no two schedules.

    Source: Eureka-moments in Transformers, Table 2.
    """
    grid, rates = rate_grid(settings)
    if len(rates) < 2:
        return None
    labels = [panel_title(name, 40) for name in told_apart(list(grid), 40)]
    lines = max(label.count("\n") + 1 for label in labels)
    figure, axes = new_figure(2.4 + 0.6 * len(rates), 1.1 + (0.14 + 0.16 * lines) * len(grid))
    axes.grid(visible=False)
    shares = np.full((len(grid), len(rates)), np.nan)
    for row, cells in enumerate(grid.values()):
        for column, rate in enumerate(rates):
            if rate in cells:
                count, seeds = cells[rate]
                shares[row, column] = count / seeds
                dark = count / seeds < 0.5
                axes.text(column, row, f"{count}/{seeds}", ha="center", va="center", color="white" if dark else "black")
    axes.imshow(shares, vmin=0, vmax=1, cmap=MAP, aspect="auto")
    axes.set_xticks(range(len(rates)), [_rate(rate) for rate in rates], rotation=45, ha="right")
    axes.set_yticks(range(len(grid)), labels)
    axes.set_xlabel("learning rate: largest to smallest")
    return figure


Rate = tuple[Any, ...]


def rate_grid(settings: Sequence[Setting]) -> tuple[dict[str, dict[Rate, tuple[int, int]]], list[Rate]]:
    """Methods -> schedule (largest, smallest rate) -> (moments, seeds); and all schedules, largest first.

    Only seeds that tell whether they have a moment count (:func:`looked_at`), and only settings without undecided ones.
    Where two settings of one method have the same schedule, the second becomes a method of its own.
    """
    found: dict[str, dict[Rate, tuple[int, int]]] = {}
    for setting in settings:
        rate = tuple(setting.config.get(key) for key in _LEARNING_RATE)
        looked = looked_at(setting.runs)
        numbers = all(isinstance(one, float | int | None) for one in rate) and rate[0] is not None
        if not looked or not numbers or undecided(setting.runs):
            continue
        parts = setting.name.split(", ")
        name = ", ".join(part for part in parts if part.split("=")[0] not in _NO_METHOD)
        own = setting.name if rate in found.get(name, {}) else name
        found.setdefault(own, {})[rate] = sum(run.moment is not None for run in looked), len(looked)
    return found, sorted({rate for cells in found.values() for rate in cells}, key=lambda r: (-r[0], -(r[1] or 0)))


def _rate(rate: Rate) -> str:
    return " to ".join(_scientific(value) for value in rate if value)


def _scientific(value: float) -> str:
    """ "1e-3", "1.5e-3": as many digits as the value needs."""
    mantissa, exponent = f"{value:.5e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


@styled()
def gradients(settings: Sequence[Setting], titles: Mapping[Setting, str] | None = None) -> Figure | None:
    """Mean |gradient| of W_Q, W_K, W_V in the first layer, of a setting's first finished seed, grey before its moment.

    None where no run has logged gradients. ``titles`` of each setting are needed where these are only some of them.

    Source: Eureka-moments in Transformers, Figure 4.
    """
    shown = [(setting, rows) for setting in settings if (rows := gradient_rows(setting.first.folder))]
    if not shown:
        return None
    figure, axes = panels(len(shown), sharex=True, sharey=True)
    named = titles or titles_of(settings)
    for panel, (setting, rows) in zip(axes, shown, strict=True):
        gradient_panel(panel, rows, 0, setting.first.summary.eureka.shown_step)
        panel.set_title(panel_title(f"{named[setting]}, {seed_of(setting.first)}"))
    name_left(axes, "mean |gradient|, layer 0")
    legend_below(figure)
    return figure


def seed_of(run: Record) -> str:
    """Seed of a run, for a title, and how it ended if it did not finish: "seed 0 (failed)"."""
    return f"seed {run.seed}{_unfinished(run)}"


def _unfinished(run: Record) -> str:
    """End of a run that did not finish, to stand after its name: " (failed)"; "" of a finished one."""
    return "" if run.finished else f" ({run.status})"


def gradient_shares(settings: Sequence[Setting]) -> str:
    """Tells in numbers what :func:`gradients` draws: W_Q and W_K as shares of W_V, the median before each moment.

    "" where no run has logged enough gradients.
    """
    told = []
    for setting in settings:
        run = setting.first
        if shares := shares_of_v(run.folder, run.summary.eureka.step):
            of_v = ", ".join(f"{name} {share:.2g}" for name, share in shares.items())
            told.append(f"{setting.name}{_unfinished(run)} {of_v}")
    if not told:
        return ""
    return f"Gradients before the moment (without one: over all steps), as a median share of W_V's: {'; '.join(told)}."


def shares_of_v(folder: Path, moment: float | None, layer: int = 0) -> dict[str, float]:
    """Median of the mean |gradient| of W_Q and of W_K in a layer, as shares of W_V's at the same step.

    Args:
        folder: of a run.
        moment: step of its Eureka-moment: only steps before it count; None counts all.
        layer: which one.

    Returns:
        "W_Q" and "W_K" -> share; nothing where fewer than three steps count, as no median can be told from those.
    """
    rows = [row for row in gradient_rows(folder) if row[f"gradient/v/layer_{layer}"] > 0]
    before = [row for row in rows if moment is None or row["step"] < moment]
    if len(before) < _FEWEST_STEPS:
        return {}
    shares = {
        f"W_{name.upper()}": [
            row[f"gradient/{name}/layer_{layer}"] / row[f"gradient/v/layer_{layer}"] for row in before
        ]
        for name in "qk"
    }
    return {name: float(np.nanmedian(own)) for name, own in shares.items() if np.isfinite(own).any()}


def in_parts(settings: Sequence[Setting], draw: Callable[[Sequence[Setting]], Figure | None]) -> list[Figure]:
    """Figures of all settings, PANELS at a time."""
    drawn = [draw(part) for part in parts(settings)]
    return [figure for figure in drawn if figure is not None]


def parts(settings: Sequence[Setting]) -> list[Sequence[Setting]]:
    """Settings in parts of PANELS, one part per figure."""
    return [settings[start : start + PANELS] for start in range(0, len(settings), PANELS)]
