"""Lets a storm loose on the lab, and writes what held and what did not.

    python -m scripts.storm --seed 0                                  # the long form, all of it
    python -m scripts.storm --seed 0 --kills 20 --only kills,flips    # some of it
    python -m scripts.storm --seed 0 --only kills --number 17         # one case again

The same command goes on where it was stopped: a case that held is not carried out again while the lab is unchanged, a
case that failed is. ``cases.jsonl`` beside the page says how each case ended. Each case is drawn from the seed and its
number alone. A signal at a call that changes the disk comes at the same step again; one that comes by the clock does
not. Runs lie in a temporary folder, which is removed unless a case failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.config.arguments import Parser
from lab.console import refusals, tell
from lab.files import check_writable
from scripts.process import Process
from scripts.reproduce.common import positive
from scripts.storm import damage, disk, flips, hostile, kills, lines, signals, slurm
from scripts.storm.case import Case, Outcome, Storm
from scripts.storm.grounds import Grounds
from scripts.storm.page import page, write_page
from scripts.storm.record import Record

STORMS: Mapping[str, Storm] = {
    "kills": kills.STORM,
    "signals": signals.STORM,
    "damage": damage.STORM,
    "flips": flips.STORM,
    "disk": disk.STORM,
    "lines": lines.STORM,
    "hostile": hostile.STORM,
    "slurm": slurm.STORM,
}


def storm(arguments: Sequence[str] | None = None) -> bool:
    """Runs the command line and returns True if all cases held."""
    asked = _parse(arguments)
    names = asked.only.split(",")
    record = Record(None if asked.number is not None else asked.out / "cases.jsonl", asked.seed)
    if asked.number is None:
        check_writable(asked.out, "--out")
    folder = Path(tempfile.mkdtemp(prefix="eureka-storm-"))
    grounds = Grounds(asked.seed, folder)
    failures: list[Outcome] = []
    try:
        ran: dict[str, Sequence[Outcome] | str] = {}
        for name in names:
            ran[name] = STORMS[name].missing() or _let_loose(name, grounds, asked, record, failures)
        told = page(STORMS, ran, record, asked.seed)
        if asked.number is None:
            tell(f"written: {write_page(asked.out, told)}")
        else:
            print(told)
    finally:
        if failures:
            tell(f"what failed is kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return not failures


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    for name, one in STORMS.items():
        words = f"default {one.count}{', which are all' if one.table else ''}"
        parser.add_argument(f"--{name}", type=positive, default=one.count, metavar="N", help=words)
    parser.add_argument("--only", default=",".join(STORMS), metavar="NAMES", help="of these, with commas")
    parser.add_argument("--number", type=int, help="this case alone; writes no page")
    parser.add_argument("--workers", type=positive, default=os.cpu_count(), help="cases side by side")
    parser.add_argument("--out", type=Path, default=Path("results/storm"), help="folder of the page")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.only.split(",")) - STORMS.keys():
        parser.error(f"--only {','.join(sorted(unknown))}: there are {', '.join(STORMS)}")
    for name in asked.only.split(",") if asked.number is not None else ():
        one = STORMS[name]
        if asked.number < 0 or (one.table and asked.number >= one.count):
            last = f"to {one.count - 1}" if one.table else "on"
            parser.error(f"--number {asked.number}: {name} has cases from 0 {last}")
    return asked


def _let_loose(
    name: str, grounds: Grounds, asked: argparse.Namespace, record: Record, failures: list[Outcome]
) -> list[Outcome]:
    """Carries out the cases of a storm side by side, except those that held before; adds to ``failures``."""
    count: int = getattr(asked, name)
    if asked.number is not None:
        count = max(count, asked.number + 1)
    numbered = list(enumerate(STORMS[name].cases(grounds, count)))
    if asked.number is not None:
        numbered = numbered[asked.number : asked.number + 1]
    progress = _Progress(name, sum(not record.held(name, *pair) for pair in numbered))

    def one(number: int, case: Case) -> Outcome:
        if record.held(name, number, case):
            return Outcome(number, case, None)
        folder = grounds.folder / name / str(number)
        folder.mkdir(parents=True)
        try:
            problem = case.carry_out(folder)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        outcome = Outcome(number, case, problem)
        if problem is None:
            shutil.rmtree(folder)
        else:
            failures.append(outcome)
        record.note(name, outcome)
        progress.note(outcome)
        return outcome

    with ThreadPoolExecutor(asked.workers) as pool:
        return list(pool.map(lambda pair: one(*pair), numbered))


class _Progress:
    """Prints a line for each failure, and the progress now and then."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._done = self._failed = 0
        self._told = time.monotonic()
        self._lock = threading.Lock()

    def note(self, outcome: Outcome) -> None:
        with self._lock:
            self._done += 1
            if outcome.problem:
                self._failed += 1
                tell(f"{self._name} {outcome.number} failed: {outcome.case.what}: {outcome.problem[:500]}")
            if self._done == self._count or time.monotonic() - self._told > 30:
                self._told = time.monotonic()
                tell(f"{self._name}: {self._done} of {self._count}, {self._failed} failed")


if __name__ == "__main__":
    # A process that a shell starts in the background ignores SIGINT, and so would its children.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with refusals():
        try:
            held = storm()
        finally:
            Process.end()
        sys.exit(0 if held else 1)
