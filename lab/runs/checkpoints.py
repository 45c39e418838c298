"""Checkpoints that are either complete or absent, on any file system.

A checkpoint is the output of ``torch.save``, followed by a digest of all its bytes. torch itself checks neither the
checksums in its files nor this digest, and would load a flipped bit as a weight. The digest is part of the file, so
that moving the file or killing a write always affects both.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from lab.console import lacks_memory
from lab.files import one_line, write_atomically

_DIGEST_BYTES = hashlib.sha256().digest_size
# What a zip file ends with: this mark, and the rest of its last record.
_ZIP_END, _ZIP_END_BYTES = b"PK\x05\x06", 22


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
    # In memory first: on a full disk torch would only complain about an unexpected position.
    memory = io.BytesIO()
    torch.save(content, memory)
    stored = memory.getbuffer()
    write_atomically(path, lambda file: file.writelines([stored, hashlib.sha256(stored).digest()]), False)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint.

    Raises:
        DamagedCheckpoint: if any bit differs from what was written, or the file is no checkpoint.
        OSError: if the file cannot be read.
    """
    if path.exists() and not path.is_file():  # a pipe or a device may never end
        raise DamagedCheckpoint("it is no plain file")
    stored = path.read_bytes()
    if hashlib.sha256(memoryview(stored)[:-_DIGEST_BYTES]).digest() != stored[-_DIGEST_BYTES:]:
        if stored[-_ZIP_END_BYTES:].startswith(_ZIP_END):
            raise DamagedCheckpoint("it has no digest at its end: an older lab, or another program, wrote it")
        raise DamagedCheckpoint("its content does not match the digest at its end")
    try:
        content = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
        if any(not isinstance(name, str) for name in dict(content.get("state_dict", {}))):
            raise DamagedCheckpoint("its state_dict has a key that is not a name")
        return Checkpoint(path, content, int(content["global_step"]))
    except DamagedCheckpoint:
        raise
    except pickle.UnpicklingError as error:
        raise DamagedCheckpoint(
            "it holds something other than tensors and plain values, which might run code: it is not loaded"
        ) from error
    except Exception as error:  # files of other people fail in more ways than can be listed
        if lacks_memory(error):
            raise
        raise DamagedCheckpoint(one_line(error)) from error


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its final place and moves it there.

    Lightning writes into ``$TMPDIR`` first. Moving a file from there to another file system copies it over the old one,
    and a kill during the copy leaves neither.

    Args:
        own: the run's own folder of checkpoints, which is there; if somebody deletes it, it is not made again. Folders
            of other callbacks that save are made.
    """

    def __init__(self, own: Path) -> None:
        super().__init__()
        self.own = own

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        folder = Path(path).parent
        if folder != self.own:
            folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path)).content
