"""Mean |gradient| of W_Q, W_K and W_V in every layer."""

from __future__ import annotations

import math
from functools import partial

import lightning as L
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch.optim import Optimizer

from lab.callbacks.access import model_of
from lab.callbacks.diagnostics.base import CheckpointDiagnostic
from lab.callbacks.eureka import moment_step
from lab.console import LabError
from lab.models.observable import attention_layers_of
from lab.observation.gradients import at_next_steps
from lab.observation.observe import Findings
from lab.observation.subject import Subject
from lab.plotting.curves import gradient_rows, gradients_figure
from lab.plotting.figures import bars_by_layer, lines_by_layer


class GradientNorms(CheckpointDiagnostic):
    """Logs ``gradient/<q|k|v>/layer_<i>``, the mean absolute gradient of each projection.

    They are read after the backward pass and unscaling, before the optimiser step, with one transfer to the host per
    look. At the end of training ``pictures/gradient_norms.png`` shows them, the time before the Eureka-moment in grey.

    For a model of another library use :class:`lab.callbacks.watch.Watch`. At a checkpoint (``lab.inspect``) this
    diagnostic shows what training would log next. Table: layer, ahead (steps after the checkpoint, all with the
    checkpoint's weights), q, k, v.

    Source: Eureka-moments in Transformers, Figures 4 and 14 ("L1 gradient norm").

    Args:
        folder: the run folder.
        every_n_steps: cadence in optimiser steps.
        scenes: training scenes of a look at a checkpoint, rounded up to whole steps; None is those of one step.
    """

    needs = "training"

    def __init__(self, folder: str, every_n_steps: PositiveInt = 50, scenes: PositiveInt | None = None) -> None:
        super().__init__(folder)
        self.every_n_steps = every_n_steps
        self.scenes = scenes

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        if trainer.global_step % self.every_n_steps or not trainer.is_global_zero:
            return
        values = gradient_norms(model_of(pl_module))
        for logger in trainer.loggers:
            logger.log_metrics({**values, "epoch": trainer.current_epoch}, step=trainer.global_step)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Not on_train_end: a run that was killed after its last checkpoint does not call it when it is resumed.
        if not trainer.is_global_zero:
            return
        for logger in trainer.loggers:
            logger.save()
        if rows := gradient_rows(self.folder):  # a model without attention has none
            with self.telling_faults():
                self.draw(gradients_figure(rows, moment_step(trainer)), "", trainer)

    def look(self, subject: Subject) -> Findings:
        """Mean |gradient| of the next training steps at a checkpoint.

        Raises:
            LabError: if the model has no attention, or the data cannot draw training batches by (epoch, batch).
        """
        trained = subject.trained
        assert trained is not None  # as ``needs`` ensures
        if not attention_layers_of(subject.model):
            raise LabError(f"{type(subject.model).__name__} has no attention, so {self.name} cannot look into it")
        steps = math.ceil((self.scenes or 1) / trained.samples_per_step)
        found = Findings()
        for ahead, layers in enumerate(at_next_steps(trained, steps, norms_by_layer)):
            found.rows += [{"layer": layer, "ahead": ahead, **norms} for layer, norms in layers.items()]
        if not found.rows:
            raise LabError(
                f"no layer of {type(subject.model).__name__} tells which of its weights are W_Q, W_K and W_V"
            )
        found.figures["layers"] = partial(bars_by_layer, found.rows, ["q", "k", "v"], "mean |gradient|", log=True)
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        return lines_by_layer(table, ["q", "k", "v"], "mean |gradient|", moment, log=True)


def gradient_norms(model: torch.nn.Module) -> dict[str, float]:
    """``gradient/<q|k|v>/layer_<i>`` -> mean |gradient|; layers without a gradient are left out."""
    layers = norms_by_layer(model)
    return {f"gradient/{name}/layer_{layer}": norm for layer, own in layers.items() for name, norm in own.items()}


def norms_by_layer(model: torch.nn.Module) -> dict[int, dict[str, float]]:
    """Layer -> "q", "k", "v" -> mean |gradient|; layers without a gradient are left out."""
    layers = attention_layers_of(model)
    gradients = {index: own for index, layer in enumerate(layers) if (own := layer.projection_gradients())}
    if not gradients:
        return {}
    norms = torch.stack([g.detach().float().abs().mean() for own in gradients.values() for g in own.values()])
    rest = iter(norms.tolist())
    return {index: {name: next(rest) for name in own} for index, own in gradients.items()}
