"""A published table beside what was measured: which runs are which row, and what their intervals say of the paper.

A run belongs to a row if it has the row's task, softmax and intervention, and the row's value wherever the rows of the
table differ from each other; keys that the table sets free (learning rates, chosen row by row) aside. Whatever else
differs from the row (epochs, sizes) is told beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.console import LabError
from lab.report.outcomes import Outcome, outcome
from lab.report.published import Cell, Column, Row, Table
from lab.report.records import Record
from lab.report.settings import Setting, differences, planned
from lab.report.statistics import Mean, fisher, holm, mean_over_seeds

Config = Mapping[str, Any]

# What makes an experiment another one, whether or not the rows of a table differ in it.
_ALWAYS = ("data._target_", "data.task.", "model._target_", "softmax.", "intervention.")


@dataclass(frozen=True)
class Measured:
    """One cell as measured.

    Attributes:
        published: the paper's.
        text: the measured value with its interval; "" where there is none.
        inside: whether the paper's value lies in the measured interval; None where that cannot be said.
        p: of Fisher's exact test against the paper's ratio, corrected over the table (Holm); None for other cells.
    """

    published: Cell | None
    text: str
    inside: bool | None
    p: float | None = None


@dataclass(frozen=True)
class MatchedRow:
    """A row of the paper and what it was measured with.

    Attributes:
        settings: one, or several pooled; none where the row was not run.
        differences: key -> (ours, the paper's), beyond what the table sets free.
        others: settings that are this row too, with fewer finished seeds.
    """

    row: Row
    settings: tuple[Setting, ...]
    differences: Mapping[str, tuple[Any, Any]]
    cells: Mapping[str, Measured]
    others: tuple[Setting, ...] = ()


def set_beside(table: Table, settings: Sequence[Setting], confidence: float = 0.95) -> list[MatchedRow]:
    """Every row of a published table with what was measured.

    Raises:
        LabError: if the lab cannot run the table, or no setting is any of its rows.
    """
    if not table.experiment or not any(row.overrides is not None for row in table.rows):
        raise LabError(
            f"{table.name} has no rows that the lab can run; it can be read in lab/report/published/{table.name}.yaml"
        )
    configs = {
        place: planned(table.overrides_of(row) or ())
        for place, row in enumerate(table.rows)
        if row.overrides is not None
    }
    telling = _telling_keys(list(configs.values()), table.free)
    matched: dict[int, list[tuple[tuple[Setting, ...], dict[str, tuple[Any, Any]]]]] = {}
    for group in _pooled(settings, table):
        own = group[0].config
        candidates = []
        for place, config in configs.items():
            always = {key for key in (*own, *config) if key.startswith(_ALWAYS) and key not in table.free}
            if all(own.get(key) == config.get(key) for key in (*telling, *always)):
                beyond = {k: v for k, v in differences(own, config).items() if k not in table.free}
                candidates.append((len(beyond), place, beyond))
        if candidates:
            _, place, beyond = min(candidates, key=lambda candidate: candidate[:2])
            matched.setdefault(place, []).append((group, beyond))
    if not matched:
        names = ", ".join(sorted({setting.experiment for setting in settings})) or "none at all"
        raise LabError(
            f"no run is a row of {table.name} (it needs {' '.join(table.experiment)}; there are runs of: {names}): "
            "name another table after --against, or another folder"
        )
    for found in matched.values():
        # By the number of seeds, never by what they say.
        found.sort(key=lambda one: (-sum(len(setting.finished) for setting in one[0]), len(one[1])))
    baseline = _baseline(table, matched)
    rows = []
    for place, row in enumerate(table.rows):
        (group, beyond), *rest = matched.get(place) or [((), {})]
        others = tuple(setting for other, _ in rest for setting in other)
        rows.append(MatchedRow(row, group, beyond, _cells(table, row, group, baseline, confidence), others))
    return _corrected(rows)


def _telling_keys(configs: Sequence[Config], free: Sequence[str]) -> list[str]:
    """Keys in which the rows of a table differ from each other."""
    keys = sorted({key for config in configs for key in config})
    return [k for k in keys if k not in free and any(config.get(k) != configs[0].get(k) for config in configs)]


def _pooled(settings: Sequence[Setting], table: Table) -> list[tuple[Setting, ...]]:
    """Settings one by one; for a table over all schedules, those that differ only in what it sets free together."""
    if not table.pool:
        return [(setting,) for setting in settings]
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        rest = {key: value for key, value in setting.config.items() if key not in table.free}
        groups.setdefault(repr(sorted(rest.items())), []).append(setting)
    return [tuple(group) for group in groups.values()]


def _baseline(table: Table, matched: Mapping[int, Sequence[tuple[tuple[Setting, ...], Any]]]) -> Setting | None:
    """The setting whose "% of steps" is 100 by definition."""
    for place, row in enumerate(table.rows):
        cell = row.cells.get("percent_of_steps")
        if cell is not None and cell.mean == 100 and place in matched:
            return matched[place][0][0][0]
    return None


def _cells(
    table: Table, row: Row, group: Sequence[Setting], baseline: Setting | None, confidence: float
) -> dict[str, Measured]:
    if not group:
        return {name: Measured(row.cells.get(name), "", None) for name in table.columns}
    runs = [run for setting in group for run in setting.runs]
    found = outcome(group[0], baseline, confidence, runs)
    return {
        name: _measured(name, column, row.cells.get(name), found, runs, confidence)
        for name, column in table.columns.items()
    }


def _measured(
    name: str, column: Column, cell: Cell | None, found: Outcome, runs: Sequence[Record], confidence: float
) -> Measured:
    finished = [run for run in runs if run.finished]
    if name == "eureka_ratio":
        return _ratio(cell, found)
    if name == "accuracy":
        return _mean(cell, found.accuracy, 2)
    if name == "eureka_epoch":
        return _mean(cell, found.eureka_epoch, 1)
    if name == "percent_of_steps":
        percent = found.reach.percent_of_steps if found.reach else None
        return Measured(cell, "" if percent is None else f"{percent:.1f}", None)
    if name == "ratio_95":
        return Measured(cell, f"{found.reach.reached}/{found.reach.runs}" if found.reach else "", None)
    if column.metric is None:
        return Measured(cell, "", None)
    scale = 100 if column.unit == "%" else 1
    values = [run.summary.metrics.get(column.metric) for run in finished]
    there = [scale * value for value in values if value is not None]
    return _mean(cell, mean_over_seeds(there, confidence) if there else None, 2)


def _ratio(cell: Cell | None, found: Outcome) -> Measured:
    if found.ratio is None:
        return Measured(cell, "", None)
    if cell is None or cell.count is None or cell.of is None:
        return Measured(cell, str(found.ratio), None)
    inside = found.ratio.low <= cell.count / cell.of <= found.ratio.high
    p = fisher((found.ratio.count, found.ratio.seeds), (cell.count, cell.of))
    return Measured(cell, str(found.ratio), inside, p)


def _mean(cell: Cell | None, mean: Mean | None, digits: int) -> Measured:
    if mean is None:
        return Measured(cell, "", None)
    text = show_mean(mean, digits)
    if cell is None or cell.mean is None or mean.low is None or mean.high is None:
        return Measured(cell, text, None)
    return Measured(cell, text, mean.low <= cell.mean <= mean.high)


def show_mean(mean: Mean, digits: int) -> str:
    """ "89.48 ± 1.10 (88.70 to 90.26)"; a single seed has no interval and says so."""
    if mean.low is None:
        return f"{mean.value:.{digits}f} (one seed)"
    return f"{mean.value:.{digits}f} ± {mean.std:.{digits}f} ({mean.low:.{digits}f} to {mean.high:.{digits}f})"


def _corrected(rows: Sequence[MatchedRow]) -> list[MatchedRow]:
    """The p-values of all ratios of the table, corrected together."""
    places = [(r, name) for r, row in enumerate(rows) for name, cell in row.cells.items() if cell.p is not None]
    raw = [rows[r].cells[name].p for r, name in places]
    corrected = holm([p for p in raw if p is not None])
    cells = [dict(row.cells) for row in rows]
    for (r, name), p in zip(places, corrected, strict=True):
        old = cells[r][name]
        cells[r][name] = replace(old, p=p)
    return [replace(row, cells=own) for row, own in zip(rows, cells, strict=True)]
