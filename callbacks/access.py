"""Typed access to attributes of trainers and modules that Lightning's types do not know; checks of metric names."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import nn

from lab.config.suggestions import choices
from lab.console import LabError


def callbacks_of(trainer: Any) -> list[Callback]:
    """The callbacks of a trainer."""
    return trainer.callbacks


def model_of(module: Any) -> nn.Module:
    """The model that a LightningModule trains."""
    return module.model


def steps_an_epoch(trainer: L.Trainer) -> int | None:
    """Optimiser steps of an epoch; None before training starts, and for data without an end."""
    batches = trainer.num_training_batches
    return math.ceil(batches / trainer.accumulate_grad_batches) if batches and math.isfinite(batches) else None


def ends_with_this_epoch(trainer: L.Trainer) -> bool:
    """Tells whether training ends with this epoch: its last one, its last step, or a callback may and does stop it."""
    epochs = trainer.current_epoch + 1
    enough = epochs >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
    last = epochs == trainer.max_epochs or 0 < trainer.max_steps <= trainer.global_step
    return last or (trainer.should_stop and enough)


def goes_on_after(trainer: L.Trainer, batch_idx: int) -> bool:
    """Tells whether a run saved after this batch goes on as an undisturbed one: a step is done, and its epoch is not.

    A run resumed after the last batch of its epoch, or of training, would never end that epoch.
    """
    last = trainer.is_last_batch or trainer.should_stop or 0 < trainer.max_steps <= trainer.global_step
    return not last and (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def check_metric(key: str, name: str, module: L.LightningModule, of: str = "") -> None:
    """Checks that the module logs a metric of this name; a module that does not list its ``metric_names`` passes.

    Args:
        key: the option, as it is typed.
        name: its value.
        module: what is trained.
        of: prefix that the name must have.

    Raises:
        LabError: if it is not logged.
    """
    valid = [one for one in getattr(module, "metric_names", ()) if one.startswith(of)]
    if valid and name not in valid:
        raise LabError(f"{key}={name} is not logged; {choices(name, valid)}")
