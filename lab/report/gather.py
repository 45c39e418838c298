"""Gathers all runs below a folder; an index beside them keeps what was read, so that only new runs are read again."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.console import LabError, counted, noted_if_slow
from lab.files import DamagedFile, as_path, write_atomically
from lab.report.records import CURVES, FILES, Record, read_record
from lab.report.side_by_side import check_processes, side_by_side
from lab.runs.summary import Summary, as_it_is_now
from lab.runs.walk import walk_runs

# Rises when the format of the index, or what counts as damaged, changes: an index of another version is made anew.
VERSION = 7
INDEX = Path(".report") / "index.npz"
# Fewest folders that a process of its own reads.
_FOR_A_PROCESS = 50

Stamp = list[int]


@dataclass(frozen=True)
class Gathered:
    """Runs that lie below a folder.

    Attributes:
        root: the folder.
        runs: sorted by folder.
        damaged: folder -> why it was left out.
        read: number of folders that had to be read; the others were in the index.
    """

    root: Path
    runs: tuple[Record, ...]
    damaged: Mapping[Path, str]
    read: int


def gather(root: str | Path, processes: int | None = 1) -> Gathered:
    """Reads every run folder below ``root``, but those set aside by ``force=true`` (``seed=0~1``) or without a summary.

    Args:
        root: a folder of runs, or one run.
        processes: most processes that read side by side, each 50 runs or more; None for one per core, up to 8. For more
            than one, a script needs ``if __name__ == "__main__":`` where Python does not fork (macOS, Python 3.14).

    Raises:
        LabError: if there is no such folder, or fewer than one process.
    """
    root = folder_of_runs(root, "gather('runs/reasoning')").absolute()
    check_processes(processes)
    left_out: dict[Path, str] = {}

    def leave_out(folder: Path, why: str) -> None:
        left_out[folder] = f"{folder.name} {why}"

    found = walk_runs(root, on_skipped=leave_out, on_no_run=leave_out)
    stamps = {str(one.path.relative_to(root)): _stamp(one.entries) for one in found}
    known = _read_index(root)
    fresh = {name: known[name][1] for name, stamp in stamps.items() if name in known and known[name][0] == stamp}
    new = [name for name in stamps if name not in fresh]
    with noted_if_slow(f"reading {counted(len(new), 'run')} below {root}"):
        found_in = side_by_side(_read, [root / name for name in new], processes, _FOR_A_PROCESS)
    read = dict(zip(new, found_in, strict=True))
    records = fresh | {name: one for name, one in read.items() if isinstance(one, Record)}
    # Not in the index, so that it is tried again: its rights, or the lab, may change and its files not.
    damaged = left_out | {root / name: why for name, why in sorted(read.items()) if isinstance(why, str)}
    if len(records) > len(fresh) or known.keys() - records.keys():
        # A read-only folder gets no index: all its runs are read each time.
        with suppress(OSError):
            _write_index(root, {name: (stamps[name], records[name]) for name in sorted(records)})
    runs = tuple(_as_it_is_now(records[name]) for name in sorted(records))
    return Gathered(root, runs, damaged, len(new))


def folder_of_runs(given: object, example: str) -> Path:
    """Returns a folder that a user names, to look for runs in it.

    Args:
        given: text or a path.
        example: a call, or a command, that would be right.

    Raises:
        LabError: if it is no folder.
    """
    folder = as_path(given, example)
    if not folder.is_dir():
        raise LabError(f"{folder} is no folder: name one that holds runs, as in {example}")
    return folder


def _stamp(inside: Mapping[str, os.DirEntry[str]]) -> Stamp:
    stamp: Stamp = []
    for name in FILES:
        if name in inside:
            try:
                stat = inside[name].stat()
            except OSError:  # a broken link, or a run that is being moved away: read_record reports it
                stamp += [-1, -1]
            else:
                stamp += [stat.st_mtime_ns, stat.st_size]
        else:
            stamp += [0, 0]
    return stamp


def _read(folder: Path) -> Record | str:
    try:
        return read_record(folder)
    except DamagedFile as error:
        return error.short


def _as_it_is_now(record: Record) -> Record:
    """Corrects the status of a run that says it is running while no process holds it: it was killed."""
    now = as_it_is_now(record.summary, record.folder)
    return record if now is record.summary else replace(record, summary=now)


def _write_index(root: Path, entries: Mapping[str, tuple[Stamp, Record]]) -> None:
    configs: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    curves = []
    for name, (stamp, record) in entries.items():
        config = configs.setdefault(json.dumps(record.config, sort_keys=True), len(configs))
        length = record.curves.shape[1]
        rows.append(
            {
                "name": name,
                "stamp": stamp,
                "summary": record.summary.model_dump(mode="json", exclude_unset=True),
                "config": config,
                "length": length,
            }
        )
        curves.append(record.curves)
    text = json.dumps({"version": VERSION, "runs": rows, "configs": [json.loads(config) for config in configs]})
    numbers = np.concatenate([np.empty((len(CURVES), 0), np.float32), *curves], axis=1)
    buffer = io.BytesIO()
    np.savez(buffer, text=np.frombuffer(text.encode(), np.uint8), curves=numbers)
    write_atomically(root / INDEX, lambda file: file.write(buffer.getvalue()))


def _read_index(root: Path) -> dict[str, tuple[Stamp, Record]]:
    """Reads the index; returns an empty one where there is none, or where it is damaged or of another version.

    The index may come from anybody, together with the folder: its content is checked as that of a run folder is.
    """
    try:
        with np.load(root / INDEX, allow_pickle=False) as stored:
            index, curves = json.loads(stored["text"].tobytes()), stored["curves"]
        if index["version"] != VERSION:
            return {}
        known: dict[str, tuple[Stamp, Record]] = {}
        start = 0
        for row in index["runs"]:
            own = curves[:, start : start + row["length"]]
            start += row["length"]
            config = dict(index["configs"][row["config"]])
            if own.dtype != np.float32 or own.shape != (len(CURVES), row["length"]):
                return {}
            record = Record(root / row["name"], Summary.model_validate(row["summary"]), config, own)
            known[row["name"]] = (row["stamp"], record)
        return known
    except Exception:  # a damaged file fails in more ways than can be listed
        return {}
