"""Ends a run whose folder another process has taken over."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from lab.console import LabError
from lab.runs.folder import Run


class StillHeld(Callback):
    """Raises LabError before the next batch; nothing more is written into the folder.

    It happens to a process that stood still for longer than ``lab.runs.lock.LEASE`` (suspended, its network gone) while
    another node ran the same command.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.run.lost:
            trainer.loggers.clear()
            raise LabError(
                f"{self.run.folder} is gone, or another process took it over while this one gave no sign of life: "
                "this one ends without writing"
            )
