"""Trains what a composed config describes, and leaves a run folder behind.

A config names classes; this file builds them and knows none of them by name.
"""

from __future__ import annotations

import logging
import shlex
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from omegaconf import DictConfig

from lab.callbacks.guards import FiniteLoss, StillHeld
from lab.callbacks.preemption import Preemption
from lab.callbacks.summary import RunSummary
from lab.config.compose import check
from lab.console import LabError, tell
from lab.runs import slurm
from lab.runs.folder import Run, run_folder
from lab.runs.outcome import Ending
from lab.runs.provenance import provenance
from lab.training.build import build_callbacks, build_checkpoints, build_loggers, build_model_and_data, build_trainer
from lab.training.lightning_internals import process_rank, processor_has_bf16
from lab.training.machine import keep_freed_memory, tune_compiler
from lab.training.seeds.numbers import seeds_of
from lab.training.seeds.train import check_trainer, train_together


def train(config: DictConfig, overrides: list[str], choices: dict[str, Any]) -> dict[str, Any]:
    """Trains what ``config`` describes, or goes on with it, or finds it finished.

    Args:
        config: composed by Hydra.
        overrides: as typed, for the name of the run folder.
        choices: group -> chosen config, as Hydra reports them.

    Returns:
        The run's summary; under ``seeds``, {"seeds": {seed: summary}}.

    Raises:
        LabError: for everything that a user can mend.
    """
    config.paths.run = str(run_folder(config, overrides, choices, config.seed))
    check(config)
    if (config.trainer.max_epochs or 0) < 1:
        raise LabError(
            f"trainer.max_epochs={config.trainer.max_epochs} must be at least 1: the schedules of learning rate and "
            "temperature end with it; trainer.max_steps and trainer.max_time end a run before"
        )
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    # Seeds trained together: fused CPU attention is then called seed by seed, which costs nothing to speak of.
    warnings.filterwarnings("ignore", message=".*batching rule for aten::_scaled_dot_product")
    keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if "16" in str(config.trainer.precision) and config.trainer.accelerator == "cpu" and not processor_has_bf16():
        tell("this processor only emulates 16-bit arithmetic: trainer.precision=32-true is much faster here")
    if config.seeds is not None:
        return train_seeds(config, overrides, choices)
    return train_one(config, overrides, choices)


def train_one(config: DictConfig, overrides: list[str], choices: dict[str, Any]) -> dict[str, Any]:
    """Trains one seed; the run's summary."""
    with _opened(config, overrides, choices) as (run, what):
        if what is not None:
            _train_in(run, config, RunSummary(run.summary, what))
        return run.read_summary()


def train_seeds(config: DictConfig, overrides: list[str], choices: dict[str, Any]) -> dict[str, Any]:
    """Trains ``config.seeds`` together, each in the folder of its single run; {"seeds": {seed: summary}}."""
    check_trainer(config)
    with ExitStack() as opened:
        runs, folders = [], {}
        for seed in seeds_of(config):
            own = config.copy()
            own.seed, own.seeds = seed, None
            run, what = opened.enter_context(_opened(own, overrides, choices))
            folders[seed] = run
            if what is not None:
                runs.append((own, run, {**what, "seeds_together": None}))
        for _, _, what in runs:
            what["seeds_together"] = len(runs)
        if runs:
            train_together(runs)
        return {"seeds": {seed: run.read_summary() for seed, run in folders.items()}}


@contextmanager
def _opened(
    config: DictConfig, overrides: list[str], choices: dict[str, Any]
) -> Iterator[tuple[Run, dict[str, Any] | None]]:
    """The run folder, held, and what its summary says of it; None where the run is finished already."""
    folder = run_folder(config, overrides, choices, config.seed)
    config.paths.run = str(folder)
    primary = process_rank() == 0
    try:
        run = Run(folder, primary)
    except OSError as error:
        raise LabError(f"{folder} cannot be written: {error}; name another folder with paths.runs") from error
    try:
        if config.force and slurm.restarts() and run.read_provenance().get("slurm_job") == slurm.job():
            config.force = False  # this very job began anew before it was queued again
        if primary and config.force and (aside := run.set_aside()):
            tell(f"force=true: the run before is kept in {aside}")
        # Every process sees the same summary and leaves together; under force it is the old run's, or none.
        if run.read_summary().get("status") == "finished" and not config.force:
            run.check_same(config)
            tell(f"finished already: {run.folder} (force=true runs it again)")
            yield run, None
            return
        origin = provenance()
        if "lab.train" not in origin["command"]:
            # A worker of a launcher: what it was started with says nothing to a reader.
            origin["command"] = shlex.join(["python", "-m", "lab.train", *overrides])
        run.identify(config, origin)
        yield (
            run,
            {
                "name": str(folder.relative_to(Path(config.paths.runs).expanduser().absolute())),
                "experiment": choices.get("experiment"),
                "softmax": choices["softmax"],
                "seed": config.seed,
                "overrides": overrides,
                **origin,
            },
        )
    finally:
        run.release()


def _train_in(run: Run, config: DictConfig, summary: RunSummary) -> None:
    """Trains in an open run folder and leaves a summary, however it ends."""
    trainer: L.Trainer | None = None
    ending = Ending()
    try:
        with ending.told():
            resume, step, damaged = (None, 0, []) if config.force else run.newest_checkpoint()
            for path in damaged:
                tell(f"damaged checkpoint, using the one before it: {path}")
            if resume is not None:
                tell(f"going on from {resume}")
            module, data = build_model_and_data(config)
            if config.compile:
                tune_compiler()
                module.model.compile()
            preemption = Preemption()
            saving = [build_checkpoints(config, run, preemption), preemption]
            callbacks = [StillHeld(run), FiniteLoss(), *build_callbacks(config), summary, *saving]
            trainer = build_trainer(config, callbacks, build_loggers(config, run, step, summary.what))
            tell(f"run folder: {run.folder}")
            trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
            ending.status = "stopped" if trainer.interrupted else "finished"
    finally:
        if not run.lost:
            summary.write(trainer, ending.status, ending.reason)
