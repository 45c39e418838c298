"""A report from Python: :func:`report` does what ``python -m lab.report`` does."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from lab.console import LabError, tell
from lab.files import as_path
from lab.report.assemble import Report, assemble
from lab.report.gather import folder_of_runs, gather
from lab.report.published import load
from lab.report.side_by_side import check_processes
from lab.report.write import check_out, write
from lab.runs.provenance import command_line, git_state, now


def report(
    roots: str | Path | Sequence[str | Path],
    against: str | None = None,
    out: str | Path | None = None,
    baseline: str | None = None,
    confidence: float = 0.95,
    pictures_mib: float | None = None,
    without: Collection[str | Path] = (),
    processes: int | None = 1,
) -> tuple[Report, Path]:
    """Gathers the runs below ``roots`` and writes a report; returns the report and its folder.

    Args:
        roots: folders of runs, or one folder.
        against: name of a published table.
        out: folder of the report; None for ``report`` (or ``report-<table>``) in the first root.
        baseline: name of the setting that others are compared with; None for plain softmax.
        confidence: of all intervals.
        pictures_mib: most MiB that pictures of diagnostics may add to the page; None keeps the page below 3 MB.
        without: run folders to leave out.
        processes: most processes that read runs and draw figures side by side; as ``processes`` of
            :func:`lab.report.gather.gather`.

    Raises:
        LabError: for everything that a user can correct.
    """
    roots = [roots] if isinstance(roots, str | Path) else roots
    if not isinstance(roots, Sequence) or not roots:
        raise LabError(f"a report needs folders of runs, as in report(['runs/main_task']), got {roots!r}")
    folders = [folder_of_runs(root, "python -m lab.report runs/main_task") for root in roots]
    if not 0.5 <= confidence < 1:
        raise LabError(f"--confidence must be from 0.5 to below 1, got {confidence}")
    if pictures_mib is not None and not (pictures_mib >= 0 and math.isfinite(pictures_mib)):
        raise LabError(f"--pictures must be a number of MiB, 0 or more, got {pictures_mib}")
    check_processes(processes)
    table = load(against) if against else None
    name = "report" if against is None else f"report-{against.replace('/', '-')}"
    out = as_path(out, "report(['runs'], out='somewhere')") if out else folders[0] / name
    check_out(out)
    left_out = {Path(folder).absolute() for folder in without}
    found_below = [gather(root, processes) for root in folders]
    gathered = [replace(one, runs=tuple(r for r in one.runs if r.folder not in left_out)) for one in found_below]
    for part in gathered:
        for folder, why in part.damaged.items():
            tell(f"left out: {folder}: {why}")
    if not any(part.runs for part in gathered):
        named = any(part.damaged for part in gathered)
        why = "none of the folders named above is one" if named else "a run is a folder with a summary.json"
        raise LabError(f"no runs below {', '.join(map(str, folders))}: {why}")
    found = assemble(gathered, table, baseline, confidence)
    made = {"made": now(), "command": command_line(), "commit": (git_state()["commit"] or "")[:12]}
    write(found, out, made, pictures_mib, processes)
    return found, out
