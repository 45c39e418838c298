"""Mean |gradient| of W_Q, W_K and W_V in every layer."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch.optim import Optimizer

from callbacks.eureka import moment_step
from callbacks.figures import show_figure
from lab.attention import Attention
from lab.curves import gradient_figure
from lab.pictures import save_figure


class GradientNorms(Callback):
    """Logs ``gradient/<q|k|v>/layer_<i>``, the mean absolute gradient of each projection.

    Read after the backward pass and unscaling, before the optimiser step. Per layer, one transfer to the host.

    Source: Eureka-moments in Transformers, Figures 4 and 14 ("L1 gradient norm").

    At the end of training ``pictures/gradient_norms.png`` shows them, the time before the Eureka-moment in grey.

    Args:
        every_n_steps: cadence in optimiser steps.
        folder: the run folder, for the picture; None draws none.

    Raises:
        ValueError: if the cadence is not positive.
    """

    def __init__(self, every_n_steps: int = 50, folder: str | None = None) -> None:
        if every_n_steps < 1:
            raise ValueError(f"callbacks.gradient_norms.every_n_steps must be at least 1, got {every_n_steps}")
        self.every_n_steps = every_n_steps
        self.folder = None if folder is None else Path(folder)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        if trainer.global_step % self.every_n_steps or not trainer.is_global_zero:
            return
        values = gradient_norms(pl_module.model)  # type: ignore[arg-type]
        for logger in trainer.loggers:
            logger.log_metrics({**values, "epoch": trainer.current_epoch}, step=trainer.global_step)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.folder is None or not trainer.is_global_zero:
            return
        for logger in trainer.loggers:
            logger.save()
        # A model without attention has logged none.
        with suppress(ValueError):
            figure = gradient_figure(self.folder, moment=moment_step(trainer))
            save_figure(figure, self.folder / "pictures" / "gradient_norms.png")
            show_figure(trainer, "gradient_norms", figure)


def gradient_norms(model: torch.nn.Module) -> dict[str, float]:
    """``gradient/<q|k|v>/layer_<i>`` -> mean |gradient|; layers without a gradient are left out."""
    names: list[str] = []
    norms: list[torch.Tensor] = []
    layers: list[Attention] = model.attention_layers() if hasattr(model, "attention_layers") else []  # type: ignore[operator,assignment]
    for index, layer in enumerate(layers):
        for name, gradient in (layer.projection_gradients() or {}).items():
            names.append(f"gradient/{name}/layer_{index}")
            norms.append(gradient.detach().float().abs().mean())
    return dict(zip(names, torch.stack(norms).tolist(), strict=True)) if norms else {}
