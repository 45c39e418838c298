"""Outcomes of a setting over its seeds, with intervals, and comparisons of settings with a baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.console import LabError
from lab.observation.change_point import SHORTEST_PLATEAU
from lab.report.records import CADENCE, Record
from lab.report.settings import Setting, differences
from lab.report.statistics import (
    Mean,
    Paired,
    Ratio,
    Reach,
    Validations,
    eureka_ratio,
    fisher,
    holm,
    mean_over_seeds,
    paired,
    reach,
)
from lab.report.survival import Median, Times, log_rank, median_time, times_of
from lab.runs.metric_names import is_accuracy

# What the loss of a token depends on, beside the model.
_TEXT = ("data.corpus.", "data.vocabulary", "data.tokenizer")


@dataclass(frozen=True)
class Outcome:
    """A setting in numbers; a number is None where no run gives it.

    Attributes:
        setting: the setting.
        ratio, exact: Eureka-ratio over runs that finished or diverged, with Wilson's interval and the exact one.
        counts: text in place of the ratio, where the runs that count are no fair sample (:func:`undecided`); else "".
        accuracy: final validation accuracy in % over finished runs with a Eureka-moment.
        plateau: the same over finished runs without one.
        watched: final value of another metric that was watched, over finished runs; None where it is the accuracy.
        eureka_epoch: mean epoch of the moments; too low where some runs have none.
        median: median epoch to the moment, runs without one counted as "later than their last validation".
        change_ratio, change_median: ratio and median epoch of the change point instead of the moment; no ratio where
            runs without one might still have one.
        reach: "% of steps" and "95 %-ratio" against the baseline.
    """

    setting: Setting
    ratio: Ratio | None
    exact: Ratio | None
    counts: str
    accuracy: Mean | None
    plateau: Mean | None
    watched: Mean | None
    eureka_epoch: Mean | None
    median: Median | None
    change_ratio: Ratio | None
    change_median: Median | None
    reach: Reach | None

    def told_ratio(self) -> str:
        """The ratio with its interval; where runs are undecided the counts alone; "" where nobody looked."""
        return self.counts or str(self.ratio or "")


def outcome(
    setting: Setting, baseline: Setting | None = None, confidence: float = 0.95, runs: Sequence[Record] | None = None
) -> Outcome:
    """Estimates over the seeds of a setting.

    Args:
        setting: the setting.
        baseline: the setting that "% of steps" is relative to.
        confidence: of all intervals.
        runs: to use instead of the setting's own (several settings pooled into one row of a table).
    """
    runs = setting.runs if runs is None else runs
    if given_up(runs):
        # What is left was chosen by how it came out.
        counts = counts_alone(runs, undecided(runs)) if looked_at(runs) else ""
        return Outcome(setting, None, None, counts, *[None] * 8)
    finished = [run for run in runs if run.finished]
    looked = looked_at(runs)
    moments = [run.moment for run in looked if run.moment is not None]
    ended = [run for run in looked if run.finished]
    with_moment = [100 * run.accuracy for run in ended if run.moment is not None and run.accuracy is not None]
    without = [100 * run.accuracy for run in ended if run.moment is None and run.accuracy is not None]
    values = [] if setting.metric == "accuracy" else [value for _, value in _at_the_end(finished)]
    watched, changing = times(runs), change_times(runs)
    shown = [run for run in finished if _shows_changes(run)]
    changed = [run for run in shown if run.change is not None]
    open_end = still_waiting(runs) or any(run.cut_short and run.change is None for run in shown)
    return Outcome(
        setting=setting,
        ratio=eureka_ratio(len(moments), len(looked), confidence) if looked else None,
        exact=eureka_ratio(len(moments), len(looked), confidence, "exact") if looked else None,
        counts=counts_alone(runs, unknown) if looked and (unknown := undecided(runs)) else "",
        accuracy=mean_over_seeds(with_moment, confidence, (0, 100)) if with_moment else None,
        plateau=mean_over_seeds(without, confidence, (0, 100)) if without else None,
        watched=mean_over_seeds(values, confidence) if values else None,
        eureka_epoch=mean_over_seeds(moments, confidence, (0, _latest(runs))) if moments else None,
        median=median_time(watched, confidence) if watched else None,
        change_ratio=eureka_ratio(len(changed), len(shown), confidence) if shown and not open_end else None,
        change_median=median_time(changing, confidence) if changing else None,
        reach=_reach(runs, baseline),
    )


def looked_at(runs: Sequence[Record]) -> list[Record]:
    """Runs that tell whether they have a moment: watched for one, and finished or diverged."""
    return [run for run in runs if run.settled and run.watched_for]


def _latest(runs: Sequence[Record]) -> float:
    """Last epoch of the longest of these runs, after which no moment can come; infinite where it is not known."""
    return max(max(run.last_epoch or math.inf, run.epochs, run.moment or 0) for run in runs)


def times(runs: Sequence[Record]) -> Times | None:
    """Times to the Eureka-moment; unfinished runs count up to their last validation.

    None before any validation, and where runs were :func:`given_up`: those that do badly were watched for less time.
    """
    return None if given_up(runs) else _times([(run.moment, run.watched_until) for run in runs if run.watched_for])


def change_times(runs: Sequence[Record]) -> Times | None:
    """Times to the change point, or to the last validation that could have shown one.

    None where no run could have, and where runs were :func:`given_up`.
    """
    if given_up(runs):
        return None
    return _times([(run.change, max(run.visible_epochs, run.change or 0)) for run in runs if _shows_changes(run)])


def _shows_changes(run: Record) -> bool:
    """True if a change point of this run would be found: it takes a plateau on either side.

    A run that stops soon after its moment has no second plateau, and would count as one without a change point just
    because its moment came.
    """
    after, every = run.config.get("callbacks.eureka.stop_after"), _cadence(run) or 1
    return (
        run.looked_for_change
        and (after is None or after >= SHORTEST_PLATEAU * every)
        and (not run.curves.size or run.validations >= 2 * SHORTEST_PLATEAU)
    )


def _times(runs: Sequence[tuple[int | None, int]]) -> Times | None:
    watched = [(moment, end) for moment, end in runs if end > 0]
    return times_of([moment for moment, _ in watched], [end for _, end in watched]) if watched else None


def _reach(runs: Sequence[Record], baseline: Setting | None) -> Reach | None:
    finished = [run for run in runs if run.finished]
    if baseline is None or not finished or not baseline.finished or _moment_of(finished[0]) != _moment_of(baseline):
        return None
    if _end_of(finished[0]) != _end_of(baseline) or any(run.cut_short for run in (*finished, *baseline.finished)):
        return None
    if still_waiting(runs) or still_waiting(baseline.runs) or given_up(baseline.runs):
        return None
    if not is_accuracy(baseline.metric):
        return None
    same = _cadence(finished[0]) == _cadence(baseline)
    reached = any(run.moment is not None for run in baseline.finished)
    # A goal is seen at the next validation, so these must be equally frequent; without a moment there is no goal.
    if not same or not reached:
        return None
    return reach([_validations(run) for run in finished], [_validations(run) for run in baseline.finished])


def _validations(run: Record) -> Validations:
    epochs, values = run.curve("epoch"), run.curve("val/accuracy")
    there = ~np.isnan(values)
    return Validations(epochs[there].tolist(), values[there].tolist(), run.moment is not None)


@dataclass(frozen=True)
class Against:
    """A setting against the baseline; p-values are corrected over all settings (Holm), None where no test is possible.

    Attributes:
        ratio: p of Fisher's exact test on the Eureka-ratios; only for settings that were trained equally long, without
            undecided runs.
        time, change_time: p of the log-rank test on the times to the moment, and to the change point; only for
            settings that are validated equally often, since a moment is seen at the next validation.
        watched: mean difference of the watched metric at the end over shared seeds, and the bounds of its interval;
            accuracies in percentage points.
        watched_p: p of the paired t-test; only for settings trained equally long that stop equally soon after a moment,
            over seeds of which neither run was cut short at another epoch. Where runs stop soon after a moment, none of
            them may wait for one, or have been ended before one.
        seeds: how many seeds both have finished.
    """

    setting: Setting
    ratio: float | None
    time: float | None
    change_time: float | None
    watched: tuple[float, float, float] | None
    watched_p: float | None
    seeds: int


def compare(outcomes: Sequence[Outcome], baseline: Setting, confidence: float = 0.95) -> list[Against]:
    """Compares every other setting with the baseline; p-values are corrected for the number of settings.

    A setting on another task than the baseline's is not tested against it.
    """
    others = [outcome.setting for outcome in outcomes if outcome.setting is not baseline]
    ratios = [_fisher(setting, baseline) for setting in others]
    ranks = [_log_rank(setting, baseline) for setting in others]
    changes = [_log_rank(setting, baseline, change_times) for setting in others]
    pairs = [_paired(setting, baseline, confidence) for setting in others]
    corrected = [holm(values) for values in (ratios, ranks, changes, [pair.p if pair else None for pair in pairs])]
    return [
        Against(one, ratio, rank, change, pair and (pair.difference, pair.low, pair.high), p, pair.seeds if pair else 0)
        for one, pair, ratio, rank, change, p in zip(others, pairs, *corrected, strict=True)
    ]


def _fisher(one: Setting, other: Setting) -> float | None:
    looked = [looked_at(s.runs) for s in (one, other)]
    same = _moment_of(one) == _moment_of(other) and _length_of(one) == _length_of(other)
    if not all(looked) or not same or undecided(one.runs) or undecided(other.runs):
        return None
    ours, theirs = ((sum(run.moment is not None for run in runs), len(runs)) for runs in looked)
    return fisher(ours, theirs)


def still_waiting(runs: Sequence[Record]) -> list[Record]:
    """Runs without a moment that may go on, in a setting that stops runs after their moment; none is :func:`given_up`.

    Runs with a moment finish earlier there, so that a ratio of finished runs alone would be too high. A run that failed
    goes on, too (after a full disk, say), unless it diverged.
    """
    without = [run for run in runs if run.stops_early and run.watched_for and run.moment is None]
    return [run for run in without if not (run.settled or run.pruned)]


def given_up(runs: Sequence[Record]) -> list[Record]:
    """Runs that the pruner of a search ended because of their accuracy; the others are no fair sample."""
    return [run for run in runs if run.pruned and run.watched_for]


def undecided(runs: Sequence[Record]) -> list[Record]:
    """Runs that are missing in such a way that the others alone would give a wrong ratio.

    These are runs without a moment that might still have had one, namely finished runs that something
    (``trainer.max_time``) ended early and :func:`still_waiting`; and those :func:`given_up`.
    """
    cut = [run for run in runs if run.watched_for and run.moment is None and run.cut_short]
    return [*cut, *still_waiting(runs), *given_up(runs)]


def decided(run: Record) -> bool:
    """Tells whether it is certain if a run has a moment: it was watched, has ended, and not too early."""
    return bool(looked_at([run])) and not undecided([run])


def counts_alone(runs: Sequence[Record], unknown: Sequence[Record]) -> str:
    """Text in place of a ratio: how many runs had a moment, how many ended without, and how many are not counted."""
    ended = [run for run in looked_at(runs) if run not in unknown]
    with_moment = sum(run.moment is not None for run in ended)
    without = f", {len(ended) - with_moment} without" if with_moment < len(ended) else ""
    return f"{with_moment} with a moment{without}{not_counted(runs, unknown)}"


def not_counted(runs: Sequence[Record], unknown: Sequence[Record] = ()) -> str:
    """Suffix "; not counted: 2 with a moment, 3 without one by epoch 300"; "" where no watched run is left out.

    Args:
        runs: of a setting; those that neither finished nor diverged do not count.
        unknown: further runs without a moment that do not count.
    """
    others = [run for run in runs if run.watched_for and not run.settled]
    with_moment = sum(run.moment is not None for run in others)
    without = [run for run in runs if run.moment is None and (run in unknown or run in others)]
    told = [f"{with_moment} with a moment"] if with_moment else []
    told += [without_one(without)] if without else []
    return f"; not counted: {', '.join(told)}" if told else ""


def without_one(runs: Sequence[Record]) -> str:
    """ "3 without one by epoch 300": the number of runs, and the last epoch of the longest of them."""
    return f"{len(runs)} without one by epoch {max(run.epochs for run in runs):,}"


def _cadence(runs: Setting | Record) -> Any:
    """Epochs between two validations: a moment is seen at the first validation after it."""
    return runs.config.get(CADENCE)


def _length_of(runs: Setting | Record) -> list[Any]:
    return [runs.config.get(f"trainer.{name}") for name in ("max_epochs", "max_steps")]


def _end_of(runs: Setting | Record) -> list[Any]:
    return [*_length_of(runs), runs.config.get("callbacks.eureka.stop_after")]


def _log_rank(one: Setting, other: Setting, of: Callable[[Sequence[Record]], Times | None] = times) -> float | None:
    ours, theirs = of(one.runs), of(other.runs)
    same = _moment_of(one) == _moment_of(other) and _cadence(one) == _cadence(other)
    return log_rank(ours, theirs) if ours and theirs and same else None


def _moment_of(runs: Setting | Record) -> list[Any]:
    """Definition of a moment in a config, and the task that it is of: settings that differ in it are not compared."""
    names = ("metric", "threshold", "mode", "plateau_share")
    return [_task_of(runs), *(runs.config.get(f"callbacks.eureka.{name}") for name in names)]


def _task_of(runs: Setting | Record) -> dict[str, Any]:
    """Classes that make the data: task and source; of a text also its folder and its tokens."""
    return {
        key: value
        for key, value in runs.config.items()
        if (key.startswith("data.") and key.endswith("._target_")) or key.startswith(_TEXT)
    }


def _at_the_end(runs: Sequence[Record]) -> list[tuple[int, float]]:
    """Seed and newest value of the metric that a run watched, an accuracy in %; runs without a value are left out."""
    return [
        (run.seed, run.summary.watched * (100 if is_accuracy(run.summary.eureka.metric) else 1))
        for run in runs
        if run.summary.watched is not None
    ]


def _paired(one: Setting, other: Setting, confidence: float) -> Paired | None:
    runs = {run.seed: run for run in other.finished}
    unequal = {
        run.seed
        for run in one.finished
        if run.seed in runs and run.epochs != runs[run.seed].epochs and (run.cut_short or runs[run.seed].cut_short)
    }
    ours, theirs = (
        {seed: value for seed, value in _at_the_end(s.finished) if seed not in unequal} for s in (one, other)
    )
    same = _task_of(one) == _task_of(other) and one.metric == other.metric and _end_of(one) == _end_of(other)
    if not same or len(ours.keys() & theirs.keys()) < 2:
        return None
    if any(run.stops_early or run.pruned for run in (*undecided(one.runs), *undecided(other.runs))):
        return None  # the seeds that came to their end are those with a moment, or a high accuracy
    return paired(ours, theirs, confidence)


def baseline_of(
    settings: Sequence[Setting],
    name: str | None = None,
    default: Callable[[], Mapping[str, Any] | None] = lambda: None,
) -> Setting | None:
    """The setting called ``name``; without a name, the plain softmax that is most like the experiment's own config.

    Several settings may have plain softmax: runs of a ResNet or with an intervention do, but differ in more keys.

    Args:
        settings: of one experiment.
        name: None for plain softmax, if there is one.
        default: returns the experiment's config without overrides, in the form of
            :func:`~lab.report.settings.planned`, or None where the lab no longer knows the experiment: then the number
            of finished seeds decides. Called only where there is a choice, because composing a config is slow.

    Raises:
        LabError: if no setting has the name.
    """
    if name is not None:
        for setting in settings:
            if setting.name == name:
                return setting
        there = "; ".join(dict.fromkeys(setting.name for setting in settings)) or "none"
        raise LabError(f"no setting is called {name!r}: the settings are {there}")
    plain = [setting for setting in settings if setting.plain]
    if len(plain) < 2:
        return plain[0] if plain else None
    known = default()

    def unlike(setting: Setting) -> tuple[bool, int, int]:
        changed = len(differences(setting.config, known)) if known is not None else 0
        return not setting.finished, changed, -len(setting.finished)

    return min(plain, key=unlike)
