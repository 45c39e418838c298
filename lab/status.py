"""What the runs below a folder are doing: a table, once or live.

python -m lab.status runs
python -m lab.status runs/main_task --watch 5
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lab.run import read_summary
from lab.tell import tell

# From what needs a look to what does not.
ORDER = ("failed", "running", "stopped", "finished", "damaged")
COLORS = {"failed": "red", "running": "cyan", "stopped": "yellow", "finished": "green", "damaged": "red"}


@dataclass(frozen=True)
class RunStatus:
    """One run, told by its summary.

    Attributes:
        folder: of the run.
        status: one of ORDER; "damaged" where the summary cannot be read.
        epochs, max_epochs: trained and to be trained.
        accuracy: last validation accuracy; None before there is one.
        moment: epoch of the Eureka-moment; None without.
        seconds_left: of a running run, at its speed so far.
        reason: why it failed.
    """

    folder: Path
    status: str
    epochs: int = 0
    max_epochs: int = 0
    accuracy: float | None = None
    moment: int | None = None
    seconds_left: float | None = None
    reason: str = ""


def status_of(folder: Path) -> RunStatus:
    """The status of the run in a folder that holds a ``summary.json``."""
    summary: dict[str, Any] = read_summary(folder)
    if "status" not in summary:
        return RunStatus(folder, "damaged", reason="summary.json cannot be read")
    epochs, most = int(summary.get("epochs") or 0), int(summary.get("max_epochs") or 0)
    seconds = float(summary.get("wall_seconds") or 0.0)
    running = summary["status"] == "running" and epochs > 0
    eureka = summary.get("eureka") or {}
    return RunStatus(
        folder=folder,
        status=summary["status"],
        epochs=epochs,
        max_epochs=most,
        accuracy=(summary.get("metrics") or {}).get("val/accuracy"),
        moment=eureka.get("epoch") if eureka.get("happened") else None,
        seconds_left=seconds / epochs * max(0, most - epochs) if running else None,
        reason=summary.get("error") or "",
    )


def gather(root: Path) -> list[RunStatus]:
    """All runs below a folder, those that need a look first; runs set aside by ``force=true`` are left out."""
    found = [status_of(path.parent) for path in root.rglob("summary.json") if "~" not in path.parent.name]
    return sorted(found, key=lambda run: (ORDER.index(run.status), str(run.folder)))


def table(runs: list[RunStatus], root: Path) -> Table:
    """The table, and how many there are of each status."""
    counts = Counter(run.status for run in runs)
    told = ", ".join(f"{counts[status]} {status}" for status in ORDER if counts[status])
    grid = Table(title=f"{root}: {told or 'no runs'}", title_justify="left")
    for name in ("status", "run", "epoch", "accuracy", "Eureka", "left", "reason"):
        grid.add_column(
            name, justify="right" if name in ("epoch", "accuracy", "Eureka", "left") else "left", overflow="fold"
        )
    for run in runs:
        grid.add_row(
            f"[{COLORS[run.status]}]{run.status}[/]",
            str(run.folder.relative_to(root)).replace("[", r"\["),
            f"{run.epochs:,}/{run.max_epochs:,}" if run.max_epochs else "",
            f"{run.accuracy:.1%}" if run.accuracy is not None else "",
            f"{run.moment:,}" if run.moment is not None else "",
            _duration(run.seconds_left) if run.seconds_left is not None else "",
            run.reason.splitlines()[0].replace("[", r"\[") if run.reason else "",
        )
    return grid


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?", default=Path("runs"), help="a folder of runs")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="show it again every so many seconds")
    arguments = parser.parse_args()
    if not arguments.root.is_dir():
        tell(f"error: {arguments.root} is no folder: name one that holds runs, as in python -m lab.status runs")
        sys.exit(1)
    if arguments.watch is not None and not arguments.watch > 0:
        parser.error(f"--watch takes a positive number of seconds, got {arguments.watch}")
    console = Console()
    if arguments.watch is None:
        console.print(table(gather(arguments.root), arguments.root))
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        try:
            while True:
                live.update(table(gather(arguments.root), arguments.root), refresh=True)
                time.sleep(arguments.watch)
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
