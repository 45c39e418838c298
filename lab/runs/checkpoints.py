"""Checkpoints that are whole or not there, on whatever file system they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from lab.runs.files import write_atomically


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the file and moves it into place.

    Lightning writes into ``$TMPDIR`` first; from there to another file system a move is a copy over the old file, and a
    kill in its midst leaves neither.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))
