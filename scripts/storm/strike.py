"""Strikes: moments of a run at which it is sent a signal, drawn beforehand."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from lab.runs.summary import read_summary
from scripts.process import Process
from scripts.storm.command import ROOT, Said, said_by
from scripts.storm.grounds import Undisturbed, hooked
from scripts.storm.shapes import overrides

# How often each moment is drawn, of 20: while the run starts, at any time, in a write, once a checkpoint is there, at
# the end; and in a new Python, which imports all libraries itself (the others are forks that have them already).
MOMENTS = {"start": 2, "any time": 4, "write": 6, "checkpoint": 4, "end": 3, "fresh process": 1}
# Number of calls that count as the end: those after the last checkpoint, and a few before.
_END = 12


class Strike(NamedTuple):
    """A signal and its moment.

    Attributes:
        moment: name under which strikes are counted.
        sent: the signal.
        call: number of the call that it comes at (:mod:`hook`); -1: it comes by the clock.
        when: "before", "after" or "torn:<part>" of that call.
        share: part of an undisturbed run's seconds after which it comes by the clock.
    """

    moment: str
    sent: int
    call: int = -1
    when: str = "before"
    share: float = 0.0


def draw(random: Random, moment: str, undisturbed: Undisturbed, sent: int = signal.SIGKILL) -> Strike:
    """Draws a strike of a moment from the calls and the seconds of the undisturbed run."""
    events = undisturbed.events
    if moment in ("write", "end"):
        first = max(0, len(events) - _END) if moment == "end" else 0
        call = random.randrange(first, len(events))
        torn = sent == signal.SIGKILL and events[call].startswith("fsync") and random.random() < 0.7
        return Strike(moment, sent, call, f"torn:{random.random():.3f}" if torn else random.choice(["before", "after"]))
    if moment == "checkpoint":
        saved = [number for number, event in enumerate(events) if event.startswith("replace last-")]
        return Strike(moment, sent, random.choice(saved), "after")
    return Strike(moment, sent, share=random.random() * (0.4 if moment == "start" else 1.0))


def struck(shape: str, runs: Path, strike: Strike, undisturbed: Undisturbed) -> Said:
    """Runs the command of a shape, strikes it and returns how it ended."""
    process: Process | subprocess.Popen[str]
    seconds = strike.share * undisturbed.seconds
    if strike.moment == "fresh process":
        command = [sys.executable, "-m", "lab.train", *overrides(shape, runs)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        seconds += strike.share * _import_seconds()
    else:
        process = hooked(shape, runs, runs.with_name("calls"), strike.call, strike.when, strike.sent)
    if strike.call < 0:
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        process.send_signal(strike.sent)
    return said_by(process)


@cache
def _import_seconds() -> float:
    """Seconds that a new Python takes to load what training needs."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import lab.training.fit"], cwd=ROOT, check=True)
    return time.monotonic() - began


def running_still(runs: Path) -> list[str]:
    """Names the runs below a folder that still read as running; after a strike there must be none."""
    folders = [path.parent for path in runs.rglob("summary.json")]
    return [one.name for one in folders if (summary := read_summary(one)) and summary.status == "running"]
