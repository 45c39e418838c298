"""Local learning coefficient over training, or at a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import lightning as L
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from lab.callbacks.diagnostics.base import CheckpointDiagnostic
from lab.callbacks.throughput import no_training
from lab.console import LabError, tell
from lab.datasets.loading import data_of
from lab.observation.gradients import SeededModule, TrainingState
from lab.observation.learning_coefficient import Coefficient, Sampling, learning_coefficient, sampler_of_devinterp
from lab.observation.observe import Findings
from lab.observation.subject import Subject
from lab.plotting.figures import count_axis, legend_below, new_figure, shade_before
from lab.plotting.style import GUIDE, styled


class LearningCoefficient(CheckpointDiagnostic):
    """Local learning coefficient: n / ln n times the rise of the training loss under Langevin sampling.

    A model whose loss is flat in many directions has a low coefficient; it rises where the model comes to use further
    directions, and also where the curvature of used ones grows, as long as that is small beside the localization.
    Table: chain, coefficient, loss (at the checkpoint); over training also epoch and step.
    ``learning_coefficient/mean`` and ``/std`` (over chains) are logged. At a checkpoint (``lab.inspect``) a picture
    shows the loss of each chain: if it still rises at the end, the burn-in is too short; if it falls below the
    checkpoint's loss, the checkpoint is no minimum, and the coefficient says little.

    Source: Lau et al. 2023, Algorithm 1; over the course of training: Hoogland et al. 2024.

    Args:
        folder: the run folder.
        every_n_epochs: cadence over training.
        chains, burn_in, draws, step_size, localization, samples, seed: as :class:`Sampling` says.
    """

    needs = "training"

    def __init__(
        self,
        folder: str,
        every_n_epochs: PositiveInt = 100,
        chains: PositiveInt = 4,
        burn_in: NonNegativeInt = 1500,
        draws: PositiveInt = 100,
        step_size: PositiveFloat = 1e-5,
        localization: PositiveFloat = 100.0,
        samples: Annotated[int, Field(ge=2)] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(folder)
        self.every_n_epochs = every_n_epochs
        self.sampling = Sampling(chains, burn_in, draws, step_size, localization, samples, seed)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        sampler_of_devinterp()
        if not isinstance(pl_module, SeededModule):
            raise LabError(f"callbacks.{self.name} needs the lab's own training: leave it out")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero and trainer.global_step:
            self.take_back(trainer.global_step)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if epoch % self.every_n_epochs or not trainer.is_global_zero:
            return
        step = trainer.global_step
        assert isinstance(pl_module, SeededModule)  # as on_fit_start has checked
        state = TrainingState(
            pl_module,
            data_of(trainer),
            step,
            accumulated=trainer.accumulate_grad_batches,
            limit=trainer.limit_train_batches,
        )
        with no_training(trainer):
            found = self._sampled(state)
        self.keep(Findings(rows=_rows(found)), epoch, step)
        if np.isfinite(found.of_chains).any():
            values = {"mean": np.nanmean(found.of_chains), "std": np.nanstd(found.of_chains)}
            for logger in trainer.loggers:
                logged = {f"{self.name}/{name}": float(value) for name, value in values.items()}
                logger.log_metrics({**logged, "epoch": trainer.current_epoch}, step=step - 1)

    @styled()
    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        figure, axes = new_figure(5.0, 2.8)
        for _, chain in table.groupby("chain"):
            axes.plot(chain["step"], chain["coefficient"], ".", color="C0", alpha=0.4, label="a chain")
        mean = table.groupby("step")["coefficient"].mean()
        axes.plot(mean.index, mean, color="C0", linewidth=1.8, label="mean of the chains")
        shade_before(axes, moment)
        axes.set_ylabel("local learning coefficient")
        count_axis(axes, "step")
        legend_below(figure)
        return figure

    def look(self, subject: Subject) -> Findings:
        """The coefficient of a checkpoint.

        Raises:
            LabError: if devinterp is missing, or the data cannot draw training batches by (epoch, batch).
        """
        assert subject.trained is not None  # as ``needs`` ensures
        found = self._sampled(subject.trained)
        findings = Findings(rows=_rows(found), arrays={"losses": found.losses})
        findings.figures["chains"] = partial(_chains, found, self.sampling.burn_in)
        return findings

    def _sampled(self, trained: TrainingState) -> Coefficient:
        found = learning_coefficient(trained, self.sampling)
        if lost := int(np.isnan(found.of_chains).sum()):
            tell(f"{self.name}: the loss of {lost} of {len(found.of_chains)} chains was not finite: lower step_size")
        return found


def _rows(found: Coefficient) -> list[dict[str, float]]:
    return [
        {"chain": chain, "coefficient": float(value), "loss": found.loss} for chain, value in enumerate(found.of_chains)
    ]


@styled()
def _chains(found: Coefficient, burn_in: int) -> Figure:
    figure, axes = new_figure(5.0, 2.8)
    for losses in found.losses:
        axes.plot(losses, color="C0", linewidth=0.6, alpha=0.6, label="a chain")
    axes.axhline(found.loss, color=GUIDE, linestyle="--", label="at the checkpoint")
    axes.axvline(burn_in, color=GUIDE, linestyle=":", label="end of the burn-in")
    axes.set_ylabel("training loss")
    count_axis(axes, "Langevin step")
    legend_below(figure)
    return figure
