"""How many samples a run has trained on."""

from __future__ import annotations

import math
from typing import Any

import lightning as L


def samples_seen(trainer: L.Trainer, step: int | None = None) -> int:
    """Training samples of all processes up to an optimiser step; None: the present one.

    Under ``accumulate_grad_batches`` the last step of an epoch takes the batches that are left.
    """
    step = trainer.global_step if step is None else step
    data: Any = getattr(trainer, "datamodule", None)
    if data is None or step == 0:
        return 0
    accumulated, batches = trainer.accumulate_grad_batches, trainer.num_training_batches
    if not math.isfinite(batches) or not batches:  # not known before the first epoch
        return int(step * accumulated * data.samples_per_step)
    epochs, rest = divmod(step, math.ceil(batches / accumulated))
    return int((epochs * batches + min(rest * accumulated, batches)) * data.samples_per_step)
