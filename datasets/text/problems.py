"""Problems in text with one right answer, by algorithm and size: what sources of them have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

# As the algorithm counts: of so many numbers, or nodes.
ProblemSize = Annotated[int, Field(ge=1, le=100_000)]
Names = Annotated[Sequence[str], Field(min_length=1)]


@dataclass(frozen=True)
class Problem:
    """A problem and its answer.

    Attributes:
        question: all that the model is shown, to the end of its last line.
        answer: what it has to say, to the letter.
        algorithm: whose answer it is.
        size: of the problem, as the algorithm counts.
    """

    question: str
    answer: str
    algorithm: str
    size: int


class Problems(ABC):
    """Problems to train on and others to validate on, by algorithm and size."""

    @property
    @abstractmethod
    def algorithms(self) -> tuple[str, ...]:
        """Names of the algorithms, in the order of their numbers."""

    @property
    @abstractmethod
    def trained(self) -> Mapping[str, frozenset[int]]:
        """The sizes that each algorithm is trained on."""

    @abstractmethod
    def training(self, seed: int, numbers: Sequence[int]) -> list[Problem]:
        """Problems of the endless stream of a seed, by their numbers in it."""

    @abstractmethod
    def validation(self, seed: int, most: int) -> list[list[Problem]]:
        """At most so many problems to validate on, evenly by algorithm and size, in groups of one of each.

        The order is by size, then by algorithm.
        """


def shared_out(most: int, there: Sequence[int]) -> list[int]:
    """Numbers to take of groups of so many: as even as these allow, and no more than ``most`` in all."""
    taken = [0] * len(there)
    order = sorted(range(len(there)), key=lambda group: there[group])
    for place, group in enumerate(order):
        taken[group] = min(there[group], most // (len(order) - place))
        most -= taken[group]
    return taken
