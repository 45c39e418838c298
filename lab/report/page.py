"""Values that the templates of a report read: its tables, figures and pictures as text."""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lab.console import counted
from lab.report.against import MatchedRow, Measured
from lab.report.assemble import Report, Section
from lab.report.drawings import file_name
from lab.report.notes import commit_of, notes_of, notes_on_all
from lab.report.rows import compares, link, run_row
from lab.report.settings import Setting

# Most bytes of a page, so that it opens at once and can be mailed: charts, then figures, then pictures, while they fit.
_PAGE = 3_000_000
# Bytes of the rest of the page: its style and scripts, and the lines of one setting and of one run.
_FRAME, _SETTING, _RUN = 120_000, 2_000, 700
_UPLOT = Path(__file__).parent / "templates" / "uplot"


def page_values(
    report: Report, out: Path, provenance: Mapping[str, Any], drawn: Mapping[str, Any], pictures_mib: float | None
) -> dict[str, Any]:
    """Returns the values that the templates of a report read, by the names that the templates use.

    Args:
        report: the contents.
        out: folder of the report; links are relative to it.
        provenance: "made", "command" and "commit".
        drawn: name of a figure -> "path", and "width" and "height" in pixels.
        pictures_mib: most MiB that pictures of diagnostics may add to the page; None keeps the page below 3 MB.
    """
    ids = {id(setting): f"setting-{number}" for number, setting in enumerate(report.settings, start=1)}
    room = Room(_PAGE - _FRAME - _SETTING * len(report.settings) - _RUN * len(report.runs))
    charts = _charts(report, room)
    figures = {name: {**one, "source": _source(one["path"], out, room)} for name, one in drawn.items()}
    pictures = room if pictures_mib is None else Room(int(pictures_mib * 2**20 * 4 / 3))
    roots = ", ".join(os.path.relpath(root) for root in report.roots)
    counts = ", ".join(f"{count} {status}" for status, count in sorted(report.counts.items()))
    damaged = f"; {counted(len(report.damaged), 'folder')} left out" if report.damaged else ""
    return {
        "report": report,
        "authors": ", ".join(report.table.paper.authors) if report.table else "",
        "title": f"Runs in {roots}",
        "told": f"{counted(len(report.runs), 'run')} ({counts or 'none'}) of {counted(len(report.settings), 'setting')}"
        f"{damaged}.",
        **provenance,
        "confidence": _percent(report.confidence),
        "rows": _table_rows(report.rows, ids),
        "unlike": _unlike(report.rows),
        "sections": [_section(section, ids, figures, charts, out, pictures) for section in report.sections],
        "uplot": {"script": _part("uPlot.iife.min.js"), "style": _part("uPlot.min.css"), "licence": _part("LICENSE")},
        "settings": [_setting(setting, ids, out) for setting in report.settings],
        "damaged": [{"folder": os.path.relpath(f, out), "why": why} for f, why in sorted(report.damaged.items())],
        "method": _method(report),
    }


def _charts(report: Report, room: Room) -> dict[str, Markup]:
    """Charts by id, as long as there is room; the page shows the others as figures."""
    found: dict[str, Markup] = {}
    for drawing in report.drawings:
        # A chart of aligned curves takes its data from the chart by epoch, which has to be in the page.
        if drawing.chart and drawing.chart.get("of", drawing.chart_id) in (drawing.chart_id, *found):
            script = _script(drawing.chart)
            if room.take(len(script)):
                found[drawing.chart_id] = script
    return found


