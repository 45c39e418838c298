"""SLURM jobs of a sweep: what each job asks for, which run it belongs to, and when it has ended."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from omegaconf import DictConfig

from lab.config.overrides import is_whole
from lab.console import LabError, tell
from lab.files import DamagedFile, read_json, write_json
from lab.runs import slurm
from lab.runs.spec import device_count
from lab.sweeps.plan import FOLDER

if TYPE_CHECKING:
    from submitit.slurm.slurm import SlurmJob

JOB = ".job.json"
# Seconds between two looks at the results, and at the queue.
RESULT_INTERVAL, QUEUE_INTERVAL = 2.0, 15.0
# Seconds that a network file system may take to show the result of a job that has left the queue.
RESULT_TIMEOUT = 20.0
# Seconds that SLURM may be silent, as while its controller restarts, before a sweep gives up.
QUEUE_TIMEOUT = 60.0
# Tells srun the CPUs per task, which it no longer takes from sbatch since SLURM 22.05.
_CPUS_FOR_SRUN = 'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi'

# Patterns of SLURM's reasons for which a job may wait for ever -> where to look then. Limits on all jobs of a user or
# account together are left out: the wait ends as other jobs end.
_STAYS = {
    "PartitionConfig|BadConstraints": "hydra.launcher.cpus_per_task, mem_gb, gpus_per_node, nodes, gres, constraint: "
    "no node of the partition has all of it",
    "PartitionTimeLimit|.*(WallDuration|TimeLimit)": "hydra.launcher.timeout_min",
    "PartitionNodeLimit|.*MaxNodePerJob": "hydra.launcher.nodes",
    "PartitionDown|PartitionInactive": "hydra.launcher.partition: sinfo shows which are up",
    "ReqNodeNotAvail|NodeDown|Nodes.required": "sinfo -R, which says why nodes are down, and hydra.launcher.partition; "
    "before a maintenance, a shorter hydra.launcher.timeout_min",
    ".*Account.*|InvalidQOS|QOSNotAllowed|QOSUsageThreshold|.*Minutes.*": "hydra.launcher.account and qos",
    ".*Per(Job|Node)|QOSMin|MaxMemPerLimit": "hydra.launcher.cpus_per_task, mem_gb, gpus_per_node, nodes and qos",
    "JobHeld|.*held": "who holds it: scontrol release lets it go",
    "DependencyNeverSatisfied|ReservationDeleted": "hydra.launcher.additional_parameters",
}


def with_resources(given: Mapping[str, Any], trainer: DictConfig) -> dict[str, Any]:
    """Returns the launcher's parameters, with nodes, tasks and GPUs that are null set to what the trainer needs.

    Lightning needs exactly one task per device.

    Raises:
        LabError: if the trainer leaves the number of devices to the machine.
    """
    count = device_count(trainer) or given["gpus_per_node"] or given["tasks_per_node"]
    if count is None:
        raise LabError(
            f"trainer.devices={trainer.devices} leaves open how many GPUs a job needs: give "
            "hydra.launcher.gpus_per_node=4, say"
        )
    otherwise = trainer.accelerator == "cpu" or given["gpus_per_task"] or given["gres"]
    needed = {
        "nodes": trainer.num_nodes,
        "tasks_per_node": count,
        "gpus_per_node": None if otherwise else count,
    }
    needed = {name: value for name, value in needed.items() if given[name] is None}
    setup = given["setup"] or []
    lines = [setup] if isinstance(setup, str) else setup
    return {**given, **needed, "setup": [_CPUS_FOR_SRUN, *lines]}


def check_numbers(given: Mapping[str, Any]) -> None:
    """Checks numbers of the launcher that SLURM or submitit would refuse only once the jobs are submitted, if at all.

    Raises:
        LabError: at the first that is no whole number, or if they leave a job no time.
    """
    for name in ("array_parallelism", "max_num_timeout", "timeout_min", "signal_delay_s"):
        if not is_whole(given[name], 0):
            raise LabError(f"hydra.launcher.{name}={given[name]} is wrong: give a whole number, at least 0")
    # SLURM may send its signal a minute early.
    if 60 * given["timeout_min"] <= given["signal_delay_s"] + 60:
        raise LabError(
            f"hydra.launcher.timeout_min={given['timeout_min']} leaves a job no time: its runs are told to save "
            f"signal_delay_s={given['signal_delay_s']} seconds before the end, or up to a minute earlier"
        )


def note(folder: Path, job: SlurmJob, overrides: Iterable[str]) -> None:
    """Writes into a run folder which job is to run it, and with which overrides."""
    noted = {"job": job.job_id, "folder": str(job.paths.folder), "overrides": sorted(overrides)}
    write_json(folder / JOB, noted)


def differ(folder: Path, overrides: Iterable[str]) -> list[str]:
    """Lists the overrides that only one of a run folder's noted job and ``overrides`` has, sorted."""
    try:
        noted = read_json(folder / JOB)["overrides"]
    except (DamagedFile, KeyError, TypeError):
        return []  # no note
    return sorted(set(noted) ^ set(overrides))


