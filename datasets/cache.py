"""The user's cache of results that took long to make, named by the content of what they were made from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.console import LabError
from lab.files import LONGEST_WRITE, remove_unfinished, write_atomically


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
    with suppress(OSError, LabError):
        remove_unfinished(path.parent, path.name, LONGEST_WRITE)
        write_atomically(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
