"""What SLURM tells a process of the job it runs in; outside of SLURM, nothing."""

from __future__ import annotations

import os
import subprocess


def job() -> str | None:
    """The job as SLURM's commands name it: ``12``, or ``12_3`` for a task of an array."""
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID")


def restarts() -> int:
    """How often SLURM has queued this job again."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def cpus() -> int | None:
    """CPUs that one task of the job has on this node."""
    if per_task := os.environ.get("SLURM_CPUS_PER_TASK"):
        return int(per_task)
    if on_node := os.environ.get("SLURM_CPUS_ON_NODE"):
        return max(1, int(on_node) // int(os.environ.get("SLURM_NTASKS_PER_NODE") or 1))
    return None


def queued() -> set[str] | None:
    """This user's jobs that are pending or running, by :func:`job`'s names; None where SLURM does not answer."""
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(done.stdout.split())
