"""Reads a run's ``metrics.csv``; apart from the logger that writes it, so that readers need not load Lightning."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.files import DamagedFile, read_file

if TYPE_CHECKING:
    import pandas as pd

FILE = "metrics.csv"
_MOST_BYTES, _LONGEST_NUMBER = 2**30, 100
# Signs of numbers, "nan" and "infinity" among them, and those between two numbers.
_SIGNS = b"0123456789+-.,\nefinatyEFINATY"
# Columns that say when a row was logged.
_PLACE = ("step", "epoch")
# What stands where a metric has no value: nothing in a row without it, nan for an accuracy over no samples.
_MISSING = ["", "nan", "-nan", "NaN"]
_VALIDATED = "val/"


def read_metrics(path: str | Path) -> list[dict[str, float]]:
    """Reads the rows of a ``metrics.csv``, numbers as they were logged; a metric that a row does not have is left out.

    A missing file has no rows.

    Raises:
        DamagedFile: if a line is incomplete or a field is no number: no row is dropped silently.
    """
    path = Path(path)
    if not path.exists():
        return []
    names, lines = _checked(path)
    rows = []
    for number, line in enumerate(lines.decode().split("\n")[:-1], start=2):
        try:
            row = {name: float(value) for name, value in zip(names, line.split(","), strict=True) if value}
        except ValueError as error:
            raise DamagedFile(path, f"cannot be read: line {number}: {error}") from error
        if "step" not in row or not all(_is_whole(row.get(name, 0)) for name in _PLACE):
            raise DamagedFile(path, f"cannot be read: line {number}: a step or an epoch is no whole number")
        if "epoch" not in row and any(name.startswith(_VALIDATED) for name in row):
            raise DamagedFile(path, f"cannot be read: line {number}: a validation without its epoch")
        rows.append(row)
    return rows


def read_metrics_table(path: str | Path) -> pd.DataFrame:
    """Reads a ``metrics.csv`` as one table. This is fast, but last digits may differ from what was logged.

    Raises:
        DamagedFile: as :func:`read_metrics`.
    """
    import pandas as pd  # here: takes as long as all else that a command loads before it trains

    path = Path(path)
    names, lines = _checked(path)
    try:
        table = pd.read_csv(
            io.BytesIO(lines), header=None, names=names, dtype=float, keep_default_na=False, na_values=_MISSING
        )
    except (ValueError, OverflowError) as error:
        raise DamagedFile.unreadable(path, error) from error
    if not (_is_whole(table["step"]).all() and _is_whole(table["epoch"].fillna(0)).all()):
        raise DamagedFile(path, "cannot be read: a step or an epoch is no whole number")
    validated = table[[name for name in names if name.startswith(_VALIDATED)]].notna().any(axis=1)
    if table["epoch"][validated].isna().any():
        raise DamagedFile(path, "cannot be read: a validation without its epoch")
    return table


def _checked(path: Path) -> tuple[list[str], bytes]:
    """Returns the names of the columns and all lines below; checks that each line has a field for each column."""
    head, newline, lines = read_file(path, _MOST_BYTES).replace(b"\r\n", b"\n").partition(b"\n")
    try:
        names = next(csv.reader([head.decode()]), [])
    except (ValueError, csv.Error) as error:
        raise DamagedFile.unreadable(path, error) from error
    if not set(_PLACE) <= set(names):
        why = f"it has no column {next(name for name in _PLACE if name not in names)}" if head else "it is empty"
    elif len(set(names)) < len(names):
        why = "two columns have one name"
    elif not lines.isascii() or lines.translate(None, _SIGNS):
        why = "it holds signs that are of no number"
    elif not (lines or newline).endswith(b"\n"):
        why = "the last line is incomplete"
    else:
        # Checked here, since pandas silently fills an incomplete line with empty fields.
        why = next(filter(None, (_wrong_with(line, len(names)) for line in lines.split(b"\n")[:-1])), "")
    if not why:
        return names, lines
    raise DamagedFile(path, f"cannot be read: {why}")


def _wrong_with(line: bytes, fields: int) -> str:
    if line.count(b",") != fields - 1:
        return f"a line has {line.count(b',') + 1} fields, and there are {fields} columns"
    return "a field is longer than any number" if len(line) > _LONGEST_NUMBER * fields else ""


def _is_whole(value: Any) -> Any:
    """Tells whether a number, or each number of a column, is whole, not negative and below 2**53."""
    return (value >= 0) & (value < 2**53) & (value % 1 == 0)
