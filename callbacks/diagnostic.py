"""What every diagnostic is: a callback that looks at a probe set now and then, and leaves a table and pictures."""

from __future__ import annotations

from typing import Any

import lightning as L
import pandas as pd
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure

from lab.callbacks.eureka import moment_step
from lab.callbacks.keeper import Keeper
from lab.console import LabError
from lab.observation.observe import Chunk, Findings, attention_layers, observe


class Diagnostic(Keeper):
    """Looks at the first scenes of the validation set before training and then every few epochs, on rank 0.

    A diagnostic of one's own is a subclass with :meth:`see` and :meth:`conclude`, and a config with its
    ``_target_``. It leaves ``diagnostics/<name>.csv`` (columns epoch and step, then its own) and pictures in
    ``pictures/<name>``, and never changes training: random state, gradients and flags are as they were. All that are
    due together share one forward pass.

    Args:
        folder: the run folder.
        every_n_epochs: cadence.
        scenes: how many scenes to look at.
        pictures_every_n_epochs: cadence of pictures of one moment; 0 draws none. The picture over training is drawn
            once, at its end.

    Raises:
        ValueError: if a number is out of its range.
    """

    # The recorder's quantities that it wants to see.
    reads: tuple[str, ...] = ()

    def __init__(
        self, folder: str, every_n_epochs: int = 1, scenes: int = 256, pictures_every_n_epochs: int = 10
    ) -> None:
        super().__init__(folder)
        for name, value, least in (
            ("every_n_epochs", every_n_epochs, 1),
            ("scenes", scenes, 1),
            ("pictures_every_n_epochs", pictures_every_n_epochs, 0),
        ):
            if value < least:
                raise ValueError(f"callbacks.{self.name}.{name} must be at least {least}, got {value}")
        self.every_n_epochs = every_n_epochs
        self.scenes = scenes
        self.pictures_every_n_epochs = pictures_every_n_epochs

    def see(self, chunk: Chunk) -> Any:
        """What to keep of some scenes; small, since all chunks' are kept."""
        raise NotImplementedError

    def conclude(self, seen: list[Any]) -> Findings:
        """What all chunks together say."""
        raise NotImplementedError

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure | None:
        """The picture over training; ``moment`` is the step of the Eureka-moment. None draws none."""
        return None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        model: Any = pl_module.model
        if sum(one.name == self.name for one in _diagnostics(trainer)) > 1:
            raise LabError(f"two diagnostics are called {self.name} and would write one file: leave one of them out")
        if not attention_layers(model):
            raise LabError(
                f"callbacks.{self.name} looks into attention, which {type(model).__name__} does not have: leave it out"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero and trainer.global_step:
            self._take_back(trainer.global_step)
        elif self._leads(trainer, due=_diagnostics(trainer)):
            _look(trainer, pl_module, _diagnostics(trainer), epoch=0)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        due = [one for one in _diagnostics(trainer) if epoch % one.every_n_epochs == 0]
        if self._leads(trainer, due):
            _look(trainer, pl_module, due, epoch)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero or self.table.empty:
            return
        picture = self.history(self.table, moment_step(trainer))
        if picture is not None:
            self.draw(picture, "", trainer)

    def _leads(self, trainer: L.Trainer, due: list[Diagnostic]) -> bool:
        """Whether this is the one of those due that does the looking for all; only on rank 0."""
        return trainer.is_global_zero and bool(due) and due[0] is self

    def _take_back(self, step: int) -> None:
        """Reads the table of the run that is gone on with, up to the step of its checkpoint."""
        if self.path.exists():
            table = pd.read_csv(self.path)
            self.table = table[table["step"] <= step]


def _diagnostics(trainer: L.Trainer) -> list[Diagnostic]:
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, Diagnostic)]


def _look(trainer: L.Trainer, pl_module: L.LightningModule, due: list[Diagnostic], epoch: int) -> None:
    """Shows the probe set to the diagnostics that are due, and writes down what they find."""
    model: Any = pl_module.model
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    precision = trainer.precision_plugin
    step = trainer.global_step
    for one, findings in zip(due, observe(model, data, due, pl_module.device, precision), strict=True):
        one.keep(findings, epoch, step)
        pictures = one.pictures_every_n_epochs and epoch % one.pictures_every_n_epochs == 0
        values = {f"{one.name}/{name}": value for name, value in findings.scalars.items()}
        for logger in trainer.loggers:
            # The row of the epoch's other numbers; before training there is none yet.
            logger.log_metrics({**values, "epoch": max(0, epoch - 1)}, step=max(0, step - 1))
            if pictures and isinstance(logger, TensorBoardLogger):
                for name, numbers in findings.histograms.items():
                    logger.experiment.add_histogram(f"{one.name}/{name}", numbers.float().cpu(), step)
        if pictures:
            one.keep_arrays(findings, f"epoch_{epoch:05d}")
            for name, make in findings.figures.items():
                one.draw(make(), f"{name}_epoch_{epoch:05d}", trainer)
