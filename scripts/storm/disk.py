"""Full disks: a run that finds no room says so in one sentence, and goes on once there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.storm.case import Case, Storm
from scripts.storm.command import problem_with
from scripts.storm.grounds import Grounds, train
from scripts.storm.kills import ends_undisturbed
from scripts.storm.shapes import SHAPES

_ROOM = "size=64m"


def _missing() -> str | None:
    """Says what this machine lacks: the right to mount a file system in memory."""
    if os.geteuid() or shutil.which("mount") is None:
        return "only root can mount a tmpfs"
    with TemporaryDirectory() as folder, _mounted(Path(folder), "size=64k") as told:
        return told


def _case(grounds: Grounds, number: int) -> Case:
    random = grounds.random("disk", number)
    shape, part = random.choice(list(SHAPES)), random.random()
    return Case("full", f"{shape}, room for {part:.0%} of it", partial(_carry_out, grounds, shape, part))


STORM = Storm(
    count=20,
    held="one sentence, exit status 1; with room the same command ends with the bits of an undisturbed run",
    draw=_case,
    missing=_missing,
)


def _carry_out(grounds: Grounds, shape: str, part: float, folder: Path) -> str | None:
    whole = sum(path.stat().st_blocks * 512 for path in grounds.undisturbed(shape).runs.rglob("*"))
    disk = folder / "disk"
    disk.mkdir()
    with _mounted(disk, f"size={int(part * whole) // 4096 * 4 + 4}k") as told:
        if told:
            return told
        if problem := problem_with(train(shape, disk / "runs")):
            return problem
        subprocess.run(["mount", "-o", f"remount,{_ROOM}", str(disk)], check=True)
        problem = ends_undisturbed(grounds, shape, disk / "runs")
        if problem:
            shutil.copytree(disk / "runs", folder / "runs")
        return problem


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[str | None]:
    """Mounts a tmpfs within the block; yields why that fails, None where it does not."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    try:
        yield done.stderr.strip() or "it cannot be mounted" if done.returncode else None
    finally:
        if not done.returncode:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
