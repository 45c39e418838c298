"""Reads a run's ``metrics.csv``; apart from the logger that writes it, so that readers need not load Lightning."""

from __future__ import annotations

import csv
from pathlib import Path


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Rows of a ``metrics.csv``; a metric that a row does not have is left out of it."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
