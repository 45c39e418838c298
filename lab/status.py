"""What the runs below a folder are doing, and which of a sweep are still missing: a table, once or live.

python -m lab.status runs
python -m lab.status runs/main_task --watch 5
python -m lab.status --plan experiment=reasoning softmax=softmax,norm_softmax seed=0,1     # of a sweep, before it runs
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lab.console import refusals, tables, tell
from lab.runs import slurm
from lab.runs.folder import read_summary
from lab.runs.lock import LOCK, is_held
from lab.sweeps import jobs
from lab.sweeps.plan import FOLDER, Plan, read_plans

# From what needs a look to what does not.
ORDER = ("failed", "running", "queued", "stopped", "missing", "finished", "damaged")
COLORS = {
    "failed": "red",
    "running": "cyan",
    "queued": "blue",
    "stopped": "yellow",
    "missing": "magenta",
    "finished": "green",
    "damaged": "red",
}

# Of these a SLURM job may be under way.
OPEN = ("failed", "stopped", "missing")
# Seconds that squeue may take before the table is shown without it.
IMPATIENCE = 5.0


@dataclass(frozen=True)
class RunStatus:
    """One run, told by its summary; a missing one, or one just begun, by the plans of sweeps.

    Attributes:
        folder: of the run.
        status: one of ORDER; "damaged" where the summary cannot be read, "missing" where a sweep planned a run that
            has not begun, "queued" where a SLURM job that is to run it waits.
        epochs, max_epochs: trained and to be trained.
        accuracy: last validation accuracy; None before there is one.
        moment: epoch of the Eureka-moment; None without.
        seconds_left: of a running run, at its speed so far.
        reason: why it failed, or its job and why SLURM lets that wait.
        plans: that ask for a missing run.
    """

    folder: Path
    status: str
    epochs: int = 0
    max_epochs: int = 0
    accuracy: float | None = None
    moment: int | None = None
    seconds_left: float | None = None
    reason: str = ""
    plans: tuple[Plan, ...] = ()


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


class Gathering:
    """Looks at all runs below a folder, again and again; a summary that has not changed is not read again.

    Args:
        root: the folder.
        only: look at these runs alone, whether they are there or not.
    """

    def __init__(self, root: Path, only: Sequence[Path] | None = None) -> None:
        self.root = root
        self._only = only
        self._known: dict[Path, tuple[tuple[int, int], RunStatus]] = {}
        self._queue: dict[str, str | None] | None = None
        self._asked = -jobs.ASK

    def look(self) -> list[RunStatus]:
        """All runs, those that need a look first; runs set aside by ``force=true`` are left out."""
        found = self._below() if self._only is None else [self._of(folder) for folder in self._only]
        return sorted(self._with_jobs(found), key=lambda run: (ORDER.index(run.status), str(run.folder)))

    def _of(self, folder: Path) -> RunStatus:
        return self._status(folder) if (folder / "summary.json").exists() else _planned(folder, ())

    def _below(self) -> list[RunStatus]:
        here = Path(os.path.abspath(self.root))
        runs: dict[Path, RunStatus] = {}
        # A plan covers more than a subfolder of its runs.
        plans = [plan for parent in here.parents for plan in read_plans(parent / FOLDER)]
        for folder, subfolders, files in os.walk(here):
            if "summary.json" in files:
                subfolders.clear()
                if "~" not in Path(folder).name:
                    runs[Path(folder)] = self._status(Path(folder))
            elif FOLDER in subfolders:
                subfolders.remove(FOLDER)
                plans += read_plans(Path(folder) / FOLDER)
        missing: dict[Path, tuple[Plan, ...]] = {}
        for plan in plans:
            for path in plan.folders:
                if path not in runs and path.is_relative_to(here):
                    missing[path] = (*missing.get(path, ()), plan)
        return [*runs.values(), *(_planned(path, asking) for path, asking in missing.items())]

    def _with_jobs(self, runs: list[RunStatus]) -> list[RunStatus]:
        """The same runs; those that are to be run by a job that SLURM has are queued, or about to begin."""
        try:
            noted = jobs.left_open(run.folder for run in runs if run.status in OPEN)
        except ModuleNotFoundError:
            return runs  # without submitit there is no telling which jobs have ended
        if not noted:
            return runs
        # Not at every look: a cluster's controller has more to do.
        if time.monotonic() - self._asked >= jobs.ASK:
            self._queue = slurm.queued(IMPATIENCE)
            self._asked = time.monotonic()
        return [_with_job(run, noted[run.folder].job_id, self._queue) if run.folder in noted else run for run in runs]

    def _status(self, folder: Path) -> RunStatus:
        try:
            file = (folder / "summary.json").stat()
        except FileNotFoundError:
            # Set aside just now.
            return status_of(folder)
        stamp = (file.st_mtime_ns, file.st_ino)
        before, status = self._known.get(folder, (None, None))
        # A killed run's summary still says that it is running: that takes another look.
        if status is None or before != stamp or status.status == "running":
            status = status_of(folder)
            self._known[folder] = (stamp, status)
        return status


def _planned(folder: Path, plans: tuple[Plan, ...]) -> RunStatus:
    """The status of a run without a summary: its process holds the folder while it still loads."""
    if (folder / LOCK).exists() and is_held(folder):
        return RunStatus(folder, "running", reason="loading")
    return RunStatus(folder, "missing", plans=plans)


def _with_job(run: RunStatus, job: str, queue: dict[str, str | None] | None) -> RunStatus:
    """A run with a noted job, by what SLURM says of that."""
    if queue is None:
        asked = f"job {job} may be queued: squeue does not answer"
        return run if run.reason else replace(run, reason=asked)
    if job not in queue:
        return run
    reason = queue[job]
    if reason is None:
        return replace(run, status="running", reason=f"job {job} begins", plans=())
    return replace(run, status="queued", reason=f"job {job}: {reason or 'pending'}", plans=())


def gather(root: Path) -> list[RunStatus]:
    """One look at all runs below a folder."""
    return Gathering(root).look()


def table(runs: list[RunStatus], root: Path, rows: int | None = None) -> Table:
    """The table of the first ``rows`` runs (None: of all), and how many there are of each status."""
    counts = Counter(run.status for run in runs)
    told = ", ".join(f"{counts[status]} {status}" for status in ORDER if counts[status])
    grid = Table(title=f"{root}: {told or 'no runs'}", title_justify="left")
    shown = [_cells(run, root) for run in runs[:rows]]
    for name in ("status", "run", "epoch", "accuracy", "Eureka", "left", "reason"):
        # Most folders have no run that is running, and none that failed.
        if name in ("left", "reason") and not any(cells[name] for cells in shown):
            continue
        grid.add_column(
            name, justify="right" if name in ("epoch", "accuracy", "Eureka", "left") else "left", overflow="fold"
        )
    for cells in shown:
        grid.add_row(*(cells[str(column.header)] for column in grid.columns))
    return grid


def _cells(run: RunStatus, root: Path) -> dict[str, str]:
    return {
        "status": f"[{COLORS[run.status]}]{run.status}[/]",
        "run": os.path.relpath(run.folder, root).replace("[", r"\["),
        "epoch": f"{run.epochs:,}/{run.max_epochs:,}" if run.max_epochs else "",
        "accuracy": f"{run.accuracy:.1%}" if run.accuracy is not None else "",
        "Eureka": f"{run.moment:,}" if run.moment is not None else "",
        "left": _duration(run.seconds_left) if run.seconds_left is not None else "",
        "reason": run.reason.splitlines()[0].replace("[", r"\[") if run.reason else "",
    }


def notes(runs: list[RunStatus], rows: int | None = None) -> list[str]:
    """What stands below the table: how many runs are not shown, which plans ask for the missing ones."""
    told = [f"... and {len(runs) - rows} more"] if rows is not None and len(runs) > rows else []
    for plan, count in Counter(plan for run in runs for plan in run.plans).items():
        told += [
            f"{count} missing of: {plan.command}",
            f"  the same command runs them; to forget them, delete {plan.path}",
        ]
    return told


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _plan(words: list[str]) -> tuple[Path, list[Path]]:
    from hydra_plugins.eureka_lab import offer  # Hydra, which nobody else here needs
    from lab.config import overrides as command  # Hydra, which nobody else here needs

    offer(words)
    return command.planned(words)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?", default=Path("runs"), help="a folder of runs")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="show it again every so many seconds")
    parser.add_argument(
        "--plan",
        nargs=argparse.REMAINDER,
        metavar="OVERRIDE",
        help="last: the runs that python -m lab.train -m with these overrides is going to make, and which are there",
    )
    arguments = parser.parse_args()
    only = None
    if arguments.plan is not None:
        with refusals():
            arguments.root, only = _plan(arguments.plan)
    elif not arguments.root.is_dir():
        tell(f"error: {arguments.root} is no folder: name one that holds runs, as in python -m lab.status runs")
        sys.exit(1)
    if arguments.watch is not None and not arguments.watch > 0:
        parser.error(f"--watch takes a positive number of seconds, got {arguments.watch}")
    console = tables()
    gathering = Gathering(arguments.root, only)
    if arguments.watch is None:
        runs = gathering.look()
        console.print(table(runs, arguments.root))
        for note in notes(runs):
            console.print(note, soft_wrap=True, markup=False, highlight=False)
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        try:
            while True:
                # What does not fit would be cut off all the same, and takes seconds to lay out for 1,000 runs.
                fits = max(1, console.height - 8)
                runs = gathering.look()
                live.update(Group(table(runs, arguments.root, fits), *map(Text, notes(runs, fits))), refresh=True)
                time.sleep(arguments.watch)
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
