"""Flips: one bit of a checkpoint is flipped, and the lab must notice it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lab.runs.checkpoints import DamagedCheckpoint, read_checkpoint
from scripts.storm.case import Case, Storm
from scripts.storm.command import problem_with
from scripts.storm.compare import differences
from scripts.storm.damaged_run import checkpoints_of, stopped_run
from scripts.storm.grounds import Grounds, train

# Of so many cases one resumes by the command, which must go on from the checkpoint before and end as undisturbed.
_BY_COMMAND = 15


def _case(grounds: Grounds, number: int) -> Case:
    if number % _BY_COMMAND == _BY_COMMAND - 1:
        return Case("resumed", "newest checkpoint, resumed by the command", partial(_resume, grounds, number))
    which = grounds.random("flips", number).choice(["newest", "older", "best"])
    return Case(f"{which} checkpoint", f"{which} checkpoint, read", partial(_read, grounds, number, which))


STORM = Storm(
    count=300,
    held="the checkpoint is refused when it is read; resuming uses the one before it and ends undisturbed",
    draw=_case,
)


def _flip(grounds: Grounds, number: int, path: Path) -> str:
    """Flips one bit of a file; returns which one, in words."""
    content = bytearray(path.read_bytes())
    bit = grounds.random("flips: bit", number).randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return f"bit {bit} of {path.name} ({len(content)} bytes)"


def _read(grounds: Grounds, number: int, which: str, folder: Path) -> str | None:
    _, run = stopped_run(grounds, folder)
    path = checkpoints_of(run)[which]
    flipped = _flip(grounds, number, path)
    try:
        read_checkpoint(path)
    except DamagedCheckpoint:
        return None
    return f"{flipped} is not noticed"


def _resume(grounds: Grounds, number: int, folder: Path) -> str | None:
    shape, run = stopped_run(grounds, folder)
    flipped = _flip(grounds, number, checkpoints_of(run)["newest"])
    said = train(shape, folder / "runs")
    if problem := problem_with(said, refusals=()):
        return f"{flipped}: {problem}"
    if "damaged checkpoint" not in said.err:
        return f"{flipped} is not noticed"
    different = differences(folder / "runs", grounds.undisturbed(shape).runs)
    return f"{flipped}: {'; '.join(different[:4])}" if different else None
