"""The page of the atlas: one table per column, every number traceable to its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lab.plotting.style import line_styles
from lab.report.figures import Waiting, survival_figure
from lab.report.outcomes import Against, Outcome, compare, times
from scripts.atlas.columns import Cell, Column
from scripts.atlas.cost import cost_of
from scripts.atlas.rows import PLAIN, Row
from scripts.reproduce.common import FAVOURED, markdown, ratio_of_others


def table(column: Column, cells: Sequence[Cell], costs: Path) -> pd.DataFrame:
    """Table of a column: ratio, time, accuracies, cost, and p-values against plain softmax (Holm over the column)."""
    found = {cell.row.typed: cell.outcome() for cell in cells}
    against = _against(found)
    rows: list[dict[str, str | None]] = []
    for cell in cells:
        own, other = found[cell.row.typed], against.get(cell.row.typed)
        if own is None:
            told = "fails at every rate" if cell.fails else "not run"
            rows.append({"softmax": str(cell.row), "Eureka-ratio (95 % Wilson)": told})
            continue
        rows.append(
            {
                "softmax": str(cell.row),
                **({"rate": cell.rate} if column.rates else {}),
                "Eureka-ratio (95 % Wilson)": f"{own.told_ratio()}{f', {cell.failed} failed' if cell.failed else ''}",
                **({"without seed 0": ratio_of_others(own.setting.runs)} if column.rates else {}),
                "median epoch of the moment (Kaplan-Meier)": str(own.median) if own.median else "",
                "accuracy with a moment": f"{own.accuracy.value:.1f} %" if own.accuracy else "",
                "accuracy without": f"{own.plateau.value:.1f} %" if own.plateau else "",
                "step / softmax's": "" if (cost := _cost(column, cell.row, costs)) is None else f"{cost:.2f}",
                "p, ratio (Fisher)": _p(other.ratio) if other else "",
                "p, time (log-rank)": _p(other.time) if other else "",
            }
        )
    return pd.DataFrame(rows).fillna("")


def _cost(column: Column, row: Row, kept: Path) -> float | None:
    return None if row.typed == PLAIN else cost_of(column, row, kept)


def _against(found: Mapping[str, Outcome | None]) -> dict[str, Against]:
    plain = found.get(PLAIN)
    if plain is None:
        return {}
    there = {typed: one for typed, one in found.items() if one is not None}
    compared = compare(list(there.values()), plain.setting)
    others = [typed for typed in there if typed != PLAIN]
    return dict(zip(others, compared, strict=True))


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def figure(cells: Sequence[Cell]) -> Figure | None:
    """Share of seeds that have no moment yet, over epochs: one line for each whole cell; None if no cell is whole."""
    found = {cell: own for cell in cells if (own := cell.outcome()) is not None}
    chosen = line_styles([cell.row.softmax for cell in found])
    waited = [(cell, style, times(own.setting.runs)) for (cell, own), style in zip(found.items(), chosen, strict=True)]
    return survival_figure([Waiting(str(cell.row), style, own) for cell, style, own in waited if own is not None])


def section(column: Column, cells: Sequence[Cell], costs: Path) -> list[str]:
    """A column as paragraphs of the page."""
    if not any(cell.whole for cell in cells):
        return [f"## {column.title}", "Not run yet, or no softmax whole."]
    missing = [str(cell.row) for cell in cells if not cell.whole]
    told = f"Not run yet, or not whole: {', '.join(missing)}." if missing else "Every cell has been run."
    return [
        f"## {column.title}",
        f"{column.seeds} seeds; {column.said}. p-values are against plain softmax, each corrected over the column "
        "(Holm). Accuracies at the end of a run are means over the seeds that had a moment, and over those that had "
        "none. The step's cost is the median ratio of CPU times of single seeds, not compiled, both softmaxes by turns "
        f"in one process. {f'{FAVOURED} ' if column.rates else ''}{told}",
        markdown(table(column, cells, costs)),
        f"![Seeds without a moment yet]({column.key}.png)",
    ]
