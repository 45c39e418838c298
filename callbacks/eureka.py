"""Detects the Eureka-moment; the one place where it is found, everything else reads it from the summary."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from pydantic import Field, NonNegativeInt

from lab.callbacks.access import callbacks_of, check_metric
from lab.callbacks.throughput import samples_seen
from lab.console import tell
from lab.datasets.loading import data_of
from lab.runs.tensorboard import boards


@dataclass
class Moment:
    """Place of a Eureka-moment in training.

    Attributes:
        epoch: epochs trained when it was seen (the paper's Eureka-epoch; 1 is the first).
        step: optimiser steps.
        wall_seconds: seconds of training, interruptions left out.
        samples: training samples seen.
        accuracy: validation accuracy there.
    """

    epoch: int
    step: int
    wall_seconds: float
    samples: int
    accuracy: float


class EurekaMoment(Callback):
    """The first validation whose accuracy exceeds a threshold that the prior p(z) alone cannot pass.

    Source: Eureka-moments in Transformers, section 4 ("Metrics"): 70 %.

    Args:
        threshold: accuracy to exceed.
        metric: logged metric that is compared.
        stop_after: stop training this many epochs after the moment; None trains on to the end.

    Attributes:
        accuracy: at the last validation; None before the first.
        prior_accuracy: what the prior p(z) alone can reach on the validation set, once training has begun; None where
            the data cannot tell.
    """

    def __init__(
        self,
        threshold: Annotated[float, Field(gt=0, lt=1)] = 0.7,
        metric: str = "val/accuracy",
        stop_after: NonNegativeInt | None = None,
    ) -> None:
        self.threshold = threshold
        self.metric = metric
        self.stop_after = stop_after
        self.moment: Moment | None = None
        self.accuracy: float | None = None
        self.prior_accuracy: float | None = None
        self._seconds_before = 0.0
        self._started = time.monotonic()

    @property
    def wall_seconds(self) -> float:
        """Seconds of training so far, over all parts of an interrupted run."""
        return self._seconds_before + time.monotonic() - self._started

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = time.monotonic()
        # Killed between its last checkpoint and its end, a run has nothing left to train.
        self._stop_if_due(trainer, trainer.current_epoch)
        self.prior_accuracy = data_of(trainer).prior_accuracy()
        if self.prior_accuracy is not None and self.prior_accuracy >= self.threshold:
            tell(
                f"callbacks.eureka.threshold={self.threshold} is no sign of a Eureka-moment here: the prior p(z) alone "
                f"reaches {self.prior_accuracy:.1%} on this task; set a higher one"
            )

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        check_metric("callbacks.eureka.metric", self.metric, pl_module, of="val/")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        epoch = trainer.current_epoch + 1
        self.accuracy = accuracy = float(trainer.callback_metrics[self.metric])
        if self.moment is None and accuracy > self.threshold:
            seconds = round(self.wall_seconds, 3)
            self.moment = Moment(epoch, trainer.global_step, seconds, samples_seen(trainer), accuracy)
        self._draw(trainer)
        self._stop_if_due(trainer, epoch)

    def _stop_if_due(self, trainer: L.Trainer, epochs: int) -> None:
        if self.moment and self.stop_after is not None and epochs >= self.moment.epoch + self.stop_after:
            trainer.should_stop = True

    def _draw(self, trainer: L.Trainer) -> None:
        """The lines that TensorBoard shows beside accuracy; a table has no use for them."""
        classes = data_of(trainer).model_arguments()["num_classes"]
        lines = {"eureka/threshold": self.threshold, "eureka/chance": 1 / classes}
        lines |= {} if self.prior_accuracy is None else {"eureka/prior_accuracy": self.prior_accuracy}
        lines |= {"eureka/happened": float(self.moment is not None)}
        lines |= {"eureka/epoch": float(self.moment.epoch)} if self.moment else {}
        for board in boards(trainer):
            board.log_metrics(lines, max(0, trainer.global_step - 1))

    def state_dict(self) -> dict[str, Any]:
        moment = asdict(self.moment) if self.moment else None
        return {"moment": moment, "wall_seconds": self.wall_seconds, "prior_accuracy": self.prior_accuracy}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.moment = Moment(**state_dict["moment"]) if state_dict["moment"] else None
        self._seconds_before = state_dict["wall_seconds"]
        self.prior_accuracy = state_dict.get("prior_accuracy")


def find_moment(callbacks: Iterable[Callback]) -> EurekaMoment | None:
    """The Eureka callback among ``callbacks``, if there is one."""
    return next((callback for callback in callbacks if isinstance(callback, EurekaMoment)), None)


def moment_step(trainer: L.Trainer) -> int | None:
    """The step of the trainer's Eureka-moment; None before it, or where nobody looks out for it."""
    callback = find_moment(callbacks_of(trainer))
    return callback.moment.step if callback and callback.moment else None
