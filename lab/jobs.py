"""SLURM jobs of a sweep: what each asks for, which run has which, and when it has ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from submitit.slurm.slurm import SlurmJob

from lab import slurm
from lab.errors import LabError
from lab.files import write_json

JOB = ".job.json"
# Seconds between two looks at the results, and at the queue.
LOOK, ASK = 2.0, 15.0
# Seconds that a network file system may take to show the result of a job that has left the queue.
PATIENCE = 20.0
# srun has not taken them from sbatch since SLURM 22.05.
_CPUS_FOR_SRUN = 'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi'


def with_resources(given: Mapping[str, Any], trainer: DictConfig) -> dict[str, Any]:
    """Parameters of the launcher; where they are null, nodes, tasks and GPUs as the trainer needs them.

    Lightning wants one task a device, and no other number.

    Raises:
        LabError: if the trainer leaves the number of devices to the machine.
    """
    devices = trainer.devices
    count = len(devices) if OmegaConf.is_list(devices) else int(devices) if str(devices).isdigit() else None
    count = count or given["gpus_per_node"] or given["tasks_per_node"]
    if count is None:
        raise LabError(
            f"trainer.devices={devices} leaves open how many GPUs a job needs: give hydra.launcher.gpus_per_node=4, say"
        )
    otherwise = trainer.accelerator == "cpu" or given["gpus_per_task"] or given["gres"]
    needed = {
        "nodes": trainer.num_nodes,
        "tasks_per_node": count,
        "gpus_per_node": None if otherwise else count,
    }
    needed = {name: value for name, value in needed.items() if given[name] is None}
    return {**given, **needed, "setup": [_CPUS_FOR_SRUN, *(given["setup"] or [])]}


def note(folder: Path, job: SlurmJob) -> None:
    """Writes into a run folder which job is to run it."""
    write_json(folder / JOB, {"job": job.job_id, "folder": str(job.paths._folder)})


def find(folder: Path) -> SlurmJob | None:
    """The job of a run that an earlier command has submitted, if it is still queued or running."""
    try:
        noted = json.loads((folder / JOB).read_text())
        job: SlurmJob = SlurmJob(noted["folder"], noted["job"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None
    return job if not has_result(job) and job.job_id in (slurm.queued() or ()) else None


def has_result(job: SlurmJob) -> bool:
    """Whether a job's first task has left its result."""
    path = job.task(0).paths.result_pickle
    # Listed, since network file systems remember for a while that a file was not there.
    return path.parent.exists() and path.name in os.listdir(path.parent)


def as_they_end(jobs: Mapping[int, SlurmJob]) -> Iterator[tuple[int, SlurmJob]]:
    """The jobs, each once it has left a result, or has left the queue without one.

    A job that was queued again is in the queue; one that SLURM says nothing of (the controller does not answer) waits.
    """
    waiting = dict(jobs)
    gone: dict[int, float] = {}
    asked = time.monotonic()
    while waiting:
        for number, job in list(waiting.items()):
            if has_result(job) or time.monotonic() - gone.get(number, time.monotonic()) > PATIENCE:
                yield number, waiting.pop(number)
        if waiting:
            time.sleep(LOOK)
        if time.monotonic() - asked > ASK and (queue := slurm.queued()) is not None:
            asked = time.monotonic()
            gone = {n: gone.get(n, asked) for n, job in waiting.items() if job.job_id not in queue}
