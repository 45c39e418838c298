"""Launcher of ``hydra/launcher=submitit_slurm``: each run of a sweep is a SLURM job of its own.

The launcher of Hydra's submitit plugin submits finished runs again, waits for the jobs one after the other, breaks off
at the first that was killed, and asks ``sacct``, which not every cluster has. This one submits only missing runs, finds
the jobs that an earlier command has submitted, asks ``squeue``, and reports on every run.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra_plugins.hydra_submitit_launcher import submitit_launcher
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from omegaconf import open_dict
from submitit import AutoExecutor
from submitit.core.utils import FailedSubmissionError, UncompletedJobError
from submitit.helpers import clean_env
from submitit.slurm.slurm import SlurmJob

from lab.config.hydra_internals import error_of
from lab.config.overrides import Override, is_whole, last_of_each
from lab.console import LabError, Unfinished, first_line, tell
from lab.runs import slurm
from lab.runs.spec import RunSpec, runs_folder
from lab.runs.summary import is_finished, read_summary
from lab.signals import handling, undisturbed
from lab.sweeps import jobs

# Parameters that submitit knows for every kind of cluster; the names of all others need the prefix slurm_.
_GENERIC = BaseQueueConf.__dataclass_fields__


@dataclass(frozen=True)
class _Run:
    """One run of the sweep; under ``seeds``, several in one process.

    Attributes:
        number: its number in the sweep.
        overrides: of this run.
        folders: run folders of its seeds.
        force: whether to train seeds even if they are finished.
        asks: the launcher's parameters, as this run needs them.
    """

    number: int
    overrides: list[str]
    folders: list[Path]
    force: bool
    asks: dict[str, Any]

    def finished(self) -> bool:
        """Tells whether nothing is left to run."""
        return not self.force and all(map(is_finished, self.folders))

    def __str__(self) -> str:
        seeds = f" to {self.folders[-1].name}" if len(self.folders) > 1 else ""
        return "/".join(self.folders[0].parts[-3:]) + seeds


class SlurmLauncher(submitit_launcher.SlurmLauncher):
    """Takes the parameters of the plugin's launcher; null for tasks, GPUs or nodes means what the trainer needs."""

    def __call__(self, *args: Any, **kwargs: Any) -> JobReturn:
        """Does a run within its job, where SIGTERM is as in any command that trains, whatever submitit does with it."""
        # submitit only notes it: scancel while a run loads would let it train on until it is killed.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        result: JobReturn = super().__call__(*args, **kwargs)
        return result

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submits the runs and waits for them; the result of a run that did not finish raises when it is read."""
        try:
            with handling(_leave, signal.SIGINT, signal.SIGTERM):
                return self._launch(job_overrides, initial_job_idx)
        except LabError as error:
            tell(f"error: {error}")
            sys.exit(1)
        except KeyboardInterrupt as signalled:
            tell("\nThe jobs go on: python -m lab.status shows them, the same command waits for them again.")
            sys.exit(128 + next(iter(signalled.args), signal.SIGINT))

    def _launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        runs = self._runs(job_overrides, initial_job_idx)
        with jobs.one_submits(runs_folder(self.config)):
            # Jobs are found before summaries are read: a run whose job ends in between is finished, not missing.
            found = jobs.find(folder for run in runs for folder in run.folders)
            finished = {run.number for run in runs if run.finished()}
            done = [run for run in runs if run.number in finished]
            left = [run for run in runs if run.number not in finished]
            queued = {run.number: job for run in left if (job := self._job_of(run, found))}
            new = [run for run in left if run.number not in queued]
            there = f"{len(done)} finished, {len(queued)} queued or running already"
            tell(f"{len(runs)} runs: {there}, {len(new)} to submit")
            every = queued | self._submit(new)
        ends = {run.number: self._run_here(run) for run in done}
        of = {run.number: run for run in runs}
        if every:
            tell(f"logs: {next(iter(every.values())).paths.stdout}, and so on; scancel ends a job")
        for number, job in jobs.as_they_end(every):
            end = self._end_of(of[number], job)
            ends[number] = end
            error = error_of(end)
            reason = f": {first_line(error)} (log: {job.paths.stdout})" if error else ""
            tell(f"[{len(ends)}/{len(runs)}] {'not finished' if error else 'finished'}: {of[number]}{reason}")
        return [ends[run.number] for run in runs]

    @staticmethod
    def _job_of(run: _Run, found: dict[Path, SlurmJob]) -> SlurmJob | None:
        """The submitted job that is to train all unfinished seeds of this run; None where none is submitted yet.

        Raises:
            LabError: if the job was submitted with other overrides, or another run's job has some of the seeds: two
                jobs would then need one folder.
        """
        of = {folder: found.get(folder) for folder in run.folders if run.force or not is_finished(folder)}
        names = {job.job_id if job else None for job in of.values()}
        if names <= {None} or len(names) == 1:
            job = next(iter(of.values()), None)
            if job and (other := jobs.differ(next(iter(of)), run.overrides)):
                raise LabError(
                    f"{run}: job {job.job_id} already has this run, from another command that differs in "
                    f"{', '.join(other)}: let that job end, or scancel it, and then give this command again"
                )
            return job
        taken = {folder.name: job.job_id for folder, job in of.items() if job}
        raise LabError(
            f"{run}: {', '.join(f'{seed} is job {job}' for seed, job in taken.items())} already, from another command: "
            "let such jobs end, or scancel them, and then train these seeds together"
        )

    def _runs(self, job_overrides: Sequence[Sequence[str]], first: int) -> list[_Run]:
        """The runs of these overrides.

        Raises:
            LabError: if a parameter is not the number it should be, or the trainer leaves its number of devices open.
        """
        jobs.check_numbers(self.params)
        # Runs that differ only in their seed are composed once: composing takes a good part of a second.
        composed: dict[tuple[str, ...], RunSpec] = {}
        runs = []
        for number, overrides in enumerate(map(list, job_overrides), first):
            typed = last_of_each(overrides)
            setting = tuple(one.text for one in typed.values() if one.key != "seed")
            if setting not in composed:
                config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
                composed[setting] = RunSpec.of(config, config.hydra.overrides.task, config.hydra.runtime.choices)
            spec = composed[setting]
            if "seed" in typed:
                spec = spec.changed(seed=_whole_number(typed["seed"]))
            asks = jobs.with_resources(self.params, spec.config.trainer)
            runs.append(_Run(number, overrides, [one.folder for one in spec.each], spec.force, asks))
        return runs

    def _run_here(self, run: _Run) -> JobReturn:
        """Gets the result of a finished run here, without a job: training sees that the run is finished."""
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

    def _submit(self, runs: list[_Run]) -> dict[int, SlurmJob]:
        """Submits runs, those with equal parameters as one job array, and notes each run's job in its folders.

        Raises:
            LabError: if there is no SLURM here, or it refuses them.
        """
        submitted: dict[int, SlurmJob] = {}
        while left := [run for run in runs if run.number not in submitted]:
            alike = [run for run in left if run.asks == left[0].asks]
            # A job that is submitted but not noted would be submitted again by the same command.
            with undisturbed():
                for run, job in zip(alike, self._submit_array(alike), strict=True):
                    for folder in run.folders:
                        jobs.note(folder, job, run.overrides)
                    submitted[run.number] = job
        return submitted

    def _submit_array(self, runs: list[_Run]) -> list[SlurmJob]:
        asks = dict(runs[0].asks)
        most, folder = asks.pop("max_num_timeout"), asks.pop("submitit_folder")
        state = Singleton.get_state()
        calls = [(run.overrides, "hydra.sweep.dir", run.number, f"job_id_for_{run.number}", state) for run in runs]
        try:
            executor = AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=most)
            executor.update_parameters(**{k if k in _GENERIC else f"slurm_{k}": v for k, v in asks.items()})
            # Inside an interactive job, its SLURM_ variables would be taken for options of the new jobs.
            with clean_env() if slurm.job() else nullcontext():
                jobs_of_runs: Any = executor.map_array(self, *zip(*calls, strict=True))
            return jobs_of_runs
        except (RuntimeError, TypeError, ValueError, NameError, AssertionError, FailedSubmissionError) as error:
            raise LabError(f"SLURM does not take the jobs: {' '.join(str(error).split())}") from error

    def _end_of(self, run: _Run, job: SlurmJob) -> JobReturn:
        """Returns what the job returned, or why it returned nothing."""
        try:
            if jobs.has_result(job):
                return job.task(0).result()
            said = [read_summary(folder) for folder in run.folders]
            status = ", ".join(sorted({summary.status if summary else "not begun" for summary in said}))
            error: Exception = Unfinished(
                f"job {job.job_id} was cancelled, killed or out of memory; the run's summary says {status}"
            )
        except UncompletedJobError as failure:
            # The traceback stands between two lines of hyphens; its last line names the error.
            trace = str(failure).split("-" * 22)
            why = trace[len(trace) // 2].strip().splitlines()[-1]
            saved = slurm.NOT_QUEUED_AGAIN in why  # SLURM's time limit came before the run had begun to train
            error = (Unfinished if saved else LabError)(f"job {job.job_id} failed: {why}")
        return JobReturn(overrides=run.overrides, status=JobStatus.FAILED, _return_value=error)


def _leave(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt(number)


def _whole_number(seed: Override) -> int:
    value = seed.parsed()
    if not is_whole(value):
        raise LabError(f"{seed.text} is wrong: a seed is a whole number")
    return value
