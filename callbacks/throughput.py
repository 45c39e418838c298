"""Samples that a run has trained on, in all and per second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from pydantic import PositiveInt

from lab.callbacks.access import callbacks_of, steps_an_epoch
from lab.datasets.loading import data_of


class Throughput(Callback):
    """Logs ``samples_per_second`` of training over a window of steps; validations and diagnostics do not count.

    Lightning's ThroughputMonitor needs the batch size from every batch and waits for the device at each
    step; this callback reads a clock once per window.

    Args:
        every_n_steps: length of the window in optimiser steps.
    """

    def __init__(self, every_n_steps: PositiveInt = 50) -> None:
        self.every_n_steps = every_n_steps
        self.samples_per_second: float | None = None
        self._started: float | None = None
        self._from_step = 0
        self._paused = 0.0
        self._pause_started = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"samples_per_second": self.samples_per_second}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Kept, since less than a window may be left to train.
        self.samples_per_second = state_dict["samples_per_second"]

    @rank_zero_only
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._pause_started = time.perf_counter()

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._paused += time.perf_counter() - self._pause_started

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._started is None and not trainer.is_last_batch and (batch_idx + 1) % trainer.accumulate_grad_batches:
            return  # the first window begins with a step
        steps = trainer.global_step - self._from_step
        if self._started is not None and steps < self.every_n_steps:
            return
        now = time.perf_counter()
        if self._started is not None:
            samples = samples_seen(trainer) - samples_seen(trainer, self._from_step)
            self.samples_per_second = samples / (now - self._started - self._paused)
            values = {"samples_per_second": self.samples_per_second, "epoch": trainer.current_epoch}
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step - 1)
        self._started, self._from_step, self._paused = now, trainer.global_step, 0.0

    def leave_out(self, seconds: float) -> None:
        """Leaves so many seconds of this window out of the speed, as they were not training."""
        self._paused += seconds


@contextmanager
def no_training(trainer: L.Trainer) -> Iterator[None]:
    """Leaves the time of the block out of the training speed, as that of validations is."""
    began = time.perf_counter()
    yield
    # While one of several seeds that train together looks, the others do not train either.
    for one in getattr(trainer, "callbacks_of_all_seeds", callbacks_of(trainer)):
        if isinstance(one, Throughput):
            one.leave_out(time.perf_counter() - began)


def samples_seen(trainer: L.Trainer, step: int | None = None) -> int:
    """Training samples of all processes up to an optimiser step; None is the present step.

    Under ``accumulate_grad_batches`` the last step of an epoch takes the batches that are left.
    """
    step = trainer.global_step if step is None else step
    if step == 0:
        return 0
    per_step = data_of(trainer).samples_per_batch
    accumulated, batches = trainer.accumulate_grad_batches, trainer.num_training_batches
    if (steps := steps_an_epoch(trainer)) is None:
        return step * accumulated * per_step
    epochs, rest = divmod(step, steps)
    return int((epochs * batches + min(rest * accumulated, batches)) * per_step)
