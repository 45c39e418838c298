"""Runs as tables of pandas, for a notebook or a script."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from lab.config.overrides import read_override
from lab.console import LabError, tell
from lab.report.gather import folder_of_runs, gather
from lab.report.records import METRICS, Record
from lab.runs.metrics import read_metrics_table

# Overrides without a column of their own: they are among the columns _FIRST, or say only where and how often to run.
_TOLD_ELSEWHERE = {"experiment", "softmax", "seed", "seeds", "force", "paths.runs"}
_COUNTS = ("epochs", "steps", "moment_epoch", "moment_step", "change_epoch")
_WATCHED = ("watched", "watched_value", "threshold", "prior_accuracy")
_FIRST = ("experiment", "softmax", "seed", "status", *_COUNTS, "accuracy", *_WATCHED, "folder")


def load_runs(*folders: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Reads all runs below some folders into two tables, ``runs`` and ``metrics``.

    >>> runs, metrics = lab.load_runs("runs/reasoning")
    >>> runs.groupby("softmax").moment_epoch.median()
    >>> metrics.merge(runs[["folder", "softmax"]], on="folder").groupby(["softmax", "epoch"])["val/accuracy"].mean()

    ``runs`` has one row a run, in the order of the folders:

    - experiment, softmax, seed, status (finished, running, stopped or failed);
    - epochs and steps trained; moment_epoch and moment_step of the Eureka-moment, ``<NA>`` without one; change_epoch
      of the change point of the metric that was watched, likewise;
    - accuracy: of the validation set at the end, in [0, 1];
    - watched: the metric of the Eureka-moment, ``val/accuracy`` for most tasks; watched_value: its value at the end;
      threshold: what it has to pass; prior_accuracy: the accuracy that the prior p(z) alone reaches, NaN if unknown;
    - folder: absolute path, the key of both tables;
    - one column for each option that any of these runs was given on the command line, such as ``softmax.tau``. A run
      that was not given it has the value of its config, or NaN where its config has no such option, or the option
      changes no number (``diagnostics``, ``threads``, ``logger``).

    ``metrics`` has one row for each step at which a run logged: folder, epoch and step, counted from 1 as in ``runs``,
    and a column for each metric, such as ``val/accuracy``, NaN where it was not logged.

    Runs that cannot be read, and links to folders, are left out and named on stderr. Runs that ``force=true`` set aside
    are left out silently.

    Args:
        folders: folders of runs, or run folders.

    Raises:
        LabError: if no folder is given, or one of them is not a folder or does not exist.
    """
    if not folders:
        raise LabError("load_runs needs a folder of runs, as in load_runs('runs/reasoning')")
    found: dict[Path, Record] = {}
    for given in folders:
        if not isinstance(given, (str, PathLike)):
            raise LabError(f"load_runs takes folders one by one, as in load_runs('runs/a', 'runs/b'); got {given!r}")
        gathered = gather(folder_of_runs(given, "load_runs('runs/reasoning')"))
        found |= {record.folder: record for record in gathered.runs}
        for path, reason in gathered.damaged.items():
            tell(f"{path} is left out: {reason}")
    records = list(found.values())
    return _runs(records), _metrics(records)


def _runs(records: list[Record]) -> pd.DataFrame:
    typed = [_typed(record) for record in records]
    given = sorted({key for of_one in typed for key in of_one})
    rows = [
        _row(record) | {key: record.config.get(key, own.get(key)) for key in given}
        for record, own in zip(records, typed, strict=True)
    ]
    return pd.DataFrame(rows, columns=[*_FIRST, *given]).astype(dict.fromkeys(_COUNTS, "Int64"))


def _row(record: Record) -> dict[str, Any]:
    return {
        "experiment": record.experiment,
        "softmax": record.softmax,
        "seed": record.seed,
        "status": record.status,
        "epochs": record.epochs,
        "steps": record.summary.steps,
        "moment_epoch": record.moment,
        "moment_step": record.summary.eureka.step if record.moment else None,
        "change_epoch": record.change,
        "accuracy": record.accuracy,
        "watched": record.summary.eureka.metric,
        "watched_value": record.summary.watched,
        "threshold": record.threshold,
        "prior_accuracy": record.prior_accuracy,
        "folder": str(record.folder),
    }


def _typed(record: Record) -> dict[str, Any]:
    """Overrides of a run by key. A key that its config does not hold chooses a config file, as debug=fast does."""
    overrides = map(read_override, record.overrides)
    return {one.key: one.parsed() for one in overrides if one.key not in _TOLD_ELSEWHERE and one.value}


def _metrics(records: list[Record]) -> pd.DataFrame:
    tables = [pd.DataFrame({"folder": pd.Series(dtype=str), "epoch": [], "step": []})]
    for record in records:
        path = record.folder / METRICS
        if path.exists():  # a run that has just begun has none
            table = read_metrics_table(path)
            table.insert(0, "folder", str(record.folder))
            table[["epoch", "step"]] += 1
            tables.append(table)
    metrics = pd.concat(tables[1:] or tables, ignore_index=True)
    first = ["folder", "epoch", "step"]
    rest = sorted(name for name in metrics.columns if name not in first)
    return metrics[[*first, *rest]].astype({"epoch": "Int64", "step": "Int64"})
