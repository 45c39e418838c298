"""A Lightning logger that keeps every logged number in one ``metrics.csv``."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from lab.console import LabError, tell
from lab.files import DamagedFile, csv_text, write_text
from lab.runs.metrics import read_metrics

# Least time between two writes.
_FLUSH_SECONDS = 10.0


class MetricsLog(Logger):
    """Logger with one row per step and one column per metric; rewritten atomically, at most every ten seconds.

    Lightning's own CSV logger opens a new folder for a resumed run and appends in place, so that a killed
    run leaves half a line. This one goes on with the rows that the run has logged before.

    Args:
        path: the file.
        resume_step: optimiser steps of the checkpoint that training goes on from. Rows from this step on were logged
            by a run that was killed; they are dropped, and training logs them again.
    """

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        super().__init__()
        self.path = path
        self._rows: dict[int, dict[str, Any]] = {}
        self._written = time.monotonic()
        if resume_step > 0:
            for row in _rows_before(path):
                if row["step"] < resume_step:
                    self._rows[int(row["step"])] = {**row, "step": int(row["step"])}

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._rows.setdefault(step or 0, {"step": step or 0}).update({k: float(v) for k, v in metrics.items()})
        if time.monotonic() - self._written > _FLUSH_SECONDS:
            self.save()

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the configuration has its own file in the run folder."""

    @rank_zero_only
    def save(self) -> None:
        """Writes the file now."""
        columns = dict.fromkeys(["step", "epoch", *sorted({key for row in self._rows.values() for key in row})])
        text = csv_text((self._rows[step] for step in sorted(self._rows)), list(columns))
        write_text(self.path, text, make_folder=False)
        self._written = time.monotonic()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()


def _rows_before(path: Path) -> list[dict[str, float]]:
    if not path.exists():
        tell(f"{path} is missing: what was logged before is lost, and training logs from here on")
    try:
        return read_metrics(path)
    except DamagedFile as error:
        raise LabError(f"{error}; mend it, or move it away: training then goes on and logs without it") from error
