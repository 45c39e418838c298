"""Shared parts of the reproduction scripts: runs as a user types them, their duration, the origin of figures."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lab.console import LabError
from lab.runs.provenance import git_state, machine, now, versions
from lab.runs.spec import run_name
from lab.runs.summary import read_summary
from lab.runs.walk import walk_runs
from lab.training.processes import stopped, train_apart


def train(overrides: Sequence[str], runs: Path | None = None) -> bool:
    """Runs ``python -m lab.train`` with these overrides; what is finished already costs seconds.

    Args:
        overrides: as typed.
        runs: folder of the runs; None: as the overrides say.

    Returns:
        Whether it trained to its end; a run that failed has told why (a loss that was not finite, say).

    Raises:
        SystemExit: if it was stopped.
    """
    print(f"$ python -m lab.train {' '.join(overrides)}", flush=True)
    status = train_apart([*overrides, *([f"paths.runs={runs}"] if runs else [])])
    if stopped(status):
        sys.exit(status)
    return status == 0


def folder_of(runs: Path, experiment: str, softmax: str, seed: int, overrides: Sequence[str]) -> Path:
    """Returns the folder of the run of these overrides."""
    return runs / run_name(experiment, softmax, seed, overrides)


class Speed(NamedTuple):
    """Seconds of a training, without its start and its validations."""

    per_step: float
    per_sample: float


def speed_of(overrides: Sequence[str], steps: int = 60) -> Speed:
    """Measures how fast this machine trains, by a short run of the same setting in a folder of its own.

    Raises:
        LabError: if that run fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        # An epoch has a step at least: so many epochs never end it before its steps are done.
        length = [f"trainer.max_epochs={steps}", f"trainer.max_steps={steps}"]
        window = f"callbacks.throughput.every_n_steps={steps // 3}"
        own = [*overrides, *length, window, f"paths.runs={folder}", "logger=csv_only"]
        with (Path(folder) / "log").open("w+") as log:
            status = train_apart(own, log)
            if stopped(status):
                sys.exit(status)
            if status:
                log.seek(0)
                said = [line.strip() for line in log if line.strip()]
                why = said[-1].removeprefix("error: ") if said else "nothing was said"
                raise LabError(f"{' '.join(overrides)} does not train here: {why}")
        summary = read_summary(next(walk_runs(Path(folder))).path)
    assert summary is not None and summary.samples_per_second
    per_sample = 1 / summary.samples_per_second
    return Speed(per_sample * summary.samples / summary.steps, per_sample)


def tell_duration(what: str, seconds: float) -> None:
    """One line: how long the rest takes on this machine."""
    print(f"{what}: about {seconds / 60:.0f} minutes on this machine; stop it at any time, the same command goes on.")


def origin(command: str) -> str:
    """The line under a result: command, machine, versions, date."""
    here, git = machine(), git_state()
    packages = versions()
    processor = here["gpu"] or here["processor"] or "unknown processor"
    return (
        f"`{command}`, {now()[:10]}, {processor} ({here['cores']} cores), "
        f"torch {packages['torch']}, commit {str(git['commit'])[:8]}."
    )
