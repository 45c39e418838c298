"""What the reproduction scripts share: runs as a user types them, their duration, the origin of figures."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.provenance import git_state, machine, now, versions
from lab.run import read_summary, run_name


def train(overrides: Sequence[str], runs: Path) -> bool:
    """Runs ``python -m lab.train`` with these overrides; what is finished already costs seconds.

    Returns:
        Whether it trained to its end; a run that failed has told why (a loss that was not finite, say).

    Raises:
        SystemExit: if it was stopped.
    """
    print(f"$ python -m lab.train {' '.join(overrides)}", flush=True)
    try:
        start([*overrides, f"paths.runs={runs}"])
    except subprocess.CalledProcessError as error:
        if error.returncode != 1:
            sys.exit(error.returncode if error.returncode > 0 else 128 - error.returncode)
        return False
    return True


def start(overrides: Sequence[str], **options: Any) -> None:
    """``python -m lab.train`` in a process of its own; ``options`` are those of :func:`subprocess.run`."""
    subprocess.run([sys.executable, "-m", "lab.train", *overrides], check=True, **options)


def folder_of(runs: Path, experiment: str, softmax: str, seed: int, overrides: Sequence[str]) -> Path:
    """Where the run of these overrides lies."""
    return runs / run_name(experiment, softmax, seed, overrides)


def seconds_per_step(overrides: Sequence[str], steps: int = 60) -> float:
    """Measured on this machine by a short run of the same setting in a folder of its own; its start is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        # An epoch has a step at least: so many epochs never end it before its steps are done.
        length = [f"trainer.max_epochs={steps}", f"trainer.max_steps={steps}"]
        window = f"callbacks.throughput.every_n_steps={steps // 3}"
        own = [*overrides, *length, window, f"paths.runs={folder}", "logger=csv_only"]
        start(own, capture_output=True)
        summary = read_summary(next(Path(folder).rglob("summary.json")).parent)
    return summary["samples"] / summary["steps"] / summary["samples_per_second"]


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
