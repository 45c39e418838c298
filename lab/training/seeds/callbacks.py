"""Callbacks of the shared trainer that pass its hooks on to the callbacks of each seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, Checkpoint
from torch import Tensor
from torch.optim import Optimizer

from lab.callbacks.checkpoints import Checkpoints
from lab.console import LabError
from lab.training.seeds.module import Seed, SeedsModule

Arguments = tuple[Any, ...]


class Bind(Callback):
    """Keeps the seeds' parameters and gradients views of the stacked ones; comes before callbacks that read them."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _seeds_module(pl_module).bind()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _seeds_module(pl_module).bind()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        _seeds_module(pl_module).stack.bind_gradients()


def _same(seed: Seed, given: Arguments) -> Arguments:
    return given


def _divided(seed: Seed) -> Tensor:
    # As Lightning hands a loss on: divided by the number of batches that make a step.
    return seed.loss / seed.trainer.accumulate_grad_batches


def _own_loss(seed: Seed, given: Arguments) -> Arguments:
    return (_divided(seed),)


def _own_batch(seed: Seed, given: Arguments) -> Arguments:
    batches, *places = given
    return (batches[seed.number], *places)


def _own_output_and_batch(seed: Seed, given: Arguments) -> Arguments:
    outputs, *rest = given
    # Validation has no output.
    return (None if outputs is None else {"loss": _divided(seed).detach()}, *_own_batch(seed, tuple(rest)))


def _handed_on(
    hook: Callable[..., None], arguments: Callable[[Seed, Arguments], Arguments] = _same
) -> Callable[..., None]:
    """Method that calls Lightning's ``hook`` for each running seed, with the seed's trainer and module.

    Args:
        hook: hook of ``Callback``.
        arguments: makes a seed's arguments of those that Lightning gives after trainer and module.
    """
    name = hook.__name__

    def method(self: EachSeed, trainer: L.Trainer, pl_module: L.LightningModule, *given: Any) -> None:
        for seed in _seeds_module(pl_module).seeds:
            if seed.failure is not None:
                continue
            try:
                for callback in self.callbacks_of(seed):
                    getattr(callback, name)(seed.trainer, seed.module, *arguments(seed, given))
            except LabError as error:
                if name == "on_fit_start":
                    raise  # about something that all seeds share: none of them can be trained
                seed.failure = str(error)

    return method


class EachSeed(Callback):
    """Passes hooks on to all callbacks of each running seed except those that save checkpoints.

    A LabError ends only the seed that it comes from, at the end of the step.
    """

    def callbacks_of(self, seed: Seed) -> Sequence[Callback]:
        """Callbacks of a seed that hooks are passed on to."""
        return seed.watching

    on_fit_start = _handed_on(Callback.on_fit_start)
    on_fit_end = _handed_on(Callback.on_fit_end)
    on_sanity_check_start = _handed_on(Callback.on_sanity_check_start)
    on_sanity_check_end = _handed_on(Callback.on_sanity_check_end)
    on_train_start = _handed_on(Callback.on_train_start)
    on_train_end = _handed_on(Callback.on_train_end)
    on_train_epoch_start = _handed_on(Callback.on_train_epoch_start)
    on_train_epoch_end = _handed_on(Callback.on_train_epoch_end)
    on_train_batch_start = _handed_on(Callback.on_train_batch_start, _own_batch)
    on_train_batch_end = _handed_on(Callback.on_train_batch_end, _own_output_and_batch)
    on_before_backward = _handed_on(Callback.on_before_backward, _own_loss)
    on_after_backward = _handed_on(Callback.on_after_backward)
    on_before_optimizer_step = _handed_on(Callback.on_before_optimizer_step)
    on_before_zero_grad = _handed_on(Callback.on_before_zero_grad)
    on_validation_start = _handed_on(Callback.on_validation_start)
    on_validation_end = _handed_on(Callback.on_validation_end)
    on_validation_epoch_start = _handed_on(Callback.on_validation_epoch_start)
    on_validation_epoch_end = _handed_on(Callback.on_validation_epoch_end)
    on_validation_batch_start = _handed_on(Callback.on_validation_batch_start, _own_batch)
    on_validation_batch_end = _handed_on(Callback.on_validation_batch_end, _own_output_and_batch)
    on_exception = _handed_on(Callback.on_exception)

    # Lightning passes the stage to these two hooks by keyword.
    _setup, _teardown = _handed_on(Callback.setup), _handed_on(Callback.teardown)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._setup(trainer, pl_module, stage)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._teardown(trainer, pl_module, stage)


class EachSeedCheckpoints(EachSeed, Checkpoint):
    """Passes hooks on to checkpoints, which come last; then removes seeds that have ended."""

    def callbacks_of(self, seed: Seed) -> Sequence[Callback]:
        return seed.saving

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        # A seed that was killed after its last checkpoint may have nothing left to train.
        module = _seeds_module(pl_module)
        _end(module, [seed for seed in module.seeds if seed.failure or seed.trainer.should_stop])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module = _seeds_module(pl_module)
        _end(module, [seed for seed in module.seeds if seed.failure is not None])
        _save_together(module)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        module = _seeds_module(pl_module)
        _save_together(module)
        super().on_train_epoch_end(trainer, pl_module)
        gone = [seed for seed in module.seeds if seed.failure or seed.trainer.should_stop]
        for seed in gone:
            seed.over = seed.failure is None
        _end(module, gone)


def _seeds_module(module: L.LightningModule) -> SeedsModule:
    assert isinstance(module, SeedsModule)
    return module


def _save_together(module: SeedsModule) -> None:
    """Makes all seeds save once one of them is due, so that the group can resume from one common step."""
    checkpoints = [(c, seed.trainer) for seed in module.seeds for c in seed.saving if isinstance(c, Checkpoints)]
    for callback, _ in checkpoints:
        callback.with_the_others = None
    due = any(callback.due(trainer) for callback, trainer in checkpoints)
    for callback, _ in checkpoints:
        callback.with_the_others = due


def _end(module: SeedsModule, gone: list[Seed]) -> None:
    for seed in gone:
        if seed.failure is None:
            try:
                for hook in ("on_train_end", "on_fit_end"):
                    for callback in seed.callbacks:
                        getattr(callback, hook)(seed.trainer, seed.module)
            except LabError as error:
                seed.failure = str(error)
        seed.finish("failed" if seed.failure else "finished")
    module.drop(gone)
