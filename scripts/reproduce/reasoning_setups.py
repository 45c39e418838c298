"""Figure 8 again: which choice that the paper leaves open in the reasoning task's set-up moves the Eureka-ratio.

    python -m scripts.reproduce.reasoning_setups --threads 1 --compile                     # all, the likeliest first
    python -m scripts.reproduce.reasoning_setups --minutes 300 --threads 1 --compile       # what five hours hold
    python -m scripts.reproduce.reasoning_setups --setup layer_norm --threads 1 --compile  # one of them
    python -m scripts.reproduce.reasoning_setups --setup init warmup --softmax softmax --rate 2e-3  # some of its cells
    python -m scripts.reproduce.reasoning_setups --page                                    # the page of what is there

A set-up changes one thing, with or without layer norm, and is compared seed by seed with the set-up that it changes.
Three softmaxes, three learning rates, ten seeds that train together, each until its Eureka-moment or for 10,000 epochs.
Stop it at any time: the same command goes on where it was. Cells (a softmax at a rate in a set-up) whose seeds have all
finished are kept beside the page (results/reasoning_setups), and stay when the runs are gone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from lab.config.arguments import Parser
from lab.console import refusals
from lab.files import write_text
from lab.report.outcomes import times
from lab.report.records import Record
from lab.report.statistics import eureka_ratio, fisher, holm, paired_ratios
from lab.report.survival import log_rank, median_time
from lab.runs.summary import Summary
from scripts.reproduce.common import (
    FAVOURED,
    earliest,
    markdown,
    origin,
    positive,
    ratio_of_others,
    run_options,
    seconds_a_step,
    sentences,
    tell_duration,
    within,
)
from scripts.reproduce.figure_8 import PAPER, SOFTMAXES
from scripts.reproduce.kept import FILE, Kept, check_ended
from scripts.reproduce.seeds import Seeds

EPOCHS = 10_000
SEEDS = 10
# In the order of training. With layer norm, seed 0 chose 5e-3 for softmax.
RATES = ("2e-3", "5e-3", "1e-3")
HEATED = ("Softmax + HT",)
LAYER_NORM, NO_NORM = "model.layer_norm=true", "model.layer_norm=false"


@dataclass(frozen=True)
class Setup:
    """One way to fill in what A.16 leaves open.

    Attributes:
        overrides: what it changes.
        against: the set-up that it changes and is compared with; None for the one that all others build on.
        softmaxes: those that the change affects.
    """

    overrides: tuple[str, ...] = ()
    against: str | None = "no_layer_norm"
    softmaxes: tuple[str, ...] = tuple(SOFTMAXES)


def _setups() -> dict[str, Setup]:
    """Set-ups by name, the likeliest first. A.16 mentions none of the changes; "no_layer_norm" makes none."""
    alone = {
        "init": Setup(("model.init=width",)),
        # d_k = 4, so heat treatment ends at temperature 2. The paper "tried also 1 / (2 sqrt(d_k))" (A.14), which is
        # 0.25: read as a temperature, or as the factor of the scores, which is temperature 4.
        "heat_from_1": Setup(("softmax.schedule.start=1",), softmaxes=HEATED),
        "heat_from_0.5": Setup(("softmax.schedule.start=0.5",), softmaxes=HEATED),
        "heat_to_0.25": Setup(("softmax.schedule.end=0.25",), softmaxes=HEATED),
        "heat_to_4": Setup(("softmax.schedule.end=4",), softmaxes=HEATED),
        "betas": Setup(("optim.options.betas=[0.9,0.999]",)),
        "warmup": Setup(("optim.warmup_epochs=10",)),
        "float64": Setup(("optim.loss_precision=float64",)),
        # Everything at once that Nanda et al. 2023, whose weight decay A.16 follows, use and A.16 does not mention.
        "nanda": Setup(("model=reasoner_nanda", "optim=reasoning_nanda")),
    }
    return {
        "layer_norm": Setup((LAYER_NORM,)),
        "no_layer_norm": Setup((NO_NORM,), against=None),
        **{name: replace(one, overrides=(NO_NORM, *one.overrides)) for name, one in alone.items()},
        **{
            f"layer_norm+{name}": replace(one, overrides=(LAYER_NORM, *one.overrides), against="layer_norm")
            for name, one in alone.items()
        },
    }


SETUPS = _setups()


@dataclass(frozen=True)
class Cell:
    """Ten seeds of a softmax at a learning rate in a set-up."""

    setup: str
    name: str
    rate: str
    runs: Path
    kept: Kept
    further: tuple[str, ...]

    @property
    def seeds(self) -> Seeds:
        """Its runs."""
        own = ("experiment=reasoning", f"softmax={SOFTMAXES[self.name]}", f"optim.lr={self.rate}")
        return Seeds(
            typed=(*own, *SETUPS[self.setup].overrides, "callbacks.eureka.stop_after=0"),
            seeds=tuple(range(SEEDS)),
            runs=self.runs,
            further=self.further,
            kept=self.kept,
            together=True,
        )

    def records(self) -> tuple[Record, ...]:
        """Records of all seeds; empty until all have finished, because the slowest ones finish last."""
        seeds = self.seeds
        found = seeds.ends()
        return seeds.records(found) if all(one.finished for one in found) else ()

    def known(self) -> dict[str, Summary]:
        """Summaries of :meth:`records`, by what was typed."""
        return self.seeds.by_typed([run.summary for run in self.records()])


def plan(runs: Path, kept: Kept, further: tuple[str, ...]) -> list[Cell]:
    """All cells, the most worthwhile first: layer norm at all rates, then the others rate by rate."""
    cells = [
        Cell(setup, name, rate, runs, kept, further)
        for rate in RATES
        for setup, one in SETUPS.items()
        for name in one.softmaxes
    ]
    return sorted(cells, key=lambda cell: cell.setup != "layer_norm")


Whole = Mapping[Cell, Sequence[Record]]


def _of(whole: Whole, setup: str, name: str) -> dict[str, Sequence[Record]]:
    """Learning rate -> records of its seeds."""
    return {cell.rate: found for cell, found in whole.items() if (cell.setup, cell.name) == (setup, name)}


def table(whole: Whole, setup: str) -> pd.DataFrame:
    """A row for each cell: ratio, median time, and tests against plain softmax at the same rate."""
    plain = _of(whole, setup, "Softmax")
    rows = []
    for cell, found in whole.items():
        if cell.setup != setup:
            continue
        watched = times(found)
        assert watched is not None
        moments = sorted(int(moment) for moment in watched.moments)
        paper = PAPER[cell.name]
        assert paper.count is not None and paper.of is not None
        against = times(plain[cell.rate]) if cell.name != "Softmax" and cell.rate in plain else None
        same = fisher((len(moments), SEEDS), (paper.count, paper.of))
        rows.append(
            {
                "softmax": cell.name,
                "rate": cell.rate,
                "Eureka-ratio (95 % Wilson)": str(eureka_ratio(len(moments), len(found))),
                "paper": str(paper),
                "p (Fisher, same ratio as the paper's)": f"{same:.2f}",
                "median epoch (Kaplan-Meier)": str(median_time(watched)),
                "p (log-rank, time of softmax)": f"{log_rank(watched, against):.2g}" if against else "",
                "Eureka-epochs": ", ".join(f"{moment:,}" for moment in moments) or "-",
            }
        )
    return pd.DataFrame(rows)


def factors(whole: Whole) -> pd.DataFrame:
    """Table of what each factor does to a softmax: pairs of equal seed and rate, with it and without it."""
    rows, p_values = [], []
    for setup, one in SETUPS.items():
        for name in one.softmaxes if one.against is not None else ():
            assert one.against is not None
            with_it, without = _of(whole, setup, name), _of(whole, one.against, name)
            rates = [rate for rate in RATES if rate in with_it and rate in without]
            if not rates:
                continue
            one_moments, other_moments = (
                {(rate, run.seed): run.moment is not None for rate in rates for run in found[rate]}
                for found in (with_it, without)
            )
            pairs = paired_ratios(one_moments, other_moments)
            p_values.append(pairs.p)
            rows.append(
                {
                    "factor": f"{setup} (against {one.against})",
                    "softmax": name,
                    "rates": ", ".join(rates),
                    "with it": f"{sum(one_moments.values())}/{pairs.pairs}",
                    "without": f"{sum(other_moments.values())}/{pairs.pairs}",
                    "pairs that gain, lose a moment": f"{pairs.gained}, {pairs.lost}",
                    "difference (95 %, Newcombe)": f"{pairs.difference:+.0%} ({pairs.low:+.0%} to {pairs.high:+.0%})",
                }
            )
    for row, p in zip(rows, holm(p_values), strict=True):
        row["p (McNemar, Holm over this table)"] = f"{p:.2g}"
    return pd.DataFrame(rows)


def agreement(whole: Whole) -> pd.DataFrame:
    """A row per set-up: each softmax at the rate of seed 0 (A.16), and if its interval holds the paper's ratio."""
    rows = []
    for setup in SETUPS:
        row, inside = {"set-up": setup}, []
        for name in SOFTMAXES:
            by_rate = _of(whole, setup, name)
            if not by_rate:
                continue
            rate = earliest({rate: found[0].summary for rate, found in by_rate.items()})
            moments = sum(run.moment is not None for run in by_rate[rate])
            ratio, paper = eureka_ratio(moments, len(by_rate[rate])), PAPER[name]
            assert paper.count is not None and paper.of is not None
            inside.append(ratio.low <= paper.count / paper.of <= ratio.high)
            tried = "alone"
            if len(by_rate) > 1:
                tried = f"of {', '.join(by_rate)} (without seed 0 {ratio_of_others(by_rate[rate])})"
            row[f"{name} (paper {paper})"] = f"{ratio} at {rate} {tried}: {'in' if inside[-1] else 'out'}"
        if inside:
            rows.append({**row, "all three in": ("yes" if all(inside) else "no") if len(inside) == 3 else "not known"})
    return pd.DataFrame(rows).fillna("not run")


