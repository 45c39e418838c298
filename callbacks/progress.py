"""One progress bar for a whole run, with the live accuracy and the state of the Eureka-moment."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol, runtime_checkable

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from pydantic import PositiveFloat
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lab.callbacks.access import callbacks_of
from lab.callbacks.eureka import find_moment, moment_step


class EurekaProgress(ProgressBar):
    """Steps of the whole run, not of an epoch: an epoch of the reasoning task is one step.

    On a terminal a live bar; elsewhere (a log file, SLURM) a line every ``line_every_seconds``.

    Args:
        refresh_per_second: redraws of the live bar.
        line_every_seconds: cadence of plain lines.
    """

    def __init__(self, refresh_per_second: PositiveFloat = 5.0, line_every_seconds: PositiveFloat = 30.0) -> None:
        super().__init__()
        self.refresh_per_second = refresh_per_second
        self.line_every_seconds = line_every_seconds
        self._enabled = True
        self._progress: Progress | None = None
        self._task: Any = None
        self._total = 0
        self._first_step = 0
        self._started = 0.0
        self._drawn = 0.0
        self._told = ""

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._total = int(trainer.estimated_stepping_batches)
        self._first_step = trainer.global_step
        self._started = time.monotonic()
        self._drawn = 0.0
        self._told = ""
        if not self._enabled or not sys.stderr.isatty():
            return
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
            refresh_per_second=self.refresh_per_second,
        )
        self._task = self._progress.add_task("", total=self._total, completed=trainer.global_step, state="")
        self._progress.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._draw(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._draw(trainer, moment=True)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, now=True)
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _draw(self, trainer: L.Trainer, now: bool = False, moment: bool = False) -> None:
        if not self._enabled:
            return
        pause = 1 / self.refresh_per_second if self._progress else self.line_every_seconds
        # The moment itself is news: it does not wait for its turn.
        news = moment and moment_step(trainer) == trainer.global_step
        if not (now or news) and time.monotonic() - self._drawn < pause:
            return
        self._drawn = time.monotonic()
        epoch = f"epoch {min(trainer.current_epoch + 1, trainer.max_epochs or 1)}/{trainer.max_epochs}"
        state = state_of(trainer)
        if self._progress is not None:
            self._progress.update(self._task, completed=trainer.global_step, description=epoch, state=state)
        else:
            seconds = time.monotonic() - self._started
            rate = (trainer.global_step - self._first_step) / seconds if seconds > 0 else 0.0
            left = (self._total - trainer.global_step) / rate if rate > 0 else float("nan")
            place = f"step {trainer.global_step}/{self._total}"
            told = f"{place}  {state}"
            if told == self._told:
                return  # the last step was told of, and no validation has come since
            self._told = told
            print(
                f"{epoch}  {place}  {rate:.2f} steps/s  {left / 60:.0f} min left  {state}",
                file=sys.stderr,
                flush=True,
            )


@runtime_checkable
class Describes(Protocol):
    """A module that says by itself how far it has come."""

    def describe(self) -> str:
        """Accuracy and Eureka-moment in one short line."""
        ...


def state_of(trainer: L.Trainer) -> str:
    """Accuracy and Eureka state in one short line; a module that trains many runs at once describes them itself."""
    module: object = trainer.lightning_module
    if isinstance(module, Describes):
        return module.describe()
    eureka = find_moment(callbacks_of(trainer))
    metric = eureka.metric if eureka else "val/accuracy"
    value = trainer.callback_metrics.get(metric)
    if value is None:
        return "not validated yet"
    text = f"{metric.removeprefix('val/')} {float(value):{'.1%' if 'accuracy' in metric else '.4g'}}"
    if eureka is None:
        return text
    if eureka.moment is None:
        return f"{text}, no Eureka-moment yet"
    return f"{text}, Eureka-moment at epoch {eureka.moment.epoch}"
