"""Reaches into Lightning and PyTorch where they have no public way: one small function for each such thing.

Nothing else in ``lab/training`` uses private names of theirs; ``tests/lab/test_lightning_internals.py`` fails by the
name of the function here once a new version takes the thing away or gives it another meaning.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.loops.fit_loop import RestartStage
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.utilities.rank_zero import rank_zero_only


def process_rank() -> int:
    """Number of this process among those that train one run, from 0 on; known before there is a trainer.

    Lightning notes it on the decorator, from the environment when it is imported and later from the trainer.
    """
    return int(getattr(rank_zero_only, "rank", 0) or 0)


def attached_trainer(module: LightningModule) -> Trainer | None:
    """Trainer that trains ``module``; None where none does, which Lightning says by an exception alone."""
    try:
        return module.trainer
    except RuntimeError:
        return None


def end_a_finished_epoch(trainer: Trainer) -> None:
    """Lets a run that goes on from the end of an epoch begin with the next; to be called as training starts.

    Under ``trainer.max_steps`` Lightning ends that epoch once more, without a batch, and counts it twice. Without, it
    does what is done here.
    """
    # Typed as what lacks half of this.
    loop: Any = trainer.fit_loop
    parent: Any = _Loop
    if not loop.restarted_on_epoch_end:
        return
    parent.restarting.fset(loop, False)
    loop._restart_stage = RestartStage.RESUMED_ON_EPOCH_END
    loop.epoch_loop.update_restart_stage()
    if loop.epoch_progress.total.completed < loop.epoch_progress.total.processed:
        loop.epoch_progress.increment_completed()


def processor_has_bf16() -> bool:
    """Says that this processor has instructions for bfloat16; without them it emulates them, up to 200 times slower.

    True where this build of PyTorch cannot tell.
    """
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or bool(supported())


def recompute_in_backward() -> None:
    """Makes torch.compile compute cheap intermediate results again in the backward pass, not keep them for it."""
    import torch._functorch.config  # takes a second, and few runs compile

    torch._functorch.config.aggressive_recomputation = True


def allow_recompiling(limit: int) -> None:
    """Lets torch.compile meet at least ``limit`` different shapes of one function before it stays eager."""
    import torch._dynamo  # takes a second, and few runs compile

    torch._dynamo.config.recompile_limit = max(limit, torch._dynamo.config.recompile_limit)
