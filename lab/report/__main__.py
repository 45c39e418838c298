"""Gathers runs into one report: tables with intervals, beside the paper's, and figures.

python -m lab.report runs/reasoning
python -m lab.report runs/main_task --against eureka/table_1 --out results/table_1
python -m lab.report --tables
"""

from __future__ import annotations

from pathlib import Path

from lab.config.arguments import Parser
from lab.console import LabError, counted, refusals, tell
from lab.report.make import report
from lab.report.published import load, names


@refusals()
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
    try:
        found, out = report(
            arguments.runs,
            arguments.against,
            arguments.out,
            arguments.baseline,
            arguments.confidence,
            arguments.pictures,
            processes=None,
        )
    except OSError as error:
        raise LabError(f"the report cannot be written: {error}") from error
    told = f"{counted(len(found.runs), 'run')} of {counted(len(found.settings), 'setting')}"
    tell(f"{told}: {out / 'index.html'}")


if __name__ == "__main__":
    main()
