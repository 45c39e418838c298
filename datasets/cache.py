"""The user's cache of results that took long to make, named by the content of what they were made from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def cache() -> Path:
    """The lab's folder in the user's cache (XDG_CACHE_HOME, or ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eureka-lab"


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]] | None:
    """Arrays of a file that :func:`write_arrays` wrote; None where there is none, or where it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception:  # a damaged file fails in many ways, none of them ours to list
        return None


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Writes arrays with checksums; the file appears whole or not at all, and a failure to write is ignored."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            os.replace(draft, path)
        finally:
            Path(draft).unlink(missing_ok=True)
