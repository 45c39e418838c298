"""Finds out what the runs below a folder are doing, and which runs of a sweep are still missing."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from lab.console import duration, printable
from lab.files import DamagedFile
from lab.runs import slurm
from lab.runs.lock import LOCK, is_held
from lab.runs.summary import FILE, as_it_is_now, load_summary
from lab.runs.walk import walk_runs
from lab.sweeps import jobs
from lab.sweeps.plan import FOLDER, Plan, read_plans

# From statuses that need attention to those that do not.
ORDER = ("failed", "damaged", "running", "queued", "stopped", "missing", "left out", "finished")
COLORS = {
    "failed": "red",
    "damaged": "red",
    "running": "cyan",
    "queued": "blue",
    "stopped": "yellow",
    "missing": "magenta",
    "left out": "yellow",
    "finished": "green",
}

# Statuses of runs that may have a SLURM job in the queue.
OPEN = ("failed", "stopped", "missing")
# Seconds that squeue may take before the table is shown without it.
STATUS_TIMEOUT = 5.0


@dataclass(frozen=True)
class RunStatus:
    """Status of one run, from its summary; of a run without one, from its lock and the plans of sweeps.

    Attributes:
        folder: of the run.
        status: one of ORDER; "damaged" where the summary cannot be read, "missing" where a sweep planned a run that
            has not begun, "queued" where a SLURM job that is to run it waits, "left out" of a folder that is not looked
            into.
        epochs, max_epochs: trained and to be trained.
        accuracy: last validation accuracy; None before there is one.
        metric, value: the metric that is watched for the moment, and its last value; None where they are not known.
        watched: both as text; "" where it is the accuracy.
        moment: epoch of the Eureka-moment; None without.
        change: epoch of the change point of the metric that is watched; None without.
        seconds_left: of a running run, when its summary was written.
        reason: why it failed or was stopped, or its SLURM job and why that waits.
        plans: the plans that ask for the run, where it is missing.
    """

    folder: Path
    status: str
    epochs: int = 0
    max_epochs: int = 0
    accuracy: float | None = None
    metric: str | None = None
    value: float | None = None
    watched: str = ""
    moment: int | None = None
    change: int | None = None
    seconds_left: float | None = None
    reason: str = ""
    plans: tuple[Plan, ...] = ()


def status_of(folder: Path) -> RunStatus:
    """The status of the run in a folder that holds a ``summary.json``."""
    try:
        summary = as_it_is_now(load_summary(folder), folder)
    except DamagedFile as error:
        return RunStatus(folder, "damaged", reason=error.short)
    epochs, most = summary.epochs, summary.max_epochs or 0
    running = summary.status == "running"
    left = summary.seconds_left
    if left is None and epochs:  # seeds that train together have one progress bar, which no single summary reads
        left = summary.wall_seconds / epochs * max(0, most - epochs)
    return RunStatus(
        folder=folder,
        status=summary.status,
        epochs=epochs,
        max_epochs=most,
        accuracy=summary.accuracy,
        metric=summary.eureka.metric,
        value=summary.watched,
        watched=summary.watched_told,
        moment=summary.moment,
        change=summary.change,
        seconds_left=left if running else None,
        reason=summary.error or "pruned by its search" * (summary.pruned and summary.status == "stopped"),
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
        self._asked = -jobs.QUEUE_INTERVAL

    def look(self) -> list[RunStatus]:
        """All runs, those that need a look first; runs set aside by ``force=true`` are left out."""
        found = self._below() if self._only is None else [self._of(folder) for folder in self._only]
        return sorted(self._with_jobs(found), key=lambda run: (ORDER.index(run.status), str(run.folder)))

    def _of(self, folder: Path) -> RunStatus:
        return self._status(folder) if (folder / FILE).exists() else _planned(folder, ())

    def _below(self) -> list[RunStatus]:
        here = Path(os.path.abspath(self.root))
        # Plans lie in the folder of all runs, of which root may be a subfolder.
        plans = [plan for parent in here.parents for plan in read_plans(parent / FOLDER)]
        runs: dict[Path, RunStatus] = {}
        for one in walk_runs(
            here,
            on_folder=lambda folder: plans.extend(read_plans(folder / FOLDER)),
            on_skipped=lambda folder, why: runs.update({folder: RunStatus(folder, "left out", reason=why)}),
        ):
            runs[one.path] = self._status(one.path)
        missing: dict[Path, tuple[Plan, ...]] = {}
        for plan in plans:
            for path in plan.folders:
                if path not in runs and path.is_relative_to(here):
                    missing[path] = (*missing.get(path, ()), plan)
        return [*runs.values(), *(_planned(path, asking) for path, asking in missing.items())]

    def _with_jobs(self, runs: list[RunStatus]) -> list[RunStatus]:
        """The same runs; a run whose job is in SLURM's queue is "queued", or "running" once the job begins."""
        try:
            noted = jobs.left_open(run.folder for run in runs if run.status in OPEN)
        except ModuleNotFoundError:
            return runs  # without submitit there is no telling which jobs have ended
        if not noted:
            return runs
        # Not at every look, to spare the cluster's controller.
        if time.monotonic() - self._asked >= jobs.QUEUE_INTERVAL:
            self._queue = slurm.queued(STATUS_TIMEOUT)
            self._asked = time.monotonic()
        return [_with_job(run, noted[run.folder].job_id, self._queue) if run.folder in noted else run for run in runs]

    def _status(self, folder: Path) -> RunStatus:
        try:
            file = (folder / FILE).stat()
        except FileNotFoundError:
            # The run was set aside just now.
            return status_of(folder)
        stamp = (file.st_mtime_ns, file.st_ino)
        before, status = self._known.get(folder, (None, None))
        # A run may be killed, and may go on, without a change of its file: these are read again.
        if status is None or before != stamp or status.status in ("running", "stopped"):
            status = status_of(folder)
            self._known[folder] = (stamp, status)
        return status


