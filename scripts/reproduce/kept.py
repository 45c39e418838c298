"""Summaries and runs kept beside a results page: it stands when the folders of the runs are gone, on any machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.report.records import CURVES, FILES, Record
from lab.runs.files import DamagedFile, read_file, write_text
from lab.runs.stored_config import read_config
from lab.runs.summary import Summary, read_summary

FILE = "summaries.jsonl"
_MOST_BYTES = 2**26
# What a page says and where it comes from; no paths of the machine that trained.
_KEPT: dict[str, Any] = {
    name: True
    for name in (
        *("version", "status", "seed", "softmax", "experiment", "git", "seeds_together", "written", "epochs"),
        *("max_epochs", "steps", "samples", "wall_seconds", "eureka", "best"),
    )
} | {"versions": {"torch"}, "machine": {"processor", "cores", "threads", "gpu"}, "metrics": {"val/accuracy"}}


class Kept:
    """Holds summaries of ended runs by what was typed for them, a line of a file for each.

    Args:
        path: of the file, which need not be there.

    Raises:
        DamagedFile: if a line of it is none of these.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Summary] = {}
        if not path.exists():
            return
        for number, line in enumerate(read_file(path, _MOST_BYTES).decode().splitlines(), 1):
            try:
                content = json.loads(line)
                self._found[str(content["run"])] = Summary.model_validate(content["summary"])
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedFile(path, f"cannot be read: line {number} holds no run and summary") from error

    def summary(self, typed: Sequence[str], folder: Path) -> Summary | None:
        """A run's own summary or, where it has not ended in its folder, the kept one; None where it has not begun.

        Args:
            typed: overrides of the run with its seed, without what changes no number.
            folder: of the run.
        """
        own = read_summary(folder)
        return own if own is not None and ended(own) else self._found.get(" ".join(typed), own)

    def keep(self, found: Mapping[str, Summary]) -> None:
        """Adds summaries by what was typed, and writes the file; a run that is kept already stays as it is."""
        if not found.keys() - self._found.keys():
            return
        self._found = {**found, **self._found}
        lines = [
            json.dumps({"run": run, "summary": one.model_dump(mode="json", exclude_unset=True, include=_KEPT)})
            for run, one in sorted(self._found.items())
        ]
        write_text(self._path, "\n".join(lines) + "\n")


def ended(summary: Summary) -> bool:
    """Tells whether a run has come to an end that training on does not change."""
    return summary.status in ("finished", "failed")


def keep_run(folder: Path, place: Path) -> Summary | None:
    """Copies what a report reads of a run, without this machine's paths; the summary of the copy, if there is one.

    A copy is made anew while the run goes on, and after a run that failed; one of a finished run stays as it is.

    Args:
        folder: of the run.
        place: folder of the copy.
    """
    own, kept = read_summary(folder), read_summary(place)
    if own is None or (kept is not None and (kept.finished or kept.epochs > own.epochs)):
        return kept
    paths = {name: str(read_config(folder)["paths"][name]) for name in ("runs", "data")}
    for name in FILES:
        text = read_file(folder / name, _MOST_BYTES).decode()
        for short, here in paths.items():
            text = text.replace(here, short) if Path(here).is_absolute() else text
        write_text(place / name, text)
    return own


def record(summary: Summary, folder: Path) -> Record:
    """A run of which the summary alone is known: no curve, no config."""
    return Record(folder, summary, {}, np.empty((len(CURVES), 0), np.float32))