@contextmanager
def one_submits(runs: Path) -> Iterator[None]:
    """Lets only one command at a time submit below a folder of runs; the next one then finds the jobs of the first."""
    folder = runs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".submit.lock", fallback_to_soft=False)
    with suppress(OSError):  # a file system without flock
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def find(folders: Iterable[Path]) -> dict[Path, SlurmJob]:
    """Run folder -> its job that an earlier command has submitted and that is still queued or running.

    Raises:
        LabError: if a submitted job has no result and SLURM does not say, for :data:`QUEUE_TIMEOUT` seconds, whether
            it is still queued or running; at once where there is no ``squeue``.
    """
    noted = left_open(folders)
    if not noted:
        return {}
    queue, asked = slurm.queued(), time.monotonic()
    while queue is None:
        # Not submitted again without an answer: a job that is still queued would then run twice.
        if time.monotonic() - asked > QUEUE_TIMEOUT or shutil.which("squeue") is None:
            raise LabError(
                f"squeue does not answer, so that job {next(iter(noted.values())).job_id} of an earlier command may "
                "still be queued: try again once it does"
            )
        time.sleep(RESULT_INTERVAL)
        queue = slurm.queued()
    return {folder: job for folder, job in noted.items() if job.job_id in queue}


def left_open(folders: Iterable[Path]) -> dict[Path, SlurmJob]:
    """Run folder -> its job that an earlier command has submitted and that has left no result, whether ended or not."""
    return {folder: job for folder in folders if (job := _noted(folder)) and not has_result(job)}


def _noted(folder: Path) -> SlurmJob | None:
    path = folder / JOB
    try:
        noted = read_json(path)
        folder_of_job, number = str(noted["folder"]), str(noted["job"])
    except (DamagedFile, KeyError, TypeError):
        return None
    from submitit.slurm.slurm import SlurmJob  # not every installation has it, and most runs have no job

    try:
        job: SlurmJob = SlurmJob(folder_of_job, number)
        # A job's result is a pickle, unsafe to load: one that another user may have put there is not even looked for.
        own = {os.stat(path).st_uid, os.stat(job.paths.folder).st_uid} == {os.getuid()}
        return job if own and job.paths.folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None


def has_result(job: SlurmJob) -> bool:
    """Tells whether a job's first task has left its result."""
    path = job.task(0).paths.result_pickle
    # The folder is listed, since network file systems remember for a while that a file was not there.
    return path.parent.exists() and path.name in os.listdir(path.parent)


def as_they_end(jobs: Mapping[int, SlurmJob]) -> Iterator[tuple[int, SlurmJob]]:
    """Yields each job once it has left a result, or has left the queue without one.

    A job that was queued again counts as queued. While SLURM's controller does not answer, jobs are waited for. Prints
    once for each reason which jobs may not begin however long they wait.
    """
    waiting = dict(jobs)
    said: set[str] = set()
    gone: dict[int, float] = {}
    asked = time.monotonic()
    while waiting:
        for number, job in list(waiting.items()):
            if has_result(job) or time.monotonic() - gone.get(number, time.monotonic()) > RESULT_TIMEOUT:
                yield number, waiting.pop(number)
        if waiting:
            time.sleep(RESULT_INTERVAL)
        if time.monotonic() - asked > QUEUE_INTERVAL and (queue := slurm.queued()) is not None:
            asked = time.monotonic()
            gone = {n: gone.get(n, asked) for n, job in waiting.items() if job.job_id not in queue}
            _tell_of_stuck((job.job_id for job in waiting.values()), queue, said)


def _tell_of_stuck(names: Iterable[str], queue: Mapping[str, str | None], said: set[str]) -> None:
    stuck: dict[str, list[str]] = {}
    for name in names:
        if (reason := queue.get(name)) and (where := advice(reason)) and where not in said:
            stuck.setdefault(where, []).append(name)
    for where, those in stuck.items():
        said.add(where)
        whom = f"job {those[0]} waits" if len(those) == 1 else f"job {those[0]} and {len(those) - 1} more wait"
        tell(
            f"{whom}, maybe for ever: SLURM says {queue[those[0]]}. Look at {where}. To change it: Ctrl-C, "
            f"scancel {those[0].split('_')[0]}, and the command with another value"
        )


def advice(reason: str) -> str | None:
    """Advises where to look if a job waits for this reason of SLURM's; None where the reason passes by itself."""
    return next((where for pattern, where in _STAYS.items() if re.match(pattern, reason, re.IGNORECASE)), None)
