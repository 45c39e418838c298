"""Pruning: a trial of a search reports its accuracy while it trains, and ends early if the search gives it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from lab.callbacks.access import ends_with_this_epoch
from lab.callbacks.eureka import EurekaMoment
from lab.console import LabError, tell

if TYPE_CHECKING:
    from lab.runs.study import RunningTrial


class Pruning(Callback):
    """Reports the validation accuracy to the run's trial; stops the run if the pruner says so.

    Args:
        trial: ``config.trial``, set by a search that prunes; None for every other run, which is never stopped here.
        looking: Eureka callback of the run, or those of seeds that train together, whose mean accuracy is reported.

    Attributes:
        pruned: whether this ended the run.

    Raises:
        LabError: if there is a trial and no Eureka callback.
    """

    def __init__(self, trial: Mapping[str, Any] | None, looking: Sequence[EurekaMoment | None]) -> None:
        self._reference = trial
        self._looking = [callback for callback in looking if callback is not None]
        if trial is not None and not self._looking:
            raise LabError(
                "hydra.sweeper.pruner needs callbacks.eureka, whose accuracy it judges by: add it to callbacks="
            )
        self._trial: RunningTrial | None = None
        self.pruned = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._reference is not None and trainer.is_global_zero:
            from lab.runs.study import RunningTrial  # not every installation has Optuna

            self._trial = RunningTrial(self._reference)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        # A run that ends with this epoch is finished, whatever a pruner says.
        ends = ends_with_this_epoch(trainer)
        seen = [callback.accuracy for callback in self._looking if callback.accuracy is not None]
        if self._reference is None or trainer.sanity_checking or ends or not seen:
            return
        accuracy = fmean(seen)
        pruned = self._trial is not None and self._trial.is_pruned(epoch, accuracy)
        # Rank 0 decides for all processes, since all have to stop together.
        self.pruned = trainer.strategy.broadcast(pruned)
        if self.pruned:
            tell(f"pruned by the search at epoch {epoch}: validation accuracy {accuracy:.2%}")
            trainer.should_stop = True
