"""A case of the storm: one thing that is done to a run or a command, and whether the lab held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Storm:
    """Cases of one sort.

    Attributes:
        count: of cases in the long form.
        held: what the lab is to do in each of them.
        draw: makes the case of a number.
        missing: says what this machine lacks for it; None where it can be run.
        table: name of the table whose lines the cases are; "" where there are as many as one likes.
    """

    count: int
    held: str
    draw: Callable[[Grounds, int], Case]
    missing: Callable[[], str | None] = lambda: None
    table: str = ""

    def cases(self, grounds: Grounds, count: int) -> Sequence[Case]:
        """Draws so many cases; of a table all its lines, or so many of them."""
        numbers: Sequence[int] = range(count)
        if self.table:
            every = range(self.count)
            numbers = every if count >= self.count else grounds.random(self.table, 0).sample(every, count)
        return [self.draw(grounds, number) for number in numbers]
