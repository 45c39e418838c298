"""A published table beside the runs: which runs belong to which row, and whether intervals hold the paper's values.

A run belongs to a row if it has the row's task, softmax and intervention, and the row's value of every key in which the
rows of the table differ. Keys that the table sets free (learning rates, chosen row by row) do not count. All other
differences from the row are listed beside it. If one of them changes what is trained, on which data or for how long, or
what counts as a moment, the numbers are shown without a verdict, because they are not comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.console import LabError
from lab.report.outcomes import Outcome, counts_alone, given_up, outcome, still_waiting, without_one
from lab.report.published import Cell, Column, Row, Table
from lab.report.records import CADENCE, Record
from lab.report.settings import Setting, as_text, differences, planned
from lab.report.statistics import Mean, fisher, holm, mean_over_seeds

Config = Mapping[str, Any]

# Keys that a run must share with its row even where the rows of a table do not differ in them: they make another
# experiment.
_ALWAYS = ("data._target_", "data.task.", "model._target_", "softmax.", "intervention.")
# Keys of what is trained, on which data, for how long, and what counts as a moment. A run that differs from its row in
# one of them is not comparable, unless the table sets the key free.
_COMPARED = (
    "data.", "model.", "optim.", "callbacks.eureka.", "trainer.max_epochs", "trainer.max_steps",
    "trainer.limit_train_batches", "trainer.accumulate_grad_batches", "trainer.gradient_clip",
)  # fmt: skip
# Exceptions: stop_after, which _cells judges column by column, and how an optimiser computes one and the same step.
_NOT_COMPARED = ("callbacks.eureka.stop_after", "optim.options.fused", "optim.options.foreach")
# Columns that are settled at the moment, however soon a run stops after it; and columns that could still change if runs
# without a moment were trained on.
_AT_THE_MOMENT = ("eureka_ratio", "eureka_epoch")
_RELATIVE = ("percent_of_steps", "ratio_95")  # to the baseline
# Columns counted in validations: a moment is seen at the first one after it.
_OF_VALIDATIONS = ("eureka_epoch", *_RELATIVE)
_OF_ALL_MOMENTS = (*_AT_THE_MOMENT, *_RELATIVE)
# Most reasons that a cell gives; all differences are listed below the table.
_MOST_REASONS = 2


@dataclass(frozen=True)
class Measured:
    """One cell as measured.

    Attributes:
        published: the paper's cell.
        text: the measured value with its interval; "" where nothing was measured.
        inside: whether the paper's value lies in the measured interval; None where that cannot be said.
        p: of Fisher's exact test against the paper's ratio, corrected over the table (Holm); None for other cells.
        unlike: why the two numbers are not comparable: "300 of 10,000 epochs"; "" where they are, or one is missing.
    """

    published: Cell | None
    text: str
    inside: bool | None
    p: float | None = None
    unlike: str = ""


@dataclass(frozen=True)
class MatchedRow:
    """A row of the paper and the settings that were measured for it.

    Attributes:
        settings: one, or several pooled; none where the row was not run.
        differences: key -> (ours, the paper's), without the keys that the table sets free.
        others: further settings of this row, left out because they are not comparable or have fewer finished seeds.
    """

    row: Row
    settings: tuple[Setting, ...]
    differences: Mapping[str, tuple[Any, Any]]
    cells: Mapping[str, Measured]
    others: tuple[Setting, ...] = ()


def set_beside(table: Table, settings: Sequence[Setting], confidence: float = 0.95) -> list[MatchedRow]:
    """Matches every row of a published table with the settings that were measured for it.

    Raises:
        LabError: if the lab cannot run the table, or no setting belongs to any of its rows.
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
            f"no run has the settings of a row of {table.name} (its rows are settings of {' '.join(table.experiment)}; "
            f"there are runs of: {names}): name another table after --against, or another folder"
        )
    for found in matched.values():
        # Comparable settings first, then those with more seeds: never chosen by their results.
        found.sort(key=lambda one: (bool(unlike(one[1])), -sum(len(s.finished) for s in one[0]), len(one[1])))
    baseline, of_baseline = _baseline(table, matched)
    rows = []
    for place, row in enumerate(table.rows):
        (group, beyond), *rest = matched.get(place) or [((), {})]
        others = tuple(setting for other, _ in rest for setting in other)
        cells = _cells(table, row, group, baseline, of_baseline, confidence, beyond, configs.get(place, {}))
        rows.append(MatchedRow(row, group, beyond, cells, others))
    return _corrected(rows)


def _telling_keys(configs: Sequence[Config], free: Sequence[str]) -> list[str]:
    """Keys in which the rows of a table differ from each other."""
    keys = sorted({key for config in configs for key in config})
    return [k for k in keys if k not in free and any(config.get(k) != configs[0].get(k) for config in configs)]


def _pooled(settings: Sequence[Setting], table: Table) -> list[tuple[Setting, ...]]:
    """Settings one by one; for a table that pools, settings that differ only in its free keys form one group."""
    if not table.pool:
        return [(setting,) for setting in settings]
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        rest = {key: value for key, value in setting.config.items() if key not in table.free}
        groups.setdefault(as_text(rest), []).append(setting)
    return [tuple(group) for group in groups.values()]


