"""Trains what a spec describes, and leaves a run folder behind.

A config names classes; this file builds them and knows none of them by name.
"""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from omegaconf import DictConfig

from lab.callbacks.eureka import find_moment
from lab.callbacks.guards import FiniteLoss, StillHeld
from lab.callbacks.preemption import Preemption
from lab.callbacks.pruning import Pruning
from lab.callbacks.summary import RunSummary
from lab.config.check import check
from lab.console import LabError, Unfinished, tell
from lab.runs import slurm
from lab.runs.folder import Run
from lab.runs.outcome import STOPPED, Ending
from lab.runs.own_code import own_code
from lab.runs.provenance import provenance
from lab.runs.spec import RunSpec, device_count, identity_of
from lab.runs.stored_config import read_config
from lab.runs.summary import Summary
from lab.training.build import (
    build_callbacks,
    build_checkpoints,
    build_loggers,
    build_model_and_data,
    build_options,
    build_trainer,
)
from lab.training.dry_run import DryRun
from lab.training.ending import ended_by_signals, full_disk_told_once
from lab.training.lightning_internals import process_rank, processor_has_bf16, train_as_rank_0
from lab.training.machine import cpp_compiler, flushed_denormals, tune_compiler
from lab.training.onednn import use_onednn
from lab.training.open_run import OpenRun
from lab.training.ranks import OtherRanks, named_rank_0
from lab.training.resume import check_processes, check_resumable
from lab.training.seeds.train import check_trainer, train_together


@contextmanager
def _lightning_silent() -> Iterator[None]:
    """Lets Lightning print, within the block, no more than warnings of its logger and what its profiler has found."""
    # After Lightning's import: what the import itself sets must not be undone.
    lightning, profilers = map(logging.getLogger, ("lightning.pytorch", "lightning.pytorch.profilers"))
    levels, filters = (lightning.level, profilers.level), list(warnings.filters)
    warnings.filterwarnings("ignore", module="lightning")
    # In seeds trained together (vmap), fused CPU attention is called seed by seed, which costs almost nothing.
    warnings.filterwarnings("ignore", message=".*batching rule for aten::_scaled_dot_product")
    in_use: Any = warnings.filters
    own = [one for one in in_use[:2] if one not in filters]
    try:
        lightning.setLevel(logging.WARNING)
        profilers.setLevel(logging.INFO)  # what trainer.profiler= has found
        yield
    finally:
        lightning.setLevel(levels[0])
        profilers.setLevel(levels[1])
        # These two alone, not by catch_warnings: what modules have set that are imported within the block stays.
        for one in own:
            if one in warnings.filters:
                in_use.remove(one)


@_lightning_silent()
def train(spec: RunSpec) -> list[Summary]:
    """Trains the runs of ``spec``, resumes them or finds them finished; returns one summary per seed.

    Raises:
        LabError: for every problem that a user can fix.
    """
    config = spec.config
    check(config)
    if spec.several:
        check_trainer(config)
    _prepare_process(spec)
    with Ending().told():
        build_options(config, spec.overrides)
    with ended_by_signals(), full_disk_told_once(), flushed_denormals(), ExitStack() as stack:
        opened = [stack.enter_context(_opened(one)) for one in spec.each]
        left = [one for one in opened if isinstance(one, OpenRun)]
        if spec.several and left:
            train_together(left)
        elif left:
            _train_alone(left[0])
        return [one if isinstance(one, Summary) else _outcome(one.run) for one in opened]


def _prepare_process(spec: RunSpec) -> None:
    """Prepares this process for any training: its rank, threads, and notes on slow settings."""
    trainer = spec.config.trainer
    if device_count(trainer) == 1 and trainer.num_nodes == 1:
        # A rank in its environment is among processes that train runs of their own: tasks of srun, a seed each, say.
        train_as_rank_0()
    if spec.config.threads is not None:
        torch.set_num_threads(spec.config.threads)
    if spec.config.compile:
        _check_compiler(str(trainer.accelerator))
        tune_compiler(_on_gpu(str(trainer.accelerator)))
        tell("compile=true: the first batch and the first validation wait for the compiler, a minute or so each")
    if "16" in str(trainer.precision) and trainer.accelerator == "cpu" and not processor_has_bf16():
        tell("this processor only emulates 16-bit arithmetic: trainer.precision=32-true is much faster here")


def _on_gpu(accelerator: str) -> bool:
    return accelerator in ("gpu", "cuda", "auto") and torch.cuda.is_available()


def _check_compiler(accelerator: str) -> None:
    """Raises LabError if torch.compile would find no compiler: for C++ on a CPU, for C on a GPU (Triton)."""
    if on_gpu := _on_gpu(accelerator):
        names = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    else:
        names = [cpp_compiler()] if accelerator in ("cpu", "auto") else []
    if names and not any(map(shutil.which, names)):
        what, where = ("C", "for a GPU") if on_gpu else ("C++", "on a CPU")
        raise LabError(
            f"compile=true needs a {what} compiler {where}, and {' or '.join(names)} is not there: install it, or "
            "leave compile out"
        )


def _tell_if_logged_otherwise(run: Run, config: DictConfig) -> None:
    """Says so where a logger is asked for that a finished run was not logged with: nothing is sent there."""
    before = read_config(run.folder).get("logger") or {}
    if missed := [str(name) for name in config.logger or {} if name not in before]:
        tell(
            f"it was logged with {', '.join(before) or 'csv_only'} and is not sent to {', '.join(missed)}: a logger is "
            "told of new runs alone"
        )


