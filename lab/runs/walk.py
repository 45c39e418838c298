"""Finds runs below a folder; knows which were set aside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.runs.provenance import FILE as PROVENANCE
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


def walk_runs(
    root: Path,
    on_folder: Callable[[Path], object] | None = None,
    on_skipped: Callable[[Path, str], object] | None = None,
    on_no_run: Callable[[Path, str], object] | None = None,
) -> Iterator[FoundRun]:
    """Finds the run folders below ``root`` (or ``root`` itself); runs set aside by ``force=true`` are left out.

    Args:
        root: where to look.
        on_folder: called with every folder on the way that is no run.
        on_skipped: called with every folder that may hold runs and is not looked into, and why: a link, which is not
            followed, or one that may not be read.
        on_no_run: called with every folder that was a run and counts as none, and why: it was set aside, or has no
            summary.
    """
    on_skipped, on_no_run = on_skipped or _ignore, on_no_run or _ignore
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                inside = {entry.name: entry for entry in entries}
        except (FileNotFoundError, NotADirectoryError):  # moved away meanwhile
            continue
        except OSError as error:
            on_skipped(folder, f"cannot be read: {error.strerror}")
            continue
        if FILE in inside:
            if was_set_aside(folder):
                on_no_run(folder, f"has a {_ASIDE} in its name, as a run that force=true has set aside")
            else:
                yield FoundRun(folder, inside)
            continue
        if PROVENANCE in inside:
            on_no_run(folder, f"has no {FILE}: it has only just begun, or has lost it")
            continue
        if on_folder is not None:
            on_folder(folder)
        for entry in inside.values():
            if entry.name in _SKIP:
                continue
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif entry.is_dir():
                    on_skipped(Path(entry.path), "is a link, which is not followed: name what it points to")


def _ignore(folder: Path, why: str) -> None:
    """Passes over a folder without a word."""


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
