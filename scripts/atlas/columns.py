"""Columns of the atlas: tasks, with the seeds, rates and lengths that all softmaxes are given alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.report.outcomes import Outcome, outcome
from lab.report.settings import Setting
from lab.runs.summary import Summary
from scripts.atlas.rows import Row
from scripts.reproduce.common import earliest, folder_of, train
from scripts.reproduce.kept import Kept, ended, record


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


# Values are typed as Hydra types those of a sweep: +sweep=atlas makes the same runs, by name.
RATES = ("0.001", "0.002", "0.005")
COLUMNS = (
    Column(
        key="reasoning",
        title="Reasoning task with layer norm",
        experiment="reasoning",
        options=("model.layer_norm=True", "callbacks.eureka.stop_after=200"),
        rates=RATES,
        seeds=10,
        together=True,
        said="10,000 epochs, or 200 beyond the Eureka-moment, with layer norm; the learning rate is chosen on seed 0 "
        f"from {', '.join(RATES)}: the earliest moment, else the best accuracy",
    ),
    Column(
        key="reasoning_no_norm",
        title="Reasoning task without layer norm",
        experiment="reasoning",
        options=("model.layer_norm=False", "callbacks.eureka.stop_after=200"),
        rates=RATES,
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
            "log_length",
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
        kept: summaries beside the page: a cell that was whole stays whole when its runs are gone.
        further: overrides of every run that change no number but for rounding: threads, compile.
    """

    column: Column
    row: Row
    runs: Path
    kept: Kept
    further: tuple[str, ...] = ()

    def _where(self, trial: bool) -> Path:
        return self.runs / self.column.key / ("trials" if trial else "seeds")

    def _typed(self, seed: int, rate: str | None, trial: bool) -> list[str]:
        # Rounding is enough to move a moment: compiled and other seeds are not of one cell.
        compiled = [option for option in self.further if option.startswith("compile")]
        return [*self.column.overrides(self.row, rate, trial), *compiled, f"seed={seed}"]

    def folder(self, seed: int, rate: str | None, trial: bool = False) -> Path:
        """The folder of a run."""
        typed = [*self.column.overrides(self.row, rate, trial), *self.further]
        return folder_of(self._where(trial), self.column.experiment, self.row.softmax, seed, typed)

    def summary(self, seed: int, rate: str | None, trial: bool = False) -> Summary | None:
        """The summary of a run; None before it has begun."""
        return self.kept.summary(self._typed(seed, rate, trial), self.folder(seed, rate, trial))

    def _trial(self, rate: str) -> tuple[Summary, bool] | None:
        """The ended run of seed 0 that a rate is judged by, and whether it is a trial.

        Where there is none, one that went on beyond its moment (``+sweep=atlas`` trains every rate so) says the same.
        """
        for trial in (True, False):
            if (one := self.summary(0, rate, trial)) is not None and ended(one):
                return one, trial
        return None

    def _trials(self) -> dict[str, Summary]:
        """Those that have ended, by rate."""
        return {rate: found[0] for rate in self.column.rates if (found := self._trial(rate))}

    @property
    def rate(self) -> str | None:
        """The learning rate that seed 0 chooses, once all are tried; None where it is the experiment's own."""
        trials = self._trials()
        finished = {rate: one for rate, one in trials.items() if one.finished}
        return earliest(finished) if finished and len(trials) == len(self.column.rates) else None

    @property
    def fails(self) -> bool:
        """True if seed 0 fails at every learning rate: then no other seed is trained."""
        trials = self._trials()
        tried = bool(trials) and len(trials) == len(self.column.rates)
        return tried and not any(one.finished for one in trials.values())

    def _seeds(self) -> list[Summary]:
        """Every seed's summary; none unless all have ended: a seed that is missing may be the slow one."""
        rate = self.rate
        if self.column.rates and rate is None:
            return []
        found = [self.summary(seed, rate) for seed in range(self.column.seeds)]
        there = [one for one in found if one is not None and ended(one)]
        return there if len(there) == len(found) else []

    @property
    def whole(self) -> bool:
        """True if every seed has ended, or none is to be trained."""
        return self.fails or bool(self._seeds())

    def train(self) -> None:
        """Trains what is missing of the cell; what is finished costs nothing."""
        tried = self._trials()
        for rate in self.column.rates:
            if rate not in tried:
                train([*self.column.overrides(self.row, rate, True), *self.further, "seed=0"], self._where(True))
        if self.fails:
            print(f"{self.row} fails at every learning rate on {self.column.title}", flush=True)
            return
        if self.column.rates and self.rate is None:
            print(f"{self.row} has no learning rate yet: not all trials have come to their end", flush=True)
            return
        typed = [*self.column.overrides(self.row, self.rate), *self.further]
        if self.column.together:
            train([*typed, f"seeds={self.column.seeds}"], self._where(False))
            return
        for seed in range(self.column.seeds):
            train([*typed, f"seed={seed}"], self._where(False))

    @property
    def failed(self) -> int:
        """Number of seeds that failed: with a loss that was not finite, say."""
        return sum(not one.finished for one in self._seeds())

    def outcome(self) -> Outcome | None:
        """Outcome over the seeds, one that failed counted as one without a moment; None unless all have ended."""
        found = [one.model_copy(update={"status": "finished"}) for one in self._seeds()]
        if not found:
            return None
        records = tuple(record(one, self.folder(one.seed, self.rate)) for one in found)
        return outcome(Setting(str(self.row), self.column.experiment, self.row.softmax, {}, records))

    def ends(self) -> dict[str, Summary]:
        """Every summary of a cell that is whole, by what was typed."""
        seeds = {" ".join(self._typed(one.seed, self.rate, False)): one for one in self._seeds()}
        found = {rate: self._trial(rate) for rate in self.column.rates}
        trials = {" ".join(self._typed(0, rate, one[1])): one[0] for rate, one in found.items() if one}
        return seeds | trials if self.whole else {}


def cells(
    columns: Sequence[Column], rows: Sequence[Row], runs: Path, kept: Kept, further: tuple[str, ...] = ()
) -> list[Cell]:
    """Every cell that is asked for, in the order in which it is trained: column by column, the first rows first."""
    return [Cell(column, row, runs, kept, further) for column in columns for row in rows if column.asks_for(row)]
