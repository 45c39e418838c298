"""One progress bar for a whole run, with loss, accuracy, speed, the state of the Eureka-moment and the time left."""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Timer as Alarm
from typing import Any, Protocol, runtime_checkable

import lightning as L
from lightning.pytorch.callbacks import ProgressBar, Timer
from pydantic import PositiveFloat
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from lab.callbacks.access import callbacks_of, steps_an_epoch
from lab.callbacks.eureka import find_moment, watched_metric
from lab.callbacks.pace import Pace
from lab.console import duration, tell, tell_later
from lab.datasets.loading import data_of
from lab.runs.metric_names import value_told

# Shortest and longest width of the bar itself, in columns.
_SHORTEST, _LONGEST = 8, 40
_BETWEEN = "  "


class EurekaProgress(ProgressBar):
    """Shows the steps of the whole run, not of an epoch: an epoch of the reasoning task is one step.

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
        self._live: Live | None = None
        self._waiting: Alarm | None = None
        self._pace = Pace()
        self._total = 0.0
        self._drawn = 0.0
        self._loss: float | None = None
        self._outputs: Any = None
        self._epoch = 1
        self._told: tuple[str, ...] = ()

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Infinite for endless training.
        self._total = float(trainer.estimated_stepping_batches)
        self._pace = Pace()
        self._drawn = 0.0
        self._loss, self._told, self._outputs = None, (), None
        self._epoch = trainer.current_epoch + 1
        if not self._enabled:
            return
        console = Console(stderr=True)
        # Not where rich would draw at the end alone (TERM=dumb), nor for a sweep's workers, whose bars would draw over
        # each other's.
        if sys.stderr.isatty() and console.is_interactive and multiprocessing.parent_process() is None:
            self._live = Live(console=console, refresh_per_second=self.refresh_per_second)
            self._live.start()
            self._show(trainer, "first batch")
        else:
            self._waiting = tell_later("the first batch is under way")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._pace.stepped(trainer.global_step)
        # Converted to a number only when it is shown, since that waits for a GPU.
        self._outputs = outputs
        self._draw(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._epoch = trainer.current_epoch + 1

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._pace.validates(trainer.global_step)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not trainer.sanity_checking:
            total = sum(trainer.num_val_batches)
            self._draw(trainer, doing=f"validating {batch_idx + 1}/{total}" if total > 1 else "")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            # The Eureka-moment is shown at once, not at the next regular update.
            callback = find_moment(callbacks_of(trainer))
            moment = callback.moment if callback is not None else None
            self._draw(trainer, now=moment is not None and moment.step == trainer.global_step)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, now=True)
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self, trainer: L.Trainer, doing: str = "", now: bool = False) -> None:
        if not self._enabled:
            return
        pause = 1 / self.refresh_per_second if self._live is not None else self.line_every_seconds
        if not now and time.monotonic() - self._drawn < pause:
            return
        self._drawn = time.monotonic()
        if self._outputs is not None:
            loss = self._outputs["loss"] if isinstance(self._outputs, Mapping) else self._outputs
            self._loss = float(loss) * trainer.accumulate_grad_batches
        if self._live is not None:
            self._show(trainer, doing)
        else:
            self._print(trainer, doing)

    def _show(self, trainer: L.Trainer, doing: str) -> None:
        assert self._live is not None
        left = self.seconds_left(trainer)
        share = trainer.global_step / self._total if 0 < self._total < math.inf else None
        rest = [doing, *self._state(trainer), self._speed(trainer)]
        left_text = "" if left is None else f"{duration(left)} left"
        self._live.update(Line(self._place(trainer), share, left_text, [part for part in rest if part]))

    def _print(self, trainer: L.Trainer, doing: str) -> None:
        total = f"/{self._total:.0f}" if self._total < math.inf else ""
        place = f"step {trainer.global_step}{total}"
        state = self._state(trainer)
        told = (place, doing, *state[self._loss is not None :])
        if told == self._told:
            return  # this step was printed already, and no validation has come since
        self._told = told
        per_step, left = self._pace.seconds_per_step, self.seconds_left(trainer)
        rate = f"{1 / per_step:.2f} steps/s" if per_step else ""
        left_text = "" if left is None else f"{duration(left)} left"
        parts = [self._place(trainer), place, rate, self._speed(trainer), left_text, doing, *state]
        tell(_BETWEEN.join(part for part in parts if part))

    def _state(self, trainer: L.Trainer) -> list[str]:
        """Loss of the last batch, validated metric, Eureka-moment; a module of many seeds describes all of them."""
        module: object = trainer.lightning_module
        return module.describe() if isinstance(module, Describes) else state_of(trainer, self._loss)

    def _place(self, trainer: L.Trainer) -> str:
        last = trainer.max_epochs
        return f"epoch {self._epoch:,}" if last is None or last < 0 else f"epoch {min(self._epoch, last):,}/{last:,}"

    def _speed(self, trainer: L.Trainer) -> str:
        per_step = self._pace.seconds_per_step
        if not per_step:
            return ""
        data = data_of(trainer)
        told = f"{data.samples_per_batch * trainer.accumulate_grad_batches / per_step:,.0f} {data.unit}/s"
        return f"{told} a seed" if isinstance(trainer.lightning_module, Describes) else told

    def seconds_left(self, trainer: L.Trainer) -> float | None:
        """Seconds to the end of the run; None before they can be estimated."""
        step = trainer.global_step
        if (per_epoch := steps_an_epoch(trainer)) is None:
            return None
        total = self._total
        eureka = find_moment(callbacks_of(trainer))
        if eureka is not None and eureka.moment is not None and eureka.stop_after is not None:
            every = trainer.check_val_every_n_epoch or 1
            total = min(total, math.ceil((eureka.moment.epoch + eureka.stop_after) / every) * every * per_epoch)
        clocks = [one.time_remaining() for one in callbacks_of(trainer) if isinstance(one, Timer)]
        bounds = [max(0.0, seconds) for seconds in clocks if seconds is not None]  # below 0 once the time is over
        if total < math.inf:
            every = per_epoch * (trainer.check_val_every_n_epoch or 1)
            validations = int(total // every - step // every)
            left = self._pace.seconds_left(max(0, int(total) - step), validations, int(sum(trainer.num_val_batches)))
            if left is None:
                return None
            bounds.append(left)
        return min(bounds, default=None)


@runtime_checkable
class Describes(Protocol):
    """A module that describes its progress itself."""

    def describe(self) -> list[str]:
        """Loss, accuracy and Eureka-moment, a few words each."""
        ...


def state_of(trainer: L.Trainer, loss: float | None) -> list[str]:
    """Loss of a training batch, validated metric beside its plateau, and state of the moment, a few words each."""
    told = [] if loss is None else [loss_told(loss)]
    eureka = find_moment(callbacks_of(trainer))
    metric = watched_metric(callbacks_of(trainer))
    value: Any = trainer.callback_metrics.get(metric)
    if value is None and eureka is not None:
        value = eureka.newest  # of a run that goes on
    if value is None:
        return [*told, "not validated yet"]
    validated = metric_told(metric, float(value))
    if eureka is None:
        return [*told, validated]
    if eureka.moment is not None:
        return [*told, validated, f"Eureka-moment at epoch {eureka.moment.epoch:,}"]
    plateau = "" if eureka.plateau is None else f" (plateau {value_told(metric, eureka.plateau)})"
    return [*told, validated + plateau, "no Eureka-moment yet"]


def metric_told(metric: str, *values: float) -> str:
    """A validated metric in words: "accuracy 50.0%", of several runs "accuracy 50.0% to 80.0%"."""
    name = metric.removeprefix("val/")
    told = " to ".join(value_told(metric, value) for value in values)
    return f"{'validation ' if name == 'loss' else ''}{name} {told}"


def loss_told(loss: float) -> str:
    """A loss in words, with as many digits from one batch to the next."""
    return f"loss {loss:.3f}" if loss >= 0.001 else f"loss {loss:.1e}"


@dataclass
class Line:
    """The live bar: its parts on as few lines as the terminal takes, none of them cut.

    Attributes:
        place: how far training has come, in words.
        share: share of the steps trained, in [0, 1]; None for endless training, which has no bar.
        left: time that is left, in words; "" where it is not known.
        rest: all other parts: what is under way, loss, metric, Eureka-moment and speed.
        since: when the line was made; from 2 s on, the line says how long the first of ``rest`` has been under way.
    """

    place: str
    share: float | None
    left: str
    rest: Sequence[str]
    since: float = field(default_factory=time.monotonic)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        waited = time.monotonic() - self.since
        rest = [*self.rest[:1], *([f"for {waited:.0f} s"] if waited >= 2 else []), *self.rest[1:]]
        before = [self.place]
        after = [*([] if self.share is None else [f"{self.share:4.0%}"]), *([self.left] if self.left else [])]
        lines = [[*after, *rest]]
        if len(_BETWEEN.join([*before, "-" * _SHORTEST, *after, *rest])) > width:
            lines = [after, *in_lines(rest, width)]
        room = width - len(_BETWEEN.join([*before, *lines[0]])) - len(_BETWEEN)
        if self.share is None or room < 1:
            yield from (Text(_BETWEEN.join(line)) for line in in_lines([*before, *after, *rest], width))
            return
        grid = Table.grid(padding=(0, len(_BETWEEN), 0, 0))
        bar = Bar(total=1, completed=self.share, width=min(room, _LONGEST))
        grid.add_row(Text(self.place, no_wrap=True), bar, Text(_BETWEEN.join(lines[0]), no_wrap=True))
        yield Group(grid, *(Text(_BETWEEN.join(line)) for line in lines[1:]))


def in_lines(parts: Sequence[str], width: int) -> list[list[str]]:
    """Parts line by line, as many on each as fit."""
    lines: list[list[str]] = [[]]
    for part in parts:
        if lines[-1] and len(_BETWEEN.join([*lines[-1], part])) > width:
            lines.append([])
        lines[-1].append(part)
    return lines
