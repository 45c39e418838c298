"""Gradients of the next training steps at a checkpoint, without taking a step."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import lightning as L
import torch
from lightning import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.plugins.precision import Precision
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn

from lab.console import LabError
from lab.observation.recorder import own_random_numbers

T = TypeVar("T")


class SeededModule(L.LightningModule, ABC):
    """A LightningModule whose training steps depend on their place in training alone."""

    model: nn.Module

    @abstractmethod
    def seed_step(self, epoch: int, batch_idx: int) -> None:
        """Fixes the random numbers of a training batch by its place in training."""


@dataclass(frozen=True)
class TrainingState:
    """A checkpoint, with all that is needed to go on with its training.

    Attributes:
        module: the model at the checkpoint with the run's own loss, on the device that is to compute it.
        data: the run's data module, set up; training batches come from its ``draw_train(epoch, batch)``.
        step: number of optimiser steps trained.
        precision: the trainer's, as Lightning names it.
        accumulated: number of batches whose gradients one step adds up.
        limit: batches of an epoch, or the share of them, as ``trainer.limit_train_batches`` has it; None is all.
    """

    module: SeededModule
    data: Any
    step: int
    precision: Any = "32-true"
    accumulated: int = 1
    limit: float | None = None

    @property
    def samples_per_step(self) -> int:
        """Training samples of one step of one process."""
        return int(self.data.samples_per_batch) * self.accumulated


class NextSteps:
    """A copy of a checkpoint that computes losses on the batches that a single process would train on next.

    It works in the run's precision and with its stochastic depth; temperatures are those of the checkpoint. The given
    model is not changed; nor is the state of the random numbers, if the copy is made by :func:`next_steps`.

    Args:
        trained: the checkpoint.

    Attributes:
        batches_an_epoch: number of batches that an epoch trains on.

    Raises:
        LabError: if the data cannot be drawn by (epoch, batch).
    """

    def __init__(self, trained: TrainingState) -> None:
        self._data, self._count = trained.data, trained.accumulated
        if not hasattr(self._data, "draw_train"):
            raise LabError(f"gradients need data with draw_train, which {type(self._data).__name__} lacks")
        self._device = next(trained.module.parameters()).device
        module, self.precision = in_own_precision(trained)
        self.module: Any = module.train()
        self.batches_an_epoch = _limited(len(self._data.train_dataloader()), trained.limit)

    @property
    def steps_an_epoch(self) -> int:
        """Optimiser steps of an epoch."""
        return math.ceil(self.batches_an_epoch / self._count)

    def whole(self, step: int) -> float:
        """Share of the accumulated batches that a step really has: 1, or less in the last step of an epoch."""
        place = step % self.steps_an_epoch
        return min(1.0, self.batches_an_epoch / self._count - place)

    def losses(self, step: int) -> Iterator[Tensor]:
        """Loss of each batch of an optimiser step, divided by the number of accumulated batches."""
        epoch, place = divmod(step, self.steps_an_epoch)
        for index in range(place * self._count, min((place + 1) * self._count, self.batches_an_epoch)):
            batch = move_data_to_device(self._data.draw_train(epoch, index), self._device)
            batch = self.precision.convert_input(self._data.on_after_batch_transfer(batch, 0))
            self.module.seed_step(epoch, index)
            with self.precision.forward_context():
                loss = self.module.training_step(batch, index)
            yield loss / self._count


def in_own_precision(trained: TrainingState) -> tuple[Any, Precision]:
    """A copy of a checkpoint's module in the precision of its run, and Lightning's plugin for that precision."""
    precision = _precision(trained.precision, next(trained.module.parameters()).device)
    own: Any = copy.deepcopy(trained.module)
    # The plugin of "32-true" would leave weights of a training in bfloat16 or float64 as they are.
    own = own.float() if str(trained.precision).startswith("32") else own
    return precision.convert_module(own), precision


@contextmanager
def next_steps(trained: TrainingState) -> Iterator[NextSteps]:
    """Gives a :class:`NextSteps`; random numbers may be drawn in the block, and their state is restored after it."""
    device = next(trained.module.parameters()).device
    with own_random_numbers(device):
        yield NextSteps(trained)


def at_next_steps(trained: TrainingState, steps: int, measure: Callable[[nn.Module], T]) -> list[T]:
    """Calls ``measure`` on the model with the gradient of each of the next training steps, all at the checkpoint.

    A 16-bit loss is scaled as at the start of training. For all else see :class:`NextSteps`.

    Raises:
        LabError: if the data cannot be drawn by (epoch, batch).
    """
    found = []
    with next_steps(trained) as copied:
        module, precision = copied.module, copied.precision
        # With a learning rate of 0 only the scale of a 16-bit loss changes, which needs an optimiser for its updates.
        still = torch.optim.SGD(module.parameters(), lr=0.0)
        for step in range(trained.step, trained.step + steps):
            module.zero_grad()
            for loss in copied.losses(step):
                precision.backward(loss, None)
            precision.unscale_gradients(still)
            found.append(measure(module.model))
            precision.optimizer_step(still)
    return found


def _limited(batches: int, limit: float | None) -> int:
    """Batches of an epoch under a limit, as Lightning reads it: an int is a number of batches, a float a share."""
    if limit is None:
        return batches
    return min(batches, limit) if isinstance(limit, int) else max(1, int(batches * limit))


def _precision(name: Any, device: torch.device) -> Precision:
    """Returns Lightning's plugin for the precision ``name`` on a device."""
    # A single process, even inside a SLURM job that has several.
    alone = Fabric(accelerator=device.type, devices=1, precision=name, plugins=LightningEnvironment())
    return alone.strategy.precision
