"""The LightningModule: loss, metrics, optimiser, temperature schedule. It knows no task and no model by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lab.attention.schedule import TauSchedule
from lab.console import blamed, name_of
from lab.datasets.loading import Batch, data_of
from lab.datasets.seeding import derived_seed
from lab.models.observable import rules_of
from lab.observation.gradients import SeededModule
from lab.training.length import tell_of_length
from lab.training.lightning_internals import attached_trainer, end_a_finished_epoch, set_up_validation
from lab.training.metrics import LossAndAccuracy, WeightedMean
from lab.training.optim import OptimConfig
from lab.training.resume import note_circumstances


class TwoStepModule(SeededModule):
    """Trains a classifier on a two-step task, or on a task that asks for several tokens per sample.

    Shapes: a batch is ``{"x": [B, ...], "y": [B] int64, "latents": {name: [B]}}``; the model maps x to
    logits [B, classes]. With several answers a sample y is [B, M] and logits are [B, M, classes].

    Args:
        model: classifier; ``rules()`` gives its temperature rules where it has any.
        optim: optimiser and learning-rate schedule (DeiT recipe by default).
        num_classes: number of labels.
        accuracies: names of further validation accuracies, which the data module scores.
        ignored: label that does not count, used where a sample has fewer answers than others; None counts all.
        seed: with epoch, step and rank it fixes every random number of a training step (stochastic depth).
        schedule: moves tau of every rule over training (heat treatment); None leaves tau alone.
        intervention: changes the model's gradients before each optimiser step; None leaves them alone.
    """

    def __init__(
        self,
        model: nn.Module,
        optim: OptimConfig,
        num_classes: int,
        accuracies: Sequence[str] = (),
        ignored: int | None = None,
        seed: int = 0,
        schedule: TauSchedule | None = None,
        intervention: Callable[[nn.Module], None] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.optim = optim
        self.seed = seed
        self.schedule = schedule
        self.intervention = intervention
        self.train_metrics = LossAndAccuracy(num_classes, ignored)
        # Kept in checkpoints, so that an epoch resumed half-way reports the whole epoch.
        self.train_metrics.persistent(True)
        self.validation_metrics = LossAndAccuracy(num_classes, ignored)
        self._learning_rate: float | None = None
        # Not a ModuleDict: its keys may not be names of its attributes, and a location may be called "keys".
        self.accuracies = tuple(accuracies)
        self.further_accuracies = nn.ModuleList(WeightedMean() for _ in self.accuracies)
        if schedule is not None:  # diagnostics look before the first epoch begins
            self._set_temperatures(0.0)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics that are logged at the end of an epoch, of validation and of training."""
        validation = ["loss", "accuracy", *(f"accuracy_{name}" for name in self.accuracies)]
        training = ["loss", "accuracy", "learning_rate"]
        return (*(f"val/{name}" for name in validation), *(f"train/{name}" for name in training))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def setup(self, stage: str) -> None:
        # Lightning converts the precision only after it restores a checkpoint: float64 weights would be rounded.
        self.trainer.precision_plugin.convert_module(self)

    def on_train_start(self) -> None:
        end_a_finished_epoch(self.trainer)
        set_up_validation(self.trainer)  # what is wrong with it is told before the first step
        tell_of_length(self.trainer, self.goes_by_epoch, self.warmup_epochs)

    @property
    def goes_by_epoch(self) -> bool:
        """True if the learning rate or the temperature follows a schedule over ``trainer.max_epochs``."""
        return self.optim.goes_by_epoch or (self.schedule is not None and self.schedule.by == "epoch")

    @property
    def warmup_epochs(self) -> int:
        """Epochs in which the learning rate rises; 0 where it rises by steps."""
        return self.optim.warmup_epochs if self.optim.goes_by_epoch else 0

    def on_train_epoch_start(self) -> None:
        if self.schedule is not None and self.schedule.by == "epoch":
            self._set_temperatures(self.current_epoch / max(1, self.trainer.max_epochs or 1))

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.seed_step(self.current_epoch, batch_idx)
        # Read here: at the end of an epoch Lightning has already set the next one's rate.
        self._learning_rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        if self.schedule is not None and self.schedule.by == "step":
            self._set_temperatures(self.global_step / max(1, int(self.trainer.estimated_stepping_batches)))

    def seed_step(self, epoch: int, batch_idx: int) -> None:
        """Fixes the random numbers of a training batch by its place in training alone.

        So stochastic depth is the same in a resumed run, and in one whose callbacks draw random numbers. Python's and
        NumPy's generators serve code of one's own.
        """
        seed = derived_seed("step", self.seed, epoch, batch_idx, self.global_rank)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        if self.device.type == "cpu":
            # torch.manual_seed takes a millisecond: it records the call stack for every accelerator of torch's build.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits = self(batch["x"])
        loss = self.loss(logits, batch["y"])
        self.observe_training(logits, loss, batch)
        return loss

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Loss of a training batch from the model's logits [B, classes] and the labels [B]."""
        if self.optim.loss_precision == "float64":
            logits = logits.double()
        return self.optim.loss(logits, target, self.optim.label_smoothing)

    def observe_training(self, logits: Tensor, loss: Tensor, batch: Batch) -> None:
        """Adds the model's logits for a training batch to the epoch's metrics."""
        if self._reports:
            self.train_metrics.update(logits=logits.detach(), target=batch["y"], loss=loss.detach())

    @property
    def _reports(self) -> bool:
        """True if this epoch's training metrics are reported: in epochs with a validation, and in the last one.

        An epoch may be a single step (the reasoning task), and metrics would be a third of its time.
        """
        if attached_trainer(self) is None:
            return True
        every, epoch = self.trainer.check_val_every_n_epoch or 1, self.current_epoch + 1
        return epoch % every == 0 or epoch == self.trainer.max_epochs

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        # Called after the callbacks' hooks, so gradient norms are logged as the backward pass left them.
        if self.intervention is not None:
            with blamed(f"the intervention {name_of(type(self.intervention))} fails"):
                self.intervention(self.model)

    def on_train_epoch_end(self) -> None:
        if not self._reports:
            return
        values = {f"train/{name}": value for name, value in self.train_metrics.compute().items()}
        if self._learning_rate is not None:
            values["train/learning_rate"] = self._learning_rate
        self.train_metrics.reset()
        # Not by self.log, which writes only after the epoch's checkpoint: a run killed in between would lose the row.
        self._write_row(values)
        self.log_dict(values, logger=False)

    def _write_row(self, values: Mapping[str, Any]) -> None:
        """Gives numbers of the last step straight to the loggers; as numbers, which is what Lightning gives them."""
        row = {**{name: float(value) for name, value in values.items()}, "epoch": self.current_epoch}
        for logger in self.loggers:
            logger.log_metrics(row, step=self.global_step - 1)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.observe_validation(self(batch["x"]), batch)

    def observe_validation(self, logits: Tensor, batch: Batch) -> None:
        """Adds the model's logits for a validation batch to the metrics."""
        for name, (answers, target, counted) in data_of(self.trainer).scored(logits, batch).items():
            if not name:
                loss = self.optim.loss(answers, target)
                self.validation_metrics.update(logits=answers, target=target, loss=loss)
                continue
            accuracy = self.further_accuracies[self.accuracies.index(name)]
            assert isinstance(accuracy, WeightedMean)
            accuracy.update(answers.argmax(-1) == target, 1.0 if counted is None else counted)

    def on_validation_epoch_end(self) -> None:
        values = {f"val/{name}": value for name, value in self.validation_metrics.compute().items()}
        self.validation_metrics.reset()
        for name, metric in zip(self.accuracies, self.further_accuracies, strict=True):
            assert isinstance(metric, WeightedMean)
            # Nothing may have been scored: then the accuracy is NaN, and torchmetrics is not to warn of it.
            metric.update(torch.zeros((), device=self.device), 0.0)
            values[f"val/accuracy_{name}"] = metric.compute()
            metric.reset()
        # compute() has gathered the sums of all processes already.
        self.log_dict(values, sync_dist=False)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        note_circumstances(checkpoint, data_of(self.trainer), self.trainer.world_size)
        if self.trainer.world_size > 1:
            gather = self.trainer.strategy.all_gather
            _change_sums(checkpoint["state_dict"], lambda value: gather(value).sum(0))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.global_rank > 0:  # the first process has the sums of all, so the others start from 0
            _change_sums(checkpoint["state_dict"], torch.zeros_like)

    def configure_optimizers(self) -> Any:
        total = data_of(self.trainer).samples_per_batch * self.trainer.accumulate_grad_batches
        return self.optimizer_with_schedule(self.optim.parameter_groups(self.model), total)

    def optimizer_with_schedule(self, groups: list[dict[str, Any]], samples_per_step: int) -> Any:
        """Returns what ``configure_optimizers`` is to return for these parameter groups."""
        # A fused optimiser would unscale gradients of a scaled loss itself, only after the callbacks have read them; so
        # Lightning clips none under autocast where the optimiser is fused.
        precision = str(self.trainer.precision)
        clips = bool(self.trainer.gradient_clip_val) and "mixed" in precision
        optimizer = self.optim.made_optimizer(groups, samples_per_step, not (clips or precision.startswith("16")))
        scheduler = self.optim.made_scheduler(optimizer, max(1, self.trainer.max_epochs or 1))
        if scheduler is None:
            return optimizer
        interval = "step" if isinstance(scheduler, LRScheduler) else "epoch"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": interval}}

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        kind = f"the {type(scheduler).__name__} of {name_of(type(self.optim))}"
        with blamed(f"{kind} fails after step {self.global_step}"):
            if isinstance(scheduler, LRScheduler):
                scheduler.step()
            else:
                # timm's schedules take the number of the coming epoch, at the end of the one before it.
                scheduler.step(epoch=self.current_epoch + 1)

    def _set_temperatures(self, progress: float) -> None:
        assert self.schedule is not None
        with blamed(f"the schedule {name_of(type(self.schedule))} fails when {progress:.0%} of training is done"):
            for rule in rules_of(self.model):
                rule.set_tau(self.schedule(progress, rule.default_tau))


def _change_sums(state: dict[str, Tensor], change: Callable[[Tensor], Tensor]) -> None:
    """Changes the sums of this epoch's training metrics in a state dict."""
    state |= {name: change(value) for name, value in state.items() if name.startswith("train_metrics.")}
