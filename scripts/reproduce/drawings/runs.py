"""Runs as a layout is given them, and what it reads from their folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lab.console import LabError
from lab.runs.metrics import FILE as METRICS
from lab.runs.metrics import read_metrics_table
from lab.runs.summary import load_summary


@dataclass(frozen=True)
class Shown:
    """One setting of a figure.

    Attributes:
        name: of the setting in settings.yaml.
        label: as the paper calls it.
        folders: of its runs, by seed.
    """

    name: str
    label: str
    folders: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        """Folder of its only run, or of the first."""
        return self.folders[0]

    def moment(self, of: str = "step") -> int | None:
        """Step (or "epoch") of the first run's Eureka-moment; None without one."""
        eureka = load_summary(self.folder).eureka
        return (eureka.step if of == "step" else eureka.epoch) if eureka.happened else None

    def curves(self, *names: str) -> pd.DataFrame:
        """Metrics of the first run: columns step, epoch (from 1) and those named, where all of them were logged.

        Raises:
            LabError: if one of them was never logged.
        """
        return curves(self.folder, *names)

    def table(self, diagnostic: str) -> pd.DataFrame:
        """Table of what a diagnostic found over the first run's training.

        Raises:
            LabError: if the diagnostic did not run.
        """
        path = self.folder / "diagnostics" / f"{diagnostic}.csv"
        if not path.exists():
            raise LabError(f"{self.folder} has nothing of {diagnostic}: run it with 'callbacks=[default,figures]'")
        return pd.read_csv(path)

    def arrays(self, diagnostic: str, epoch: int | None = None) -> dict[str, NDArray[Any]]:
        """Arrays of what a diagnostic found in the first run after an epoch, by default the last one it looked at.

        Raises:
            LabError: if it did not look then.
        """
        folder = self.folder / "diagnostics" / diagnostic
        name = "epoch_*.npz" if epoch is None else f"epoch_{epoch:05d}.npz"
        found = sorted(folder.glob(name))
        if not found:
            raise LabError(f"{folder} has no {name}: run it with 'callbacks=[default,figures]', to that epoch")
        with np.load(found[-1], allow_pickle=False) as arrays:
            return dict(arrays)


def curves(folder: Path, *names: str) -> pd.DataFrame:
    """Metrics of one run, as :meth:`Shown.curves` has them."""
    found = read_metrics_table(folder / METRICS)
    if not set(names) <= set(found.columns):
        raise LabError(f"{folder} has not logged {' and '.join(names)}")
    rows = found.dropna(subset=list(names))[["step", "epoch", *names]]
    return rows.assign(epoch=rows["epoch"] + 1)


def layers_logged(folder: Path, prefix: str) -> list[int]:
    """Numbers of the layers whose metric ``<prefix><layer>`` a run has logged."""
    names = [name for name in read_metrics_table(folder / METRICS).columns if name.startswith(prefix)]
    return sorted(int(name.removeprefix(prefix)) for name in names)
