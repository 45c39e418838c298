"""A case of the storm: one thing that is done to a run or a command, and whether the lab held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.storm.grounds import Grounds


@dataclass(frozen=True)
class Case:
    """One thing that is done to a run or a command.

    Attributes:
        kind: name under which cases are counted, such as "write" or "truncated".
        what: description of what is done, in one line.
        carry_out: does it in an empty folder of its own; returns what was wrong, None where the lab held.
    """

    kind: str
    what: str
    carry_out: Callable[[Path], str | None]


@dataclass(frozen=True)
class Outcome:
    """End of a case.

    Attributes:
        number: of the case in its storm; with the seed it determines all that was drawn.
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
        count: number of cases in the long form.
        held: what the lab has to do in each case.
        draw: makes the case of a number.
        missing: says what this machine lacks for it; None where it can be run.
        table: name of the table whose lines the cases are; "" where any number of cases can be drawn.
    """

    count: int
    held: str
    draw: Callable[[Grounds, int], Case]
    missing: Callable[[], str | None] = lambda: None
    table: str = ""

    def cases(self, grounds: Grounds, count: int) -> Sequence[Case]:
        """Draws ``count`` cases; from a table so many of its lines, at most all."""
        numbers: Sequence[int] = range(count)
        if self.table:
            every = range(self.count)
            numbers = every if count >= self.count else grounds.random(self.table, 0).sample(every, count)
        return [self.draw(grounds, number) for number in numbers]
