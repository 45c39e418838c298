"""Damage: files of a run folder are cut, emptied, lost or mixed up, and the lab goes on or says so in one sentence."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from scripts.storm.case import Case, Storm
from scripts.storm.command import Said, problem_with, run
from scripts.storm.compare import differences
from scripts.storm.damaged_run import checkpoints_of, stopped_run
from scripts.storm.grounds import Grounds, train

# Seconds that a command may take: a damaged file is nothing to wait for.
_LONGEST = 50.0


def _truncated(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _cut(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _emptied(path: Path, random: Random) -> None:
    path.write_bytes(b"")


def _deleted(path: Path, random: Random) -> None:
    path.unlink()


def _overwritten(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    start = random.randrange(max(1, len(content)))
    content[start : start + 100] = random.randbytes(100)
    path.write_bytes(content)


def _swapped(path: Path, random: Random) -> None:
    others = sorted(one for one in path.parent.rglob("*") if one.is_file() and one != path and one.stat().st_size)
    path.write_bytes(random.choice(others).read_bytes())


def _made_a_folder(path: Path, random: Random) -> None:
    path.unlink()
    path.mkdir()


_DAMAGE: dict[str, Callable[[Path, Random], None]] = {
    "truncated": _truncated,
    "cut": _cut,
    "emptied": _emptied,
    "deleted": _deleted,
    "overwritten": _overwritten,
    "swapped": _swapped,
    "made a folder": _made_a_folder,
}
_FILES = (
    *("config.yaml", "provenance.json", "summary.json", "metrics.csv", ".holder.json", ".lease", "events"),
    *("newest", "older", "best", "newest and older"),
)
_COMMANDS = ("train", "train", "report", "status", "inspect")


def _case(grounds: Grounds, number: int) -> Case:
    random = grounds.random("damage", number)
    # 7 kinds of damage and 11 files have no common factor: every pair comes once before any comes again.
    damage, file = list(_DAMAGE)[number % len(_DAMAGE)], _FILES[number % len(_FILES)]
    command = random.choice(_COMMANDS)
    return Case(damage, f"{file} {damage}, then {command}", partial(_carry_out, grounds, random, damage, file, command))


STORM = Storm(
    count=60,
    held="training ends with the bits of an undisturbed run, or one sentence names the folder; readers never fall over",
    draw=_case,
)


def _carry_out(grounds: Grounds, random: Random, damage: str, file: str, command: str, folder: Path) -> str | None:
    shape, damaged = stopped_run(grounds, folder)
    for path in _paths(damaged, file):
        _DAMAGE[damage](path, random)
    began = time.monotonic()
    said = train(shape, folder / "runs") if command == "train" else look(command, damaged, folder)
    seconds = time.monotonic() - began
    if problem := problem_with(said):
        return problem
    if seconds > _LONGEST:
        return f"it took {seconds:.0f} seconds"
    if said.status and damaged.name not in said.err:
        return f"the sentence does not name the folder: {said.last_line}"
    if said.status or command != "train":
        return None
    different = differences(folder / "runs", grounds.undisturbed(shape).runs)
    # Lost rows of metrics.csv cannot come back: it is enough that the command reports them.
    untold = [one for one in different if "metrics.csv" not in one or "metrics.csv" not in said.err]
    return "; ".join(untold[:4]) or None


def _paths(run_folder: Path, file: str) -> list[Path]:
    named = checkpoints_of(run_folder)
    if file == "events":
        return sorted(run_folder.glob("events.out.tfevents.*"))
    return [named[one] for one in file.split(" and ")] if file.split()[0] in named else [run_folder / file]


def look(command: str, damaged: Path, folder: Path) -> Said:
    """Runs a command that reads runs; its output goes beside the runs."""
    runs = folder / "runs"
    words = {
        "report": ["lab.report", str(runs), "--out", str(folder / "report")],
        "status": ["lab.status", str(runs)],
        "inspect": ["lab.inspect", f"run={damaged}", f"out={folder / 'inspect'}", "diagnostics=[attention_entropy]"],
    }
    return run("-m", *words[command])
