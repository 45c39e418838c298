"""LightningModule of many seeds, its data, and a view of the trainer for the callbacks of each seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.types import LRSchedulerTypeUnion, OptimizerLRScheduler
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import default_collate

from lab.callbacks.eureka import find_moment, watched_metric
from lab.callbacks.progress import loss_told, metric_told
from lab.callbacks.summary import RunSummary
from lab.console import counted
from lab.datasets.loading import Batch, DataModule, StepLoader, step_reached
from lab.files import is_full
from lab.runs.folder import Run
from lab.runs.summary import Status
from lab.training.length import tell_of_length
from lab.training.lightning_internals import end_a_finished_epoch, set_up_validation
from lab.training.module import TwoStepModule
from lab.training.seeds.stack import Stack, split_optimizer_state


class OneSeed(TwoStepModule):
    """Module of one seed among many: what it logs goes at once to the loggers of its own run."""

    def log(self, name: str, value: Any, *_: Any, logger: bool | None = True, **__: Any) -> None:
        self.log_dict({name: value}, logger=logger)

    def log_dict(self, dictionary: Any, *_: Any, logger: bool | None = True, **__: Any) -> None:
        if self.trainer.sanity_checking:
            return  # as Lightning has it: nothing is trained yet
        values = {name: torch.as_tensor(value) for name, value in dictionary.items()}
        self.trainer.callback_metrics.update(values)
        if logger:
            self._write_row(values)


@dataclass(eq=False)
class Seed:
    """One seed: a run of its own in everything but the arithmetic.

    Attributes:
        number: the seed itself.
        module, data, callbacks, loggers: as its single run has them.
        run, summary: its run folder and summary; None where steps are only timed and nothing is written.
        watching, saving: the callbacks that do not save checkpoints, and those that do, which come last.
        trainer: the seed's view of the trainer, for module and callbacks; set by :meth:`SeedsModule.attach`; missing
            where no trainer could be built.
        loss: loss of the present training step.
        failure: why the seed has failed; None if it has not.
        over: True if the seed ends with this epoch.
    """

    number: int
    module: OneSeed
    data: DataModule
    callbacks: list[Callback] = field(default_factory=list)
    loggers: list[Logger] = field(default_factory=list)
    run: Run | None = None
    summary: RunSummary | None = None
    trainer: L.Trainer = field(init=False)
    loss: Tensor = field(init=False)
    failure: str | None = field(default=None, init=False)
    over: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.watching = [callback for callback in self.callbacks if not isinstance(callback, Checkpoint)]
        self.saving = [callback for callback in self.callbacks if isinstance(callback, Checkpoint)]

    def finish(self, status: Status, pruned: bool = False) -> None:
        """Ends this seed's run: its files are complete after it."""
        for logger in self.loggers:
            try:
                logger.finalize("success" if status == "finished" else "failed")
            except OSError as error:
                # A full disk was reported already, and a resumed run logs the lost rows again.
                if status == "finished" or not is_full(error):
                    raise
        if self.run is not None and self.summary is not None:
            if not self.run.lost:
                self.summary.write(getattr(self, "trainer", None), status, self.failure, pruned)
            if self.run.begun:  # else it stays held: the folder may still be taken back
                self.run.release()


def _had_moment(seed: Seed) -> bool:
    found = find_moment(seed.callbacks)
    return found is not None and found.moment is not None


class SeedTrainer:
    """View of the shared trainer for one seed: it has the seed's own module, data, callbacks, loggers and metrics.

    Every other public attribute is the real trainer's.
    """

    def __init__(self, trainer: L.Trainer, seed: Seed, many: SeedsModule) -> None:
        self._real = trainer
        self._seed = seed
        self._many = many
        self.callback_metrics: dict[str, Tensor] = {}
        self.callbacks = seed.callbacks
        self.loggers = seed.loggers
        self.datamodule = seed.data
        self.lightning_module = seed.module
        self.should_stop = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{name} is private to Lightning's trainer, which {type(self).__name__} only looks at")
        return getattr(self._real, name)

    @property
    def callbacks_of_all_seeds(self) -> list[Callback]:
        """The callbacks of this seed and of those that train together with it."""
        return [callback for seed in self._many.seeds for callback in seed.callbacks]

    @property
    def logger(self) -> Logger | None:
        """The first of the seed's loggers, as Lightning has it."""
        return self.loggers[0] if self.loggers else None

    @property
    def current_epoch(self) -> int:
        """The real trainer's epoch; one more for a seed that ends with this epoch while the others go on."""
        return self._real.current_epoch + self._seed.over

    def save_checkpoint(self, filepath: Path, weights_only: bool = False) -> None:
        """Saves the seed as its single run would, so that a single run can resume from the file, too."""
        with self._many.saving_only(self._seed):
            self._real.save_checkpoint(filepath, weights_only)


