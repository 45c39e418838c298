"""Seeds of one setting: the overrides, folders and summaries of their runs, and their training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from lab.config.overrides import last_of_each
from lab.report.records import Record
from lab.runs.spec import RunSpec, run_name
from lab.runs.summary import Summary
from scripts.reproduce.common import train
from scripts.reproduce.kept import Kept, ended, record, summary_of


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Runs that differ in their seed alone.

    Attributes:
        typed: overrides of every run, all but the seed.
        seeds: one for each run.
        runs: folder of the runs; None: as the overrides say.
        further: overrides of every run that change numbers only by rounding (threads); ``kept`` ignores them.
        kept: summaries beside a page, which stay when the runs are gone; None: only the run folders are read.
        together: whether the seeds train as one batched model.
    """

    typed: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: Path | None = None
    further: tuple[str, ...] = ()
    kept: Kept | None = None
    together: bool = False

    @property
    def overrides(self) -> tuple[str, ...]:
        """All overrides of every run but the seed."""
        return (*self.typed, *self.further)

    @property
    def as_one(self) -> tuple[str, ...]:
        """The override that trains the seeds as one batched model; none where they train one after the other."""
        return (f"seeds=[{','.join(map(str, self.seeds))}]",) if self.together and len(self.seeds) > 1 else ()

    @cached_property
    def spec(self) -> RunSpec:
        """Configuration of the runs, as composed; its seed is that of the experiment.

        Raises:
            LabError: if the overrides do not compose.
        """
        return RunSpec.compose(self.overrides)

    @cached_property
    def _first(self) -> Path:
        typed = last_of_each(self.overrides)
        # Composing takes a hundred times as long as reading what was typed, but is needed where a row (+row=) chooses
        # the softmax.
        if self.runs is not None and {"experiment", "softmax"} <= {*typed}:
            return self.runs / run_name(typed["experiment"].value, typed["softmax"].value, 0, self.overrides)
        return self.spec.folder if self.runs is None else self.runs / self.spec.name

    def folder(self, seed: int) -> Path:
        """Returns the folder of a seed's run.

        Raises:
            LabError: if the overrides do not compose.
        """
        return self._first.with_name(f"seed={seed}")

    @property
    def folders(self) -> tuple[Path, ...]:
        """Run folders, by seed."""
        return tuple(map(self.folder, self.seeds))

    def summary(self, seed: int) -> Summary | None:
        """The summary of a seed's run, from those kept or from its folder; None before it has begun.

        Raises:
            LabError: if its folder holds another run.
        """
        own = f"seed={seed}"
        if self.kept is not None:
            return self.kept.summary([*self.typed, own], self.folder(seed), self.further)
        return summary_of([*self.overrides, own], self.folder(seed))

    def summaries(self) -> list[Summary | None]:
        """Summary of every seed, as of :meth:`summary`."""
        return [self.summary(seed) for seed in self.seeds]

    def ends(self) -> list[Summary]:
        """Summaries of all seeds; empty until all have ended, because the one that is missing may be the slowest."""
        found = [one for one in self.summaries() if one is not None and ended(one)]
        return found if len(found) == len(self.seeds) else []

    @property
    def finished(self) -> bool:
        """Tells whether all seeds have been trained to their end."""
        return all(one is not None and one.finished for one in self.summaries())

    def left(self, most: int, of: Literal["epochs", "steps"] = "epochs") -> int:
        """Epochs or steps still to train, at most; of seeds that train together, those of the slowest one.

        Args:
            most: epochs or steps of a whole run.
            of: what is counted.
        """
        left = [0 if one and ended(one) else most - (getattr(one, of) if one else 0) for one in self.summaries()]
        return max(left) if self.together else sum(left)

    def train(self) -> bool:
        """Trains what is missing and returns whether all seeds have been trained to their end.

        A seed that diverged is not trained again, since it would diverge again; its folder is named.
        """
        found = dict(zip(self.seeds, self.summaries(), strict=True))
        missing = [seed for seed, one in found.items() if one is None or not ended(one)]
        for seed, one in found.items():
            if one is not None and one.diverged and not one.finished:
                print(f"diverged, not trained again: {self.folder(seed)}", flush=True)
        if missing and self.as_one:
            train([*self.overrides, f"seeds=[{','.join(map(str, missing))}]"], self.runs)
        else:
            for seed in missing:  # all of them, even if one fails
                train([*self.overrides, f"seed={seed}"], self.runs)
        return self.finished

    def records(self, summaries: Sequence[Summary]) -> tuple[Record, ...]:
        """Makes a report's records of these summaries."""
        return tuple(record(one, self.folder(one.seed)) for one in summaries)

    def by_typed(self, summaries: Sequence[Summary]) -> dict[str, Summary]:
        """Summaries by what was typed for them, as they are kept."""
        return {" ".join([*self.typed, f"seed={one.seed}"]): one for one in summaries}
