"""Checkpoints from which a killed run goes on bit for bit."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint
from pydantic import PositiveFloat, PositiveInt

from lab.callbacks.access import check_metric, ends_with_this_epoch, goes_on_after
from lab.callbacks.preemption import Preemption
from lab.runs.metric_names import falls


class Checkpoints(Checkpoint):
    """Keeps the newest ``last-<step>.ckpt`` and ``best.ckpt``, written atomically (:mod:`lab.runs.checkpoints`).

    Lightning's ModelCheckpoint has one trigger per instance and may save after the last batch of an epoch but before
    its validation; a run resumed from there validates at another time than an uninterrupted one. Here a save at an
    epoch's end waits for the validation. As a ``Checkpoint``, this callback is called after all others.

    Args:
        folder: where checkpoints go.
        every_minutes: save when this much time has passed since the last save, between any two batches.
        every_n_steps: also save every so many optimiser steps; None: by time alone.
        keep: number of newest checkpoints kept; two, so that a damaged one leaves another.
        best: metric whose maximum (for a loss the minimum) is kept as ``best.ckpt``; None keeps none.
        preemption: knows when a signal tells the run to end, which is a reason to save.
    """

    def __init__(
        self,
        folder: Path,
        every_minutes: PositiveFloat = 5.0,
        every_n_steps: PositiveInt | None = None,
        keep: PositiveInt = 2,
        best: str | None = "val/accuracy",
        preemption: Preemption | None = None,
    ) -> None:
        self.folder = folder
        self.every_minutes = every_minutes
        self.every_n_steps = every_n_steps
        self.keep = keep
        self.best = best
        self.best_value: float | None = None
        self.preemption = preemption or Preemption()
        # Set where many seeds train together: whether all of them save now, since only a common step lets them resume
        # together. None: this callback decides by itself.
        self.with_the_others: bool | None = None
        self._saved_at = time.monotonic()
        self._saved_step = -1

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.folder.mkdir(exist_ok=True)
        if self.best:
            check_metric("checkpoints.best", self.best, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._saved_at = time.monotonic()
        # The run resumes from this step. A kill may have left one checkpoint more than are kept.
        self._saved_step = trainer.global_step
        self._let_go(trainer, of_those_ahead=False)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if goes_on_after(trainer, batch_idx) and self.due(trainer):
            self.save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        value = trainer.callback_metrics.get(self.best) if self.best else None
        if value is not None and self._is_better(float(value)):
            self.best_value = float(value)
            trainer.save_checkpoint(self.folder / "best.ckpt", weights_only=True)
        if self.due(trainer) or ends_with_this_epoch(trainer):
            self.save(trainer)

    def _is_better(self, value: float) -> bool:
        if self.best_value is None:
            return not math.isnan(value)
        return value < self.best_value if falls(str(self.best)) else value > self.best_value

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # trainer.max_steps may end a run within an epoch.
        self.save(trainer)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A run that was killed after its last checkpoint has nothing left to train: on_train_start is never called.
        self._let_go(trainer, of_those_ahead=False)

    def save(self, trainer: L.Trainer) -> None:
        """Writes ``last-<step>.ckpt`` and removes all but the newest ``keep``."""
        if trainer.global_step == self._saved_step:
            return
        for logger in trainer.loggers:
            logger.save()
        trainer.save_checkpoint(self._path(trainer.global_step))
        self._saved_step = trainer.global_step
        self._saved_at = time.monotonic()
        # Checkpoints of later steps are damaged or not common to all seeds: the run did not resume from them, and will
        # reach their steps again.
        self._let_go(trainer, of_those_ahead=True)

    def _let_go(self, trainer: L.Trainer, of_those_ahead: bool) -> None:
        """Removes all but the newest ``keep`` up to the present step; with ``of_those_ahead`` also later ones."""
        if not trainer.is_global_zero:
            return
        present = self._path(trainer.global_step)
        there = sorted(self.folder.glob("last-*.ckpt"))
        gone = [path for path in there if path <= present][: -self.keep]
        gone += [path for path in there if path > present] if of_those_ahead else []
        for path in gone:
            path.unlink()

    def _path(self, step: int) -> Path:
        return self.folder / f"last-{step:09d}.ckpt"

    def state_dict(self) -> dict[str, Any]:
        return {"best_value": self.best_value, "best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # The best value of another metric, such as the loss, says nothing about this one.
        if state_dict["best"] == self.best:
            self.best_value = state_dict["best_value"]

    def due(self, trainer: L.Trainer) -> bool:
        """True when it is time to save: by the clock, by the steps, or because other seeds save or the run must end."""
        if self.with_the_others is not None:
            return self.with_the_others
        by_time = time.monotonic() - self._saved_at > 60 * self.every_minutes
        by_step = self.every_n_steps is not None and trainer.global_step % self.every_n_steps == 0
        told = self.preemption.told
        if trainer.world_size > 1:
            # Rank 0 decides for all, since all have to save together.
            by_time, told = trainer.strategy.broadcast((by_time, told))
        self.preemption.leaving = told
        return by_time or by_step or told is not None