class SeedsModule(L.LightningModule):
    """Trains the modules of many seeds in one batched pass; loss, metrics and schedules are each module's own.

    The sum of the seeds' losses is minimised; since seeds share no parameter, each gets the gradient of its own loss.

    Args:
        seeds: the seeds, all at the same step.
        compile: compile the batched pass.

    Raises:
        LabError: if the optimiser or the model does not work on each seed by itself.
    """

    def __init__(self, seeds: list[Seed], compile: bool = False) -> None:
        super().__init__()
        seeds[0].module.optim.check_elementwise()
        self.seeds = seeds
        self.stack = Stack([seed.module.model for seed in seeds])
        loss = seeds[0].module.loss

        # A separate function: the compiler counts shapes per function, and would add these to the stack's.
        def losses_of(logits: Tensor, targets: Tensor) -> Tensor:
            return torch.func.vmap(loss)(logits, targets)

        self._losses_of = losses_of
        if compile:
            self.stack.compile_forward()
            # vmap splits cross-entropy into steps that took an eighth of the training of five seeds (reasoning).
            self._losses_of = torch.compile(losses_of, dynamic=False)
        self._saved: Seed | None = None
        self._ended: list[bool] = []  # of each seed that has ended, whether it had its moment

    def attach(self, trainer: L.Trainer) -> None:
        """Gives every seed its view of the trainer."""
        for seed in self.seeds:
            seed.trainer = cast(L.Trainer, SeedTrainer(trainer, seed, self))
            seed.module.trainer = seed.trainer
            seed.data.trainer = seed.trainer

    @contextmanager
    def saving_only(self, seed: Seed) -> Iterator[None]:
        """Makes checkpoints that the trainer saves within the block contain only this seed."""
        self._saved = seed
        try:
            yield
        finally:
            self._saved = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        seed = self._saved
        if seed is None:
            return
        row, size = self.seeds.index(seed), len(self.seeds)
        checkpoint["state_dict"] = {name: value.clone() for name, value in seed.module.state_dict().items()}
        seed.module.on_save_checkpoint(checkpoint)
        # A checkpoint of the weights alone has neither callbacks nor optimiser states.
        if "callbacks" in checkpoint:
            states = {callback.state_key: callback.state_dict() for callback in seed.callbacks}
            # The trainer's own states stay: the time that trainer.max_time leaves.
            checkpoint["callbacks"] |= {key: state for key, state in states.items() if state}
        if "optimizer_states" in checkpoint:
            joined = checkpoint["optimizer_states"]
            checkpoint["optimizer_states"] = [split_optimizer_state(state, row, size) for state in joined]

    def bind(self) -> None:
        """Moves the seeds' modules to the device where Lightning put the stack, and makes them views of it again."""
        for seed in self.seeds:
            seed.module.to(self.device)
        self.stack.bind()

    def setup(self, stage: str) -> None:
        self.trainer.precision_plugin.convert_module(self)

    def on_fit_start(self) -> None:
        """Refuses a model that cannot be part of a batched pass, before any training."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        drawn = {seed.number: seed.data.draw_train(0, 0) for seed in self.seeds}
        batch = data.on_after_batch_transfer(move_data_to_device(drawn, self.device), 0)
        plugin = self.trainer.precision_plugin
        with plugin.forward_context():
            numbers = ",".join(str(seed.number) for seed in self.seeds)
            self.stack.check(self._inputs(plugin.convert_input(batch)), f"-m seed={numbers}")

    def configure_optimizers(self) -> OptimizerLRScheduler:
        first = self.seeds[0]
        groups = self.stack.parameter_groups(first.module.optim.parameter_groups(first.module.model))
        return first.module.optimizer_with_schedule(
            groups, first.data.samples_per_batch * self.trainer.accumulate_grad_batches
        )

    def lr_scheduler_step(self, scheduler: LRSchedulerTypeUnion, metric: Any) -> None:
        self.seeds[0].module.lr_scheduler_step(scheduler, metric)

    def on_train_epoch_start(self) -> None:
        for seed in self.seeds:
            seed.module.on_train_epoch_start()

    def on_train_batch_start(self, batch: dict[int, Batch], batch_idx: int) -> None:
        for seed in self.seeds:
            seed.module.on_train_batch_start(batch[seed.number], batch_idx)

    def on_train_start(self) -> None:
        end_a_finished_epoch(self.trainer)
        if self.seeds:  # none is left where all stopped early, and the run was killed before it ended
            set_up_validation(self.trainer)
            first = self.seeds[0].module
            tell_of_length(self.trainer, first.goes_by_epoch, first.warmup_epochs)

    def training_step(self, batch: dict[int, Batch], batch_idx: int) -> Tensor:
        logits = self._logits(batch, training=True)
        targets = torch.stack([batch[seed.number]["y"] for seed in self.seeds])
        losses = self._losses_of(logits, targets)
        for seed, own, loss in zip(self.seeds, logits, losses.unbind(0), strict=True):
            seed.loss = loss
            seed.module.observe_training(own, loss, batch[seed.number])
        return losses.sum()

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        for seed in self.seeds:
            seed.module.on_before_optimizer_step(optimizer)

    def on_train_epoch_end(self) -> None:
        for seed in self.seeds:
            seed.module.on_train_epoch_end()

    def validation_step(self, batch: dict[int, Batch], batch_idx: int) -> None:
        if not self.seeds:  # the last seeds have failed, and Lightning validates once more before it stops
            return
        logits = self._logits(batch, training=False)
        for seed, own in zip(self.seeds, logits, strict=True):
            seed.module.observe_validation(own, batch[seed.number])

    def on_validation_epoch_end(self) -> None:
        for seed in self.seeds:
            seed.module.on_validation_epoch_end()

    def drop(self, gone: list[Seed]) -> None:
        """Removes seeds that have ended from the stack; stops the trainer once none is left."""
        if not gone:
            return
        self._ended += [_had_moment(seed) for seed in gone]
        rows = [row for row, seed in enumerate(self.seeds) if seed not in gone]
        if rows:
            self.stack.keep(rows, self.trainer.optimizers[0])
        else:
            self.trainer.should_stop = True
        self.seeds[:] = [self.seeds[row] for row in rows]

    def describe(self) -> list[str]:
        """Number of running seeds, their mean loss and range of the metric; how many of all had a Eureka-moment."""
        if not self.seeds:
            return ["every seed has ended"]
        metric = watched_metric(self.seeds[0].callbacks)
        metrics = [seed.trainer.callback_metrics.get(metric) for seed in self.seeds]
        values = [float(value) for value in metrics if value is not None]
        losses = [float(seed.loss.detach()) for seed in self.seeds if hasattr(seed, "loss")]
        moments = [*self._ended, *(_had_moment(seed) for seed in self.seeds)]
        return [
            counted(len(self.seeds), "seed") + (f" of {len(moments)}" if self._ended else ""),
            *([loss_told(sum(losses) / len(losses))] if losses else []),
            metric_told(metric, min(values), max(values)) if values else "not validated yet",
            f"{sum(moments)} had their Eureka-moment",
        ]

    def _logits(self, batch: dict[int, Batch], training: bool) -> Tensor:
        """Logits of all seeds, [S, B, classes]."""
        self.stack.set_training(training)
        return self.stack(self._inputs(batch))

    def _inputs(self, batch: dict[int, Batch]) -> Any:
        """Inputs of all seeds, [S, B, ...]; tensors within tuples and the like are stacked as well."""
        return default_collate([batch[seed.number]["x"] for seed in self.seeds])


class SeedsData(L.LightningDataModule):
    """Batches of all running seeds side by side: {seed: batch}.

    Args:
        seeds: the running seeds; the list grows shorter as seeds end.
    """

    def __init__(self, seeds: list[Seed]) -> None:
        super().__init__()
        self.seeds = seeds
        self._first = seeds[0].data  # for facts that all seeds share, also once the last one has ended

    @property
    def samples_per_batch(self) -> int:
        """Training samples of one batch of one seed."""
        return self._first.samples_per_batch

    @property
    def unit(self) -> str:
        """Word for samples where they are counted."""
        return self._first.unit

    def prepare_data(self) -> None:
        for seed in self.seeds:
            seed.data.prepare_data()

    def setup(self, stage: str) -> None:
        for seed in self.seeds:
            seed.data.setup(stage)

    def train_dataloader(self) -> StepLoader:
        steps = len(self.seeds[0].data.train_dataloader())
        return StepLoader(
            lambda epoch, step: {seed.number: seed.data.draw_train(epoch, step) for seed in self.seeds},
            steps,
            lambda: step_reached(self.trainer),
        )

    def val_dataloader(self) -> StepLoader:
        steps = len(self.seeds[0].data.val_dataloader())
        return StepLoader(lambda _, step: {seed.number: seed.data.draw_validation(step) for seed in self.seeds}, steps)

    def on_after_batch_transfer(self, batch: dict[int, Batch], dataloader_idx: int) -> dict[int, Batch]:
        running = {seed.number: seed.data for seed in self.seeds}
        return {
            number: running[number].on_after_batch_transfer(own, dataloader_idx)
            for number, own in batch.items()
            if number in running
        }
