"""What tests of reports know of the run folders that ``write`` makes (tests/lab/report/conftest.py)."""

from __future__ import annotations

import json
from pathlib import Path

from lab.report.against import set_beside
from lab.report.gather import gather
from lab.report.published import load
from lab.report.settings import settings
from lab.runs.spec import run_name

EPOCHS = 40


def folder_of(root: Path, seed: int, *overrides: str, experiment: str = "reasoning", softmax: str = "softmax") -> Path:
    return root / run_name(experiment, softmax, seed, overrides)


def figure_8_beside(folder: Path) -> dict:
    """Rows of Figure 8 by label, beside the runs below a folder."""
    return {row.row.label: row for row in set_beside(load("eureka/figure_8"), settings(gather(folder).runs))}


def changed_at(folder: Path, epoch: int | None) -> None:
    """Notes in a run's summary that it was watched for a change point, and where that is."""
    summary = json.loads((folder / "summary.json").read_text())
    change = {"epoch": epoch, "step": 10 * epoch, "before": 0.5, "after": 0.9, "strength": 1.0} if epoch else None
    summary["eureka"] |= {"changed": epoch is not None, "change": change}
    (folder / "summary.json").write_text(json.dumps(summary))
