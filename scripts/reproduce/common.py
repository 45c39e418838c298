"""Shared parts of the reproduction scripts: runs as a user types them, their duration, the origin of figures."""

from __future__ import annotations

import runpy
import signal
import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd

from lab.config.overrides import quoted, read_override
from lab.console import LabError, duration
from lab.report.records import Record
from lab.report.statistics import eureka_ratio
from lab.runs.provenance import command_line, git_state, machine, now, versions
from lab.runs.summary import Summary, read_summary
from lab.runs.walk import walk_runs
from lab.signals import handling
from lab.training.processes import stopped, train_apart


def train(overrides: Sequence[str], runs: Path | None = None) -> bool:
    """Runs ``python -m lab.train`` with these overrides; a run that is already finished costs only seconds.

    Args:
        overrides: as typed.
        runs: folder of the runs; None: as the overrides say.

    Returns:
        True if it trained to its end; a run that failed has printed why, for example a loss that was not finite.

    Raises:
        SystemExit: if it was stopped.
    """
    print(f"$ python -m lab.train {' '.join(overrides)}", flush=True)
    status = train_apart([*overrides, *([f"paths.runs={quoted(runs)}"] if runs else [])])
    if stopped(status):
        sys.exit(status)
    return status == 0


def positive(text: str) -> int:
    """Reads a whole number of at least one from a command line (``type=positive`` in argparse)."""
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text} must be a whole number of at least 1")
    return int(text)


def run_options(threads: int | None, compiled: bool = False) -> tuple[str, ...]:
    """Returns the overrides that ``--compile`` and ``--threads`` add to every run, where they are asked for."""
    return (*(["compile=true"] if compiled else []), *([f"threads={threads}"] if threads else []))


def run_script(name: str, module: str, given: Sequence[str]) -> None:
    """Runs the separate script of a figure or table that has one.

    Raises:
        LabError: if more was typed than its name: that script has options of its own.
    """
    if given:
        raise LabError(
            f"{name} has a command of its own, which does not know {' '.join(given)}: python -m {module} --help names "
            "its options"
        )
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def earliest(summaries: Mapping[str, Summary]) -> str:
    """Names the run with the earliest Eureka-moment, or, where none has one, with the best accuracy."""

    def rank(name: str) -> tuple[float, float]:
        summary = summaries[name]
        moment = float("inf") if summary.moment is None else summary.moment
        return moment, -summary.best.accuracy if summary.best else 0.0

    return min(summaries, key=rank)


# Says what the column of :func:`ratio_of_others` is for.
FAVOURED = (
    "A seed that chose a setting favours it, and most of all a setting that rarely has a moment: so the ratio of the "
    "seeds that chose nothing stands beside that of all."
)


def ratio_of_others(runs: Iterable[Record | Summary], chose: Collection[int] = (0,)) -> str:
    """Eureka-ratio with its interval of the seeds that did not choose their setting; "-" where all did.

    Args:
        runs: of the setting, one for each seed.
        chose: seeds whose trials chose the setting.
    """
    others = [run.moment is not None for run in runs if run.seed not in chose]
    return str(eureka_ratio(sum(others), len(others))) if others else "-"


class Speed(NamedTuple):
    """Seconds of training per step and per sample, without start-up and validations."""

    per_step: float
    per_sample: float


