"""Columns of the atlas: tasks, with the seeds, rates and lengths that all softmaxes are given alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.console import LabError
from lab.report.outcomes import Outcome, outcome
from lab.report.records import Record, read_record
from lab.report.settings import Setting
from lab.runs.files import DamagedFile
from lab.runs.summary import Summary, read_summary
from scripts.atlas.rows import Row
from scripts.reproduce.common import earliest, folder_of, train


@dataclass(frozen=True)
class Column:
    """A task on which a softmax has its Eureka-moment, or not.

    Attributes:
        key: short name, of its folder.
        title: heading.
        experiment: config of ``configs/experiment``.
        options: further overrides of every run.
        rates: learning rates, one of which is chosen on seed 0 for each softmax; none: the experiment's own.
        seeds: number of seeds, from 0 on.
        together: whether the seeds train in one process.
        said: sentence on how long a run lasts.
        rows: softmaxes typed as in :mod:`scripts.atlas.rows` that are asked for; none: all.
    """

    key: str
    title: str
    experiment: str
    options: tuple[str, ...]
    rates: tuple[str, ...]
    seeds: int
    together: bool
    said: str
    rows: tuple[str, ...] = ()

    def asks_for(self, row: Row) -> bool:
        """Tells whether a softmax has a cell here."""
        return not self.rows or row.typed in self.rows

    def overrides(self, row: Row, rate: str | None, trial: bool = False) -> list[str]:
        """The runs of a cell, all but their seeds; a trial of a rate ends at its moment."""
        return [
            f"experiment={self.experiment}",
            *row.overrides,
            *([f"optim.lr={rate}"] if rate else []),
            *self.options,
            *(["callbacks.eureka.stop_after=0"] if trial else []),
        ]


COLUMNS = (
    Column(
        key="reasoning",
        title="Reasoning task with layer norm",
        experiment="reasoning",
        options=("model.layer_norm=true", "callbacks.eureka.stop_after=200"),
        rates=("1e-3", "2e-3", "5e-3"),
        seeds=10,
        together=True,
        said="10,000 epochs, or 200 beyond the Eureka-moment, with layer norm; the learning rate is chosen on seed 0 "
        "from 1e-3, 2e-3, 5e-3: the earliest moment, else the best accuracy",
    ),
    Column(
        key="reasoning_no_norm",
        title="Reasoning task without layer norm",
        experiment="reasoning",
        options=("callbacks.eureka.stop_after=200",),
        rates=("1e-3", "2e-3", "5e-3"),
        seeds=10,
        together=True,
        said="as above, without layer norm",
    ),
    Column(
        key="main_task_small",
        title="Main task in small",
        experiment="main_task_small",
        options=("callbacks.eureka.stop_after=3",),
        rates=(),
        seeds=5,
        together=False,
        said="100 epochs (6 million scenes) or a quarter of an hour, or 3 epochs beyond the Eureka-moment; the "
        "experiment's own learning rate",
        rows=(
            "softmax",
            "softmax softmax.tau=1",
            "norm_softmax",
            "learnable_temperature",
            "query_key_norm",
            "softmax_plus_one",
            "softmax_plus_one softmax.normaliser.bias=learned",
            "sigmoid",
            "entropy_scaled",
            "log_length softmax.form=learned",
        ),
    ),
)


@dataclass(frozen=True)
class Cell:
    """A softmax on a task.

    Attributes:
        column: the task.
        row: the softmax.
        runs: folder of all runs of the atlas.
        further: overrides of every run that change no number: threads, compile.
    """

    column: Column
    row: Row
    runs: Path
    further: tuple[str, ...] = ()

    def _where(self, trial: bool) -> Path:
        return self.runs / self.column.key / ("trials" if trial else "seeds")

    def folder(self, seed: int, rate: str | None, trial: bool = False) -> Path:
        """The folder of a run."""
        typed = [*self.column.overrides(self.row, rate, trial), *self.further]
        return folder_of(self._where(trial), self.column.experiment, self.row.softmax, seed, typed)

    def summary(self, seed: int, rate: str | None, trial: bool = False) -> Summary | None:
        """The summary of a run; None before it has begun."""
        return read_summary(self.folder(seed, rate, trial))

    @property
    def rate(self) -> str | None:
        """The learning rate: chosen, or None where it is the experiment's own.

        Raises:
            LabError: while a trial is missing, or if all failed.
        """
        if not self.column.rates:
            return None
        trials = {rate: self.summary(0, rate, trial=True) for rate in self.column.rates}
        ended = {rate: one for rate, one in trials.items() if one is not None and one.status in ("finished", "failed")}
        if len(ended) < len(trials):
            raise LabError(f"{self.row}: not every rate has been tried on seed 0")
        finished = {rate: one for rate, one in ended.items() if one.finished}
        if not finished:
            raise LabError(f"{self.row} fails at every learning rate on {self.column.title}")
        return earliest(finished)

    @property
    def whole(self) -> bool:
        """True if every seed has ended."""
        try:
            rate = self.rate
        except LabError:
            return False
        found = [self.summary(seed, rate) for seed in range(self.column.seeds)]
        return all(one is not None and one.status in ("finished", "failed") for one in found)

    def train(self) -> None:
        """Trains what is missing of the cell; what is finished costs nothing."""
        for rate in self.column.rates:
            one = self.summary(0, rate, trial=True)
            if one is None or one.status not in ("finished", "failed"):
                train([*self.column.overrides(self.row, rate, True), *self.further, "seed=0"], self._where(True))
        try:
            typed = [*self.column.overrides(self.row, self.rate), *self.further]
        except LabError as error:
            print(error, flush=True)
            return
        if self.column.together:
            train([*typed, f"seeds={self.column.seeds}"], self._where(False))
            return
        for seed in range(self.column.seeds):
            train([*typed, f"seed={seed}"], self._where(False))

    def outcome(self) -> Outcome | None:
        """Outcome over the seeds; None unless every seed has ended: a seed that is missing may be the slow one."""
        return outcome(self._setting()) if self.whole else None

    def _setting(self) -> Setting:
        records: list[Record] = []
        for seed in range(self.column.seeds):
            try:
                records.append(read_record(self.folder(seed, self.rate)))
            except DamagedFile as error:
                print(f"{self.folder(seed, self.rate)}: {error}", flush=True)
        return Setting(str(self.row), self.column.experiment, self.row.softmax, {}, tuple(records))


def cells(columns: Sequence[Column], rows: Sequence[Row], runs: Path, further: tuple[str, ...] = ()) -> list[Cell]:
    """Every cell that is asked for, in the order in which it is trained: column by column, the first rows first."""
    return [Cell(column, row, runs, further) for column in columns for row in rows if column.asks_for(row)]
