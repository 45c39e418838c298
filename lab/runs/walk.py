"""Finds runs below a folder; knows which were set aside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.runs.summary import FILE

# Folders that hold no runs; those inside a run are not looked into.
_SKIP = {".report", ".sweeps", ".mlflow"}
# Stands between the name of a run that force=true has set aside and its number: seed=0~1.
_ASIDE = "~"


@dataclass(frozen=True)
class FoundRun:
    """A run folder.

    Attributes:
        path: of the folder.
        entries: its files, by name.
    """

    path: Path
    entries: Mapping[str, os.DirEntry[str]]


def walk_runs(root: Path, passing: Callable[[Path], object] | None = None) -> Iterator[FoundRun]:
    """Finds the run folders below ``root`` (or ``root`` itself); runs set aside by ``force=true`` are left out.

    Links are not followed, and a folder that may not be read is passed over.

    Args:
        root: where to look.
        passing: called with every folder on the way that is no run.
    """
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            inside = {entry.name: entry for entry in entries}
            if FILE in inside:
                if not was_set_aside(folder):
                    yield FoundRun(folder, inside)
                continue
            if passing is not None:
                passing(folder)
            waiting += [
                Path(entry.path)
                for entry in inside.values()
                if entry.name not in _SKIP and entry.is_dir(follow_symlinks=False)
            ]


def instead_of(folder: Path, missing: str) -> str:
    """Says what to do about a folder that holds no run: a folder above runs is the commonest slip.

    Args:
        folder: that was given as a run folder.
        missing: name of the file that makes a run folder, and that it does not have.
    """
    if not folder.is_dir():
        return "there is no such folder"
    below = next((found.path for found in walk_runs(folder) if found.path != folder), None)
    return f"{missing} is missing" if below is None else f"name one below it, such as {below}"


def was_set_aside(folder: Path) -> bool:
    """Tells whether ``force=true`` has set a run aside in this folder."""
    return _ASIDE in folder.name


def free_place_aside(folder: Path) -> Path:
    """Names the first folder beside ``folder`` that a run can be set aside in: ``seed=0~1``."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}{_ASIDE}{number}")).exists():
        number += 1
    return aside
