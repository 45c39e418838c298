"""Guards: end a run that must not go on."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.optim import Optimizer

from lab.callbacks.access import model_of
from lab.console import LabError
from lab.runs.folder import Run


class StillHeld(Callback):
    """Raises LabError before the next batch or write once the folder is lost; notes that training has begun.

    Nothing more is written into the folder then.

    It happens where the folder was deleted, and to a process that stood still for longer than ``lab.runs.lock.LEASE``
    (suspended, its network gone) while another node ran the same command.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.run.begun = True
        self._check(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer)

    def _check(self, trainer: L.Trainer) -> None:
        if self.run.lost:
            trainer.loggers.clear()
            raise LabError(
                f"{self.run.folder} is gone, or another process took it over while this one gave no sign of life: "
                "this one ends without writing"
            )


class FiniteLoss(Callback):
    """Raises LabError naming step and gradient norms; the last checkpoint is from before, and stays."""

    def __init__(self) -> None:
        self._loss: Tensor | None = None

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        loss = loss.detach()
        # Of accumulated batches any one may be the broken one.
        self._loss = loss if self._loss is None else self._loss + loss

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        loss, self._loss = self._loss, None
        if loss is None or bool(torch.isfinite(loss)):
            return
        raise LabError(
            f"the loss is {float(loss)} at step {trainer.global_step} (epoch {trainer.current_epoch}); gradient "
            f"norms: {_norms_by_layer(model_of(pl_module))}. The checkpoint before it is kept: try a lower "
            "optim.lr, a longer optim.warmup_epochs or trainer.precision=32-true"
        )


def _norms_by_layer(model: nn.Module) -> str:
    """L2 norm of the gradient of each block of the model, in the order of the model."""
    groups: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            parts = name.split(".")
            block = ".".join(parts[:2]) if len(parts) > 1 and parts[1].isdigit() else parts[0]
            groups.setdefault(block, []).append(parameter.grad.detach().float().norm())
    return ", ".join(f"{block} {float(torch.stack(norms).norm()):.3g}" for block, norms in groups.items())
