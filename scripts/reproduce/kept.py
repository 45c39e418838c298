"""Summaries and runs kept beside a results page, which can then be made on any machine, without the run folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from omegaconf import DictConfig

from lab.console import LabError
from lab.files import DamagedFile, read_file, write_text
from lab.report.records import CURVES, FILES, Record, what_is_run
from lab.runs.folder import Run
from lab.runs.spec import RunSpec
from lab.runs.stored_config import read_config
from lab.runs.summary import Summary, read_summary

FILE = "summaries.jsonl"
_MOST_BYTES = 2**26
# Fields that pages show, and where runs come from; no paths of the machine that trained.
_KEPT: dict[str, Any] = {
    name: True
    for name in (
        *("version", "status", "seed", "softmax", "experiment", "git", "seeds_together", "written", "epochs"),
        *("max_epochs", "steps", "samples", "wall_seconds", "eureka", "best", "diverged"),
    )
} | {"versions": {"torch"}, "machine": {"processor", "cores", "threads", "gpu"}, "metrics": {"val/accuracy"}}


class Kept:
    """Holds summaries of ended runs by what was typed for them, in a file with a line for each.

    Args:
        path: of the file, which need not be there.

    Raises:
        DamagedFile: if a line holds no run and summary.
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

    def summary(self, typed: Sequence[str], folder: Path, further: Sequence[str] = ()) -> Summary | None:
        """The kept summary of a run; its folder's where none is kept, or only the folder's is finished.

        None where the run has not begun. What is kept comes first, so that a page agrees with the lines beside it.

        Args:
            typed: overrides of the run with its seed, by which its summary is kept.
            folder: of the run.
            further: other overrides of the run, which do not change its numbers.

        Raises:
            LabError: if the folder holds another run.
        """
        kept = self._found.get(" ".join(typed))
        if kept is not None and kept.finished:
            return kept
        own = summary_of([*typed, *further], folder)
        return own if own is not None and (kept is None or own.finished) else kept

    def runs(self) -> Sequence[str]:
        """Lists what was typed for each summary that is kept."""
        return list(self._found)

    def keep(self, found: Mapping[str, Summary]) -> None:
        """Adds summaries by what was typed, and writes the file; a summary that is kept as finished is not replaced.

        Lines that another process has added since this one read the file stay.

        Raises:
            DamagedFile: if the file cannot be read any more.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._path.with_name(f".{self._path.name}.lock")):
            self._found = {**self._found, **Kept(self._path)._found}
            finished = {run: one for run, one in self._found.items() if one.finished}
            together = {**self._found, **found, **finished}
            if together == self._found:
                return
            self._found = together
            lines = [
                json.dumps({"run": run, "summary": one.model_dump(mode="json", exclude_unset=True, include=_KEPT)})
                for run, one in sorted(self._found.items())
            ]
            write_text(self._path, "\n".join(lines) + "\n")


def ended(summary: Summary) -> bool:
    """Tells whether a run has finished or diverged; after any other failure, as on a full disk, it can train on."""
    return summary.finished or (summary.status == "failed" and summary.diverged)


def check_ended(summaries: Sequence[Summary | None]) -> None:
    """Refuses to go on where a run that was to be trained has not come to its end.

    Raises:
        LabError: if there is such a run.
    """
    if not all(one is not None and ended(one) for one in summaries):
        raise LabError("not all runs have come to their end, for the reason above: the same command goes on with them")


def summary_of(overrides: Sequence[str], folder: Path) -> Summary | None:
    """The summary of the run of these overrides, its seed among them; None before it has begun.

    Raises:
        LabError: if the folder holds a run of another configuration: a default may have changed since.
    """
    found = read_summary(folder)
    if found is not None:
        Run(folder, primary=False).check_same(_config(tuple(overrides)))
    return found


@lru_cache(maxsize=1000)
def _config(overrides: tuple[str, ...]) -> DictConfig:
    return RunSpec.compose(overrides).config


def keep_run(folder: Path, place: Path, what: Mapping[str, Any]) -> Summary | None:
    """Copies the files of a run that a report reads, without this machine's paths; returns the copy's summary, if any.

    A copy is made anew while the run goes on, and after a run that failed; one of a finished run stays as it is, unless
    it is of another configuration: a default may have changed since.

    Args:
        folder: of the run.
        place: folder of the copy.
        what: configuration that is to be run (:func:`lab.report.settings.planned`).
    """
    own, kept = (_of(what, one) for one in (folder, place))
    if own is None or (kept is not None and (kept.finished or kept.epochs > own.epochs)):
        return kept
    paths = read_config(folder)["paths"]
    above = Path(paths["run"]).parents[2]
    here = {
        str(above): "runs" if Path(paths["runs"]).is_absolute() else str(paths["runs"]),
        str(paths["data"]): "data",
    }
    for name in FILES:
        text = read_file(folder / name, _MOST_BYTES).decode()
        for path, short in here.items():
            text = text.replace(path, short) if Path(path).is_absolute() else text
        write_text(place / name, text)
    return own


def _of(what: Mapping[str, Any], folder: Path) -> Summary | None:
    """The summary of a folder's run; None where it is of another configuration, or there is none."""
    found = read_summary(folder)
    return found if found is not None and what_is_run(read_config(folder), found.seed) == what else None


def record(summary: Summary, folder: Path) -> Record:
    """A run of which the summary alone is known: no curve, no config."""
    return Record(folder, summary, {}, np.empty((len(CURVES), 0), np.float32))
