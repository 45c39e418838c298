"""Looks at a model while Hugging Face's trainer trains it; only imported where ``transformers`` is installed."""

from __future__ import annotations

from typing import Any

import transformers

from lab.callbacks.watch import Watch


class WatchTrainer(transformers.TrainerCallback):
    """Runs a :class:`Watch` in Hugging Face's trainer: ``Trainer(..., callbacks=[WatchTrainer(watch)])``.

    Args:
        watch: the watch to run.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sets temperatures, and looks if a look is due."""
        self.watch.at(state.global_step, state.max_steps, state.is_world_process_zero)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reads gradients if a look is due; the trainer has clipped them already."""
        if state.is_world_process_zero:
            self.watch.gradients(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Looks once more, and draws the pictures over training."""
        if state.is_world_process_zero:
            self.watch.end(state.global_step)
