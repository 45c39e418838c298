"""A run that was killed half-way, to which damage is done."""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts.storm.command import said_by
from scripts.storm.grounds import Grounds, hooked

_SHAPE = "reasoning"


def stopped_run(grounds: Grounds, folder: Path) -> tuple[str, Path]:
    """Copies a run that was killed half-way to ``<folder>/runs``; returns its shape and its run folder."""

    def make(made: Path) -> None:
        events = grounds.undisturbed(_SHAPE).events
        # Right after the third removal of an old checkpoint: the two newest ones are there.
        half = [number for number, event in enumerate(events) if event.startswith("unlink last-")][2]
        said_by(hooked(_SHAPE, made / "runs", made / "calls", half, "after"))

    shutil.copytree(grounds.once("stopped", make) / "runs", folder / "runs")
    (config,) = (folder / "runs").rglob("config.yaml")
    return _SHAPE, config.parent


def checkpoints_of(run: Path) -> dict[str, Path]:
    """Returns the newest checkpoint of a run, the one before it, and the best."""
    older, newest = sorted((run / "checkpoints").glob("last-*.ckpt"))
    return {"newest": newest, "older": older, "best": run / "checkpoints" / "best.ckpt"}
