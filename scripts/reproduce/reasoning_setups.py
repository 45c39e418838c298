"""Figure 8 again: which part of the reasoning task's set-up, that the paper leaves open, moves the Eureka-ratio.

    python -m scripts.reproduce.reasoning_setups --threads 1 --compile                     # every set-up
    python -m scripts.reproduce.reasoning_setups --setup layer_norm --threads 1 --compile  # one of them
    python -m scripts.reproduce.reasoning_setups --page                                    # the page of what is there

Every set-up changes one thing. Three softmaxes, three learning rates, ten seeds that train together, each until its
Eureka-moment or for 10,000 epochs. Stop it at any time: the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.console import refusals
from lab.report.outcomes import times
from lab.report.published import load
from lab.report.records import Record, read_record
from lab.report.statistics import eureka_ratio, fisher
from lab.report.survival import log_rank, median_time
from lab.runs.files import write_text
from lab.runs.summary import read_summary
from scripts.reproduce.common import folder_of, origin, train

# Name -> overrides. A.16 names none of these; "as_it_is" is the lab's own choice.
SETUPS: dict[str, tuple[str, ...]] = {
    "layer_norm": ("model.layer_norm=true",),
    "as_it_is": (),
    "betas": ("optim.options.betas=[0.9,0.999]",),
    "warmup": ("optim.warmup_epochs=10",),
}
SOFTMAXES = {"Softmax": "softmax", "Softmax + HT": "heat_treatment", "NormSoftmax": "norm_softmax"}
RATES = ("1e-3", "2e-3", "5e-3")
SEEDS = 10
PAPER = {row.label: row.cells["eureka_ratio"] for row in load("eureka/figure_8").rows}


@dataclass(frozen=True)
class Cell:
    """Ten seeds of a softmax at a learning rate in a set-up."""

    setup: str
    name: str
    rate: str
    runs: Path
    further: tuple[str, ...]

    @property
    def overrides(self) -> list[str]:
        """Overrides of its runs, all but the seeds."""
        softmax = f"softmax={SOFTMAXES[self.name]}"
        own = ["experiment=reasoning", softmax, f"optim.lr={self.rate}", *SETUPS[self.setup], *self.further]
        return [*own, "callbacks.eureka.stop_after=0"]

    def train(self) -> None:
        """Trains what is missing."""
        train([*self.overrides, f"seeds={SEEDS}"], self.runs)

    def records(self) -> list[Record]:
        """Every seed's run; none unless all have finished, for the slow ones are the last."""
        softmax = SOFTMAXES[self.name]
        folders = [folder_of(self.runs, "reasoning", softmax, seed, self.overrides) for seed in range(SEEDS)]
        found = [read_summary(folder) for folder in folders]
        whole = all(one is not None and one.finished for one in found)
        return [read_record(folder) for folder in folders] if whole else []


def table(cells: Sequence[Cell]) -> pd.DataFrame:
    """A row for each cell that is whole: ratio, median time, and tests against plain softmax at the same rate."""
    records = {cell: cell.records() for cell in cells}
    plain = {cell.rate: found for cell, found in records.items() if cell.name == "Softmax"}
    rows = []
    for cell, found in records.items():
        if not found:
            continue
        watched = times(found)
        assert watched is not None
        moments = sorted(int(moment) for moment in watched.moments)
        paper = PAPER[cell.name]
        assert paper.count is not None and paper.of is not None
        against = times(plain[cell.rate]) if cell.name != "Softmax" and plain.get(cell.rate) else None
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


def page(setups: Mapping[str, Sequence[Cell]], command: str) -> str:
    """The page of what is whole."""
    trained = {
        (record.summary.git.commit or "an unknown commit")[:8]
        for cells in setups.values()
        for cell in cells
        for record in cell.records()
    }
    text = [
        "# Figure 8 again: what of the set-up moves the Eureka-ratio",
        origin(command),
        f"{SEEDS} seeds that train together, until each has its moment (first validation above 70 %) or for 10,000 "
        "epochs. A.16 names neither layer norm nor betas nor a warm-up; each set-up below changes one of them. "
        "p-values are not corrected." + (f" Trained at {', '.join(sorted(trained))}." if trained else ""),
    ]
    for setup, cells in setups.items():
        found = table(cells)
        missing = [f"{cell.name} at {cell.rate}" for cell in cells if not cell.records()]
        typed = " ".join(SETUPS[setup]) or "nothing typed"
        text += [f"## {setup} (`{typed}`)"]
        text += [found.to_markdown(index=False, disable_numparse=True)] if len(found) else []
        text += [f"Not run: {', '.join(missing)}."] if missing else []
    return "\n\n".join(text) + "\n"


def main(arguments: argparse.Namespace) -> None:
    """Trains what is missing, and writes the page after every cell."""
    further = (
        *(["compile=true"] if arguments.compile else []),
        *([f"threads={arguments.threads}"] if arguments.threads else []),
    )
    asked = [arguments.setup] if arguments.setup else list(SETUPS)
    setups = {
        setup: [Cell(setup, name, rate, arguments.runs, further) for name in SOFTMAXES for rate in RATES]
        for setup in SETUPS
    }
    command = "python -m scripts.reproduce.reasoning_setups" + "".join(f" {word}" for word in arguments.typed)
    for cell in [] if arguments.page else [cell for setup in asked for cell in setups[setup]]:
        if not cell.records():
            cell.train()
            write_text(arguments.out / "README.md", page(setups, command))
    write_text(arguments.out / "README.md", page(setups, command))
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/reasoning_setups"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results/reasoning_setups"), help="folder of the page")
    parser.add_argument("--setup", choices=list(SETUPS), help="this one alone")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of each run")
    parser.add_argument("--compile", action="store_true", help="torch.compile: needs a C++ compiler on a CPU")
    parser.add_argument("--page", action="store_true", help="write the page of what is there; train nothing")
    parsed = parser.parse_args()
    parsed.typed = sys.argv[1:]
    with refusals():
        main(parsed)
