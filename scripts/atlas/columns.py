"""Columns of the atlas: tasks, each with the seeds, learning rates and run lengths that all softmaxes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.report.outcomes import Outcome, outcome
from lab.report.settings import Setting
from lab.runs.summary import Summary
from scripts.atlas.rows import Row
from scripts.reproduce.common import earliest
from scripts.reproduce.kept import Kept, ended
from scripts.reproduce.seeds import Seeds


@dataclass(frozen=True)
class Column:
    """A task on which a softmax has its Eureka-moment, or not.

    Attributes:
        key: short name, also of its folder.
        title: heading.
        experiment: config of ``configs/experiment``.
        options: further overrides of every run.
        rates: learning rates, one of which is chosen on seed 0 for each softmax; empty: the experiment's own.
        seeds: number of seeds, from 0 on.
        together: whether the seeds train in one process.
        said: sentence on how long a run lasts.
        rows: softmaxes to train, typed as in :mod:`scripts.atlas.rows`; empty: all.
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

    def overrides(self, row: Row, rate: str | None) -> list[str]:
        """Overrides of the runs of a cell, all but the seed."""
        return [
            f"experiment={self.experiment}",
            *row.overrides,
            *([f"optim.lr={rate}"] if rate else []),
            *self.options,
        ]


# Values are typed as Hydra types those of a sweep, so that +sweep=atlas makes runs of the same names.
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
        further: overrides of every run that change numbers only by rounding: threads, compile.
    """

    column: Column
    row: Row
    runs: Path
    kept: Kept
    further: tuple[str, ...] = ()

    def trial(self, rate: str) -> Seeds:
        """Seed 0 at a learning rate, until its moment."""
        return self._of((0,), rate, "trials", "callbacks.eureka.stop_after=0")

    def all(self, rate: str | None) -> Seeds:
        """All seeds at a learning rate; None: the experiment's own."""
        return self._of(tuple(range(self.column.seeds)), rate, "seeds")

    def _of(self, seeds: tuple[int, ...], rate: str | None, where: str, *more: str) -> Seeds:
        # Rounding is enough to move a moment. So ``compile`` belongs to what identifies a run: no cell mixes compiled
        # seeds with others.
        compiled = [option for option in self.further if option.startswith("compile")]
        return Seeds(
            typed=(*self.column.overrides(self.row, rate), *more, *compiled),
            seeds=seeds,
            runs=self.runs / self.column.key / where,
            further=tuple(option for option in self.further if option not in compiled),
            kept=self.kept,
            together=self.column.together,
        )

    def _trial(self, rate: str) -> dict[str, Summary]:
        """The ended run of seed 0 that a rate is judged by, keyed by what was typed for it; empty without one.

        A trial ends at its moment. Without one, a run that went on beyond its moment says the same: ``+sweep=atlas``
        trains every rate in this way.
        """
        for seeds in (self.trial(rate), self.all(rate)):
            if (one := seeds.summary(0)) is not None and ended(one):
                return seeds.by_typed([one])
        return {}

    def _trials(self) -> dict[str, Summary]:
        """Trials that have ended, by learning rate."""
        return {rate: one for rate in self.column.rates for one in self._trial(rate).values()}

    @property
    def rate(self) -> str | None:
        """The learning rate that seed 0 chooses; None before all are tried, or where it is the experiment's own."""
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
        """Summaries of all seeds; empty until all have ended, because the one that is missing may be the slowest."""
        rate = self.rate
        return [] if self.column.rates and rate is None else self.all(rate).ends()

    @property
    def whole(self) -> bool:
        """True if every seed has ended, or none will be trained since seed 0 fails at every rate."""
        return self.fails or bool(self._seeds())

    def train(self) -> None:
        """Trains the runs of the cell that are missing; finished ones cost nothing."""
        tried = self._trials()
        for rate in self.column.rates:
            if rate not in tried:
                self.trial(rate).train()
        if self.fails:
            print(f"{self.row} fails at every learning rate on {self.column.title}", flush=True)
            return
        if self.column.rates and self.rate is None:
            print(f"{self.row} has no learning rate yet: not all trials have come to their end", flush=True)
            return
        self.all(self.rate).train()

    @property
    def failed(self) -> int:
        """Number of seeds that failed, for example with a loss that was not finite."""
        return sum(not one.finished for one in self._seeds())

    def outcome(self) -> Outcome | None:
        """Outcome over the seeds, where a failed seed counts as one without a moment; None until all have ended."""
        seeds = self._seeds()
        if not seeds:
            return None
        # A seed that failed before its first validation has no threshold; with one, it counts as watched.
        threshold = next((one.eureka.threshold for one in seeds if one.eureka.threshold is not None), 1.0)
        watched = {"threshold": threshold}
        found = [
            one.model_copy(
                update={
                    "status": "finished",
                    "max_epochs": None,  # not cut short: more training would not have helped
                    "eureka": one.eureka if one.eureka.threshold is not None else one.eureka.model_copy(update=watched),
                }
            )
            for one in seeds
        ]
        records = self.all(self.rate).records(found)
        return outcome(Setting(str(self.row), self.column.experiment, self.row.softmax, {}, records))

    def ends(self) -> dict[str, Summary]:
        """All summaries of a whole cell, by what was typed; empty for any other cell."""
        if not self.whole:
            return {}
        trials = {run: one for rate in self.column.rates for run, one in self._trial(rate).items()}
        return self.all(self.rate).by_typed(self._seeds()) | trials


def cells(
    columns: Sequence[Column], rows: Sequence[Row], runs: Path, kept: Kept, further: tuple[str, ...] = ()
) -> list[Cell]:
    """Every cell that is asked for, in the order in which it is trained: column by column, the first rows first."""
    return [Cell(column, row, runs, kept, further) for column in columns for row in rows if column.asks_for(row)]
