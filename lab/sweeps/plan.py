"""Plan of a sweep: a file that lists the runs that it is going to make, ``<runs>/.sweeps/plan-<digest>.json``.

A plan is named by a digest of its runs, so that the same command writes the same file. To give up the runs that are
still missing, delete the file; no run is touched by that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.files import DamagedFile, read_json, write_json

FOLDER = ".sweeps"


@dataclass(frozen=True, eq=False)
class Plan:
    """One planned sweep.

    Attributes:
        path: its file.
        command: what was typed.
        folders: of the runs.
    """

    path: Path
    command: str
    folders: tuple[Path, ...]


def write_plan(runs: Path, names: Iterable[str], command: str) -> Path:
    """Writes down which runs (names of folders below ``runs``) a command will make; returns the file."""
    listed = sorted(set(names))
    digest = hashlib.blake2b("\n".join(listed).encode(), digest_size=6).hexdigest()
    path = runs / FOLDER / f"plan-{digest}.json"
    if read_plan(path) is None:
        write_json(path, {"command": command, "runs": listed})
    return path


def read_plan(path: Path) -> Plan | None:
    """The plan in a file; None where there is none, or where it is damaged."""
    try:
        plan = read_json(path)
        runs = path.parent.parent
        return Plan(path, str(plan["command"]), tuple(runs / name for name in plan["runs"]))
    except (DamagedFile, KeyError, TypeError):
        return None


def read_plans(sweeps: Path) -> list[Plan]:
    """All plans in a ``.sweeps`` folder; none where it does not exist."""
    found = [read_plan(path) for path in sorted(sweeps.glob("plan-*.json"))]
    return [plan for plan in found if plan is not None]
