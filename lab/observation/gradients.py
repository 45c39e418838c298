"""The gradients that training would have next at a checkpoint, without taking a step."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import lightning as L
import torch
from lightning import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.plugins.precision import Precision
from lightning.fabric.utilities import move_data_to_device
from torch import nn

from lab.console import LabError

T = TypeVar("T")


class SeededModule(L.LightningModule, ABC):
    """A LightningModule whose training steps depend on their place in training alone."""

    model: nn.Module

    @abstractmethod
    def seed_step(self, epoch: int, batch_idx: int) -> None:
        """Fixes the random numbers of a training batch by its place in training."""


@dataclass(frozen=True)
class Trained:
    """A checkpoint, and what training would go on with.

    Attributes:
        module: the model at the checkpoint with the run's own loss, where it is to be computed.
        data: the run's data module, set up; training batches come from its ``draw_train(epoch, batch)``.
        step: optimiser steps trained.
        precision: the trainer's, as Lightning names it.
        accumulated: batches whose gradients one step adds up.
    """

    module: SeededModule
    data: Any
    step: int
    precision: Any = "32-true"
    accumulated: int = 1

    @property
    def samples_per_step(self) -> int:
        """Training samples of one step of one process."""
        return int(self.data.samples_per_step) * self.accumulated


def at_next_steps(trained: Trained, steps: int, measure: Callable[[nn.Module], T]) -> list[T]:
    """Calls ``measure`` on the model with the gradient of each of the next training steps, all at the checkpoint.

    The batches are those that a single process would train on next, in its precision and under its stochastic depth;
    temperatures are the checkpoint's, and a 16-bit loss is scaled as at the start of training. All of it on a copy:
    neither the model nor the state of the random numbers is changed.

    Raises:
        LabError: if the data cannot be drawn by (epoch, batch).
    """
    data, count = trained.data, trained.accumulated
    if not hasattr(data, "draw_train"):
        raise LabError(f"gradients need data with draw_train, which {type(data).__name__} lacks")
    device = next(trained.module.parameters()).device
    precision = _precision(trained.precision, device)
    own: Any = copy.deepcopy(trained.module)
    module: Any = precision.convert_module(own).train()
    # At a rate of 0 nothing moves but the scale of a 16-bit loss, which is kept with an optimiser.
    still = torch.optim.SGD(module.parameters(), lr=0.0)
    batches = len(data.train_dataloader())
    found = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for step in range(trained.step, trained.step + steps):
            epoch, place = divmod(step, math.ceil(batches / count))
            module.zero_grad()
            for index in range(place * count, min((place + 1) * count, batches)):
                batch = move_data_to_device(data.draw_train(epoch, index), device)
                batch = precision.convert_input(data.on_after_batch_transfer(batch, 0))
                module.seed_step(epoch, index)
                with precision.forward_context():
                    loss = module.training_step(batch, index)
                precision.backward(loss / count, None)
            precision.unscale_gradients(still)
            found.append(measure(module.model))
            precision.optimizer_step(still)
    return found


def _precision(name: Any, device: torch.device) -> Precision:
    """Returns Lightning's plugin for a precision of this name on such a device."""
    # One process, also within a job of SLURM for several.
    alone = Fabric(accelerator=device.type, devices=1, precision=name, plugins=LightningEnvironment())
    return alone.strategy.precision
