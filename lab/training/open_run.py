"""One run that is about to be trained: its spec, its folder, and the fixed part of its summary."""

from __future__ import annotations

from dataclasses import dataclass

from lab.runs.folder import Run
from lab.runs.spec import RunSpec
from lab.runs.summary import Summary


@dataclass(frozen=True)
class OpenRun:
    """A run whose folder this process holds.

    Attributes:
        spec: the spec of one seed.
        run: its folder.
        fixed: the fields of its summary that stay as they are while it trains.
    """

    spec: RunSpec
    run: Run
    fixed: Summary
