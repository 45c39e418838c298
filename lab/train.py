"""``python -m lab.train experiment=main_task``: the command line, and the same from Python.

It imports nothing heavy before it knows that what was asked for composes: a wrong name is answered at once.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import hydra
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from hydra_plugins.eureka_lab import offer
from lab.config import overrides as command
from lab.config.compose import CONFIGS, initialized
from lab.console import LabError, import_from_here, tell
from lab.runs import slurm
from lab.runs.folder import is_finished, read_summary, run_folder
from lab.training.processes import stopped, train_apart
from lab.training.seeds.numbers import seeds_of


def run(overrides: list[str]) -> dict[str, Any]:
    """``python -m lab.train <overrides>`` from Python (a notebook, a script): the run's summary.

    Raises:
        LabError: for everything that a user can mend.
    """
    if problem := command.problem_with(overrides, sweep=False):
        raise LabError(problem)
    with initialized():
        config = compose("train", overrides=overrides, return_hydra_config=True)
    choices = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config.hydra
    return _train(config, overrides, choices)


def _train(config: DictConfig, overrides: list[str], choices: dict[str, Any]) -> dict[str, Any]:
    if not _finished(config, overrides, choices):
        _check_devices(config.trainer)
    from lab.training.fit import train  # takes seconds: torch, Lightning, timm

    return train(config, overrides, choices)


def _finished(config: DictConfig, overrides: list[str], choices: dict[str, Any]) -> bool:
    """Whether nothing is left to train, which any machine can find out."""
    folders = [run_folder(config, overrides, choices, seed) for seed in seeds_of(config)]
    return not config.force and all(map(is_finished, folders))


def _check_devices(trainer: DictConfig) -> None:
    """Refuses a GPU that is not there before anything is built for it.

    Raises:
        LabError: if the trainer asks for GPUs, and this machine has none, or has fewer.
    """
    if trainer.get("accelerator") not in ("gpu", "cuda"):
        return
    import torch  # takes seconds

    there = torch.cuda.device_count()
    if not there and not (trainer.accelerator == "gpu" and torch.backends.mps.is_available()):
        raise LabError(
            f"trainer.accelerator={trainer.accelerator}, and PyTorch finds no GPU here: trainer=cpu trains without one"
        )
    # Under torchrun each process may see its own GPU alone.
    if isinstance(trainer.devices, int) and trainer.devices > max(there, 1) and "LOCAL_RANK" not in os.environ:
        raise LabError(f"trainer.devices={trainer.devices}, and PyTorch finds no more than {max(there, 1)} GPU here")


def _starts_processes(config: DictConfig) -> bool:
    """Whether Lightning is to start further processes of this run; under SLURM and torchrun they are there already."""
    return config.trainer.devices not in (1, "1") and slurm.job() is None and "LOCAL_RANK" not in os.environ


def _train_apart(config: DictConfig, overrides: list[str], choices: dict[str, Any]) -> dict[str, Any]:
    """Trains one run of a sweep as a command of its own.

    Lightning starts the other processes of a run by the command line, which is that of the whole sweep; and what it
    leaves in this process's environment would make the next run wait for processes that nobody starts.
    """
    status = train_apart([*_search_path(), *overrides])
    if stopped(status):
        sys.exit(status)  # of the whole sweep
    if status:
        raise LabError(f"{' '.join(overrides)}: exit status {status}, for the reason above")
    return read_summary(run_folder(config, overrides, choices, config.seed))


def _search_path() -> list[str]:
    """What of this command line says where configs are, which is no part of a run's own overrides."""
    settings = HydraConfig.get()
    typed = [one for one in settings.overrides.hydra if one.startswith("hydra.searchpath=")]
    folders = [source.path for source in settings.runtime.config_sources if source.provider == "command-line"]
    return [*(f"--config-dir={folder}" for folder in folders), *typed]


def report(summary: dict[str, Any]) -> str:
    """One line on how a run ended."""
    eureka = summary.get("eureka", {})
    told = []
    # Without a threshold nobody has looked for one.
    if eureka.get("threshold") is not None:
        told.append(f"Eureka-moment at epoch {eureka['epoch']}" if eureka["happened"] else "no Eureka-moment")
    accuracy = summary.get("metrics", {}).get("val/accuracy")
    told += [f"validation accuracy {accuracy:.2%}"] if accuracy is not None else []
    told.append(f"{summary.get('steps', 0)} steps")
    told += [summary["error"]] if summary.get("error") else []
    return f"{summary.get('status')}: {', '.join(told)}"


def _share_of_threads(side_by_side: int | None) -> int | None:
    """CPU threads of a process, of which so many run side by side on the CPUs that SLURM gave or the machine has.

    None: as many as torch takes. Two processes of all threads each spend their time waiting for each other.
    """
    cores = slurm.cpus()
    if side_by_side is None:
        return cores
    cores = cores or os.cpu_count() or 1
    return max(1, cores // (cores if side_by_side < 0 else int(side_by_side)))


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def _main(config: DictConfig) -> float | None:
    settings = HydraConfig.get()
    overrides, choices = list(settings.overrides.task), dict(settings.runtime.choices)
    multirun = settings.mode == RunMode.MULTIRUN
    if config.threads is None:
        config.threads = _share_of_threads(settings.launcher.get("n_jobs") if multirun else None)
    try:
        apart = multirun and _starts_processes(config)
        summary = (_train_apart if apart else _train)(config, overrides, choices)
    except LabError as error:
        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        tell(f"error: {error}")
        if multirun:
            # The others of a sweep run all the same; Hydra ends it with this error once they are done.
            raise LabError(str(error)) from None
        sys.exit(1)
    together: dict[int, dict[str, Any]] = summary.get("seeds", {})
    for seed, own in together.items():
        tell(f"seed {seed}: {report(own)}")
    if not together:
        tell(report(summary))
    if failed := [seed for seed, own in together.items() if own.get("status") == "failed"]:
        told = f"seeds {', '.join(map(str, failed))} failed, for the reasons above"
        if multirun:
            raise LabError(told)
        tell(f"error: {told}")
        sys.exit(1)
    # What a search maximises: validation accuracy at the end, of seeds trained together their mean; None, which is a
    # failed trial, where one has not come to its end.
    ended = list(together.values()) or [summary]
    values = [own.get("metrics", {}).get("val/accuracy") for own in ended if own.get("status") == "finished"]
    return None if None in values or len(values) < len(ended) else sum(values) / len(values)


def main() -> None:
    """The command line."""
    import_from_here()
    sys.argv[1:] = command.in_order(sys.argv[1:])
    offer(sys.argv[1:])
    command.check_overrides(sys.argv[1:])
    _main()


if __name__ == "__main__":
    # By its name: what a launcher sends to other processes has to be found there.
    from lab.train import main as named_main

    named_main()
