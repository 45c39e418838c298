"""A case of the storm: one thing that is done to a run or a command, and whether the lab held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scripts.storm.grounds import Grounds


@dataclass(frozen=True)
class Case:
    """One thing that is done.

    Attributes:
        kind: by which cases are counted: "write", "truncated".
        what: that is done, in a line.
        carry_out: does it in an empty folder of its own; what was wrong, None where the lab held.
    """

    kind: str
    what: str
    carry_out: Callable[[Path], str | None]


@dataclass(frozen=True)
class Outcome:
    """End of a case.

    Attributes:
        number: of the case in its storm; with the seed it says all that was drawn.
        case: what was done.
        problem: what was wrong; None where the lab held.
    """

    number: int
    case: Case
    problem: str | None


class Storm(Protocol):
    """A module of cases of one sort.

    Attributes:
        COUNT: of cases in the long form.
        HELD: what the lab is to do in each of them.
    """

    COUNT: int
    HELD: str

    def missing(self) -> str | None:
        """Says what this machine lacks for it; None where it can be run."""
        ...

    def cases(self, grounds: Grounds, count: int) -> Sequence[Case]:
        """Draws the cases, at most ``count`` of them."""
        ...
