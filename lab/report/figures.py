"""The report's figures: curves of all seeds, survival, learning rates, gradients."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from lab.plotting.figures import literal, new_figure, panels, shade_before
from lab.report.outcomes import change_times, times
from lab.report.records import Record
from lab.report.settings import Setting
from lab.report.survival import Times, no_moment_yet
from lab.runs.metrics import read_metrics
from lab.runs.summary import Eureka

# A figure holds so many panels; the settings beyond go into the next one.
PANELS = 12
# Beyond so many settings the bands of survival curves hide each other.
_BANDS = 4
# Parts of a setting's name that are no part of its method: its rates, and when it stops after a moment.
_NO_METHOD = ("optim.lr", "optim.min_lr", "optim/lr", "callbacks.eureka.stop_after")
_LEARNING_RATE = ("optim.lr", "optim.min_lr")


def color(place: int) -> Any:
    """Colour of the n-th setting, the same in all figures."""
    return colormaps["tab10"](place % 10)


def curves(settings: Sequence[Setting], quantity: str, aligned: bool, first: int = 0) -> Figure | None:
    """Curves of all seeds, a panel a setting, by epoch or by epochs since the Eureka-moment; None without any.

    Source: Eureka-moments in Transformers, Figures 1b, 6 and 15.

    Args:
        settings: at most PANELS.
        quantity: "accuracy" (in %) or "loss"; training thin and pale, validation strong.
        aligned: by Eureka-moment; seeds without one are left out.
        first: number of the first of these settings among all, for its colour.
    """
    shown = []
    for place, setting in enumerate(settings, start=first):
        if runs := [run for run in setting.runs if _has(run, quantity) and (run.moment or not aligned)]:
            shown.append((place, setting, runs))
    if not shown:
        return None
    figure, axes = panels(len(shown), width=3.4, height=2.6, columns=3)
    # One axis of epochs: how much longer one setting stays on its plateau is seen across panels.
    for panel in axes[1:]:
        panel.sharex(axes[0])
    scale = 100 if quantity == "accuracy" else 1
    for panel, (place, setting, runs) in zip(axes, shown, strict=True):
        for name, alpha in (("train", 0.25), ("val", 0.9)):
            panel.add_collection(
                LineCollection(
                    [_points(run, f"{name}/{quantity}", scale, aligned) for run in runs],
                    colors=color(place),
                    linewidths=0.8,
                    alpha=alpha,
                )
            )
        eureka = runs[0].summary.eureka
        watched = eureka.metric == f"val/{quantity}"
        prior = eureka.prior_accuracy if quantity == "accuracy" else eureka.prior_loss
        for height, style in ((eureka.threshold if watched else None, ":"), (prior, "--")):
            if height is not None:
                panel.axhline(scale * height, color="0.5", linewidth=0.8, linestyle=style)
        if quantity == "accuracy":
            panel.set_ylim(0, 102)
        if not aligned:
            _stars(panel, runs, quantity, scale, color(place))
        if aligned:
            panel.axvline(0, color="0.5", linewidth=0.8, linestyle=":")
        panel.autoscale(axis="x" if quantity == "accuracy" else "both")
        panel.set_title(_title(f"{setting.name} ({len(runs)} seed{'s' if len(runs) > 1 else ''})"), fontsize=8)
        panel.set_xlabel("epochs since the Eureka-moment" if aligned else "epoch", fontsize=8)
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy in %" if quantity == "accuracy" else "loss")
    return figure


def _has(run: Record, quantity: str) -> bool:
    return bool(np.isfinite(run.curve(f"val/{quantity}")).any())


def _points(run: Record, name: str, scale: float, aligned: bool) -> NDArray[np.float32]:
    epoch = run.curve("epoch") - (run.moment or 0 if aligned else 0)
    points = np.stack([epoch, scale * run.curve(name)], axis=1)
    return points[np.isfinite(points).all(1)]


def _stars(panel: Any, runs: Sequence[Record], quantity: str, scale: float, own: Any) -> None:
    moments = [run.summary.eureka for run in runs if run.moment is not None]
    heights = [(one.epoch, one.accuracy if quantity == "accuracy" else _value(one, quantity)) for one in moments]
    found = [(epoch, scale * height) for epoch, height in heights if height is not None]
    if found:
        panel.plot(
            *zip(*found, strict=True), "*", color=own, markersize=7, markeredgecolor="white", markeredgewidth=0.4
        )


def _value(moment: Eureka, quantity: str) -> float | None:
    return moment.value if moment.metric == f"val/{quantity}" else None


def survival(
    settings: Sequence[Setting],
    confidence: float = 0.95,
    of: Literal["Eureka-moment", "change point"] = "Eureka-moment",
) -> Figure | None:
    """Share of seeds without a Eureka-moment against epochs (Kaplan-Meier), a line a setting; None without runs.

    ``of="change point"`` waits for that of the watched metric instead.

    Few settings have bands of their confidence intervals and, below the axis, how many seeds are still watched and
    without a moment: where it is one, the line falls to zero with it.
    """
    waited = times if of == "Eureka-moment" else change_times
    shown = [(setting, watched) for setting in settings if (watched := waited(setting.runs)) is not None]
    if not shown:
        return None
    figure, axes = new_figure(8, 4.2 + 0.16 * len(shown))
    for place, (setting, watched) in enumerate(shown):
        curve = no_moment_yet(watched, confidence)
        epochs = np.concatenate([[0], curve.epochs, [curve.end]])
        steps = {"where": "post", "color": color(place)}
        share = np.concatenate([[1], curve.share, curve.share[-1:] if len(curve.share) else [1]])
        label = f"{setting.name} ({len(watched.moments)} of {len(watched.moments) + len(watched.ends)})"
        style = ("-", "--", "-.", ":")[place // 10 % 4]
        axes.step(epochs, share, label=_title(label, 70), linewidth=1.5, linestyle=style, **steps)
        if len(shown) <= _BANDS and len(curve.share):
            low = np.concatenate([[1], curve.low, curve.low[-1:]])
            high = np.concatenate([[1], curve.high, curve.high[-1:]])
            axes.fill_between(epochs, low, high, step="post", color=color(place), alpha=0.12, linewidth=0)
        if watched.ends:
            at = np.searchsorted(epochs, watched.ends, side="right") - 1
            axes.plot(watched.ends, share[at], "|", color=color(place), markersize=8)
    axes.set(ylabel=f"share of seeds with no {of} yet", ylim=(-0.02, 1.04))
    axes.set_xlabel("epoch" if len(shown) > _BANDS else f"epoch; below: seeds watched and without a {of}")
    axes.grid(alpha=0.3)
    if len(shown) <= _BANDS:
        _seeds_left(axes, [watched for _, watched in shown])
    figure.legend(loc="outside lower left", fontsize=8)
    return figure


def _seeds_left(axes: Any, watched: Sequence[Times]) -> None:
    """A line of numbers a setting, in its colour, below the ticks: how many seeds the share still rests on."""
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if max(low, 0) <= tick <= high]
    axes.set_xlim(low, high)
    for place, seeds in enumerate(watched):
        ends = np.array([*seeds.moments, *seeds.ends])
        for tick in ticks:
            axes.annotate(
                str(int((ends >= tick).sum())), (tick, 0), xycoords=axes.get_xaxis_transform(),
                xytext=(0, -34 - 11 * place), textcoords="offset points", ha="center", va="top",
                color=color(place), fontsize=8,
            )  # fmt: skip


def learning_rates(settings: Sequence[Setting]) -> Figure | None:
    """Eureka-ratio of each method at each learning-rate schedule; None where there are no two schedules.

    Source: Eureka-moments in Transformers, Table 2.
    """
    grid, rates = rate_grid(settings)
    if len(rates) < 2:
        return None
    figure, axes = new_figure(2.2 + 0.95 * len(rates), 1.3 + 0.45 * len(grid))
    shares = np.full((len(grid), len(rates)), np.nan)
    for row, cells in enumerate(grid.values()):
        for column, rate in enumerate(rates):
            if rate in cells:
                count, seeds = cells[rate]
                shares[row, column] = count / seeds
                dark = count / seeds < 0.5
                text = f"{count}/{seeds}"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.imshow(shares, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(rates)), [_rate(rate) for rate in rates], rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(grid)), [_title(name, 40) for name in grid], fontsize=8)
    axes.set_xlabel("learning rate: largest to smallest", fontsize=8)
    return figure


Rate = tuple[Any, ...]


def rate_grid(settings: Sequence[Setting]) -> tuple[dict[str, dict[Rate, tuple[int, int]]], list[Rate]]:
    """Methods -> schedule (largest, smallest rate) -> (moments, finished seeds); and all schedules, largest first."""
    found: dict[str, dict[Rate, dict[int, bool]]] = {}
    for setting in settings:
        rate = tuple(setting.config.get(key) for key in _LEARNING_RATE)
        if not setting.finished or not all(isinstance(one, float | int | None) for one in rate) or rate[0] is None:
            continue
        parts = setting.name.split(", ")
        name = ", ".join(part for part in parts if not part.startswith(_NO_METHOD))
        seeds = found.setdefault(name, {}).setdefault(rate, {})
        for run in setting.finished:
            seeds[run.seed] = seeds.get(run.seed, False) or run.moment is not None
    rates = sorted({rate for cells in found.values() for rate in cells}, key=lambda r: (-r[0], -(r[1] or 0)))
    grid = {
        name: {rate: (sum(seeds.values()), len(seeds)) for rate, seeds in cells.items()}
        for name, cells in found.items()
    }
    return grid, rates


def _rate(rate: Rate) -> str:
    return " to ".join(_scientific(value) for value in rate if value)


def _scientific(value: float) -> str:
    """ "1e-3", "1.5e-3": as many digits as it has."""
    mantissa, exponent = f"{value:.5e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def gradients(settings: Sequence[Setting]) -> Figure | None:
    """Mean |gradient| of W_Q, W_K, W_V in the first layer of a setting's first seed, grey before its moment.

    Source: Eureka-moments in Transformers, Figure 4. None where no run has logged any.
    """
    shown = [(s, rows) for s in settings if (rows := _rows_with(s.runs[0], "gradient/q/layer_0"))]
    if not shown:
        return None
    figure, axes = panels(len(shown), width=3.4, height=2.6, columns=3)
    # One axis of sizes, so that settings can be compared; steps differ with what stopped a run.
    for panel in axes[1:]:
        panel.sharey(axes[0])
    for panel, (setting, rows) in zip(axes, shown, strict=True):
        for name in "qkv":
            values = [row[f"gradient/{name}/layer_0"] for row in rows]
            panel.plot([row["step"] for row in rows], values, label=f"$W_{name.upper()}$", linewidth=0.9)
        shade_before(panel, setting.runs[0].summary.eureka.step)
        panel.set(yscale="log")
        panel.set_xlabel("step", fontsize=8)
        panel.set_title(_title(f"{setting.name}, seed {setting.runs[0].seed}"), fontsize=8)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("mean |gradient|, layer 0")
    axes[0].legend(fontsize=8)
    return figure


def _rows_with(run: Record, key: str) -> list[dict[str, float]]:
    return [row for row in read_metrics(run.folder / "metrics.csv") if key in row]


def _title(text: str, width: int = 44) -> str:
    return "\n".join(map(literal, textwrap.wrap(text, width, max_lines=3, placeholder=" …")))


def in_parts(settings: Sequence[Setting], draw: Callable[..., Figure | None]) -> list[Figure]:
    """Figures of all settings, PANELS at a time; ``draw`` is told the number of its first one as ``first``."""
    drawn = [draw(settings[start : start + PANELS], first=start) for start in range(0, len(settings), PANELS)]
    return [figure for figure in drawn if figure is not None]
