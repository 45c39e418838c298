"""Hands every hook of the one trainer on to the callbacks of each seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, Checkpoint

from lab.callbacks.checkpoints import Checkpoints
from lab.console import LabError
from lab.training.seeds.module import Seed, SeedsModule

# Hooks by what comes after (trainer, module): nothing of a seed's own, the loss, or a batch of each seed.
_PLAIN = (
    "on_fit_start",
    "on_fit_end",
    "on_sanity_check_start",
    "on_sanity_check_end",
    "on_train_start",
    "on_train_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_validation_start",
    "on_validation_end",
    "on_validation_epoch_start",
    "on_validation_epoch_end",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_exception",
)
_WITH_BATCH = ("on_train_batch_start", "on_validation_batch_start")
_WITH_OUTPUT = ("on_train_batch_end", "on_validation_batch_end")


class _EachSeed(Callback):
    """Calls the seeds' callbacks of one kind (``monitoring``: checkpoints) with the seed's trainer and module."""

    monitoring = False

    def __init__(self) -> None:
        super().__init__()
        self._listening: dict[tuple[int, str], list[Callback]] = {}

    def hand_on(
        self, hook: str, pl_module: L.LightningModule, arguments: Callable[[int, Seed], tuple[Any, ...]]
    ) -> None:
        """Calls ``hook`` for every running seed; a LabError ends that seed alone, at the end of the step."""
        assert isinstance(pl_module, SeedsModule)
        for row, seed in enumerate(pl_module.seeds):
            if seed.failure is not None:
                continue
            try:
                for callback in self._listeners(seed, hook):
                    getattr(callback, hook)(seed.trainer, seed.module, *arguments(row, seed))
            except LabError as error:
                seed.failure = str(error)

    def _listeners(self, seed: Seed, hook: str) -> list[Callback]:
        """The seed's callbacks of this kind that have something to do at this hook."""
        key = (seed.number, hook)
        if key not in self._listening:
            mine = [c for c in seed.callbacks if isinstance(c, Checkpoint) == self.monitoring]
            self._listening[key] = [c for c in mine if getattr(type(c), hook) is not getattr(Callback, hook)]
        return self._listening[key]


def _plain(hook: str) -> Callable[..., None]:
    def method(self: _EachSeed, trainer: L.Trainer, pl_module: L.LightningModule, *rest: Any) -> None:
        if hook in ("on_fit_start", "on_train_start") and not self.monitoring:
            pl_module.bind()  # type: ignore[operator]
        if hook == "on_before_optimizer_step" and not self.monitoring:
            pl_module.stack.bind_gradients()  # type: ignore[operator,union-attr]
        self.hand_on(hook, pl_module, lambda row, seed: rest)

    return method


def _with_batch(hook: str) -> Callable[..., None]:
    def method(self: _EachSeed, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, *rest: Any) -> None:
        self.hand_on(hook, pl_module, lambda row, seed: (batch[seed.number], *rest))

    return method


def _with_output(hook: str) -> Callable[..., None]:
    def method(
        self: _EachSeed, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, *rest: Any
    ) -> None:
        def own(row: int, seed: Seed) -> tuple[Any, ...]:
            output = {"loss": pl_module.losses[row].detach()} if outputs is not None else None  # type: ignore[index,union-attr]
            return (output, batch[seed.number], *rest)

        self.hand_on(hook, pl_module, own)

    return method


for _hooks, _maker in ((_PLAIN, _plain), (_WITH_BATCH, _with_batch), (_WITH_OUTPUT, _with_output)):
    for _hook in _hooks:
        setattr(_EachSeed, _hook, _maker(_hook))


class EachSeed(_EachSeed):
    """Hands hooks on to all callbacks but checkpoints; ends seeds whose loss is no longer finite."""

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Any) -> None:
        assert isinstance(pl_module, SeedsModule)
        self.hand_on("on_before_backward", pl_module, lambda row, seed: (pl_module.losses[row],))


class EachSeedCheckpoints(_EachSeed, Checkpoint):
    """Hands hooks on to checkpoints, which come last; then lets seeds that have ended go."""

    monitoring = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, SeedsModule)
        _end(pl_module, [seed for seed in pl_module.seeds if seed.failure is not None])
        _save_together(pl_module)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, SeedsModule)
        _save_together(pl_module)
        super().on_train_epoch_end(trainer, pl_module)
        _end(pl_module, [seed for seed in pl_module.seeds if seed.failure or seed.trainer.should_stop])


def _save_together(module: SeedsModule) -> None:
    """Where one seed's checkpoint is due, so is every other's: the group goes on from one step."""
    saving = [(c, seed.trainer) for seed in module.seeds for c in seed.callbacks if isinstance(c, Checkpoints)]
    for callback, _ in saving:
        callback.with_the_others = False
    due = any(callback.due(trainer) for callback, trainer in saving)
    for callback, _ in saving:
        callback.with_the_others = due


def _end(module: SeedsModule, gone: list[Seed]) -> None:
    for seed in gone:
        if seed.failure is None:
            seed.trainer.epoch_over = True
            for callback in seed.callbacks:
                callback.on_train_end(seed.trainer, seed.module)
        seed.finish("failed" if seed.failure else "finished")
    module.drop(gone)
