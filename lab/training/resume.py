"""Checks that training can go on from a checkpoint, before anything is trained or written."""

from __future__ import annotations

from torch import nn

from lab.console import LabError
from lab.runs.checkpoints import Checkpoint

# What Lightning takes from a checkpoint of training; one of the weights alone, such as best.ckpt, has less.
_NEEDED = ("state_dict", "optimizer_states", "callbacks", "loops")


def check_resumable(checkpoint: Checkpoint, module: nn.Module) -> None:
    """Gives ``module`` the weights of the checkpoint, to see that they fit.

    Raises:
        LabError: if something is missing, or the weights are of another model.
    """
    otherwise = "move it elsewhere to go on from the one before; force=true starts anew and keeps the old run beside it"
    missing = [name for name in _NEEDED if not checkpoint.content.get(name)]
    if missing:
        raise LabError(f"{checkpoint.path} lacks {', '.join(missing)}, so that training cannot go on: {otherwise}")
    try:
        module.load_state_dict(checkpoint.content["state_dict"])
    except (RuntimeError, TypeError, AttributeError) as error:
        # Torch names the module first, then what does not fit.
        why = str(error).splitlines()[-1].strip()
        raise LabError(f"{checkpoint.path} does not fit this run's model ({why}): {otherwise}") from error
