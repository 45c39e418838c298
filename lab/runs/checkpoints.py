"""Checkpoints that are whole or not there, on whatever file system they lie.

A checkpoint is what ``torch.save`` writes, and behind it a digest of every byte before: torch itself reads neither the
checksums of its files nor that digest, and takes a flipped bit for a weight. The digest is within the file and written
with it, so that the two are moved, and killed, together.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from lab.runs.files import one_line, write_atomically

_DIGEST_BYTES = hashlib.sha256().digest_size


class DamagedCheckpoint(Exception):
    """A file that is not as it was written, or never was a checkpoint; the message says which."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes:
        path: of the file.
        content: plain tensors and values, on the CPU.
        step: optimiser steps trained.
    """

    path: Path
    content: dict[str, Any]
    step: int


def save_checkpoint(content: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint atomically, with its digest."""
    # In memory first: of a full disk torch says that it is at an unexpected position.
    memory = io.BytesIO()
    torch.save(content, memory)
    stored = memory.getbuffer()
    write_atomically(path, lambda file: file.writelines([stored, hashlib.sha256(stored).digest()]), False)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint.

    Raises:
        DamagedCheckpoint: if a bit of it is not as it was written, or it is no checkpoint.
        OSError: if the machine does not give it.
    """
    if path.exists() and not path.is_file():  # a pipe or a device may never end
        raise DamagedCheckpoint("it is no plain file")
    stored = path.read_bytes()
    if hashlib.sha256(memoryview(stored)[:-_DIGEST_BYTES]).digest() != stored[-_DIGEST_BYTES:]:
        raise DamagedCheckpoint("its content is not that of the digest at its end")
    try:
        content = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
        if any(not isinstance(name, str) for name in dict(content.get("state_dict", {}))):
            raise DamagedCheckpoint("its state_dict is not by name")
        return Checkpoint(path, content, int(content["global_step"]))
    except (MemoryError, DamagedCheckpoint):
        raise
    except Exception as error:  # what somebody else wrote fails in many ways, none of them ours to list
        raise DamagedCheckpoint(one_line(error)) from error


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the file and moves it into place.

    Lightning writes into ``$TMPDIR`` first; from there to another file system a move is a copy over the old file, and a
    kill in its midst leaves neither.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        save_checkpoint(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path)).content
