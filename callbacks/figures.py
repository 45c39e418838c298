"""Figures in TensorBoard."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure


def show_figure(trainer: L.Trainer, tag: str, figure: Figure) -> None:
    """Gives a figure to those of the trainer's loggers that take one, at the step reached."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_figure(tag, figure, global_step=trainer.global_step, close=False)  # type: ignore[union-attr]
