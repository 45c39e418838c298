"""Tables of the papers as data: the published numbers, and the lab's overrides that run each row.

    from lab.report.published import load, names
    table = load("eureka/table_1")
    print(table.number, table.rows[3].label, table.rows[3].cells["eureka_ratio"])   # Table 1 ViT, τ = √d_k 7/10

A table lies at ``<paper>/<table>.yaml`` beside this file, its paper at ``<paper>/paper.yaml``. Numbers are as the
papers print them, in the unit of their column; where a printed number is doubtful, a note of the table says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from pydantic import ConfigDict

from lab.config.suggestions import choices
from lab.config.typed_file import read_typed
from lab.console import LabError

FOLDER = Path(__file__).resolve().parent
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Paper:
    """Paper that numbers are from."""

    title: str
    authors: tuple[str, ...]
    venue: str
    year: int
    url: str

    __pydantic_config__ = _STRICT

    def __str__(self) -> str:
        first, *others = (author.split()[-1] for author in self.authors)
        return f"{first}{' et al.' if others else ''}, {self.venue} {self.year}"


@dataclass(frozen=True)
class Column:
    """One statistic.

    Attributes:
        title: as the paper heads it.
        unit: "%", "epochs" or "runs"; empty where there is none.
        metric: name of the metric in a run's summary that is this statistic; None where there is no such metric.
    """

    title: str
    unit: str = ""
    metric: str | None = None

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Cell:
    """One number, one ratio, or neither.

    Attributes:
        mean, std: in the unit of the column; std None where the paper has none.
        count, of: a ratio of runs, never reduced: 0/4 is four runs.
        text: the cell as printed, where it is no number, or reads better than the number.
    """

    mean: float | None = None
    std: float | None = None
    count: int | None = None
    of: int | None = None
    text: str | None = None

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        if (self.count is None) != (self.of is None):
            raise ValueError("count and of must be given together")
        if self.count is not None and self.of is not None and not (0 <= self.count <= self.of and self.of >= 1):
            raise ValueError(f"a ratio needs 0 <= count <= of and of >= 1, got {self.count} of {self.of}")
        if self.std is not None and (self.mean is None or self.std < 0):
            raise ValueError("std needs a mean beside it and must not be negative")
        if (self.mean is None) == (self.count is None) and (self.text is None or self.mean is not None):
            raise ValueError("a cell has either mean, or count and of, or text alone")

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
        if self.mean is None:
            return f"{self.count}/{self.of}"
        if self.std is None:
            return f"{self.mean:g}"
        decimals = max(_decimals(self.mean), _decimals(self.std))
        return f"{self.mean:.{decimals}f} ± {self.std:.{decimals}f}"


@dataclass(frozen=True)
class Row:
    """One setting.

    Attributes:
        label: as the paper calls it.
        cells: by name of their column, one for each.
        group: section of the table that the row stands in; empty where there are none.
        overrides: added to the table's experiment, they run this row; None where the lab cannot run it.
    """

    label: str
    cells: dict[str, Cell]
    group: str = ""
    overrides: tuple[str, ...] | None = None

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Table:
    """A published table, or the numbers that a figure or a section gives.

    Attributes:
        name: as :func:`load` takes it.
        paper: its source.
        number: "Table 1" in that paper.
        title, caption: in our words.
        columns: by name; ``eureka_ratio``, ``accuracy``, ``eureka_epoch``, ``percent_of_steps`` and ``ratio_95`` mean
            the same in every table.
        rows: in the paper's order.
        experiment: overrides that all rows share; empty where the lab cannot run the table.
        sweep: the ``+sweep=`` that runs it; None without.
        free: keys of a composed config in which a run may differ from its row, even if the rows differ in them.
        pool: how many settings, which differ only in free keys, a row counts together (Table 2: nine schedules); 0
            for a table whose rows are one setting each.
        notes: what a reader has to know.
    """

    name: str
    paper: Paper
    number: str
    title: str
    caption: str
    columns: dict[str, Column]
    rows: tuple[Row, ...]
    experiment: tuple[str, ...] = ()
    sweep: str | None = None
    free: tuple[str, ...] = ()
    pool: int = 0
    notes: tuple[str, ...] = ()

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        seen: set[tuple[str, str]] = set()
        for row in self.rows:
            if (row.group, row.label) in seen:
                raise ValueError(f"two rows are called {row.label!r}")
            seen.add((row.group, row.label))
            if row.overrides is not None and not self.experiment:
                raise ValueError(f"row {row.label!r} has overrides, but the table has no experiment")
            for name in row.cells.keys() - self.columns.keys():
                raise ValueError(f"row {row.label!r} has a cell in column {name!r}; {choices(name, [*self.columns])}")
            if missing := [name for name in self.columns if name not in row.cells]:
                raise ValueError(f"row {row.label!r} has no cell in column {missing[0]!r}")

    def overrides_of(self, row: Row) -> tuple[str, ...] | None:
        """All overrides that a command needs to run this row, except the seed; None where the lab cannot run it."""
        return None if row.overrides is None else (*self.experiment, *row.overrides)


def names() -> list[str]:
    """All tables, as :func:`load` takes them: "eureka/table_1" and so on, by paper and number."""
    found = (path for path in FOLDER.glob("*/*.yaml") if path.name != "paper.yaml")
    return sorted((f"{path.parent.name}/{path.stem}" for path in found), key=_natural)


def load(name: str) -> Table:
    """A table by its name, one of :func:`names`.

    Raises:
        LabError: if there is no such table, or its file is wrong.
    """
    if name not in names():
        raise LabError(f"no published table is called {name!r}; {choices(name, names())}")
    path = FOLDER / f"{name}.yaml"
    return read_typed(path, Table, name=name, paper=read_typed(path.with_name("paper.yaml"), Paper))


def _natural(name: str) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _decimals(value: float) -> int:
    return max(0, -int(Decimal(str(value)).as_tuple().exponent))