@contextmanager
def _opened(spec: RunSpec) -> Iterator[OpenRun | Summary]:
    """Holds the run folder of one seed within the block; yields its summary if nothing is left to train."""
    run = Run(spec.folder, primary=process_rank() == 0)
    try:
        with _writable(spec.folder):
            run.hold()
        if spec.force and slurm.restarts() and run.read_provenance().get("slurm_job") == slurm.job():
            spec = spec.changed(force=False)  # this job has started the run anew already, before it was requeued
        # Read before anything is set aside: seeds that began together start anew together. All processes read the same
        # summary, so they return together.
        before = None if spec.force else run.read_summary()
        if run.primary and (spec.force or run.cannot_go_on):
            _set_aside(run, spec)
        code = own_code(identity_of(spec.config))
        if before is not None and before.finished:
            run.check_same(spec.config)
            _tell_if_code_changed(run, before.own_code, code)
            tell(f"finished already: {run.folder} (force=true runs it again)")
            _tell_if_logged_otherwise(run, spec.config)
            yield before
            return
        yield OpenRun(spec, run, _identified(run, spec, code, before))
    except (LabError, GeneratorExit, *STOPPED):  # GeneratorExit: a signal came before the block began
        run.take_back()
        raise
    finally:
        run.release()


def _set_aside(run: Run, spec: RunSpec) -> None:
    """Keeps the run that is in the folder beside it, so that this one starts anew; says so."""
    if not spec.force:
        run.check_same(spec.config)
    with _writable(run.folder):
        aside = run.set_aside()
    if aside:
        why = "force=true" if spec.force else "no checkpoint is there to go on from, so it starts anew"
        tell(f"{why}: the run before is kept in {aside}")


def _identified(run: Run, spec: RunSpec, code: Mapping[str, str], before: Summary | None) -> Summary:
    """Writes into the folder what is run and where it comes from; returns the fixed fields of the summary."""
    origin = provenance()
    if "lab.train" not in origin["command"]:
        # In a worker of a launcher, the command of the process itself tells a reader nothing.
        origin["command"] = spec.command
    earlier = before.own_code if before is not None and run.goes_on else {}
    _tell_if_code_changed(run, earlier, code)
    origin["own_code"] = {name: _and_then(earlier.get(name, ()), digest) for name, digest in code.items()}
    with _writable(run.folder):
        run.identify(spec.config, origin)
    return Summary(
        status="running",
        name=spec.name,
        experiment=spec.experiment,
        softmax=spec.softmax,
        seed=spec.seed,
        overrides=spec.overrides,
        # The number at the start: fewer seeds go on once some have ended.
        seeds_together=before.seeds_together if before is not None else None,
        **origin,
    )


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Says in one sentence that a run folder cannot be written, if the block finds so."""
    try:
        yield
    except OSError as error:
        why = f"it is a link to {folder.readlink()}, which is not there" if _leads_nowhere(folder) else error
        raise Unfinished(f"{folder} cannot be written: {why}; name another folder with paths.runs") from error


def _leads_nowhere(folder: Path) -> bool:
    return os.path.islink(folder) and not os.path.exists(folder)  # Path raises where a name is too long


def _and_then(earlier: tuple[str, ...], digest: str) -> tuple[str, ...]:
    return earlier if earlier[-1:] == (digest,) else (*earlier, digest)


def _tell_if_code_changed(run: Run, earlier: Mapping[str, tuple[str, ...]], now: Mapping[str, str]) -> None:
    """Tells which files of the user's own have changed since the run in this folder was trained."""
    changed = sorted(name for name in earlier if name in now and earlier[name][-1:] != (now[name],))
    if changed and run.primary:
        tell(f"{', '.join(changed)} changed since {run.folder} was trained: force=true runs it anew with the new code")


def _outcome(run: Run) -> Summary:
    """Reads how a run that was just trained has ended."""
    summary = run.read_summary()
    assert summary is not None, f"{run.folder} has lost its summary"
    return summary


def _train_alone(opened: OpenRun) -> None:
    """Trains one seed in its open run folder and leaves a summary, however it ends."""
    spec, run = opened.spec, opened.run
    config = spec.config
    summary = RunSummary(run.folder, opened.fixed)
    trainer: L.Trainer | None = None
    pruning: Pruning | None = None
    ending, preemption = Ending(run.folder), Preemption(spec.force)
    try:
        with ending.told():
            resume = None if spec.force else run.newest_checkpoint()
            module, data = build_model_and_data(config)
            for remark in data.remarks():
                tell(remark)
            if resume is not None:
                check_resumable(resume, module, data)
                tell(f"going on from {resume.path}")
            run.keep(data.kept())
            use_onednn(module.model)
            if config.compile:
                module.model.compile()
            saving = [build_checkpoints(config, run, preemption), preemption]
            watching = build_callbacks(config)
            pruning = Pruning(config.trial, [find_moment(watching)])
            guards = [OtherRanks(), StillHeld(run), DryRun(module), FiniteLoss()]
            callbacks = [*guards, *watching, pruning, summary, *saving]
            trainer = build_trainer(spec, callbacks, build_loggers(spec, run, resume.step if resume else 0))
            if resume is not None:
                check_processes(resume, trainer.world_size)
            tell(f"run folder: {run.folder}")
            with named_rank_0(), preemption.obeyed():
                trainer.fit(module, datamodule=data, ckpt_path=resume.path if resume else None, weights_only=True)
            ending.status = "stopped" if trainer.interrupted or pruning.pruned else "finished"
    finally:
        preemption.put_back()
        if not run.lost:
            summary.write(trainer, ending.status, ending.reason, pruning is not None and pruning.pruned)
    preemption.end_if_told()
