"""Rows of a report's tables: a setting, or a run, as text by column title."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lab.report.outcomes import Against, Outcome, decided, given_up, not_counted
from lab.report.records import Record
from lab.report.settings import Setting
from lab.runs.metric_names import is_accuracy


def setting_row(found: Outcome, against: Against | None) -> dict[str, str]:
    """One setting as text, by column title."""
    setting = found.setting
    others = Counter(run.status for run in setting.runs if not run.finished)
    unfinished = ", ".join(f"{count} {status}" for status, count in sorted(others.items()))
    row = {
        "seeds finished": f"{len(setting.finished)}" + (f" (and {unfinished})" if unfinished else ""),
        "Eureka-ratio": _ratio(found),
        "accuracy after the moment, %": found.accuracy.told(2) if found.accuracy else "",
        "accuracy without one, %": found.plateau.told(2) if found.plateau else "",
        **(
            {f"{setting.metric} at the end{_unit(setting)}": found.watched.told(_digits(setting))}
            if found.watched
            else {}
        ),
        "mean Eureka-epoch": found.eureka_epoch.told(1) if found.eureka_epoch else "",
        "median epoch to the moment": str(found.median) if found.median else "",
    }
    if found.change_ratio or found.change_median:
        row |= {
            "change point, ratio": str(found.change_ratio or ""),
            "change point, median epoch": str(found.change_median or ""),
        }
    if found.reach:
        ratios = {f"95 %-ratio ({name})": ratio for name, ratio in found.reach.ratio_95.items()}
        row |= {"% of steps": _percent(found), **ratios}
    if against is not None:
        row |= {
            "ratio, p": _p(against.ratio),
            "time to the moment, p": _p(against.time),
            **({"time to the change point, p": _p(against.change_time)} if against.change_time is not None else {}),
            f"{setting.metric}, difference": _difference(against),
            f"{setting.metric}, p": _p(against.watched_p),
        }
    return row


def compares(column: str) -> bool:
    """Tells whether a column compares a setting with the baseline; other columns describe the setting alone."""
    return column.endswith((", p", ", difference")) or column.startswith(("% of steps", "95 %-ratio"))


def _ratio(found: Outcome) -> str:
    if found.ratio is None or found.exact is None or found.counts:
        return found.told_ratio()
    counts = f"{found.ratio.count}/{found.ratio.seeds} ({found.ratio.interval}; exact {found.exact.interval})"
    return counts + not_counted(found.setting.runs)


def _percent(found: Outcome) -> str:
    return f"{found.reach.percent_of_steps:.1f}" if found.reach and found.reach.percent_of_steps is not None else ""


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _unit(setting: Setting) -> str:
    return ", %" if is_accuracy(setting.metric) else ""


def _digits(setting: Setting) -> int:
    return 2 if is_accuracy(setting.metric) else 3


def _difference(against: Against) -> str:
    if against.watched is None:
        return ""
    digits = _digits(against.setting)
    mean, low, high = (f"{value:+.{digits}f}" for value in against.watched)
    # Equal differences say nothing about their spread.
    interval = f"{low} to {high}; " if against.watched[1] < against.watched[2] else "all "
    return f"{mean} ({interval}{against.seeds} seeds)"


def run_row(setting: Setting, run: Record, out: Path) -> dict[str, Any]:
    """One run as plain values, for ``runs.csv`` and the lists of runs; its folder is relative to ``out``.

    "counted" tells whether it enters the Eureka-ratio, "looked" whether it enters the survival curve of moments.
    """
    summary = run.summary
    machine = summary.machine
    sample = run in setting.runs and not given_up(setting.runs)
    return {
        "experiment": setting.experiment,
        "setting": setting.name,
        "seed": run.seed,
        "status": run.status,
        "moment_epoch": run.moment,
        "change_epoch": run.change,
        "change_strength": summary.eureka.change.strength if summary.eureka.change else None,
        "accuracy": run.accuracy,
        "watched": summary.eureka.metric,
        "watched_value": summary.watched,
        "epochs": run.epochs,
        "validated_epochs": run.validated_epochs,
        "watched_until": run.watched_until,
        "samples": summary.samples,
        "wall_seconds": summary.wall_seconds,
        "seeds_together": summary.seeds_together,
        "diverged": summary.diverged,
        "pruned": run.pruned,
        "counted": sample and decided(run),
        "looked": sample and run.watched_for,
        "commit": summary.git.commit,
        "modified": summary.git.modified,
        "machine": machine.get("gpu") or machine.get("processor"),
        "written": summary.written,
        "command": summary.command,
        "error": summary.error,
        "folder": os.path.relpath(run.folder, out),
    }


def link(folder: Path, out: Path) -> str:
    """A link from a page in ``out`` to a folder or file."""
    return quote(os.fsencode(Path(os.path.relpath(folder, out)).as_posix()))