def _planned(folder: Path, plans: tuple[Plan, ...]) -> RunStatus:
    """Status of a run without a summary: "running" if a process, still loading, holds its folder, else "missing"."""
    with suppress(PermissionError):  # a colleague's folder that one may not read
        if (folder / LOCK).exists() and is_held(folder):
            return RunStatus(folder, "running", reason="loading")
    return RunStatus(folder, "missing", plans=plans)


def _with_job(run: RunStatus, job: str, queue: dict[str, str | None] | None) -> RunStatus:
    """A run with a noted job, its status by what SLURM says of that job."""
    if queue is None:
        asked = f"job {job} may be queued: squeue does not answer"
        return run if run.reason else replace(run, reason=asked)
    if job not in queue:
        return run
    reason = queue[job]
    if reason is None:
        return replace(run, status="running", reason=f"job {job} begins", plans=())
    return replace(run, status="queued", reason=f"job {job}: {reason or 'pending'}", plans=())


def table(runs: list[RunStatus], root: Path, rows: int | None = None) -> Table:
    """The table of the first ``rows`` runs (None: of all), and how many there are of each status."""
    counts = Counter(run.status for run in runs)
    told = ", ".join(f"{counts[status]} {status}" for status in ORDER if counts[status])
    grid = Table(title=_shown(f"{root}: {told or 'no runs'}"), title_justify="left")
    shown = [_cells(run, root) for run in runs[:rows]]
    for name in ("status", "run", "epoch", "accuracy", "watched", "Eureka", "change point", "left", "reason"):
        # Without empty columns: most folders have no run that is running, and none that failed.
        if name in ("watched", "change point", "left", "reason") and not any(cells[name] for cells in shown):
            continue
        grid.add_column(name, justify="left" if name in ("status", "run", "reason") else "right", overflow="fold")
    for cells in shown:
        grid.add_row(*(cells[str(column.header)] for column in grid.columns))
    return grid


def _cells(run: RunStatus, root: Path) -> dict[str, str]:
    return {
        "status": f"[{COLORS[run.status]}]{run.status}[/]",
        "run": _shown(os.path.relpath(run.folder, root)),
        "epoch": f"{run.epochs:,}/{run.max_epochs:,}" if run.max_epochs else "",
        "accuracy": f"{run.accuracy:.1%}" if run.accuracy is not None else "",
        "watched": _shown(run.watched),
        "Eureka": f"{run.moment:,}" if run.moment is not None else "",
        "change point": f"{run.change:,}" if run.change is not None else "",
        "left": duration(run.seconds_left) if run.seconds_left is not None else "",
        "reason": _shown(next(iter(run.reason.strip().splitlines()), "")),
    }


def plain(run: RunStatus, root: Path) -> dict[str, str | float | None]:
    """The cells of a run as values, for a program: None where they are not known, or no numbers that JSON has."""
    begun = run.metric is not None  # there is a summary that can be read
    return {
        "status": run.status,
        "run": os.path.relpath(run.folder, root),
        "epoch": run.epochs if begun else None,
        "max_epochs": run.max_epochs or None,
        "accuracy": _finite(run.accuracy),
        "metric": run.metric,
        "value": _finite(run.value),
        "moment": run.moment,
        "change_point": run.change,
        "seconds_left": run.seconds_left,
        "reason": run.reason or None,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _shown(text: str) -> str:
    """Escapes text that somebody else may have written, so that rich prints it literally."""
    return escape(printable(text))


def notes(runs: list[RunStatus], rows: int | None = None) -> list[str]:
    """Lines below the table: how many runs are not shown, which plans ask for the missing ones."""
    told = [f"... and {len(runs) - rows} more"] if rows is not None and len(runs) > rows else []
    for plan, count in Counter(plan for run in runs for plan in run.plans).items():
        told += [
            f"{count} missing of: {printable(plan.command)}",
            f"  the same command runs them; to forget them, delete {printable(str(plan.path))}",
        ]
    return told
