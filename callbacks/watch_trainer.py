"""Looks at a model while Hugging Face's trainer trains it; only imported where ``transformers`` is installed."""

from __future__ import annotations

from typing import Any, NoReturn

import transformers

from lab.callbacks.watch import Watch
from lab.console import LabError


class WatchTrainer(transformers.TrainerCallback):
    """Runs a :class:`Watch` in Hugging Face's trainer: ``Trainer(..., callbacks=[WatchTrainer(watch)])``.

    Args:
        watch: the watch to run.

    Raises:
        LabError: if it is something else.
    """

    def __init__(self, watch: Watch) -> None:
        if not isinstance(watch, Watch):
            raise LabError(f"{type(watch).__name__} is no Watch: give one, as in WatchTrainer(Watch(model, x, [...]))")
        self.watch = watch

    # What Lightning asks of a callback before it calls setup, and after that has failed: no hook there, as None says.
    state_key, on_exception = "WatchTrainer", None

    def setup(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses to be a callback of Lightning's trainer, whose first hook it is; Hugging Face's has no such event."""
        raise LabError("Lightning's Trainer takes a watch as it is: callbacks=[watch], without WatchTrainer around it")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forgets an earlier training.

        Raises:
            LabError: if another model is trained than the watch looks at, as under ``model_init``.
        """
        self.watch.check_trained(kwargs["model"])
        self.watch.begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sets temperatures, and looks if a look is due."""
        self.watch.at(state.global_step, state.max_steps, state.is_world_process_zero)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reads gradients if a look is due; the trainer has clipped them already."""
        if state.is_world_process_zero:
            self.watch.gradients(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Looks at the last step's model, before the trainer loads the best one in its place."""
        if state.is_world_process_zero and (state.global_step >= state.max_steps or control.should_training_stop):
            self.watch.last(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Looks once more, unless the best model is loaded by now, and draws the pictures over training."""
        if state.is_world_process_zero:
            loaded = getattr(args, "load_best_model_at_end", False) and state.best_model_checkpoint is not None
            self.watch.end(state.global_step, looks=not loaded)
