"""Kills: runs that are SIGKILLed, once or again, and resumed by the same command, end as if nothing had happened."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path

from scripts.storm.case import Case, Storm
from scripts.storm.command import problem_with
from scripts.storm.compare import differences
from scripts.storm.grounds import Grounds, train
from scripts.storm.shapes import SHAPES
from scripts.storm.strike import MOMENTS, draw, running_still, struck

# A kill by the clock may come after the run has ended: then another moment is drawn, up to this many in all.
_DRAWS = 20


def _case(grounds: Grounds, number: int) -> Case:
    random = grounds.random("kills", number)
    shape = random.choice(list(SHAPES))
    kills = random.choices([1, 2, 3], [12, 5, 3])[0]
    moments = random.choices(list(MOMENTS), list(MOMENTS.values()), k=kills)
    what = f"{shape}, killed: {', then: '.join(moments)}"
    return Case(moments[0], what, partial(_carry_out, grounds, number, shape, moments))


STORM = Storm(
    count=200,
    held="the same command ends with the bits of an undisturbed run: weights, optimiser, metrics.csv, summary, files",
    draw=_case,
)


def _carry_out(grounds: Grounds, number: int, shape: str, moments: list[str], folder: Path) -> str | None:
    random = grounds.random("kills: moments", number)
    undisturbed = grounds.undisturbed(shape)
    runs = folder / "runs"
    for kill, moment in enumerate(moments):
        for _ in range(_DRAWS):
            strike = draw(random, moment, undisturbed)
            said = struck(shape, runs, strike, undisturbed)
            if said.status == -signal.SIGKILL:
                break
            if problem := problem_with(said, refusals=()):
                return f"{strike}: {problem}"
            if kill:
                break  # a resumed run has less to do and may end before the kill
            shutil.rmtree(runs)
        else:
            return f"it ended {_DRAWS} times before it was killed"
        if running := running_still(runs):
            return f"{strike}: killed, and still {running} read as running"
    return ends_undisturbed(grounds, shape, runs)


def ends_undisturbed(grounds: Grounds, shape: str, runs: Path) -> str | None:
    """Runs the command of a shape to its end; says how it differs from the undisturbed run, None if it does not."""
    said = train(shape, runs)
    if problem := problem_with(said, refusals=()):
        return f"the same command afterwards: {problem}"
    different = differences(runs, grounds.undisturbed(shape).runs)
    return "; ".join(different[:4]) or None