def speed_of(overrides: Sequence[str], steps: int = 60) -> Speed:
    """Measures how fast this machine trains, by a short run of the same setting in a folder of its own.

    Raises:
        LabError: if that run fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        # An epoch has at least one step, so the limit on epochs never ends the run before all steps are done.
        length = [f"trainer.max_epochs={steps}", f"trainer.max_steps={steps}"]
        window = f"callbacks.throughput.every_n_steps={steps // 3}"
        own = [*overrides, *length, window, f"paths.runs={quoted(folder)}", "logger=csv_only"]
        with (Path(folder) / "log").open("w+") as log:
            status = train_apart(own, log)
            if stopped(status):
                sys.exit(status)
            if status:
                log.seek(0)
                said = [line.strip() for line in log if line.strip()]
                why = said[-1].removeprefix("error: ") if said else "nothing was said"
                raise LabError(f"{' '.join(overrides)} does not train here: {why}")
        summary = read_summary(next(walk_runs(Path(folder))).path)
    assert summary is not None and summary.samples_per_second
    per_sample = 1 / summary.samples_per_second
    return Speed(per_sample * summary.samples / summary.steps, per_sample)


def of_this_machine(known: Iterable[Summary | None]) -> list[Summary]:
    """Picks the summaries of runs on a machine like this one: the same processor, number of cores and GPU."""
    here = this_machine()
    return [one for one in known if one and {name: one.machine.get(name) for name in here} == here]


def this_machine() -> dict[str, Any]:
    """Processor, number of cores and GPU, on which the speed of a training depends."""
    found = machine()
    return {name: found[name] for name in ("processor", "cores", "gpu")}


def seconds_a_step(known: Sequence[Summary], overrides: Sequence[str]) -> float:
    """Seconds of a training step: the median over known runs of this machine; measured if there are none."""
    rates = [one.wall_seconds / one.steps for one in of_this_machine(known) if one.steps]
    return median(rates) if rates else speed_of(overrides).per_step


_YEAR = 366 * 24 * 60


class _TimeIsUp(KeyboardInterrupt):
    """Ends a training as Ctrl-C does: it saves before it goes."""


def check_minutes(minutes: float | None) -> None:
    """Refuses a number of minutes in which nothing can be done, or which no clock can count; None is no limit.

    Raises:
        LabError: if they are not positive, or more than a year.
    """
    if minutes is not None and not 0 < minutes <= _YEAR:
        raise LabError(f"--minutes must be positive and at most {_YEAR:,}, a year; got {minutes:g}")


@contextmanager
def within(minutes: float | None) -> Iterator[None]:
    """Ends the block after so many minutes, as Ctrl-C would, and says so; None: never.

    Raises:
        LabError: if the minutes are not positive.
    """
    check_minutes(minutes)
    if minutes is None:
        yield
        return
    up = False

    def end(*_: object) -> None:
        nonlocal up
        up = True
        raise _TimeIsUp

    with handling(end, signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            if not up:
                raise
            print(f"{minutes:g} minutes are over: the same command goes on.")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def refuse_keys(overrides: Sequence[str], instead: Mapping[str, str]) -> None:
    """Refuses overrides of keys that a script sets itself.

    Args:
        overrides: as typed.
        instead: what to do, by key.

    Raises:
        LabError: at the first.
    """
    for one in overrides:
        if (key := read_override(one).key) in instead:
            raise LabError(f"{one} would be set by the script itself: leave it out ({instead[key]})")


def tell_duration(what: str, seconds: float) -> None:
    """Prints in one line how long the rest takes on this machine."""
    print(f"{what}: about {duration(seconds)} on this machine; stop it at any time, the same command goes on.")


def markdown(table: pd.DataFrame, index: bool = False, **options: Any) -> str:
    """A table in Markdown; text that looks like a number stays as it is.

    Args:
        table: a row each.
        index: whether its index is a column.
        options: of tabulate.
    """
    return str(table.to_markdown(index=index, disable_numparse=True, **options))


def sentences(out: Path) -> list[str]:
    """Paragraphs that a person wrote for a page, from ``sentences.md`` beside it; none without that file."""
    file = out / "sentences.md"
    return ["## What it says, and what it does not", file.read_text(encoding="utf-8").strip()] if file.exists() else []


def origin(command: str = "") -> str:
    """The line under a result: the command that was typed (unless another is named), machine, versions, date."""
    here, git = machine(), git_state()
    packages = versions()
    processor = here["gpu"] or here["processor"] or "unknown processor"
    return (
        f"`{command or command_line()}`, {now()[:10]}, {processor} ({here['cores']} cores), "
        f"torch {packages['torch']}, commit {str(git['commit'])[:8]}{' with changes' * git['modified']}."
    )
