"""SLURM jobs of a sweep: what each asks for, which run has which, and when it has ended."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
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
# Seconds that SLURM may be silent, as while its controller restarts, before a sweep gives up.
SILENCE = 60.0
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


def find(folders: Iterable[Path]) -> dict[Path, SlurmJob]:
    """By run folder, the jobs that an earlier command has submitted and that are still queued or running.

    Raises:
        LabError: if there are such jobs and SLURM does not say, for :data:`SILENCE` seconds, whether they are.
    """
    noted = {folder: job for folder in folders if (job := _noted(folder)) and not has_result(job)}
    if not noted:
        return {}
    queue, asked = slurm.queued(), time.monotonic()
    while queue is None:
        # Submitted again, each of them would run twice.
        if time.monotonic() - asked > SILENCE or shutil.which("squeue") is None:
            raise LabError(
                f"squeue does not answer, so that job {next(iter(noted.values())).job_id} of an earlier command may "
                "still be queued: try again once it does"
            )
        time.sleep(LOOK)
        queue = slurm.queued()
    return {folder: job for folder, job in noted.items() if job.job_id in queue}


def _noted(folder: Path) -> SlurmJob | None:
    try:
        noted = json.loads((folder / JOB).read_text())
        return SlurmJob(noted["folder"], noted["job"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None


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
