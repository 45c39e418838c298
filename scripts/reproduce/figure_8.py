"""Figure 8 of Eureka-moments in Transformers: the reasoning task under three softmaxes, five seeds each.

    python -m scripts.reproduce.figure_8

The learning rate of each softmax is chosen on seed 0 from a grid (A.16; a trial ends at its Eureka-moment), then its
seeds are trained together.
Stop it at any time: the same command goes on where it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lab.config.arguments import Parser
from lab.console import LabError, refusals
from lab.datasets.reasoning import PLATEAU
from lab.files import write_text
from lab.observation.slingshots import slingshots
from lab.plotting.curves import guide
from lab.plotting.figures import count_axis, legend_below, name_left, panels, save_figure
from lab.plotting.style import GUIDE, line_style, styled
from lab.report.published import load
from lab.report.statistics import eureka_ratio, fisher
from lab.runs.metrics import FILE as METRICS
from lab.runs.metrics import read_metrics
from lab.runs.summary import read_summary
from scripts.reproduce.common import (
    FAVOURED,
    earliest,
    markdown,
    origin,
    positive,
    ratio_of_others,
    run_options,
    sentences,
    speed_of,
    tell_duration,
)
from scripts.reproduce.kept import check_ended, ended
from scripts.reproduce.seeds import Seeds

# Link to an older page, if it lies in the folder: of runs before layer norm was the default.
WITHOUT = " (without it: [without_layer_norm.md](without_layer_norm.md))"
# The paper draws from [1e-4, 1e-2] (A.16).
GRID = ["1e-4", "2e-4", "5e-4", "1e-3", "2e-3", "5e-3", "1e-2"]
# Name in the figure -> config of the softmax; in PAPER -> the paper's Eureka-ratio.
SOFTMAXES = {"Softmax": "softmax", "Softmax + HT": "heat_treatment", "NormSoftmax": "norm_softmax"}
PAPER = {row.label: row.cells["eureka_ratio"] for row in load("eureka/figure_8").rows}


@dataclass(frozen=True)
class Plan:
    """Plan of all runs.

    Attributes:
        runs: folder of the runs.
        epochs: of every run.
        seeds: number of seeds, from 0 on.
        grid: learning rates tried on seed 0, as typed.
        options: further overrides of every run.
    """

    runs: Path
    epochs: int
    seeds: int
    grid: tuple[str, ...]
    options: tuple[str, ...]

    def trial(self, softmax: str, lr: str) -> Seeds:
        """Seed 0 of a softmax at a learning rate, until its moment."""
        return self._of(softmax, lr, (0,), "trials", "callbacks.eureka.stop_after=0")

    def all(self, softmax: str, lr: str) -> Seeds:
        """All seeds of a softmax at a learning rate."""
        return self._of(softmax, lr, tuple(range(self.seeds)), "seeds")

    def _of(self, softmax: str, lr: str, seeds: tuple[int, ...], where: str, *more: str) -> Seeds:
        setting = ("experiment=reasoning", f"softmax={softmax}", f"optim.lr={lr}", f"trainer.max_epochs={self.epochs}")
        # Trials and seeds have separate folders, so that a report on the seeds does not show the trials.
        runs = self.runs / where
        return Seeds(typed=(*more, *setting, *self.options), seeds=seeds, runs=runs, together=True)


def steps_left(plan: Plan) -> tuple[int, int]:
    """Optimiser steps still to do, at most: of single runs of the grid, and of seeds that train together."""
    single, together = 0, 0
    for softmax in SOFTMAXES.values():
        trials = [plan.trial(softmax, lr) for lr in plan.grid]
        single += sum(trial.left(plan.epochs, "steps") for trial in trials)
        # While a trial is unfinished, any rate may still be chosen, also one at which no seed has been trained yet.
        tried = all(trial.ends() for trial in trials)
        together += plan.all(softmax, choose(plan, softmax)).left(plan.epochs, "steps") if tried else plan.epochs
    return single, together


def choose(plan: Plan, softmax: str) -> str:
    """The learning rate whose seed 0 has the earliest Eureka-moment, or, where none has one, the best accuracy.

    Raises:
        LabError: if the softmax failed at every rate.
    """

    trials = {lr: plan.trial(softmax, lr).summary(0) for lr in plan.grid}
    finished = {lr: summary for lr, summary in trials.items() if summary is not None and summary.finished}
    if not finished:
        raise LabError(f"{softmax} failed at every learning rate of the grid: name lower ones after --grid")
    return earliest(finished)


def grid_table(plan: Plan) -> pd.DataFrame:
    """Seed 0 at every learning rate: its Eureka-epoch, or its best accuracy."""
    rows = []
    for name, softmax in SOFTMAXES.items():
        for lr in plan.grid:
            summary = plan.trial(softmax, lr).summary(0)
            if summary is None:
                continue
            moment = "none" if summary.moment is None else f"{summary.moment:,}"
            rows.append(
                {
                    "softmax": name,
                    "learning rate": lr,
                    "Eureka-epoch": moment if summary.finished else summary.status,
                    "best accuracy": f"{summary.best.accuracy:.1%}" if summary.best else "",
                    "epochs": f"{summary.epochs:,}",
                }
            )
    return pd.DataFrame(rows)


def ratio_table(plan: Plan, rates: Iterable[tuple[str, str]], chosen: bool = True) -> pd.DataFrame:
    """Eureka-ratios with their intervals beside the paper's, for pairs of a softmax and a rate.

    Where the rates are ``chosen``, the ratio without seed 0, which chose them, stands beside. All are of the seeds that
    have ended; one that diverged counts as one without a moment, and is told.
    """
    rows = []
    for name, lr in rates:
        seeds = plan.all(SOFTMAXES[name], lr)
        summaries = [summary for summary in seeds.summaries() if summary is not None and ended(summary)]
        if not any(one.finished for one in summaries):
            continue
        failed = sum(not one.finished for one in summaries)
        theirs = PAPER[name]
        assert theirs.count is not None and theirs.of is not None
        # One order for the three lists of a row: moments, slingshots, final accuracies.
        summaries.sort(key=lambda one: (one.moment is None, one.moment, one.seed))
        thrown = [str(slingshots_of(seeds.folder(one.seed))) for one in summaries if one.moment is not None]
        moments = [summary.moment for summary in summaries if summary.moment is not None]
        finals = [f"{summary.accuracy:.1%}" for summary in summaries if summary.accuracy is not None]
        p = fisher((len(moments), len(summaries)), (theirs.count, theirs.of))
        rows.append(
            {
                "softmax": name,
                "learning rate": lr,
                "Eureka-ratio (95 % Wilson)": str(eureka_ratio(len(moments), len(summaries)))
                + (f", {failed} failed" if failed else ""),
                **({"without seed 0": ratio_of_others(summaries)} if chosen and len(plan.grid) > 1 else {}),
                "paper": str(theirs),
                "p (Fisher, same ratio as the paper's)": f"{p:.2f}",
                "Eureka-epochs": ", ".join(f"{moment:,}" for moment in moments) or "-",
                "slingshots after each": ", ".join(thrown) or "-",
                "final accuracies": ", ".join(finals),
                "epochs": f"{min(summary.epochs for summary in summaries if summary.finished):,}",
            }
        )
    return pd.DataFrame(rows)


def slingshots_of(folder: Path) -> int:
    """Counts the slingshots of a run after its Eureka-moment, in the training loss as it was logged (A.17)."""
    summary = read_summary(folder)
    start = float("inf") if summary is None or summary.moment is None else summary.moment
    rows = read_metrics(folder / METRICS)
    return len(slingshots([row["train/loss"] for row in rows if "train/loss" in row and row["epoch"] + 1 >= start]))


@styled()
def figure(plan: Plan, chosen: dict[str, str]) -> Figure:
    """Test (strong) and training (pale) accuracies of all seeds, one panel per softmax, in its colour."""
    picture, grid = panels(len(chosen), sharex=True, sharey=True)
    for axes, (name, lr) in zip(grid, chosen.items(), strict=True):
        color = line_style(SOFTMAXES[name]).color
        for folder in plan.all(SOFTMAXES[name], lr).folders:
            rows = read_metrics(folder / METRICS)
            for metric, alpha in (("train/accuracy", 0.3), ("val/accuracy", 1.0)):
                points = [(row["epoch"] + 1, 100 * row[metric]) for row in rows if metric in row]
                points = points[:: max(1, len(points) // 1000)]
                axes.plot(*zip(*points, strict=True), color=color, alpha=alpha, linewidth=0.8)
        for label, alpha in (("training, a seed", 0.3), ("test, a seed", 1.0)):
            axes.plot([], [], color=GUIDE, alpha=alpha, linewidth=0.8, label=label)
        guide(axes, 100 * PLATEAU, "--", f"plateau ({PLATEAU:.1%})")
        axes.set(title=f"{name} (learning rate {lr})", ylim=(0, 102))
        count_axis(axes, "epoch")
    name_left(grid, "accuracy in %")
    legend_below(picture)
    return picture


def by_luck(plan: Plan, chosen: Iterable[str]) -> str:
    """Tells which softmaxes got their rate by luck, since none of their trials had a moment; "" if there is none."""
    names = [
        name
        for name in chosen
        if not any(
            (summary := plan.trial(SOFTMAXES[name], lr).summary(0)) is not None and summary.moment is not None
            for lr in plan.grid
        )
    ]
    if not names:
        return ""
    return (
        f"Of {' and '.join(names)} no trial on seed 0 had a moment at any rate. The rate chosen is then that of the "
        "plateau with the highest peak, which is hardly more than luck; another might have done better on the other "
        "seeds."
    )


def page(plan: Plan, chosen: dict[str, str], out: Path) -> str:
    """The page of results, as far as they have come."""
    # Seeds at rates that a shorter grid chose stay on the page: without a moment on seed 0 the choice is luck.
    others = ratio_table(plan, [(name, lr) for name in chosen for lr in plan.grid if lr != chosen[name]], False)
    also = ["## Rates not chosen of which there are finished seeds", markdown(others)]
    return "\n\n".join(
        [
            "# Figure 8 of Eureka-moments in Transformers: the reasoning task under three softmaxes",
            origin(),
            f"{plan.seeds} seeds, {plan.epochs:,} epochs of full-batch AdamW, with layer norm, which A.16 does not "
            f"name{WITHOUT if (out / 'without_layer_norm.md').exists() else ''}, learning rate chosen on seed 0 from "
            f"{', '.join(plan.grid)} (earliest Eureka-moment, else best accuracy). A Eureka-moment is the first "
            "validation (every ten epochs) above 70 %, a slingshot a rise of the training loss above ten times its "
            "lowest value since then (A.17), of losses logged every ten epochs.",
            "![Accuracies of all seeds](figure_8.png)",
            markdown(ratio_table(plan, chosen.items())),
            f"The seeds of a row stand by their Eureka-epochs, those without one last. With {plan.seeds} seeds a ratio "
            "is told only roughly: the interval says how roughly." + (f" {FAVOURED}" if len(plan.grid) > 1 else ""),
            *([told] if (told := by_luck(plan, chosen)) else []),
            *sentences(out),
            *(also if len(others) else []),
            "## The grid on seed 0, each trial until its Eureka-moment",
            markdown(grid_table(plan)),
        ]
    )


def _check_grid(grid: Sequence[str]) -> None:
    try:
        rates = [float(one) for one in grid]
    except ValueError as error:
        raise LabError(f"--grid takes learning rates, such as 5e-3: {error}") from error
    for place, rate in enumerate(rates):
        if rate in rates[:place]:
            raise LabError(f"--grid has {grid[rates.index(rate)]} twice, the second time as {grid[place]}")


def main(arguments: argparse.Namespace) -> None:
    """Trains what is missing and writes the page after every softmax.

    Raises:
        LabError: if a learning rate of the grid is no number, or stands there twice.
    """
    _check_grid(arguments.grid)
    options = run_options(arguments.threads, arguments.compile)
    plan = Plan(arguments.runs, arguments.epochs, arguments.seeds, tuple(arguments.grid), options)
    single, together = steps_left(plan)
    if single + together:
        probe = plan.all("norm_softmax", plan.grid[0])
        one = speed_of(probe.overrides).per_step
        many = speed_of([*probe.overrides, *probe.as_one]).per_step if together else 0.0
        tell_duration(
            f"{single:,} steps of single runs, {together:,} of {plan.seeds} seeds", single * one + together * many
        )
    chosen: dict[str, str] = {}
    for name, softmax in SOFTMAXES.items():
        for lr in plan.grid:
            trial = plan.trial(softmax, lr)
            trial.train()
            check_ended(trial.summaries())
        chosen[name] = choose(plan, softmax)
        print(f"{name}: learning rate {chosen[name]}")
        seeds = plan.all(softmax, chosen[name])
        seeds.train()
        check_ended(seeds.summaries())
        save_figure(figure(plan, chosen), arguments.out / "figure_8.png", pdf=True)
        write_text(arguments.out / "README.md", page(plan, chosen, arguments.out) + "\n")
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    parser = Parser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/figure_8"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results/figure_8"), help="folder of the page")
    parser.add_argument("--epochs", type=positive, default=10_000)
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--grid", nargs="+", default=GRID, help="learning rates on seed 0")
    parser.add_argument("--threads", type=positive, default=None, help="CPU threads of each run")
    parser.add_argument("--compile", action="store_true", help="torch.compile: needs a C++ compiler on a CPU")
    with refusals():
        main(parser.parse_args())
