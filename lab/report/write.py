"""A report as files: one self-contained HTML page, Markdown, CSV, and each figure as PNG and PDF."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from lab.console import LabError, counted, noted_if_slow, printable
from lab.files import (
    LONGEST_WRITE,
    DamagedFile,
    csv_text,
    is_unfinished,
    lies_in,
    read_json,
    remove_unfinished,
    write_json,
    write_text,
)
from lab.plotting.figures import save_figure
from lab.report.against import MatchedRow
from lab.report.assemble import Report
from lab.report.drawings import Drawing
from lab.report.markdown import code, escaped
from lab.report.page import page_values
from lab.report.rows import run_row
from lab.report.side_by_side import side_by_side

# Two marks of a report's folder; a folder with other files and neither mark is never written into. One is enough, since
# a repository that keeps a report may leave out the HTML page.
MARK = "index.html"
_GENERATOR = '<meta name="generator" content="Eureka Lab">'
_MARKDOWN_MARK = ("report.md", "<!-- generator: Eureka Lab -->")
# Lists the files that a report has made; the next report deletes those that it does not make itself.
_MADE = ".made.json"
# Fewest figures that a process of its own draws: each takes about as long as to start one.
_FOR_A_PROCESS = 2


def write(
    report: Report,
    out: Path,
    provenance: Mapping[str, Any],
    pictures_mib: float | None = None,
    processes: int | None = 1,
) -> list[Path]:
    """Writes a report.

    Args:
        report: the contents.
        out: a folder that is new, empty, or holds a report already (which is replaced).
        provenance: "made", "command" and "commit".
        pictures_mib: most MiB that pictures of diagnostics may add to the page; further ones are linked. None keeps the
            page below 3 MB.
        processes: most processes that draw figures side by side; None for one per core, up to 8.

    Returns:
        The files written.

    Raises:
        LabError: if ``out`` holds something else.
    """
    check_out(out)
    for folder in (out, out / "figures"):
        remove_unfinished(folder, "*", LONGEST_WRITE)  # of a report that was killed
    before = _made_before(out)
    # Written first: an interrupted report is then known as one, and no old page stands beside new figures.
    broken_off = "Broken off: run the same command again"
    write_text(out / MARK, f"<!doctype html>{_GENERATOR}<title>{broken_off}</title><p>{broken_off}</p>")
    names = [f"{drawing.name}.{kind}" for drawing in report.drawings for kind in ("png", "pdf")]
    _note_made(out, {*before, *(f"figures/{name}" for name in names)})
    with noted_if_slow(f"drawing {counted(len(report.drawings), 'figure')}"):
        saved = side_by_side(partial(_save, folder=out / "figures"), report.drawings, processes, _FOR_A_PROCESS)
    drawn = {drawing.name: one for drawing, one in zip(report.drawings, saved, strict=True)}
    page = page_values(report, out, provenance, drawn, pictures_mib)
    written = [out / "figures" / name for name in names]
    for name, environment in (("index.html", _html()), ("report.md", _markdown())):
        write_text(out / name, environment.get_template(f"report{Path(name).suffix}.j2").render(**page))
        written.append(out / name)
    runs = [run_row(setting, run, out) for setting in report.settings for run in (*setting.runs, *setting.doubles)]
    written.append(_csv(out / "runs.csv", runs))
    rows = [
        {"experiment": section.experiment, "setting": found.setting.name, **section.cells(found)}
        for section in report.sections
        for found in section.outcomes
    ]
    written.append(_csv(out / "settings.csv", rows))
    if report.table:
        written.append(_csv(out / "against.csv", [line for row in report.rows for line in _against_lines(row, out)]))
    made = {str(path.relative_to(out)) for path in written}
    for old in before - made:
        # A file of an earlier report would contradict the new page beside it.
        (out / old).unlink(missing_ok=True)
    _note_made(out, made)
    return written


def _html() -> Environment:
    """Environment that renders a template as HTML; it escapes every value."""
    environment = Environment(
        loader=PackageLoader("lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["interval"] = _interval
    return environment


def _markdown() -> Environment:
    """Environment that renders a template as Markdown; it escapes every value that is not Markdown already."""
    environment = Environment(loader=PackageLoader("lab.report"), undefined=StrictUndefined, finalize=escaped)
    environment.filters["code"] = code
    return environment


def _made_before(out: Path) -> set[str]:
    """Files that earlier reports have made in ``out``, without those that a person has put beside them.

    The list may come from somebody else, with the folder: a path out of ``out`` is dropped, as these files get deleted.
    """
    try:
        listed = read_json(out / _MADE)
    except DamagedFile:
        return set()
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return {name for name in names if lies_in((out / name).parent, out)}


def _note_made(out: Path, files: set[str]) -> None:
    write_json(out / _MADE, sorted(files))


def _interval(text: str) -> Markup:
    """A value with its interval, and what is not counted, on a line of its own."""
    found = re.fullmatch(r"([^()]*) \(([^()]*)\)(; not counted: [^()]*)?", text)
    if found is None:
        return escape(text)
    value, interval, more = found.groups(default="")
    return Markup('<span class="value">{}</span> <small>{}</small>').format(value, interval + more)


def check_out(out: Path) -> None:
    """Raises LabError if ``out`` is neither new nor empty nor a report's."""
    if not out.exists():
        return
    if not out.is_dir():
        raise LabError(f"{out} is a file: name a folder for the report after --out")
    ours = any(
        (out / name).is_file() and mark in (out / name).read_text(encoding="utf-8", errors="replace")[:2000]
        for name, mark in ((MARK, _GENERATOR), _MARKDOWN_MARK)
    )
    if (out / "figures").is_symlink():
        raise LabError(f"{out / 'figures'} is a link: remove it, as figures are written into the report's own folder")
    if not ours and any(not is_unfinished(one) for one in out.iterdir()):
        raise LabError(f"{out} holds something other than a report: name a new folder after --out")


def _save(drawing: Drawing, folder: Path) -> dict[str, Any]:
    path = folder / f"{drawing.name}.png"
    save_figure(drawing.figure, path, pdf=True, few_colors=True)
    width, height = drawing.figure.get_size_inches() * 96
    return {"path": path, "width": round(width), "height": round(height)}


def _csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    write_text(path, csv_text(rows, list(dict.fromkeys(key for row in rows for key in row))))
    return path


def _against_lines(row: MatchedRow, out: Path) -> list[dict[str, Any]]:
    return [
        {
            "group": row.row.group or "",
            "row": row.row.label,
            "column": name,
            "paper": str(cell.published or ""),
            "measured": cell.text,
            "paper_inside_interval": "" if cell.inside is None else cell.inside,
            "p_holm": "" if cell.p is None else cell.p,
            "not_comparable": cell.unlike,
            "settings": "; ".join(setting.name for setting in row.settings),
            "folders": "; ".join(os.path.relpath(run.folder, out) for setting in row.settings for run in setting.runs),
        }
        for name, cell in row.cells.items()
    ]
