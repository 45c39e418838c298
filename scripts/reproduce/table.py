"""Reproduces every table of the papers with training behind it, each by one command.

    python -m scripts.reproduce.table --list                          # what is done, and how long the rest takes
    python -m scripts.reproduce.table 4 trainer=gpu compile=true      # of Eureka-moments in Transformers, as published
    python -m scripts.reproduce.table 7 --schedules trainer=gpu       # first chooses each row's schedule
    python -m scripts.reproduce.table 1 --size small --seeds 4        # its rows on the main task in small, on two cores
    python -m scripts.reproduce.table softmax:1                       # "softmax is not enough"

Says how long it takes, then trains what is missing seed by seed, so that every row has first results early. Rows take
the learning rates of the published runs where they are known, else the ViT's; ``--schedules`` runs all nine
schedules of Table 11 with four seeds each and takes the one with the highest Eureka-ratio, then accuracy (A.14).
Stop it at any time: the same command goes on with what is missing; a run that fails does not end the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from lab.config.arguments import Parser
from lab.config.overrides import last_of_each, quoted
from lab.config.suggestions import choices
from lab.console import LabError, refusals
from lab.files import write_text
from lab.report.against import reason_of, unlike
from lab.report.outcomes import Outcome, outcome
from lab.report.published import Row, Table, load
from lab.report.published import names as published
from lab.report.records import CADENCE, read_record
from lab.report.settings import Setting, differences, planned
from scripts.reproduce.common import (
    FAVOURED,
    check_minutes,
    markdown,
    origin,
    positive,
    ratio_of_others,
    refuse_keys,
    run_script,
    tell_duration,
    within,
)
from scripts.reproduce.plan import SIZES, Listed, Run, SizeName, Speeds, families, how_many_there, listed

SCHEDULES = tuple(row.overrides[0] for row in load("eureka/section_5_3").rows if row.overrides)
SCHEDULE_SEEDS = 4
# Family of a table's rows at the small size; overrides for measuring how fast runs of the published size train.
SMALL, PROBE = "main_task_small_curves", ("data.batch_size=16",)
# Keys by which --against tells rows from each other or judges single columns, and that a page tells, too.
_OF_A_ROW = ("softmax.", "intervention.", CADENCE, "callbacks.eureka.stop_after")
SCRIPTS = {"softmax:1": "scripts.reproduce.max_retrieval"}


def names() -> list[str]:
    """Tables with training behind them: "eureka:1", ..., "eureka:section_5_3", "softmax:1"."""
    found = [name.split("/")[1] for name in published() if name.startswith("eureka/") and load(name).experiment]
    ours = [name.removeprefix("table_") for name in found if not name.startswith("figure_")]
    return [*(f"eureka:{name}" for name in ours), *SCRIPTS]


def table_of(name: str) -> Table:
    """The published table of a name; "4" alone is of the Eureka paper.

    Raises:
        LabError: if there is no such table.
    """
    whole = name if ":" in name else f"eureka:{name}"
    if whole not in names():
        raise LabError(f"{name} is no table with training behind it; {choices(whole, names())}")
    number = whole.split(":")[1]
    return load(f"eureka/{number if number.startswith('section') else f'table_{number}'}")


def name_of(row: Row) -> str:
    """A row's label, after the section of the table that it stands in."""
    return f"{row.group}: {row.label}" if row.group else row.label


def joined(overrides: Sequence[str]) -> tuple[str, ...]:
    """Keeps only the last override of each key."""
    return tuple(one.text for one in last_of_each(overrides).values())


def row_overrides(table: Table, row: Row, size: SizeName) -> tuple[str, ...] | None:
    """Overrides that run a row at a size, all but its seed; None where the lab cannot."""
    if size == "published" or row.overrides is None:
        return table.overrides_of(row)
    small = families()[SMALL]
    # A row of another task (no position) has a second override, and no setting in small.
    (one,) = row.overrides if len(row.overrides) == 1 else ("",)
    setting = small.settings.get(one.removeprefix("+row="))
    if setting is None or table.experiment[0] != "experiment=main_task":
        return None
    return (*small.always, *setting.overrides)


def seeds_of(table: Table, row: Row) -> int:
    """Number of seeds that the paper has of a row; in a pooled table, at each schedule."""
    cell = row.cells.get("eureka_ratio")
    of = cell.of if cell is not None and cell.of else SCHEDULE_SEEDS
    return of // table.pool if table.pool else of


