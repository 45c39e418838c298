"""Reads what SLURM tells a process about its job, and asks which jobs are queued; outside SLURM there is nothing."""

from __future__ import annotations

import os
import subprocess

# What submitit's errors say of a job that has reached its time limit once too often.
NOT_QUEUED_AGAIN = "not requeued because"


def job() -> str | None:
    """The job as SLURM's commands name it: ``12``, or ``12_3`` for a task of an array."""
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID")


def restarts() -> int:
    """Counts how often SLURM has queued this job again."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def cpus() -> int | None:
    """CPUs that one task of the job has on this node."""
    if per_task := os.environ.get("SLURM_CPUS_PER_TASK"):
        return int(per_task)
    if on_node := os.environ.get("SLURM_CPUS_ON_NODE"):
        return max(1, int(on_node) // int(os.environ.get("SLURM_NTASKS_PER_NODE") or 1))
    return None


# States of a waiting job, as squeue's %t gives them: pending, and the kinds of queued again.
_WAITS = {"PD", "RQ", "RF", "RH", "SE"}


def queued(timeout: float = 60.0) -> dict[str, str | None] | None:
    """This user's jobs that are pending or running, and why a pending one waits.

    Args:
        timeout: seconds that SLURM may take.

    Returns:
        Name of a job, as in :func:`job` -> why it waits ("Priority"; "" before SLURM has looked at it), or None once it
        has begun. None in place of the mapping where SLURM does not answer, or is not there.
    """
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i|%t|%r"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = (line.strip().split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2)
    return {job: ("" if reason == "None" else reason) if state in _WAITS else None for job, state, reason in lines}
