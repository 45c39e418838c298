"""Looks at any model while it is trained, by any Lightning trainer or by Hugging Face's trainer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any, NoReturn, SupportsIndex

import lightning as L
from lightning.pytorch.callbacks import Callback
from pydantic import PositiveInt
from torch import nn
from torch.optim import Optimizer

from lab.callbacks.diagnostics.base import Diagnostic, Keeper
from lab.callbacks.diagnostics.gradient_norms import GradientNorms, norms_by_layer
from lab.config.overrides import is_whole
from lab.console import LabError, tell
from lab.models.observable import attention_layers_of
from lab.models.replace import heat
from lab.models.replaced_softmax import replaced_in
from lab.observation.look import look
from lab.observation.observe import Findings, check_observers


class Watch(Callback):
    """Shows a probe batch to diagnostics every few optimiser steps, and sets temperatures that have a schedule.

    Tables, arrays and pictures go to the folders of the diagnostics. Their own cadences have no effect, except that
    ``pictures_every_n_epochs=0`` leaves out pictures and arrays of single steps. ``GradientNorms`` are read before the
    optimiser's step. For Hugging Face's trainer use :class:`lab.callbacks.watch_trainer.WatchTrainer`.

    Args:
        model: the model that is trained, or a part of it, with a softmax of the lab (``lab.replace_softmax``).
        x: the probe batch: the model's input, or its inputs by name.
        diagnostics: diagnostics that need no more than a batch, and ``GradientNorms``.
        every_n_steps: cadence in optimiser steps.
        force: replace the tables of an earlier training, as when a cell of a notebook runs again. Its pictures of
            steps that are not looked at again stay.

    Raises:
        LabError: if a diagnostic needs more than a batch, or an argument is of a wrong type.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Any,
        diagnostics: Sequence[Keeper],
        every_n_steps: PositiveInt = 100,
        force: bool = False,
    ) -> None:
        check_observers(diagnostics)
        if not isinstance(model, nn.Module):
            raise LabError(f"{model!r} is not a model: give the torch.nn.Module that is trained")
        if not is_whole(every_n_steps, 1):
            raise LabError(f"every_n_steps={every_n_steps!r} is wrong: it must be a whole number of at least 1")
        self.model = model
        self.x = x
        self.diagnostics = [one for one in diagnostics if isinstance(one, Diagnostic) and one.needs is None]
        self.norms = [one for one in diagnostics if isinstance(one, GradientNorms)]
        self.every_n_steps = every_n_steps
        self.force = force
        self.begin()
        self._told = False  # that there are no gradients
        for one in diagnostics:
            if one not in (*self.diagnostics, *self.norms):
                raise LabError(
                    f"{type(one).__name__} cannot be used during training, as it needs more than one batch: "
                    "use lab.inspect"
                )
            if sum(other.path == one.path for other in diagnostics) > 1:
                raise LabError(f"two diagnostics would write {one.path}: give one of them another folder")

    def __repr__(self) -> str:
        names = ", ".join(type(one).__name__ for one in (*self.diagnostics, *self.norms))
        return f"Watch({type(self.model).__name__}, [{names}], every_n_steps={self.every_n_steps})"

    def on_init_end(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses to be a callback of Hugging Face's trainer, which calls this first; Lightning's has no such hook."""
        raise LabError(
            "Hugging Face's Trainer takes a watch wrapped: callbacks=[WatchTrainer(watch)], with WatchTrainer from "
            "lab.callbacks.watch_trainer"
        )

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.check_trained(pl_module)
        self.begin()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if len(trainer.optimizers) > 1 and self._has_schedule:
            raise LabError(
                "a softmax here has a schedule over all of training, and with several optimisers the trainer counts "
                "the steps of all: leave the schedule out, or train with one optimiser"
            )

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        steps = trainer.estimated_stepping_batches
        self.at(trainer.global_step, int(steps) if 0 < steps < math.inf else None, trainer.is_global_zero)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        if trainer.is_global_zero:
            self.gradients(trainer.global_step)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.end(trainer.global_step)

    def check_trained(self, trained: nn.Module) -> None:
        """Checks that the watched model is the one that is trained, a part of it, or holds it.

        Modules count beside parameters, which FSDP may take into its own.

        Raises:
            LabError: if the two have nothing in common.
        """
        own, others = ({id(one) for one in (*of.modules(), *of.parameters())} for of in (self.model, trained))
        if own.isdisjoint(others):
            raise LabError(
                "the watch looks at another model than the one that is trained: make it again after the model"
            )

    def begin(self) -> None:
        """Forgets what was seen in an earlier training; call it when one begins or goes on."""
        self._seen = self._reached = -1  # steps: the last look, and the last call

    def at(self, step: SupportsIndex, steps: SupportsIndex | None, looks: bool = True) -> None:
        """Sets temperatures for ``step`` of ``steps``, and looks if a look is due.

        Args:
            step: optimiser steps so far: 0 before the first.
            steps: of the whole training; None if that is not known.
            looks: False where another process looks.

        Raises:
            LabError: if there is a schedule, and the number of steps is not known; for what is no number of steps; at
                the first call, if tables of an earlier training are there, of which this one would keep nothing.
        """
        now, end = _whole(step), None if steps is None else _whole(steps, 1)
        if end is not None:
            heat(self.model, min(now / end, 1.0))
        elif self._has_schedule:
            raise LabError(
                "a softmax here has a schedule over all of training, and the trainer cannot tell how many steps that "
                "is: give it max_steps"
            )
        if looks and self._seen < 0 and self.norms and not attention_layers_of(self.model):
            raise LabError(
                f"{type(self.model).__name__} has no attention of the lab: call lab.replace_softmax(model) first"
            )
        if looks:
            self._take_back(now)
        if looks and now % self.every_n_steps == 0:
            self._look(now)

    def gradients(self, step: SupportsIndex) -> None:
        """Keeps mean |gradient| of every layer's W_Q, W_K and W_V if due; call it before the optimiser's step.

        Raises:
            LabError: for what is no number of steps.
        """
        step = _whole(step)
        for one in self.norms if step % self.every_n_steps == 0 else ():
            layers = norms_by_layer(self.model)
            if not layers and not self._told:
                self._told = True
                tell(
                    f"{one.name} has nothing to tell of {type(self.model).__name__}: its W_Q, W_K and W_V have no "
                    "gradient (they are frozen), or its layers do not say which weights they are"
                )
            one.keep(Findings([{"layer": layer, **norms} for layer, norms in layers.items()]), None, step)

    def last(self, step: SupportsIndex) -> None:
        """Looks at the model after its last step.

        Raises:
            LabError: for what is no number of steps.
        """
        step = _whole(step)
        self._take_back(step)
        self._look(step)

    def end(self, step: SupportsIndex, looks: bool = True) -> None:
        """Looks once more, if the model is still that of the last step, and draws the pictures over training.

        Raises:
            LabError: for what is no number of steps.
        """
        step = _whole(step)
        self._take_back(step)
        if looks:
            self._look(step)
        for one in (*self.diagnostics, *self.norms):
            if (picture := None if one.table.empty else one.history(one.table, math.nan)) is not None:
                one.draw(picture, "")

    @property
    def _has_schedule(self) -> bool:
        return any(own.schedule is not None for own in replaced_in(self.model))

    def _take_back(self, step: int) -> None:
        """Reads back the tables of a run that is resumed, even if nothing of it is left to train.

        A new run begins without any, and so do steps that fall back.

        Raises:
            LabError: if tables are there of which nothing would be kept: they are of an earlier training.
        """
        if step < self._reached:
            self.begin()
        if self._reached >= 0:
            self._reached = step
            return
        begun = (*self.diagnostics, *self.norms)
        for one in begun if step else ():
            one.take_back(step)
        new = [one for one in begun if "step" not in one.table or not (one.table["step"] < step).any()]
        for one in new:
            if one.path.exists() and not self.force:
                raise LabError(
                    f"{one.path} is of an earlier training: force=True replaces it, or give {one.name} another folder"
                )
        for one in new:
            one.path.unlink(missing_ok=True)
            one.table = one.table.iloc[:0]
        self._reached = step

    def _look(self, step: int) -> None:
        if step == self._seen:
            return  # called once per batch, and a step may have several
        self._seen = step
        found = look(self.model, self.x, self.diagnostics) if self.diagnostics else []
        for one, findings in zip(self.diagnostics, found, strict=True):
            one.keep(findings, None, step)
            if one.pictures_every_n_epochs:
                one.keep_arrays(findings, f"step_{step:07d}")
                one.draw_found(findings, f"_step_{step:07d}")


def _whole(number: SupportsIndex, least: int = 0) -> int:
    """The number of steps; raises LabError for what is none."""
    try:
        steps = index(number)
    except TypeError:
        steps = -1
    if steps < least:
        raise LabError(f"a watch takes whole numbers of steps, as at(step=0, steps=1000), got {number!r}")
    return steps