def runs_of_row(
    table: Table, row: Row, size: SizeName, seeds: int | None, further: Sequence[str], schedule: str | None = None
) -> list[Run]:
    """The runs of a row, one per seed (in a pooled table, per seed and schedule); none where the lab cannot run it.

    Args:
        table: that the row stands in.
        row: of the table.
        size: "published", or "small".
        seeds: how many; None: as many as the paper has.
        further: overrides of every run.
        schedule: ``optim/lr=...`` in place of the row's own; None leaves it.
    """
    overrides = row_overrides(table, row, size)
    if overrides is None:
        return []
    every = SCHEDULES if table.pool and size == "published" else (schedule,)
    count = seeds_of(table, row) if seeds is None else seeds
    return [
        Run(
            family=overrides[0].removeprefix("experiment="),
            name=name_of(row),
            label=name_of(row),
            typed=joined((*overrides, *([one] if one else []), *further)),
            seeds=(seed,),
            probe=PROBE if size == "published" else (),
        )
        for seed in range(count)
        for one in every
    ]


def trial_runs(table: Table, row: Row, size: SizeName, further: Sequence[str]) -> dict[str, list[Run]]:
    """The trials that choose a row's schedule: schedule -> its runs."""
    return {one: runs_of_row(table, row, size, SCHEDULE_SEEDS, further, one) for one in SCHEDULES}


def choose(trials: dict[str, list[Run]]) -> str:
    """Names the schedule with the highest Eureka-ratio; of equal ones, that of the highest accuracy (A.14).

    Accuracies are means over the runs with a moment; where no schedule has one, over all runs.
    """

    def rank(schedule: str) -> tuple[int, float, float]:
        found = [one for run in trials[schedule] for one in run.summaries() if one is not None and one.finished]
        after = [one.accuracy or 0.0 for one in found if one.moment is not None]
        every = [one.accuracy or 0.0 for one in found]
        return len(after), sum(after) / max(1, len(after)), sum(every) / max(1, len(every))

    return max(trials, key=rank)


def measured(runs: Sequence[Run]) -> Outcome | None:
    """Outcome of a row's runs; None where none is finished."""
    folders = [folder for run in runs for folder, one in zip(run.folders, run.summaries(), strict=True) if one]
    records = [*map(read_record, folders)]
    if not any(record.finished for record in records):
        return None
    first = records[0]
    return outcome(Setting(runs[0].label, first.experiment, first.softmax, first.config, tuple(records)))


def _not_as(table: Table, overrides: Sequence[str], found: Outcome) -> list[str]:
    """Reasons why runs are not those that the overrides of their row make: what was typed beside them."""
    config = planned(joined(overrides))
    beyond = {k: v for k, v in differences(found.setting.config, config).items() if k not in table.free}
    further = [key for key in beyond if key.startswith(_OF_A_ROW)]
    return [*unlike(beyond), *(reason_of(key, *beyond[key]) for key in further)]


def page(table: Table, size: SizeName, rows: Sequence[tuple[Row, list[Run]]], chosen: dict[str, str]) -> str:
    """The page of what is finished, beside the paper's cells."""
    lines, missing = [], []
    for row, runs in rows:
        found = measured(runs) if runs else None
        name = name_of(row)
        failed = sum(one is not None and one.status == "failed" for run in runs for one in run.summaries())
        if found is None or found.ratio is None:
            missing.append(name + (f" ({failed} failed)" if failed else ""))
            continue
        here = {
            "eureka_ratio": found.told_ratio() + (f", {failed} failed" if failed else ""),
            "accuracy": found.accuracy.told(2) if found.accuracy else "-",
            "eureka_epoch": found.eureka_epoch.told(1) if found.eureka_epoch else "-",
        }
        line = {"row": name}
        for column, value in here.items():
            if column in table.columns:
                title = table.columns[column].title
                line |= {f"{title}, here": value, f"{title}, paper": str(row.cells[column])}
        line["not as " + ("published" if size == "published" else "planned")] = "; ".join(
            _not_as(table, (*(row_overrides(table, row, size) or ()), *filter(None, [chosen.get(name)])), found)
        )
        if chosen:
            settled = [run for run in found.setting.runs if run.settled]
            line["Eureka-ratio of seeds that did not choose"] = ratio_of_others(settled, range(SCHEDULE_SEEDS))
            line["schedule"] = chosen.get(name, "").removeprefix("optim/lr=")
        lines.append(line)
    table_of_rows = pd.DataFrame(lines)
    # A column in which nothing stands says nothing.
    table_of_rows = table_of_rows.loc[:, table_of_rows.astype(bool).any()]
    note = families()[SMALL].note if size == "small" else ""
    return "\n\n".join(
        [
            f"# {table.number} of {table.paper.title}, {size}: {table.title}",
            origin(),
            *(["Rows and their names are the paper's; the task is another one. " + note] if note else []),
            *([markdown(table_of_rows)] if lines else []),
            "Eureka-ratios have Wilson's interval, means Student's, both 95 %. Accuracies are those of the last epoch."
            + (f" {FAVOURED}" if chosen else ""),
            *([f"Not run: {'; '.join(missing)}."] if missing else []),
        ]
    )