def page(cells: Sequence[Cell], out: Path) -> str:
    """The page of all cells whose seeds have finished."""
    whole = {cell: found for cell in cells if (found := cell.records())}
    left_out = [cell for cell in cells if cell not in whole]
    diverged = [cell for cell in left_out if any(one.diverged for one in cell.seeds.ends())]
    missing = [cell for cell in left_out if cell not in diverged]
    trained = {(run.summary.git.commit or "an unknown commit")[:8] for found in whole.values() for run in found}
    chosen = any(len(_of(whole, cell.setup, cell.name)) > 1 for cell in whole)
    text = [
        "# Figure 8 again: what of the set-up moves the Eureka-ratio",
        origin(),
        f"{SEEDS} seeds that train together, until each has its moment (first validation above 70 %) or for "
        f"{EPOCHS:,} epochs. A.16 names neither layer norm nor betas, initialisation, warm-up or precision of the "
        "loss, nor where heat treatment begins; each set-up below changes one of them, in the task without layer norm "
        "or on top of it." + (f" Trained at {', '.join(sorted(trained))}." if trained else ""),
        *sentences(out),
    ]
    tables: list[tuple[str, str, Callable[[Whole], pd.DataFrame]]] = [
        (
            "Does a set-up agree with the paper?",
            "The rate is chosen as in the paper, by seed 0 alone, among the rates that are run. In: the paper's ratio "
            "lies in the interval, which is wide. Its own few seeds leave as much open: of settings equal to the "
            "paper's, too, more than one in twenty is out." + (f" {FAVOURED}" if chosen else ""),
            agreement,
        ),
        (
            "Which factor moves the ratio?",
            "The same seeds at the same rates with and without it. Seeds at several rates count as pairs of their own, "
            "though the same seed has the same data at all of them: then the interval is too narrow, if anything.",
            factors,
        ),
    ]
    for title, words, make in tables:
        rows = make(whole)
        text += [f"## {title}", words, markdown(rows)] if len(rows) else []
    for setup, one in SETUPS.items():
        if len(rows := table(whole, setup)):
            typed = " ".join(one.overrides) or "nothing typed"
            text += [f"## {setup} (`{typed}`)", markdown(rows)]
    if whole:
        text += ["p-values of these tables are not corrected."]
    for title, some in (
        ("Left out: a seed diverged", diverged),
        ("No summary kept here (not run, or run before summaries were kept)", missing),
    ):
        if some:
            lines = [_without(setup, some) for setup in {cell.setup: None for cell in some}]
            text += [f"## {title}", "\n".join(lines)]
    return "\n\n".join(text) + "\n"


