"""Looks at any model while it is trained, in any Lightning trainer or that of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from pydantic import PositiveInt
from torch import nn

from lab.callbacks.diagnostics.base import Diagnostic
from lab.models.replace import heat
from lab.observation.observe import look


class Watch(Callback):
    """Shows a probe batch to diagnostics every few optimiser steps, and moves temperatures that have a schedule.

    Tables and pictures go where the diagnostics are told to keep them. Of Hugging Face's trainer it is
    :class:`lab.callbacks.watch_trainer.WatchTrainer`.

    Args:
        model: under a softmax of the lab (``lab.replace_softmax``): the model that is trained, or a part of it.
        x: its input, or its inputs by name.
        diagnostics: those that need no scene.
        every_n_steps: cadence.
    """

    def __init__(
        self, model: nn.Module, x: Any, diagnostics: Sequence[Diagnostic], every_n_steps: PositiveInt = 100
    ) -> None:
        self.model = model
        self.x = x
        self.diagnostics = list(diagnostics)
        self.every_n_steps = every_n_steps
        self._seen = -1

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        self.at(trainer.global_step, int(trainer.estimated_stepping_batches), trainer.is_global_zero)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.end(trainer.global_step)

    def at(self, step: int, steps: int, looks: bool = True) -> None:
        """Sets temperatures for a step of so many, and looks where it is due."""
        heat(self.model, min(step / max(1, steps), 1.0))
        if looks and step % self.every_n_steps == 0:
            self._look(step)

    def end(self, step: int) -> None:
        """Looks once more, and draws the pictures over training."""
        self._look(step)
        for one in self.diagnostics:
            if (picture := None if one.table.empty else one.history(one.table, None)) is not None:
                one.draw(picture, "")

    def _look(self, step: int) -> None:
        if step == self._seen:
            return  # a step of several batches
        self._seen = step
        for one, findings in zip(self.diagnostics, look(self.model, self.x, self.diagnostics), strict=True):
            one.keep(findings, None, step)
            for name, make in findings.figures.items():
                one.draw(make(), f"{name}_step_{step:07d}")
