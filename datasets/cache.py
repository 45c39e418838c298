"""The user's cache of results that took long to make, named by the content of what they were made from."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.console import LabError

# Seconds after which a file that is still being written is taken for one of a killed process.
_LONGEST_WRITE = 3600.0


def cache() -> Path:
    """The lab's folder in the user's cache (XDG_CACHE_HOME, or ``~/.cache``)."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "eureka-lab"
    try:
        return Path.home() / ".cache" / "eureka-lab"
    except RuntimeError as error:  # a container's user without a home
        raise LabError("there is no home folder for the lab's cache: set XDG_CACHE_HOME to a folder") from error


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]] | None:
    """Arrays of a file that :func:`write_arrays` wrote; None where there is none, or where it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception:  # a damaged file fails in many ways, none of them ours to list
        return None


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Writes arrays with checksums; the file appears whole or not at all, and a failure to write is ignored."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f".{path.name}-*"):
            with suppress(OSError):  # of another user
                if time.time() - old.stat().st_mtime > _LONGEST_WRITE:
                    old.unlink()  # of a process that was killed
        try:
            with draft.open("xb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
