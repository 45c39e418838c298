"""Guards that end a run that must not go on."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lab.callbacks.access import model_of
from lab.console import LabError
from lab.runs.folder import Run


class StillHeld(Callback):
    """Raises LabError once this process has lost its run folder; also notes that training has begun.

    It checks before each batch and each write, so that nothing more is written into a lost folder.

    A folder is lost if it was deleted, or if this process stood still for longer than ``lab.runs.lock.LEASE``
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
    """Raises LabError with step and gradient norms if the loss is not finite; the last checkpoint is older, and stays.

    On a CPU the loss of every step is checked before the optimiser's step. To read a loss on a GPU means to wait for
    it, so there the losses of many steps are checked together, also before each validation and each checkpoint.

    Args:
        every_n_steps: cadence of checks on a GPU, in optimiser steps.

    Attributes:
        diverged: True once a loss was not finite.
    """

    def __init__(self, every_n_steps: PositiveInt = 50) -> None:
        self.every_n_steps = every_n_steps
        self.diverged = False
        self._trainer: L.Trainer | None = None
        # (step, epoch, loss) of steps that are not checked yet.
        self._losses: list[tuple[int, int, Tensor]] = []

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self._trainer = trainer
        # Of the step that this loss is for, both counted from 1.
        self._losses.append((trainer.global_step + 1, trainer.current_epoch + 1, loss.detach()))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        if pl_module.device.type == "cpu" or trainer.global_step % self.every_n_steps == 0:
            self._check()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check()

    def state_dict(self) -> dict[str, Any]:
        # Called for every checkpoint, also for those of seeds trained together, so none is saved after a bad loss.
        self._check()
        return {}

    def _check(self) -> None:
        seen, self._losses = self._losses, []
        if not seen:
            return
        assert self._trainer is not None
        # Losses of all processes, so that all end together: one that went on alone would wait for the others for ever.
        losses_WS = self._trainer.strategy.all_gather(torch.stack([loss for _, _, loss in seen]))
        for (step, epoch, _), values in zip(seen, torch.atleast_2d(losses_WS).T.tolist(), strict=True):
            if wrong := [value for value in values if not math.isfinite(value)]:
                self.diverged = True
                raise LabError(
                    f"the loss is {wrong[0]} at step {step} (epoch {epoch}); gradient norms: "
                    f"{_norms_by_block(model_of(self._trainer.lightning_module))}. What was saved before is kept: "
                    "try a lower optim.lr, a longer optim.warmup_epochs or trainer.precision=32-true"
                )


def _norms_by_block(model: nn.Module) -> str:
    """L2 norm of the gradient of each block of the model, in the order of the model."""
    groups: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            parts = name.split(".")
            block = ".".join(parts[:2]) if len(parts) > 1 and parts[1].isdigit() else parts[0]
            groups.setdefault(block, []).append(parameter.grad.float())
    return ", ".join(f"{block} {float(get_total_norm(gradients)):.3g}" for block, gradients in groups.items())
