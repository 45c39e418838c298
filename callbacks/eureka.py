"""Detects the Eureka-moment; it is detected only here, and everything else reads it from the summary."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from pydantic import NonNegativeInt, PositiveFloat

from lab.callbacks.access import callbacks_of, check_metric, steps_an_epoch
from lab.callbacks.throughput import samples_seen
from lab.console import LabError, name_of, tell
from lab.datasets.loading import data_of
from lab.observation.change_point import change_point
from lab.runs.boards import THRESHOLD_OF, boards
from lab.runs.metric_names import falls, is_accuracy, value_told
from lab.runs.summary import Change


@dataclass
class Moment:
    """Place of a Eureka-moment in training.

    Attributes:
        epoch: epochs trained when it was seen (the paper's Eureka-epoch; 1 is the first).
        step: optimiser steps.
        wall_seconds: seconds of training, interruptions left out.
        samples: training samples seen.
        accuracy: validation accuracy there; None where none is logged.
        value: value of the watched metric there.
    """

    epoch: int
    step: int
    wall_seconds: float
    samples: int
    accuracy: float | None = None
    value: float | None = None


class EurekaMoment(Callback):
    """Finds the first validation whose metric passes a threshold that the prior p(z) alone cannot pass.

    Also finds the change point of the metric, which needs no threshold (:mod:`lab.observation.change_point`).

    Source: Eureka-moments in Transformers, section 4 ("Metrics"): 70 % accuracy.

    Args:
        threshold: value to pass; None computes it from ``plateau_share``.
        metric: logged metric that is compared.
        stop_after: stop training at the first validation so many epochs after the moment; None trains on to the end.
        mode: "max" where the metric rises as it gets better, "min" where it falls; None is "min" for a loss.
        plateau_share: the threshold as a share of the plateau that the data knows: the loss of a predictor that knows
            only how frequent each answer is (for a corpus its unigram entropy), or the accuracy that the prior p(z)
            alone reaches.

    Attributes:
        accuracy: at the last validation; None before the first.
        prior_accuracy, prior_loss: what the prior alone can reach on the validation set, once training has begun; None
            where the data cannot tell.

    Raises:
        ValueError: if both or neither of ``threshold`` and ``plateau_share`` are given, or the threshold is not an
            accuracy below 1.
    """

    def __init__(
        self,
        threshold: PositiveFloat | None = 0.7,
        metric: str = "val/accuracy",
        stop_after: NonNegativeInt | None = None,
        mode: Literal["max", "min"] | None = None,
        plateau_share: PositiveFloat | None = None,
    ) -> None:
        if (threshold is None) == (plateau_share is None):
            raise ValueError(
                "give one of callbacks.eureka.threshold and callbacks.eureka.plateau_share, and set the other to null"
            )
        self.metric = metric
        if threshold is not None and threshold >= 1 and is_accuracy(metric):
            raise ValueError(f"callbacks.eureka.threshold={threshold} must be below 1, as {metric} is an accuracy")
        self.threshold = threshold
        self.plateau_share = plateau_share
        self.stop_after = stop_after
        self.falls = falls(metric) if mode is None else mode == "min"
        self.moment: Moment | None = None
        self.accuracy: float | None = None
        self.prior_accuracy: float | None = None
        self.prior_loss: float | None = None
        self._curve: list[tuple[int, int, float]] = []
        self._change: tuple[int, Change | None] = (0, None)
        self._seconds_before = 0.0
        self._started = time.monotonic()

    @property
    def wall_seconds(self) -> float:
        """Seconds of training so far, over all parts of an interrupted run."""
        return self._seconds_before + time.monotonic() - self._started

    @property
    def plateau(self) -> float | None:
        """Value of the watched metric that the prior alone reaches; None where the data cannot tell."""
        # Other accuracies (of one location, of labels alone) have plateaus of their own, which the data do not know.
        return {"val/accuracy": self.prior_accuracy, "val/loss": self.prior_loss}.get(self.metric)

    @property
    def change(self) -> Change | None:
        """The change point of the metric so far; None before there is one."""
        if self._change[0] != len(self._curve):
            found = change_point([value for _, _, value in self._curve], rises=not self.falls)
            change = None
            if found is not None:
                epoch, step, _ = self._curve[found.index]
                change = Change(epoch=epoch, step=step, before=found.before, after=found.after, strength=found.strength)
            self._change = (len(self._curve), change)
        return self._change[1]

    @property
    def newest(self) -> float | None:
        """The watched metric at the last validation, also from before an interruption; None before the first."""
        return self._curve[-1][2] if self._curve else None

    @property
    def validated(self) -> bool:
        """True from the first validation on."""
        return bool(self._curve)

    @property
    def happened(self) -> bool | None:
        """True from the moment on, False until then; None before the first validation."""
        return self.moment is not None if self.validated else None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        check_metric("callbacks.eureka.metric", self.metric, pl_module, of="val/")
        self.prior_accuracy = data_of(trainer).prior_accuracy()
        # Data tell it of cross-entropy; the module's settings (OptimConfig) say if its loss is another one.
        own_loss = getattr(getattr(pl_module, "optim", None), "own_loss", False)
        self.prior_loss = None if own_loss else data_of(trainer).prior_loss()
        for part, highest in (("prior_accuracy", 1.0), ("prior_loss", math.inf)):
            value: object = getattr(self, part)
            if value is not None and not (isinstance(value, int | float) and 0 <= value <= highest):
                most = "a number from 0 to 1" if highest == 1 else "a number from 0 on"
                raise LabError(
                    f"{name_of(type(data_of(trainer)))}.{part}() gives {value!r}: it must be {most}, or None"
                )
        if self.plateau_share is not None:
            if self.plateau is None:
                whose = "a loss of your own" if own_loss and self.metric == "val/loss" else "this data"
                raise LabError(
                    f"callbacks.eureka.plateau_share={self.plateau_share} needs the plateau of {self.metric}, which "
                    f"{whose} does not tell: give callbacks.eureka.threshold, and set plateau_share to null"
                )
            self.threshold = self.plateau_share * self.plateau
            if self.threshold >= 1 and is_accuracy(self.metric):
                raise LabError(
                    f"callbacks.eureka.plateau_share={self.plateau_share:g} of a plateau of {self.plateau:.1%} is a "
                    "threshold that is not below 1: give a smaller plateau_share"
                )
        if self.plateau is not None and (self._passes(self.plateau) or self.plateau == self.threshold):
            tell(
                f"callbacks.eureka.threshold={self.threshold:g} is no sign of a Eureka-moment here: the prior p(z) "
                f"alone reaches {value_told(self.metric, self.plateau)} on this task; set a "
                f"{'lower' if self.falls else 'higher'} one"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = time.monotonic()
        every, last, steps = trainer.check_val_every_n_epoch or 1, trainer.max_epochs, trainer.max_steps
        first = every * (steps_an_epoch(trainer) or 1)
        if last is not None and 0 <= last < every and not self.validated:
            tell(
                f"no Eureka-moment can be seen: the first validation would come at epoch {every}, and the run ends at "
                f"{last} (trainer.check_val_every_n_epoch, trainer.max_epochs)"
            )
        elif 0 < steps < first and not self.validated:
            tell(
                f"no Eureka-moment can be seen: the first validation would come at step {first}, and the run ends at "
                f"{steps} (trainer.max_steps)"
            )
        # A run that was killed after its last checkpoint may have nothing left to train. Only validated epochs count:
        # between two validations a run that was never interrupted trains on.
        self._stop_if_due(trainer, self._curve[-1][0] if self._curve else 0)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        epoch = trainer.current_epoch + 1
        accuracy = trainer.callback_metrics.get("val/accuracy")
        self.accuracy = None if accuracy is None else float(accuracy)
        value = float(trainer.callback_metrics[self.metric])
        self._curve.append((epoch, trainer.global_step, value))
        if self.moment is None and self._passes(value):
            seconds = round(self.wall_seconds, 3)
            samples = samples_seen(trainer)
            self.moment = Moment(epoch, trainer.global_step, seconds, samples, self.accuracy, value)
        self._draw(trainer)
        self._stop_if_due(trainer, epoch)

    def _passes(self, value: float) -> bool:
        assert self.threshold is not None, "known from on_fit_start on"
        # Rounded as metrics are: 60 % in float32 is a little more than 0.6.
        threshold = float(np.float32(self.threshold))
        return value < threshold if self.falls else value > threshold

    def _stop_if_due(self, trainer: L.Trainer, epochs: int) -> None:
        if self.moment and self.stop_after is not None and epochs >= self.moment.epoch + self.stop_after:
            trainer.should_stop = True

    def _draw(self, trainer: L.Trainer) -> None:
        """Logs the lines that boards show beside the metric; a table does not need them."""
        classes = data_of(trainer).model_arguments()["num_classes"]
        own = {"val/accuracy": "eureka/threshold", "val/loss": "eureka/loss_threshold"}
        threshold = own.get(self.metric, THRESHOLD_OF + self.metric)
        lines = {threshold: self.threshold, "eureka/chance": 1 / classes}
        lines |= {"eureka/prior_accuracy": self.prior_accuracy, "eureka/prior_loss": self.prior_loss}
        lines |= {"eureka/happened": float(self.moment is not None)}
        lines |= {"eureka/epoch": float(self.moment.epoch)} if self.moment else {}
        for board in boards(trainer):
            known = {name: line for name, line in lines.items() if line is not None}
            board.log_metrics(known, max(0, trainer.global_step - 1))

    def state_dict(self) -> dict[str, Any]:
        moment = asdict(self.moment) if self.moment else None
        return {"moment": moment, "wall_seconds": self.wall_seconds, "curve": self._curve}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.moment = Moment(**state_dict["moment"]) if state_dict["moment"] else None
        self._seconds_before = state_dict["wall_seconds"]
        self._curve = list(state_dict["curve"])


def watched_metric(callbacks: Iterable[Callback]) -> str:
    """Name of the metric in which the Eureka-moment is looked for; the accuracy if no callback looks for one."""
    found = find_moment(callbacks)
    return "val/accuracy" if found is None else found.metric


def find_moment(callbacks: Iterable[Callback]) -> EurekaMoment | None:
    """The Eureka callback among ``callbacks``, if there is one."""
    return next((callback for callback in callbacks if isinstance(callback, EurekaMoment)), None)


def moment_step(trainer: L.Trainer) -> float | None:
    """The step of the trainer's Eureka-moment, for a picture; None before it, NaN if no callback looks for it."""
    callback = find_moment(callbacks_of(trainer))
    if callback is None:
        return math.nan
    return callback.moment.step if callback.moment else None
