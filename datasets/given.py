"""Inputs that somebody has given, to be looked at and not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lab.datasets.loading import Batch, DataModule, Drawn


class GivenData(DataModule):
    """Inputs of one shape without labels: ``{"x": [B, ...], "y": [B] zeros, "latents": {}}``.

    If they are to be trained on, each input is its own label, as with the tokens of a text.

    Args:
        inputs: what is shown, in this order; files are read when their batch is due.
        read: makes an input of each; None where they are tensors already.
    """

    batch_size = 16

    def __init__(self, inputs: Sequence[Any], read: Callable[[Any], Tensor] | None = None) -> None:
        super().__init__()
        self.inputs = inputs
        self.read = read
        self.validation_size = len(inputs)

    def model_arguments(self) -> dict[str, int]:
        return {"num_classes": 0}

    @property
    def samples_per_batch(self) -> int:
        return min(self.batch_size, len(self.inputs))

    def draw_train(self, epoch: int, step: int) -> Drawn:
        """The inputs of a batch: the same in every epoch."""
        return self.draw_validation(step)

    def draw_validation(self, index: int) -> Batch:
        """The inputs of a batch, read."""
        own = self.inputs[index * self.batch_size : (index + 1) * self.batch_size]
        x = torch.stack([one if self.read is None else self.read(one) for one in own])
        return {"x": x, "y": torch.zeros(len(x), dtype=torch.long), "latents": {}}

    def train_dataloader(self) -> Any:
        return self.val_dataloader()
