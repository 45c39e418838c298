"""What keeps what it finds: a table, arrays and pictures in a run folder."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure

from lab.observation.observe import Findings
from lab.plotting.figures import save_figure, show_figure
from lab.runs.files import write_atomically, write_text


class Keeper(Callback):
    """A callback that keeps findings in ``diagnostics/<name>.csv`` and ``pictures/<name>``.

    Args:
        folder: the run folder, or where else a look is kept.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.table = pd.DataFrame()

    @property
    def name(self) -> str:
        """Its name in files and logs: the class name in snake case."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def path(self) -> Path:
        """Its table."""
        return self.folder / "diagnostics" / f"{self.name}.csv"

    def keep(self, findings: Findings, epoch: int | None, step: int) -> None:
        """Adds rows to the table, in place of earlier ones of the same step, and writes it.

        Args:
            findings: what was found.
            epoch: epochs trained; None, as of a checkpoint that may stand in the middle of one, has no column.
            step: optimiser steps trained.
        """
        moment = {"step": step} if epoch is None else {"epoch": epoch, "step": step}
        new = pd.DataFrame([{**moment, **row} for row in findings.rows])
        old = self.table if self.table.empty else self.table[self.table["step"] != step]
        self.table = new if old.empty else pd.concat([old, new], ignore_index=True)
        if not self.table.empty:
            text = io.StringIO()
            self.table.to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
            write_text(self.path, text.getvalue())

    def keep_arrays(self, findings: Findings, name: str) -> Path | None:
        """Writes the arrays as ``diagnostics/<diagnostic>/<name>.npz``; None where there are none."""
        if not findings.arrays:
            return None
        arrays: Any = findings.arrays
        path = self.path.with_suffix("") / f"{name}.npz"
        write_atomically(path, lambda file: np.savez_compressed(file, **arrays))
        return path

    def draw(self, figure: Figure, name: str, trainer: L.Trainer | None = None, dpi: int = 110) -> Path:
        """Writes a picture below ``pictures``, and to TensorBoard."""
        path = self.folder / "pictures" / (f"{self.name}/{name}.png" if name else f"{self.name}.png")
        save_figure(figure, path, dpi)
        if trainer is not None:
            show_figure(trainer, f"{self.name}/{name.split('_epoch_')[0]}" if name else self.name, figure)
        return path
