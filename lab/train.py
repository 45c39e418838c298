"""``python -m lab.train experiment=main_task``: the command line.

Nothing heavy is loaded before the overrides are known to compose, so that a wrong name is answered at once.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from hydra_plugins.eureka_lab import offer
from lab.config import command_line
from lab.config.arguments import tell_version
from lab.config.compose import CONFIGS
from lab.console import LabError, Refused, Unfinished, begin_lines, import_from_here, noted_if_slow, refusals, tell
from lab.runs.spec import RunSpec
from lab.runs.summary import Summary
from lab.terminal import outlive_readers
from lab.training.processes import end_with_rank_0, ended_with_parent
from lab.training.start import run, share_of_threads, start, start_apart, starts_processes

__all__ = ["main", "run"]


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def _main(config: DictConfig) -> float | None:
    settings = HydraConfig.get()
    multirun = settings.mode == RunMode.MULTIRUN
    if multirun and multiprocessing.parent_process() is not None:
        begin_lines(f"#{settings.job.num}")  # other runs of the sweep write between its lines
        tell(" ".join(settings.overrides.task))
    try:
        spec = RunSpec.of(config, settings.overrides.task, settings.runtime.choices)
        if spec.config.threads is None:
            spec = spec.changed(threads=share_of_threads(settings.launcher.get("n_jobs") if multirun else None))
        apart = multirun and starts_processes(spec)
        with ended_with_parent():
            summaries = start_apart(spec, _search_path()) if apart else start(spec)
    except LabError as error:
        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        cut_short = multirun and isinstance(error, Unfinished)
        tell(str(error) if cut_short else f"error: {error}", by_all=True)
        if multirun:
            # The other runs of the sweep still run; it ends with status 1 once they are done. Only the sentence is sent
            # from another process: not every error can be.
            kind = next(kind for kind in (Unfinished, Refused, LabError) if isinstance(error, kind))
            raise kind(str(error)) from None
        sys.exit(1)
    for summary in summaries:
        tell(f"seed {summary.seed}: {summary}" if spec.several else str(summary))
    if spec.several and (failed := [str(one.seed) for one in summaries if one.status == "failed"]):
        told = f"seeds {', '.join(failed)} failed, for the reasons above"
        if multirun:
            raise LabError(told)
        tell(f"error: {told}")
        sys.exit(1)
    return _objective(summaries)


def _objective(summaries: Sequence[Summary]) -> float | None:
    """Returns the objective of a search: the validation accuracy at the end, averaged over seeds trained together.

    None, which makes the trial a failed one, if a run has not come to its end.
    """
    values = [summary.accuracy for summary in summaries if summary.finished]
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there and len(there) == len(summaries) else None


def _search_path() -> list[str]:
    """Returns the part of this command line that says where configs are."""
    settings = HydraConfig.get()
    typed = [one for one in settings.overrides.hydra if one.startswith("hydra.searchpath=")]
    folders = [source.path for source in settings.runtime.config_sources if source.provider == "command-line"]
    return [*(f"--config-dir={folder}" for folder in folders), *typed]


@refusals()
def main() -> None:
    """Runs the command line."""
    end_with_rank_0()  # first: a process that a signal ends while it loads would have Lightning kill rank 0
    outlive_readers()
    tell_version(sys.argv[1:])
    import_from_here()
    sys.argv[1:] = command_line.in_order(sys.argv[1:])
    offer(sys.argv[1:])
    with noted_if_slow("loading PyTorch"):  # to check an option, its class is imported
        command_line.check_overrides(sys.argv[1:])
    _main()


if __name__ == "__main__":
    # Imported by name, not run as __main__: other processes must be able to find what a launcher sends them.
    from lab.train import main as named_main

    named_main()
