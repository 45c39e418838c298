"""Tells or refuses, when training begins, a length of training that does not fit epochs, batches or schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator

import lightning as L
from torch.optim.lr_scheduler import OneCycleLR

from lab.callbacks.access import steps_an_epoch
from lab.console import LabError, tell
from lab.datasets.loading import data_of


def tell_of_length(trainer: L.Trainer, by_epoch: bool, warmup_epochs: int = 0) -> None:
    """Prints what a user may not expect of the trainer's options on length and of its ``accumulate_grad_batches``.

    Args:
        trainer: one that begins to train.
        by_epoch: learning rate or temperature follow a schedule over ``trainer.max_epochs``.
        warmup_epochs: epochs in which the learning rate rises, once an epoch.

    Raises:
        LabError: if a schedule of PyTorch ends before training does.
    """
    _check_schedules(trainer)
    for words in _unexpected(trainer, by_epoch, warmup_epochs):
        tell(words)


def _check_schedules(trainer: L.Trainer) -> None:
    for scheduler in (one.scheduler for one in trainer.lr_scheduler_configs):
        # Of PyTorch's schedules, this one alone has an end: one step later it raises an error.
        if isinstance(scheduler, OneCycleLR) and scheduler.total_steps < (steps := trainer.estimated_stepping_batches):
            raise LabError(
                f"the OneCycleLR of this run has total_steps={scheduler.total_steps}, and training {steps} steps: give "
                f"it total_steps={steps}, or train shorter"
            )


def _unexpected(trainer: L.Trainer, by_epoch: bool, warmup_epochs: int) -> Iterator[str]:
    if (steps := steps_an_epoch(trainer)) is None:
        return
    batches, together = int(trainer.num_training_batches), trainer.accumulate_grad_batches
    epochs, last = trainer.max_epochs or 0, trainer.max_steps
    if over := batches % together:
        yield (
            f"the last step of each epoch has {over} of {together} batches, and {over}/{together} of the gradient: an "
            f"epoch of {batches} batches is no multiple of trainer.accumulate_grad_batches={together}"
        )
    if (parts := together * trainer.world_size) > 1 and getattr(data_of(trainer), "ignores", False):
        options = {"trainer.accumulate_grad_batches": together, "several processes": trainer.world_size}
        several = " or ".join(name for name, number in options.items() if number > 1)
        yield (
            f"each of the {parts} batches of a step counts alike, whatever its number of answers: for this data "
            f"{several} make no larger batch, in which each answer would"
        )
    ends = min(epochs * steps if epochs > 0 else math.inf, last if last > 0 else math.inf)
    for option, least in (("min_steps", trainer.min_steps or 0), ("min_epochs", (trainer.min_epochs or 0) * steps)):
        if least > ends:
            yield f"trainer.{option}={getattr(trainer, option)} does nothing: training ends before, after {ends} steps"
    if 0 < ends <= warmup_epochs * steps:
        yield (
            f"training ends within its warm-up of optim.warmup_epochs={warmup_epochs}: the learning rate never reaches "
            "optim.lr; give more epochs, or optim.warmup_epochs=0"
        )
    if not 0 < last < epochs * steps:
        return
    if by_epoch:
        whole = -(-last // steps)
        instead = "leave trainer.max_steps out" if whole == epochs else f"give trainer.max_epochs={whole}"
        yield (
            f"schedules are for trainer.max_epochs={epochs}, of which trainer.max_steps={last} trains "
            f"{last / steps:.3g}: for whole ones {instead}"
        )
    every = steps * (trainer.check_val_every_n_epoch or 1)
    if last % every > 0 and last > every:
        yield f"the last {last % every} of trainer.max_steps={last} steps are not validated: {every} steps come between"
