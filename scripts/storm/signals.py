"""Signals: runs that a signal stops or suspends end, by the same command again, as if nothing had happened."""

from __future__ import annotations

import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from random import Random

from scripts.storm.case import Case, Storm
from scripts.storm.command import Said, problem_with, said_by
from scripts.storm.grounds import Grounds, Undisturbed, hooked
from scripts.storm.kills import ends_undisturbed
from scripts.storm.shapes import SHAPES
from scripts.storm.strike import Strike, draw, running_still, struck

# Ctrl-C; what SLURM sends to end a job; what it sends before a time limit (sbatch --signal, submitit); suspension.
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
    if problem := _left_wrongly(said, strike, undisturbed, runs):
        return f"{strike}: {problem}"
    return ends_undisturbed(grounds, shape, runs)


def _left_wrongly(said: Said, strike: Strike, undisturbed: Undisturbed, runs: Path) -> str | None:
    """Says what is wrong with how a run that was told to stop has ended; None if nothing is."""
    saved, all_steps = _steps(runs), _steps(undisturbed.runs)
    # Before training, and after its last checkpoint, a run has nothing to save: a signal ends it, as it ends any
    # program.
    nothing_to_save = not saved or saved[-1] == all_steps[-1]
    if said.status == -strike.sent:
        return None if nothing_to_save else "it was ended by the signal, though it had begun to save"
    if problem := problem_with(said, refusals=(128 + strike.sent,), sentences=0):
        return problem
    if running := running_still(runs):
        return f"it has left, and still {running} read as running"
    saves = [number for number, event in enumerate(undisturbed.events) if event.startswith("replace last-")]
    if said.status == 0:
        # A late signal may find the run at its end; one in the first half of its saves must have stopped it.
        return "it trained on to its end" if 0 <= strike.call <= saves[len(saves) // 2] else None
    told = re.search(r"saved at step (\d+)", said.err)
    if told is None:
        return None if nothing_to_save else "it left without saving"
    return None if saved and saved[-1] == int(told[1]) else f"{told[0]}, and its newest checkpoint is of {saved[-1:]}"


def _steps(runs: Path) -> list[int]:
    """Steps of all checkpoints below a folder, in ascending order."""
    return sorted(int(path.stem.removeprefix("last-")) for path in runs.rglob("last-*.ckpt"))


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
