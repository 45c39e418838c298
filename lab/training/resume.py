"""Checks that training can go on from a checkpoint, before anything is trained or written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lab.console import LabError
from lab.datasets.loading import DataModule
from lab.runs.checkpoints import Checkpoint

# Entries that Lightning needs to resume training; a checkpoint of the weights alone, such as best.ckpt, lacks some.
_NEEDED = ("state_dict", "optimizer_states", "callbacks", "loops")
# Keys of the data's fingerprint in a checkpoint, and of the number of processes that train the run.
_FINGERPRINT, _PROCESSES = "data_fingerprint", "processes"


def note_circumstances(checkpoint: dict[str, Any], data: DataModule, processes: int) -> None:
    """Writes into a checkpoint what training has to find again: the fingerprint of the data and how many processes."""
    checkpoint.update({_FINGERPRINT: data.fingerprint, _PROCESSES: processes})


def fingerprint_in(checkpoint: Mapping[str, Any]) -> Tensor | None:
    """The fingerprint of the data that a checkpoint was trained on; None if it does not tell."""
    return checkpoint.get(_FINGERPRINT)


def of_same_data(before: Tensor | None, data: DataModule) -> bool:
    """True if the fingerprint of ``data``, set up, is the one from before, or there is none from before."""
    if before is None:
        return True
    now = data.fingerprint
    if before.dim() == now.dim() and len(before):
        now = now[: len(before)]  # checkpoints of before 2026-11-26 know the first validation batch alone
    return before.shape == now.shape and torch.allclose(before, now, rtol=1e-3, atol=1e-5, equal_nan=True)


def check_resumable(checkpoint: Checkpoint, module: nn.Module, data: DataModule) -> None:
    """Loads the checkpoint's weights into ``module`` to see that they fit, and checks that ``data`` are the same.

    Args:
        checkpoint: to go on from.
        module: to be trained.
        data: to be trained on.

    Raises:
        LabError: if something is missing, or the weights are of another model or of other data.
    """
    otherwise = "move it elsewhere to go on from the one before; force=true starts anew and keeps the old run beside it"
    missing = [name for name in _NEEDED if not checkpoint.content.get(name)]
    if missing:
        raise LabError(f"{checkpoint.path} lacks {', '.join(missing)}, so that training cannot go on: {otherwise}")
    try:
        module.load_state_dict(checkpoint.content["state_dict"])
    except (RuntimeError, TypeError, AttributeError) as error:
        # PyTorch's message names the module in its first line, and what does not fit after it.
        why = str(error).splitlines()[-1].strip()
        raise LabError(f"{checkpoint.path} does not fit this run's model ({why}): {otherwise}") from error
    data.setup("fit")
    if not of_same_data(fingerprint_in(checkpoint.content), data):
        raise LabError(
            f"{checkpoint.path} was trained on other data than this run finds: put the old data back "
            "(paths.data says where the lab's own lie), or name another paths.runs for the new; "
            "force=true starts anew and keeps the old run beside it"
        )


def check_processes(checkpoint: Checkpoint, now: int) -> None:
    """Checks that as many processes go on with a run as have begun it: each takes its part of every batch and epoch.

    Raises:
        LabError: if not, as where ``trainer.devices=auto`` finds another number of GPUs.
    """
    before = checkpoint.content.get(_PROCESSES, now)
    if before != now:
        raise LabError(
            f"{checkpoint.path} was trained by {before} processes, and {now} would go on with other batches: give it "
            f"{before} devices in all (trainer.devices, trainer.num_nodes); force=true starts anew and keeps the old "
            "run beside it"
        )
