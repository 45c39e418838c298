"""Starts training for a command, a script or a notebook; imports nothing heavy before it is known what to train."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from omegaconf import DictConfig

from lab.console import LabError, noted_if_slow
from lab.runs import slurm
from lab.runs.spec import RunSpec, device_count
from lab.runs.summary import Summary, is_finished, read_summary
from lab.signals import Ended, surely
from lab.training.memory import keep_freed_memory
from lab.training.processes import stopped, train_apart

# Held by the thread that trains; a callback of that run may call lab.run again.
_training = threading.RLock()


def _none_trains() -> None:
    """Frees a forked process of the lock that a thread of its parent held, and that it has not got."""
    global _training
    _training = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_none_trains)


def run(overrides: Sequence[str]) -> list[Summary]:
    """Trains what ``python -m lab.train <overrides>`` trains; returns one summary per seed.

    Trains in PyTorch's own default type, float32. Afterwards the default type, the CPU's random number generators and
    PyTorch's number of threads are as before. What stays changed: the process keeps the CPU memory that it frees, and
    after a run on one device Lightning takes this process for rank 0.

    Args:
        overrides: as on the command line: ``["experiment=reasoning", "seed=3"]``.

    Raises:
        LabError: for every problem that a user can fix, and while another thread of this process trains.
        KeyboardInterrupt: after Ctrl-C or the interrupt of a notebook, by which the run saves first.
        SystemExit: after another signal that ends the program, such as SIGTERM, by which it saves, too.
    """
    if isinstance(overrides, str) or not isinstance(overrides, Sequence):
        raise LabError(f"lab.run takes a list of overrides, as ['experiment=reasoning', 'seed=3'], got {overrides!r}")
    for one in overrides:
        if not isinstance(one, str):
            raise LabError(f"an override is a text, as in 'seed=3', got {one!r}")
        if one.startswith("-"):
            raise LabError(
                f"{one} is for the command line only: from Python, sweep with a loop over lab.run, train seeds "
                "together with seeds=3, and add a folder of configs with hydra.searchpath=[file:///my/configs]"
            )
    with _alone(), _as_on_the_command_line():
        try:
            return start(RunSpec.compose(overrides))
        except Ended as ended:
            if ended.number != signal.SIGINT:
                raise
            raise KeyboardInterrupt(ended.told) from None  # SystemExit would end the caller's program, or its loop


@contextmanager
def _alone() -> Iterator[None]:
    """Lets one thread at a time train: all threads draw from the same random number generators.

    Raises:
        LabError: if another thread trains.
    """
    training = _training
    if not training.acquire(blocking=False):
        raise LabError(
            "another thread trains with lab.run, and all threads of a process share its random numbers: start each run "
            "in a process of its own, as with concurrent.futures.ProcessPoolExecutor, or one after the other"
        )
    try:
        yield
    finally:
        training.release()


@contextmanager
def _as_on_the_command_line() -> Iterator[None]:
    """Makes new tensors float32 within the block, and restores after it what a run changes.

    That is the default type, random generators, Lightning's variables of their seed, and the number of threads.
    """
    python, numpy, torch = random.getstate(), np.random.get_state(), sys.modules.get("torch")
    of_torch = (torch.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()) if torch else None
    noted = {name: os.environ.get(name) for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")}

    def back() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch and of_torch:
            torch.set_rng_state(of_torch[0])
            torch.set_num_threads(of_torch[1])
            torch.set_default_dtype(of_torch[2])
        for name, value in noted.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})

    try:
        if torch:
            torch.set_default_dtype(torch.float32)
        yield
    finally:
        surely(back)


def start(spec: RunSpec) -> list[Summary]:
    """Trains what is left of a spec in this process; returns one summary per seed.

    Raises:
        LabError: for every problem that a user can fix.
    """
    # Finished runs need no devices: any machine can tell that nothing is left to train.
    if spec.force or not all(is_finished(one.folder) for one in spec.each):
        _check_devices(spec.config)
    keep_freed_memory()
    with noted_if_slow("loading PyTorch"):
        from lab.training.fit import train  # takes seconds: torch, Lightning, timm
    return train(spec)


def starts_processes(spec: RunSpec) -> bool:
    """Tells whether Lightning is to start further processes; under SLURM and torchrun they are there already."""
    return device_count(spec.config.trainer) != 1 and slurm.job() is None and "LOCAL_RANK" not in os.environ


def start_apart(spec: RunSpec, search_path: Sequence[str]) -> list[Summary]:
    """Trains one run of a sweep as a separate command.

    In this process, Lightning would start the run's other processes by the command line of the whole sweep; and the
    environment variables that it leaves would make the next run wait for processes that nobody starts.

    Args:
        spec: the run's spec.
        search_path: the part of the command line that says where configs are, which the run's overrides lack.

    Raises:
        LabError: if the run fails.
        SystemExit: if a signal stopped the run, which stops the whole sweep.
    """
    # The sweep has set the run's share of the cores, so the typed overrides lack it.
    threads = [] if spec.config.threads is None else [f"threads={spec.config.threads}"]
    status = train_apart([*search_path, *spec.overrides, *threads])
    if stopped(status):
        sys.exit(status)
    if status:
        raise LabError(f"{' '.join(spec.overrides)}: exit status {status}, for the reason above")
    return [summary for one in spec.each if (summary := read_summary(one.folder)) is not None]


def share_of_threads(side_by_side: int | None) -> int | None:
    """Returns the CPU threads of one process, if so many run side by side on the CPUs of the SLURM job or the machine.

    None: as many as PyTorch takes. Two processes that each use all threads spend their time waiting for each other.
    """
    cores = slurm.cpus()
    if side_by_side is None:
        return cores
    cores = cores or os.cpu_count() or 1
    return max(1, cores // (cores if side_by_side < 0 else int(side_by_side)))


def _check_devices(config: DictConfig) -> None:
    """Refuses devices that are not there, or cannot do what is asked of them, before anything is built for them.

    Raises:
        LabError: if the trainer asks for GPUs, and this machine has none, or has fewer; for more processes than this
            machine has cores; for nodes whose processes nobody starts; or for 64-bit floats on Apple's GPU.
    """
    trainer = config.trainer
    # NODE_RANK and MASTER_ADDR: somebody starts a process on each node by hand.
    alone = slurm.job() is None and not {"LOCAL_RANK", "NODE_RANK", "MASTER_ADDR"} & set(os.environ)
    if trainer.num_nodes > 1 and alone:
        raise LabError(
            f"trainer.num_nodes={trainer.num_nodes} would wait here for other nodes, whose processes SLURM or torchrun "
            "has to start: leave it out, or submit the run with hydra/launcher=submitit_slurm"
        )
    accelerator, devices, asked = trainer.accelerator, trainer.devices, device_count(trainer) or 1
    # LOCAL_RANK: torchrun has started the processes already, and each may see only its own GPU.
    if accelerator == "cpu":
        cores = max(2, os.cpu_count() or 1)
        if asked > cores and "LOCAL_RANK" not in os.environ:
            raise LabError(f"trainer.devices={devices} starts too many processes: there are only {cores} CPU cores")
    if accelerator not in ("gpu", "cuda", "mps", "auto"):
        return
    import torch  # takes seconds

    apple = accelerator != "cuda" and torch.backends.mps.is_available()
    precisions = {"trainer.precision": trainer.precision, "optim.loss_precision": config.optim.get("loss_precision")}
    for name, precision in precisions.items():
        if apple and precision is not None and "64" in str(precision):
            raise LabError(f"{name}={precision}: Apple's GPU knows no 64-bit floats; trainer=cpu trains with them")
    if accelerator in ("mps", "auto"):
        return
    there = torch.cuda.device_count()
    if not there and not apple:
        raise LabError(
            f"trainer.accelerator={accelerator}, and PyTorch finds no GPU here: trainer=cpu trains without one"
        )
    if asked > max(there, 1) and "LOCAL_RANK" not in os.environ:
        raise LabError(f"trainer.devices={devices}, and PyTorch finds no more than {max(there, 1)} GPU here")