def _without(setup: str, cells: Sequence[Cell]) -> str:
    rates = {
        name: [cell.rate for cell in cells if (cell.setup, cell.name) == (setup, name)]
        for name in SETUPS[setup].softmaxes
    }
    return f"- {setup}: " + "; ".join(f"{name} at {', '.join(left)}" for name, left in rates.items() if left)


def write_page(cells: Sequence[Cell], kept: Kept, out: Path) -> None:
    """Writes the page of all cells whose seeds have finished, and keeps the summaries that it is made of."""
    kept.keep({run: one for cell in cells for run, one in cell.known().items()})
    write_text(out / "README.md", page(cells, out))


def main(arguments: argparse.Namespace) -> None:
    """Trains what is missing, and writes the page after every cell."""
    kept = Kept(arguments.out / FILE)
    cells = plan(arguments.runs, kept, run_options(arguments.threads, arguments.compile))
    asked = [
        cell
        for cell in cells
        if cell.setup in arguments.setup and SOFTMAXES[cell.name] in arguments.softmax and cell.rate in arguments.rate
    ]
    left = [] if arguments.page else [cell for cell in asked if not cell.records()]
    if left:
        steps = sum(cell.seeds.left(EPOCHS) for cell in left)
        known = [one for cell in cells for one in cell.seeds.summaries() if one is not None and one.finished]
        seconds = steps * seconds_a_step(known, [*left[0].seeds.overrides, *left[0].seeds.as_one])
        tell_duration(f"{len(left)} cells, {steps:,} steps of {SEEDS} seeds at most", seconds)
    with within(arguments.minutes):
        for cell in left:
            cell.seeds.train()
            check_ended(cell.seeds.summaries())
            write_page(cells, kept, arguments.out)
    write_page(cells, kept, arguments.out)
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    parser = Parser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/reasoning_setups"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results/reasoning_setups"), help="folder of the page")
    for option, choices, what in (
        ("--setup", SETUPS, "set-ups"),
        ("--softmax", SOFTMAXES.values(), "softmaxes"),
        ("--rate", RATES, "learning rates"),
    ):
        every = list(choices)
        words = f"these {what} alone, of {', '.join(every)}"
        parser.add_argument(option, nargs="+", choices=every, default=every, metavar="NAME", help=words)
    parser.add_argument("--minutes", type=float, help="stop after so many; the same command goes on")
    parser.add_argument("--threads", type=positive, default=None, help="CPU threads of each run")
    parser.add_argument("--compile", action="store_true", help="torch.compile: needs a C++ compiler on a CPU")
    parser.add_argument("--page", action="store_true", help="write the page of what is there; train nothing")
    with refusals():
        main(parser.parse_args())
