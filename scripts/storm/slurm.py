"""SLURM: the jobs of a sweep are killed or cancelled, and the same command ends with the runs of an undisturbed one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

from lab.runs.lock import read_holder
from scripts.process import Process, finding
from scripts.storm.case import Case, Storm
from scripts.storm.command import ROOT
from scripts.storm.compare import differences
from scripts.storm.grounds import Grounds
from scripts.storm.shapes import overrides

_SHAPES = ("reasoning", "heat treatment")
# Seconds: jobs wait for each other, and each one imports all libraries anew.
_TIMEOUT = 900.0
_LAUNCHER = (
    "hydra/launcher=submitit_slurm",
    "hydra.launcher.cpus_per_task=1",
    "hydra.launcher.mem_gb=1",
    "hydra.launcher.timeout_min=20",
)


def _missing() -> str | None:
    """Says what this machine lacks: a SLURM that takes jobs."""
    if shutil.which("sbatch") is None:
        return "sbatch is not there"
    nodes = subprocess.run(["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True)
    return None if {"idle", "mixed", "allocated"} & set(nodes.stdout.split()) else "no node of SLURM takes jobs"


def _case(grounds: Grounds, number: int) -> Case:
    drawn = grounds.random("slurm", number)
    deed, shape = ("killed", "cancelled")[number % 2], drawn.choice(_SHAPES)
    return Case(deed, f"{shape}, its job {deed}", partial(_carry_out, grounds, drawn, shape, deed))


STORM = Storm(
    count=4,
    held="the same command submits what is missing, and ends with the bits of undisturbed runs",
    draw=_case,
    missing=_missing,
)


def _carry_out(grounds: Grounds, drawn: random.Random, shape: str, deed: str, folder: Path) -> str | None:
    undisturbed = grounds.undisturbed(shape)
    wait = drawn.random() * undisturbed.seconds / 2
    try:
        first = _start(shape, folder)
        deadline = time.monotonic() + _TIMEOUT
        while not (held := _saved(folder)) and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if held:
            time.sleep(wait)
            _disturb(held, deed)
        first.wait(_TIMEOUT)
        again = _start(shape, folder)
        again.wait(_TIMEOUT)
        said = again.err.read_text()
        if again.returncode or "Traceback" in said:
            return f"the same command afterwards: exit status {again.returncode}: {said.strip().splitlines()[-1]}"
        return "; ".join(differences(folder / "runs", undisturbed.runs)[:4]) or None
    finally:
        jobs = {path.name.split("_")[0] for path in folder.glob("runs/.sweeps/slurm/*")}
        subprocess.run(["scancel", *jobs], capture_output=True)


def _start(shape: str, folder: Path) -> Process:
    """Starts a sweep of one run, with the code of this checkout."""
    words = ["-m", "lab.train", "-m", *overrides(shape, folder / "runs"), *_LAUNCHER]
    return Process(*words, folder=folder, environment=finding(ROOT))


def _saved(folder: Path) -> Path | None:
    """Returns the run folder once a job holds it and has saved."""
    runs = [path.parent.parent for path in folder.glob("runs/*/*/*/checkpoints/last-*.ckpt")]
    return next((run for run in runs if read_holder(run)), None)


def _disturb(run: Path, deed: str) -> None:
    """Kills or cancels the job that holds a run, unless it has ended."""
    holder = read_holder(run)
    if holder is None:
        return
    if deed == "killed":
        os.kill(holder.pid, signal.SIGKILL)
    elif holder.job:
        subprocess.run(["scancel", holder.job], capture_output=True)