def _table_rows(rows: Sequence[MatchedRow], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for row in rows:
        group = row.row.group or ""
        shown.append(
            {
                "label": row.row.label,
                "group": group,
                "group_starts": bool(group) and (not shown or shown[-1]["group"] != group),
                "cells": [_cell(name, cell) for name, cell in row.cells.items()],
                "runs": [{"id": ids[id(s)], "name": s.name} for s in row.settings],
                "others": [{"id": ids[id(s)], "name": s.name} for s in row.others],
            }
        )
    return shown


def _cell(name: str, cell: Measured) -> dict[str, str]:
    verdict, mark = "", "none"
    if cell.inside is not None:
        verdict, mark = ("✓ inside", "in") if cell.inside else ("✗ outside", "out")
    if cell.p is not None:
        verdict += f", p = {cell.p:.2g}"
    if cell.unlike:
        verdict, mark = f"not comparable: {cell.unlike}", "unlike"
    title = name.replace("_", " ")
    return {"title": title, "paper": str(cell.published or ""), "text": cell.text, "verdict": verdict, "mark": mark}


def _unlike(rows: Sequence[MatchedRow]) -> list[dict[str, str]]:
    """Differences of each matched setting from its row; rows with the same differences share one entry."""
    by_text: dict[str, list[str]] = {}
    for row in rows:
        if row.settings and row.differences:
            parts = [f"{key} is {ours} (paper: {theirs})" for key, (ours, theirs) in row.differences.items()]
            by_text.setdefault("; ".join(parts), []).append(f"{row.row.label} ({row.settings[0].name})")
    return [{"name": ", ".join(names), "text": text} for text, names in by_text.items()]


def _section(
    section: Section,
    ids: Mapping[int, str],
    figures: Mapping[str, Any],
    charts: Mapping[str, Markup],
    out: Path,
    room: Room,
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {
            "id": ids[id(found.setting)],
            "name": found.setting.name,
            "baseline": found.setting is section.baseline,
            "cells": section.cells(found),
        }
        for found in section.outcomes
    ]
    cells: list[dict[str, str]] = [row["cells"] for row in rows]
    every = dict.fromkeys(key for own in cells for key in own)
    columns = [key for key in every if any(own.get(key) for own in cells)]
    parts = [
        {"columns": [key for key in columns if not compares(key)], "rows": rows},
        {"columns": [key for key in columns if compares(key)], "rows": [row for row in rows if not row["baseline"]]},
    ]
    return {
        "id": file_name(section.experiment),
        "experiment": section.experiment,
        "parts": [part for part in parts if part["columns"] and part["rows"]],
        "baseline": section.baseline.name if section.baseline else "",
        "drawings": [
            {
                "name": d.name,
                "title": d.title,
                "alt": d.alt,
                "part": f" {d.part}" if d.part else "",
                "reading": d.reading,
                "says": d.says,
                "chart": charts.get(d.chart_id, "") if d.chart else "",
                "chart_id": f"chart-{d.chart_id}" if d.chart_id in charts else "",
                **figures[d.name],
            }
            for d in section.drawings
        ],
        "pictures": [_shown(setting, run.seed, files, out, room) for setting, run, files in section.pictures],
    }


def _shown(setting: Setting, seed: int, files: Sequence[Path], out: Path, room: Room) -> dict[str, Any]:
    inside: list[dict[str, str]] = []
    outside: list[dict[str, str]] = []
    for path in files:
        title = path.stem.replace("_", " ")
        source = _source(path, out, room)
        (inside if source.startswith("data:") else outside).append({"title": title, "source": source})
    titles = ", ".join(path.stem.replace("_", " ") for path in files)
    return {"name": setting.name, "seed": seed, "titles": titles, "files": inside, "left_out": outside}


@dataclass
class Room:
    """Room that is left in a page, in bytes of its text."""

    left: int

    def take(self, size: int) -> bool:
        """Takes ``size`` bytes and returns True, or takes none and returns False where fewer are left."""
        fits = size <= self.left
        self.left -= size if fits else 0
        return fits


def _source(path: Path, out: Path, room: Room) -> str:
    """Address of a picture in a page: its bytes as a data URL while there is room, else a link to the file."""
    if room.take(4 * path.stat().st_size // 3 + 100):
        return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
    return link(path, out)


def _script(value: Any) -> Markup:
    """A value as JSON that is safe inside a page: names of runs may hold anything, HTML tags too."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _part(name: str) -> Markup:
    """A file of uPlot, the chart library, which is written into the page as it is."""
    return Markup((_UPLOT / name).read_text(encoding="utf-8").strip())


def _setting(setting: Setting, ids: Mapping[int, str], out: Path) -> dict[str, Any]:
    counts = Counter(run.status for run in setting.runs)
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    if setting.doubles:
        told += f"; {counted(len(setting.doubles), 'further run')} of the same seeds, not counted"
    told = "; ".join([told, *notes_of(setting)])
    runs = []
    for run in (*setting.runs, *setting.doubles):
        row = run_row(setting, run, out)
        seconds, together = row["wall_seconds"], row["seeds_together"] or 1
        runs.append(
            {
                **row,
                "status": run.status + (", not counted" if run in setting.doubles else ""),
                "double": run in setting.doubles,
                "moment": "" if run.moment is None else f"{run.moment:,}",
                "accuracy": "" if run.accuracy is None else f"{run.accuracy:.2%}",
                "epochs": f"{run.epochs:,}",
                "hours": f"{seconds / 3600:.2f}" + (f" of {together} seeds together" if together > 1 else ""),
                "commit": commit_of(run),
                "machine": row["machine"] or "",
                "error": row["error"] or "",
                "link": link(run.folder, out),
            }
        )
    return {"id": ids[id(setting)], "name": setting.name, "experiment": setting.experiment, "told": told, "runs": runs}


def _percent(share: float) -> str:
    """A share in percent: "95%", "99.9%"."""
    return f"{100 * share:g}%"


def _method(report: Report) -> list[str]:
    percent = _percent(report.confidence)
    early = any(setting.config.get("callbacks.eureka.stop_after") is not None for setting in report.settings)
    lines = [
        "A setting is a group of runs that differ only in their seed; a seed that was run twice counts once.",
        f"The Eureka-ratio is the share of finished seeds that have a Eureka-moment, with Wilson's {percent} interval "
        "and the exact one (Clopper-Pearson). Seeds whose loss diverged count, others that have not finished do not.",
        "Means of what seeds reached at the end are over finished seeds. Each mean comes with ± its standard deviation "
        f"(the variance is divided by n, not n - 1) and with Student's {percent} interval.",
        "The mean Eureka-epoch is the mean over the seeds of the ratio that have a Eureka-moment (also those that "
        "diverged later), as in the paper. It misleads if some seeds have none: a softmax whose slow seeds never get "
        "there looks fast. Its interval is cut at 0 and at the length of the longest training: no moment lies outside. "
        "The median epoch (Kaplan-Meier) counts a seed without a moment as later than its last validation; "
        'a median "later than" the last epoch means that fewer than half of the seeds have had their moment.',
        "The change point is the steepest rise or fall between two plateaus of the watched metric, found without a "
        "threshold. Its median epoch and p are computed as those of the moment, but a seed without one counts as later "
        "than the last validation at which one would show, and so from an earlier epoch on. Its ratio is over finished "
        "seeds alone.",
        "% of steps: the epochs that a setting needs to reach 95 % of the baseline's mean final accuracy over its runs "
        "with a Eureka-moment, in % of the epochs that the baseline needs; both are means over the runs that reach it. "
        "95 %-ratio: the runs that reach it at any epoch, and those that are still there at the last one (Table 4).",
        "The p of a ratio is from Fisher's exact test, the p of a time from the log-rank test (by permutations). "
        "The difference of accuracies (or of another watched metric) and its p are from the t-test paired "
        "over equal seeds. "
        "Each p compares a setting with the baseline and is corrected for the number of settings (Holm). "
        f"The interval of a difference is not corrected: it is Student's {percent} interval of this one comparison; it "
        "may leave out 0 where p shows no difference.",
    ]
    if any((run.summary.seeds_together or 0) > 1 for run in report.runs):
        lines.append(
            "Hours of seeds that were trained together in one process are those of the process, for all of them."
        )
    if report.table:
        lines.append(
            "Inside: the paper's value lies in the interval measured here. It is of a few seeds, too, so it may be "
            "outside though nothing differs: with ten seeds each in about one of seven means and one of five "
            "ratios. The p beside a ratio counts the seeds of both (Fisher's exact test, Holm over the table)."
        )
    lines += notes_on_all(report.settings)
    if early:
        lines.append(
            "Some settings stop soon after the moment (stop_after): their final accuracy was measured then. It is not "
            "tested where runs still wait for a moment, or were ended before one (max_time), as the seeds that came to "
            "their end are then those with a moment."
        )
    return lines
