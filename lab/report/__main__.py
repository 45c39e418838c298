"""Gathers runs into one report: tables with intervals, beside the paper's, and figures.

python -m lab.report runs/reasoning
python -m lab.report runs/main_task --against eureka/table_1 --out results/table_1
python -m lab.report --tables
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from lab.config.arguments import Parser
from lab.console import LabError, counted, refusals, tell
from lab.report.assemble import Report, assemble
from lab.report.gather import folder_of_runs, gather
from lab.report.published import load, names
from lab.report.write import check_out, write
from lab.runs.files import as_path
from lab.runs.folder import PROVENANCE
from lab.runs.provenance import command_line, git_state, now


def report(
    roots: str | Path | Sequence[str | Path],
    against: str | None = None,
    out: str | Path | None = None,
    baseline: str | None = None,
    confidence: float = 0.95,
    pictures_mib: float | None = None,
    without: Collection[Path] = (),
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
    table = load(against) if against else None
    name = "report" if against is None else f"report-{against.replace('/', '-')}"
    out = as_path(out, "report(['runs'], out='somewhere')") if out else folders[0] / name
    check_out(out)
    left_out = {folder.absolute() for folder in without}
    found_below = [gather(root) for root in folders]
    gathered = [replace(one, runs=tuple(r for r in one.runs if r.folder not in left_out)) for one in found_below]
    for part in gathered:
        for folder, why in part.damaged.items():
            tell(f"left out: {folder}: {why}")
    if not any(part.runs for part in gathered):
        lost = next((path.parent for folder in folders for path in folder.rglob(PROVENANCE)), None)
        why = f"{lost} has lost its summary.json" if lost else "a run is a folder with a summary.json"
        raise LabError(f"no runs below {', '.join(map(str, folders))}: {why}")
    found = assemble(gathered, table, baseline, confidence)
    made = {"made": now(), "command": command_line(), "commit": (git_state()["commit"] or "")[:12]}
    write(found, out, made, pictures_mib)
    return found, out


def main() -> None:
    """The command line."""
    parser = Parser(prog="python -m lab.report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="*", help="folders of runs")
    parser.add_argument(
        "--against", metavar="TABLE", help="published table to show beside the runs (--tables lists all)"
    )
    parser.add_argument("--out", type=Path, help="folder of the report; default: report in the first folder of runs")
    parser.add_argument("--baseline", metavar="SETTING", help="setting to compare with; default: plain softmax")
    parser.add_argument("--confidence", type=float, default=0.95, help="confidence of all intervals; default 0.95")
    parser.add_argument(
        "--pictures", type=float, metavar="MIB", help="most MiB for pictures of diagnostics; default: page below 3 MB"
    )
    parser.add_argument("--tables", action="store_true", help="list the published tables and end")
    arguments = parser.parse_args()
    if arguments.tables:
        for name in names():
            table = load(name)
            print(f"{name:32} {table.number}: {table.title}" + ("" if table.experiment else " (to read only)"))
        return
    if not arguments.runs:
        parser.error("name a folder of runs, as in python -m lab.report runs/main_task")
    with refusals():
        try:
            found, out = report(
                arguments.runs,
                arguments.against,
                arguments.out,
                arguments.baseline,
                arguments.confidence,
                arguments.pictures,
            )
        except OSError as error:
            raise LabError(f"the report cannot be written: {error}") from error
    told = f"{counted(len(found.runs), 'run')} of {counted(len(found.settings), 'setting')}"
    tell(f"{told}: {out / 'index.html'}")


if __name__ == "__main__":
    main()