def rows_of_list(seeds: int | None, further: Sequence[str]) -> Iterator[Listed]:
    """A row of ``--list`` for each table and size that can be run: how many of its runs are there."""
    for name in names():
        if name in SCRIPTS:
            yield Listed(name, "published", f"python -m {SCRIPTS[name]}")
            continue
        table = table_of(name)
        for size in SIZES:
            runs = [run for row in table.rows for run in runs_of_row(table, row, size, seeds, further)]
            if runs:
                yield Listed(name, size, how_many_there(runs), runs)


def main(arguments: argparse.Namespace) -> None:
    """Trains what is missing of a table and writes its page.

    Raises:
        LabError: if there is no such table, the overrides do not compose, or runs fail.
    """
    names = [word for word in arguments.words if "=" not in word]
    if len(names) > 1 or (names and arguments.list):
        raise LabError(f"{' '.join(names)}: name one table, and none after --list")
    further = [word for word in arguments.words if "=" in word]
    refuse_keys(further, {"seed": "--seeds 2, say", "seeds": "--seeds 2, say"})
    further += [f"paths.runs={quoted(arguments.runs)}"] if arguments.runs else []
    if arguments.list:
        for line in listed([*rows_of_list(arguments.seeds, further)]):
            print(line, flush=True)
        return
    name = names[0] if names else "4"
    if name in SCRIPTS:
        run_script(name, SCRIPTS[name], [word for word in arguments.typed if word != name])
        return
    table, size = table_of(name), arguments.size
    fixed = table.pool or any(one.startswith("optim/lr=") for row in table.rows for one in row.overrides or ())
    if arguments.schedules and (fixed or size == "small"):
        what = "are of schedules that the paper names" if fixed else "in small have one learning rate"
        raise LabError(f"the rows of {name} {what}: leave --schedules out")
    trials = [
        (row, trial_runs(table, row, size, further))
        for row in (table.rows if arguments.schedules else ())
        if row_overrides(table, row, size)
    ]
    speeds = Speeds()
    failed: list[str] = []

    def train_all(runs: Sequence[Run], what: str) -> None:
        left = [run for run in sorted(runs, key=lambda run: run.seeds) if not run.finished]
        if left:
            try:
                tell_duration(f"{what}, {len(left)} of {len(runs)} runs", speeds.seconds_left(left))
            except LabError as error:  # as where the steps that are timed diverge: their runs tell why
                print(f"{what}: how long it takes is not known ({error})", flush=True)
        failed.extend(" ".join(run.overrides) for run in left if not run.train())

    def rows_of(chosen: dict[str, str]) -> list[tuple[Row, list[Run]]]:
        return [
            (row, runs_of_row(table, row, size, arguments.seeds, further, chosen.get(name_of(row))))
            for row in table.rows
        ]

    rows = rows_of({})
    if not any(runs for _, runs in rows):
        raise LabError(f"{name} has no row that can be run {size}")
    check_minutes(arguments.minutes)
    chosen: dict[str, str] = {}
    out = arguments.out / size / table.name.replace("/", "_") / "README.md"
    try:
        with within(arguments.minutes):
            train_all([run for _, own in trials for one in own.values() for run in one], "choice of schedules")
            chosen = {name_of(row): choose(own) for row, own in trials}
            rows = rows_of(chosen)
            train_all([run for _, runs in rows for run in runs], table.number)
    finally:
        # Also when it is stopped: then of what is finished. A page that exists is not replaced by an empty one.
        if not out.exists() or any(measured(runs) for _, runs in rows if runs):
            write_text(out, page(table, size, rows, chosen) + "\n")
            print(f"written: {out}")
    if failed:
        raise LabError(f"{len(failed)} runs failed, for the reasons above: {'; '.join(failed)}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(description=__doc__)
    made.add_argument(
        "words", nargs="*", help="a table, such as 4, eureka:4 or softmax:1 (default: 4), and overrides of every run"
    )
    made.add_argument("--size", choices=SIZES, default="published")
    made.add_argument("--seeds", type=positive, help="of every row; default: as many as the paper has")
    made.add_argument("--schedules", action="store_true", help="choose each row's schedule first, as the paper did")
    made.add_argument("--list", action="store_true", help="every table: what is there, and how long the rest takes")
    made.add_argument("--runs", type=Path, help="folder of the runs; default: as the overrides say")
    made.add_argument("--out", type=Path, default=Path("results/tables"), help="folder of the pages")
    made.add_argument("--minutes", type=float, help="stop after so many; the same command goes on")
    return made


if __name__ == "__main__":
    parsed = parser().parse_intermixed_args()
    parsed.typed = sys.argv[1:]
    with refusals():
        main(parsed)