def _baseline(
    table: Table, matched: Mapping[int, Sequence[tuple[tuple[Setting, ...], dict[str, tuple[Any, Any]]]]]
) -> tuple[Setting | None, list[str]]:
    """The setting whose "% of steps" is 100 by definition, and why it is not comparable with the paper's."""
    for place, row in enumerate(table.rows):
        cell = row.cells.get("percent_of_steps")
        if cell is not None and cell.mean == 100 and place in matched:
            group, beyond = matched[place][0]
            return group[0], unlike(beyond)
    return None, []


def _cells(
    table: Table,
    row: Row,
    group: Sequence[Setting],
    baseline: Setting | None,
    of_baseline: Sequence[str],
    confidence: float,
    beyond: Mapping[str, tuple[Any, Any]],
    published: Config,
) -> dict[str, Measured]:
    if not group:
        return {name: Measured(row.cells.get(name), "", None) for name in table.columns}
    runs = [run for setting in group for run in setting.runs]
    found = outcome(group[0], baseline, confidence, runs)
    short = [*_short(runs, published), *still_waiting(runs), *given_up(runs)]
    cut = [run for run in runs if run.cut_short]
    tried = [setting for setting in group if setting.finished]
    cells = {}
    for name, column in table.columns.items():
        cell = _measured(name, column, row.cells.get(name), found, runs, confidence)
        if name == "eureka_ratio" and short:
            cell = replace(cell, text=counts_alone(runs, short))
        elif name == "eureka_ratio" and not any(run.validated_epochs for run in runs):
            cell = replace(cell, text=f"not counted: {len(runs)} never validated")
        reasons = unlike(beyond)
        if name in _OF_VALIDATIONS and CADENCE in beyond:
            reasons.append(reason_of(CADENCE, *beyond[CADENCE]))
        if table.pool and len(tried) != table.pool:
            of = "of" if len(tried) < table.pool else "instead of"
            reasons.append(f"{len(tried)} {of} {table.pool} pooled settings")
        if name in _RELATIVE:
            reasons += [f"the baseline: {reason}" for reason in of_baseline if reason not in reasons]
        told_by_length = {"trainer.max_epochs", "trainer.max_steps"} & beyond.keys()
        without = [run for run in short if run.moment is None]
        if without and name in _OF_ALL_MOMENTS and not told_by_length:
            reasons.append(without_one(without))
        if cut and name not in _OF_ALL_MOMENTS:
            reasons.append(f"a run ended early, at epoch {min(run.epochs for run in cut):,}")
        after = group[0].config.get("callbacks.eureka.stop_after")
        if after is not None and name not in _AT_THE_MOMENT:
            reasons.append(f"stopped {after:,} epochs after the moment")
        if reasons and cell.text and _is_number(cell.published):
            more = f" and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
            cell = replace(cell, inside=None, p=None, unlike="; ".join(reasons[:_MOST_REASONS]) + more)
        cells[name] = cell
    return cells


def _is_number(cell: Cell | None) -> bool:
    return cell is not None and (cell.mean is not None or cell.count is not None)


def unlike(beyond: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Reasons why runs with these differences from the paper are not comparable, the length of training first."""
    keys = [
        key
        for key, (ours, _) in beyond.items()
        # "absent": a run from before the option existed behaves as its default does.
        if key.startswith(_COMPARED) and key not in _NOT_COMPARED and ours != "absent"
    ]
    keys.sort(key=lambda key: not key.startswith("trainer.max_"))
    return [reason_of(key, *beyond[key]) for key in keys]


def reason_of(key: str, ours: Any, theirs: Any) -> str:
    unit = {"trainer.max_epochs": "epochs", "trainer.max_steps": "steps"}.get(key)
    if unit and all(isinstance(length, int) and length > 0 for length in (ours, theirs)):
        return f"{ours:,} of {theirs:,} {unit}" if ours < theirs else f"{ours:,} {unit} instead of {theirs:,}"
    return f"{key} is {ours} instead of {theirs}"


def _short(runs: Sequence[Record], published: Config) -> list[Record]:
    """Finished runs without a moment that are shorter than the published length: one might still have come."""
    length, steps = published.get("trainer.max_epochs", 0), published.get("trainer.max_steps", -1)
    return [
        run
        for run in runs
        if run.finished
        and run.watched_for
        and run.moment is None
        and (run.summary.steps < steps if steps > 0 else run.epochs < length)
    ]


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
        ratios = found.reach.ratio_95 if found.reach else {}
        return Measured(cell, ", ".join(f"{ratio} ({name})" for name, ratio in ratios.items()), None)
    if column.metric is None or given_up(runs):
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
    text = mean.told(digits)
    if cell is None or cell.mean is None or mean.low is None or mean.high is None:
        return Measured(cell, text, None)
    return Measured(cell, text, mean.low <= cell.mean <= mean.high)


def _corrected(rows: Sequence[MatchedRow]) -> list[MatchedRow]:
    """Corrects the p-values of all ratios of the table together (Holm)."""
    cells = [dict(row.cells) for row in rows]
    places = [(own, name) for own in cells for name in own]
    for (own, name), p in zip(places, holm([own[name].p for own, name in places]), strict=True):
        own[name] = replace(own[name], p=p)
    return [replace(row, cells=own) for row, own in zip(rows, cells, strict=True)]
