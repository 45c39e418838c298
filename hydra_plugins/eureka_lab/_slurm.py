"""``hydra/launcher=submitit_slurm``: each run of a sweep a SLURM job of its own.

The plugin's own launcher submits finished runs again, waits for the jobs one after the other, breaks off at the first
that was killed, and asks ``sacct``, which not every cluster has. This one submits what is missing, finds jobs again
that an earlier command has submitted, asks ``squeue``, and reports on every run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.errors import CompactHydraException
from hydra_plugins.hydra_submitit_launcher import submitit_launcher
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from omegaconf import OmegaConf, open_dict
from submitit import AutoExecutor
from submitit.core.utils import FailedSubmissionError, UncompletedJobError
from submitit.slurm.slurm import SlurmJob

from lab import jobs
from lab.errors import LabError
from lab.run import read_summary, run_folder
from lab.seeds.train import numbers
from lab.tell import tell

# Parameters that submitit knows for every kind of cluster; it wants slurm_ before the others.
_GENERIC = BaseQueueConf.__dataclass_fields__


@dataclass(frozen=True)
class _Run:
    """One run of the sweep; under ``seeds``, several in one process.

    Attributes:
        number: in the sweep.
        overrides: of this run.
        folders: of its seeds.
        finished: all of them; nothing is left to run.
    """

    number: int
    overrides: list[str]
    folders: list[Path]
    finished: bool

    def __str__(self) -> str:
        seeds = f" to {self.folders[-1].name}" if len(self.folders) > 1 else ""
        return "/".join(self.folders[0].parts[-3:]) + seeds


class SlurmLauncher(submitit_launcher.SlurmLauncher):
    """Takes the parameters of the plugin's launcher; null for tasks, GPUs and nodes: what the trainer needs."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submits and waits; of a run that did not finish, the result raises when it is read."""
        try:
            return self._launch(job_overrides, initial_job_idx)
        except LabError as error:
            tell(f"error: {error}")
        except KeyboardInterrupt:
            tell("\nThe jobs go on: python -m lab.status shows them, the same command waits for them again.")
        sys.exit(1)

    def _launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        runs = [self._run(initial_job_idx + index, list(one)) for index, one in enumerate(job_overrides)]
        done = [run for run in runs if run.finished]
        queued = {run.number: job for run in runs if not run.finished and (job := jobs.find(run.folders[0]))}
        new = [run for run in runs if not run.finished and run.number not in queued]
        tell(f"{len(runs)} runs: {len(done)} finished, {len(queued)} queued or running already, {len(new)} to submit")
        ends = {run.number: self._run_here(run) for run in done}
        submitted = dict(zip([run.number for run in new], self._submit(new), strict=True))
        for run in new:
            jobs.note(run.folders[0], submitted[run.number])
        every, of = queued | submitted, {run.number: run for run in runs}
        if every:
            tell(f"logs: {next(iter(every.values())).paths.stdout}, and so on; scancel ends a job")
        for number, job in jobs.as_they_end(every):
            end = self._end_of(of[number], job)
            ends[number] = end
            failed = end.status == JobStatus.FAILED
            reason = f": {str(end._return_value).splitlines()[0]} (log: {job.paths.stdout})" if failed else ""
            tell(f"[{len(ends)}/{len(runs)}] {'not finished' if failed else 'finished'}: {of[number]}{reason}")
        broken = [of[number] for number in sorted(ends) if ends[number].status == JobStatus.FAILED]
        for run in broken:
            names = ", ".join(map(str, broken))
            ends[run.number].return_value = CompactHydraException(
                f"{len(broken)} of {len(runs)} runs did not finish: {names}. The same command runs what is missing."
            )
        return [ends[run.number] for run in runs]

    def _run(self, number: int, overrides: list[str]) -> _Run:
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        task, choices = list(config.hydra.overrides.task), dict(config.hydra.runtime.choices)
        asked: Any = OmegaConf.to_object(config.seeds) if OmegaConf.is_config(config.seeds) else config.seeds
        seeds = [config.seed] if asked is None else numbers(asked, config.seed)
        folders = [run_folder(config, task, choices, seed) for seed in seeds]
        finished = not config.force and all(read_summary(path).get("status") == "finished" for path in folders)
        return _Run(number, overrides, folders, finished)

    def _run_here(self, run: _Run) -> JobReturn:
        """What a finished run returns, without a job: training sees that it is finished."""
        setup_globals()
        config = self.hydra_context.config_loader.load_sweep_config(self.config, run.overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = run.number
        return run_job(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )

    def _submit(self, runs: list[_Run]) -> list[SlurmJob]:
        """Submits these runs as one array.

        Raises:
            LabError: if there is no SLURM here, or it refuses them.
        """
        if not runs:
            return []
        assert self.config is not None
        given = jobs.with_resources(self.params, self.config.trainer)
        most, folder = given.pop("max_num_timeout"), given.pop("submitit_folder")
        try:
            executor = AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=most)
            executor.update_parameters(**{k if k in _GENERIC else f"slurm_{k}": v for k, v in given.items()})
            state = Singleton.get_state()
            calls = [(run.overrides, "hydra.sweep.dir", run.number, f"job_id_for_{run.number}", state) for run in runs]
            submitted: Any = executor.map_array(self, *zip(*calls, strict=True))
            return submitted
        except (RuntimeError, ValueError, NameError, AssertionError, FailedSubmissionError) as error:
            raise LabError(f"SLURM does not take the jobs: {' '.join(str(error).split())}") from error

    def _end_of(self, run: _Run, job: SlurmJob) -> JobReturn:
        """What the job returned, or why it returned nothing."""
        try:
            if jobs.has_result(job):
                return job.task(0).result()
            said = [read_summary(folder) for folder in run.folders]
            status = ", ".join(sorted({str(summary.get("status", "not begun")) for summary in said}))
            error: Exception = LabError(
                f"job {job.job_id} was cancelled, killed or out of memory; the run's summary says {status}"
            )
        except UncompletedJobError as trace:
            error = LabError(f"job {job.job_id} failed: {str(trace).strip().splitlines()[-1]}")
        return JobReturn(overrides=run.overrides, status=JobStatus.FAILED, _return_value=error)
