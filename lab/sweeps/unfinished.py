"""End of a sweep some of whose runs did not finish, told in one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import NoReturn

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from lab.config.hydra_internals import error_of
from lab.console import LabError, Refused, first_line, tell
from lab.runs.spec import runs_folder
from lab.runs.summary import is_finished
from lab.sweeps.record import names_of
from lab.sweeps.waiting import end_if_told


class TellingLauncher:
    """Launches jobs by another launcher and ends the program with one sentence if some runs did not finish.

    Hydra's sweeper would print the overrides of the first such run, its reason once more, and how to see a traceback.

    Args:
        launcher: launches the jobs.
        config: the multirun's, as Hydra composed it.
    """

    def __init__(self, launcher: Launcher, config: DictConfig) -> None:
        self._launcher, self._config = launcher, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Returns the results; those with an error that is no :class:`LabError` are left to Hydra, which shows it.

        Raises:
            SystemExit: if a run has failed or was cut short, for a reason that it has told itself, or if a process was
                killed.
        """
        try:
            results = self._launcher.launch(job_overrides, initial_job_idx=initial_job_idx)
        except BrokenProcessPool as error:  # of joblib, which ends all processes where one was lost
            end_if_told()
            tell(lost_process("this sweep", error))
            names = names_of(self._config, job_overrides)
            self._end([of_seeds for of_seeds in names if not self._is_done(of_seeds)], [], len(names))
        end_if_told()
        errors = [error_of(one) for one in results]
        broken = [(jobs, error) for jobs, error in zip(job_overrides, errors, strict=True) if error]
        unexpected = any(not isinstance(error, LabError) for _, error in broken)
        if not broken or unexpected or os.environ.get("HYDRA_FULL_ERROR"):
            return results
        refused = [jobs for jobs, error in broken if isinstance(error, Refused)]
        missing = [jobs for jobs, error in broken if not isinstance(error, Refused)]
        self._end(names_of(self._config, missing), names_of(self._config, refused), len(results))

    def _is_done(self, of_seeds: Sequence[str]) -> bool:
        """Tells whether all runs of a job have finished; under force nobody knows, as it may be the runs before."""
        runs = runs_folder(self._config)
        return not self._config.force and all(is_finished(runs / name) for name in of_seeds)

    def _end(self, missing: Sequence[Sequence[str]], refused: Sequence[Sequence[str]], jobs: int) -> NoReturn:
        """Names the runs of jobs that did not finish, and of those that were refused; ends the program."""
        if refused:
            why = "as their folders hold runs of another configuration"
            tell(f"error: {len(refused)} of {jobs} runs refused, {why}: {', '.join(map(_name, refused))}")
        if missing:
            names, again = ", ".join(map(_name, missing)), "The same command runs what is missing."
            tell(f"error: {len(missing)} of {jobs} runs did not finish: {names}. {again}")
        sys.exit(1)


def lost_process(of: str, error: BrokenProcessPool) -> str:
    """Says that a process of a sweep or a search was lost, and why, as joblib tells it."""
    why = first_line(error).partition(". ")[0]
    return f"a process of {of} was lost ({why}; lack of memory, for one), and those beside it were ended"


def _name(of_seeds: Sequence[str]) -> str:
    """Name of a job: that of its run, or of its first and last seed."""
    first, *others = of_seeds
    return f"{first} to {others[-1].rpartition('/')[2]}" if others else first
