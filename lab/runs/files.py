"""Atomic files: a reader sees the old content or the new one, never half of it."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

_UNFINISHED = ".unfinished"


def write_atomically(path: Path, write: Callable[[BinaryIO], Any], make_folder: bool = True) -> None:
    """Calls ``write`` on a temporary file beside ``path`` and moves it there once it is safely on disk.

    Args:
        path: of the file.
        write: is given the temporary file.
        make_folder: make the folder where it is missing; not of a run that trains, which somebody has deleted then.
    """
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def is_full(error: BaseException) -> bool:
    """Tells whether an error says that the disk, or what one may use of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def remove_unfinished(folder: Path, name: str = "[!.]*") -> None:
    """Removes what killed writes have left of files of this name; for who alone writes them.

    Args:
        folder: where they are.
        name: a pattern; by default of all but hidden files, which others than a run's holder write, too.
    """
    for path in folder.glob(f".{name}.????????{_UNFINISHED}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str, make_folder: bool = True) -> None:
    """Writes ``text`` atomically as UTF-8."""
    write_atomically(path, lambda file: file.write(text.encode()), make_folder)


def write_json(path: Path, value: Any, make_folder: bool = True) -> None:
    """Writes ``value`` atomically as indented JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n", make_folder)
