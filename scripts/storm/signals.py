"""Signals: runs that are told to go, or are suspended, end by the same command as if nothing had happened."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from random import Random

from scripts.storm.case import Case, Storm
from scripts.storm.command import problem_with, said_by
from scripts.storm.grounds import Grounds, hooked
from scripts.storm.kills import ends_undisturbed
from scripts.storm.shapes import SHAPES
from scripts.storm.strike import draw, running_still, struck

# Ctrl-C; what SLURM sends to what it ends; what it sends before a limit, by sbatch --signal and by submitit.
_SENT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGSTOP)


def _case(grounds: Grounds, number: int) -> Case:
    random = grounds.random("signals", number)
    shape, sent = random.choice(list(SHAPES)), random.choice(_SENT)
    if sent == signal.SIGSTOP:
        return Case(sent.name, f"{shape}, SIGSTOP, and SIGCONT later", partial(_suspend, grounds, random, shape))
    moment = random.choice(["start", "any time", "any time", "write", "checkpoint", "end"])
    return Case(sent.name, f"{shape}, {sent.name}: {moment}", partial(_tell, grounds, random, shape, sent, moment))


STORM = Storm(
    count=40,
    held="no traceback; the run is left stopped, and the same command ends with the bits of an undisturbed run",
    draw=_case,
)


def _tell(grounds: Grounds, random: Random, shape: str, sent: signal.Signals, moment: str, folder: Path) -> str | None:
    undisturbed, runs = grounds.undisturbed(shape), folder / "runs"
    strike = draw(random, moment, undisturbed, sent)
    said = struck(shape, runs, strike, undisturbed)
    # Before it trains, a run has nothing to save: a signal ends it by itself, as it ends any program.
    if said.status != -sent and (problem := problem_with(said, refusals=(128 + sent,), sentences=0)):
        return f"{strike}: {problem}"
    if running := running_still(runs):
        return f"{strike}: it has left, and still {running} read as running"
    return ends_undisturbed(grounds, shape, runs)


def _suspend(grounds: Grounds, random: Random, shape: str, folder: Path) -> str | None:
    undisturbed, runs = grounds.undisturbed(shape), folder / "runs"
    process = hooked(shape, runs, folder / "calls")
    time.sleep(random.random() * undisturbed.seconds)
    for sent in (signal.SIGSTOP, signal.SIGCONT):
        if process.poll() is None:
            os.kill(process.pid, sent)
            time.sleep(random.random())
    if problem := problem_with(said_by(process), refusals=()):
        return problem
    return ends_undisturbed(grounds, shape, runs)
