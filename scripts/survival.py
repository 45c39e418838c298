"""Survival curves (Kaplan-Meier) from a table of runs such as a report's ``runs.csv``: for runs whose folders are gone.

    python -m scripts.survival results/figure_8/report/runs.csv --out results/figure_8/report/figures/survival.png
    python -m scripts.survival results/main_task_small/runs.csv --by softmax --moment eureka_epoch \
        --only machine=second --out results/main_task_small/survival_2.png
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lab.config.arguments import Parser
from lab.console import LabError, first_line, refusals
from lab.plotting.figures import png, save_as_asked
from lab.plotting.style import line_styles
from lab.report.figures import Waiting, survival_figure
from lab.report.survival import times_of


def figure(
    table: pd.DataFrame, by: str = "setting", moment: str = "moment_epoch", end: str | None = None
) -> Figure | None:
    """Share of runs without a moment yet, a line for each value of a column.

    Args:
        table: one row a run.
        by: column that names the line; the softmax is its first word.
        moment: column with the epoch of the moment, empty where there was none.
        end: column with the last epoch at which the run was looked at; None is watched_until, validated_epochs or
            epochs, the first that the table has.

    Runs that failed before their first validation are left out, and so are, from a report's table, repeated runs of a
    seed and runs in which no moment was looked for; a setting with the same name in several experiments has a line for
    each experiment.

    Raises:
        LabError: if there is no such column, a value of it is no epoch, or a moment comes after its run's end.
    """
    end = end or next((name for name in ("watched_until", "validated_epochs") if name in table), "epochs")
    _check_columns(table, by, moment, end)
    if "looked" in table:
        table = table[table["looked"].astype(bool)]
    if by == "setting" and "experiment" in table and table["experiment"].nunique() > 1:
        table = table.assign(setting=table["setting"] + ", " + table["experiment"])
    table = table.assign(**{moment: _epochs(table, moment), end: _epochs(table, end, needed=True)})
    if (late := table[moment] > table[end]).any():
        raise LabError(f"row {table.index[late][0] + 1} has its moment ({moment}) after its last epoch ({end})")
    table = table[table[end] > 0]  # a run that was never looked at tells nothing
    groups = list(table.fillna({by: "(empty)"}).groupby(by, sort=False))
    chosen = line_styles([re.split(r"[ ,]", str(name))[0] for name, _ in groups])
    lines = []
    for (name, rows), style in zip(groups, chosen, strict=True):
        moments = [None if pd.isna(value) else float(value) for value in rows[moment]]
        lines.append(Waiting(str(name), style, times_of(moments, rows[end].tolist())))
    return survival_figure(lines)


def _check_columns(table: pd.DataFrame, *columns: str) -> None:
    if missing := [column for column in columns if column not in table]:
        raise LabError(f"no column is called {missing[0]!r}: there are {', '.join(map(str, table.columns))}")


def _epochs(table: pd.DataFrame, column: str, needed: bool = False) -> pd.Series:
    """A column as epochs, NaN where there is none.

    Raises:
        LabError: at the first value that is no epoch.
    """
    found = pd.to_numeric(table[column], errors="coerce")
    empty = table[column].isna()
    wrong = (found.isna() & (~empty | needed)) | (found < 0) | np.isinf(found)
    if wrong.any():
        value = "nothing" if empty[wrong.idxmax()] else repr(table[column][wrong.idxmax()])
        raise LabError(f"column {column!r} must hold epochs, and row {int(wrong.idxmax()) + 1} has {value}")
    return found


def main() -> None:
    """The command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("table", type=Path, help="CSV file with a row a run")
    parser.add_argument("--out", type=png, required=True, help="PNG file to write; a PDF comes beside it")
    parser.add_argument("--by", default="setting", help="column that names the lines")
    parser.add_argument("--moment", default="moment_epoch", help="column with the epoch of the moment")
    parser.add_argument(
        "--end",
        help="column with the last epoch of a look (watched_until, else validated_epochs, else epochs)",
    )
    parser.add_argument("--only", metavar="COLUMN=VALUE", help="rows with this value alone")
    arguments = parser.parse_args()
    with refusals():
        try:
            table = pd.read_csv(arguments.table)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else first_line(error)
            raise LabError(
                f"{arguments.table} is no table of runs ({why}): give a CSV file with a row a run, such as the "
                "runs.csv of a report"
            ) from error
        if arguments.only:
            column, equals, value = arguments.only.partition("=")
            if not equals:
                raise LabError(f"--only {arguments.only} is incomplete: write COLUMN=VALUE")
            _check_columns(table, column)
            if not (table[column].astype(str) == value).any():
                raise LabError(f"--only {arguments.only}: no row of {arguments.table} has that")
            table = table[table[column].astype(str) == value]
        drawn = figure(table, arguments.by, arguments.moment, arguments.end)
        if drawn is None:
            raise LabError(f"{arguments.table} has no run that was watched for a moment")
        save_as_asked(drawn, arguments.out)


if __name__ == "__main__":
    main()
