"""Compares runs bit for bit with undisturbed ones, apart from times and origin."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from lab.runs.checkpoints import read_checkpoint
from lab.runs.lock import LOCK
from lab.sweeps.jobs import JOB

# Keys of checkpoints and summaries, and columns of metrics.csv, that hold times or say where a run comes from.
_NOT_COMPARED = {
    *("seconds", "wall_seconds", "time_elapsed", "samples_per_second", "started", "written"),
    *("command", "overrides", "git", "machine", "versions", "peak_memory_bytes", "slurm_job"),
}

_HIDDEN = (LOCK, JOB)


def differences(runs: Path, undisturbed: Path) -> list[str]:
    """Says where all runs below a folder differ from those of the same names below another."""
    mine, theirs = _folders(runs), _folders(undisturbed)
    if mine != theirs:
        return [f"runs {mine} and not {theirs}"]
    return [f"{name}: {told}" for name in mine for told in _of_a_run(runs / name, undisturbed / name)]


def _folders(runs: Path) -> list[str]:
    return sorted(path.parent.relative_to(runs).as_posix() for path in runs.rglob("config.yaml"))


def _of_a_run(run: Path, undisturbed: Path) -> Iterator[str]:
    mine, theirs = _files(run), _files(undisturbed)
    for told, files in (("left over", mine.keys() - theirs.keys()), ("missing", theirs.keys() - mine.keys())):
        if files:
            yield f"{', '.join(sorted(files))} {'are' if len(files) > 1 else 'is'} {told}"
    for name in sorted(mine.keys() & theirs.keys()):
        if read := _READ.get(Path(name).suffix):
            yield from unlike(read(mine[name]), read(theirs[name]), name)


def _files(run: Path) -> dict[str, Path]:
    """Returns all files by name.

    Checkpoints are named by their age, since one that was saved at a signal has another step; only the newest is
    compared. Left out are TensorBoard's files, of which a resumed run has several, the file of the lock, and the file
    that names the job of the run.
    """
    saved = sorted((run / "checkpoints").glob("last-*.ckpt"), reverse=True)
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file() and path not in saved}
    files |= {f"older checkpoint {age}" if age else "newest.ckpt": path for age, path in enumerate(saved)}
    return {name: path for name, path in files.items() if ".tfevents." not in name and name not in _HIDDEN}


def _rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows as text, without those that hold nothing but times."""
    with path.open(newline="") as file:
        rows = [
            {key: text for key, text in row.items() if text and key not in _NOT_COMPARED}
            for row in csv.DictReader(file)
        ]
    return [row for row in rows if row.keys() - {"step", "epoch"}]


_READ: dict[str, Callable[[Path], Any]] = {
    ".ckpt": lambda path: read_checkpoint(path).content,
    ".csv": _rows,
    ".json": lambda path: json.loads(path.read_text()),
}


def unlike(mine: Any, theirs: Any, where: str) -> Iterator[str]:
    """Says where two values differ, at any depth."""
    if isinstance(theirs, torch.Tensor) and isinstance(mine, torch.Tensor):
        alike = mine.dtype == theirs.dtype and mine.shape == theirs.shape and _bits(mine) == _bits(theirs)
        if not alike:
            yield f"{where} is another tensor"
    elif isinstance(theirs, dict) and isinstance(mine, dict):
        for key in mine.keys() | theirs.keys():
            if key in mine and key in theirs:
                if key not in _NOT_COMPARED:
                    yield from unlike(mine[key], theirs[key], f"{where}: {key}")
            elif key not in _NOT_COMPARED:
                yield f"{where}: {key} is {'there' if key in mine else 'missing'}"
    elif isinstance(theirs, list | tuple) and isinstance(mine, list | tuple) and len(mine) == len(theirs):
        for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            yield from unlike(one, other, f"{where}: {number}")
    elif mine != theirs:
        yield f"{where} is {str(mine)[:60]}, and {str(theirs)[:60]} undisturbed"


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
