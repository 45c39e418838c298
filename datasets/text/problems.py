"""Problems in text with one right answer, by algorithm and size: the base class of their sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

# Size as the algorithm counts it: in numbers, or in nodes.
ProblemSize = Annotated[int, Field(ge=1, le=100_000)]
Names = Annotated[Sequence[str], Field(min_length=1)]


@dataclass(frozen=True)
class Problem:
    """A problem and its answer.

    Attributes:
        question: all that the model is shown, to the end of its last line.
        answer: what the model has to say, to the letter.
        algorithm: name of the algorithm that gives the answer.
        size: size of the problem, as the algorithm counts it.
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
        """At most ``most`` problems to validate on, in groups, evenly by algorithm and size.

        A group is of one algorithm and size; groups are ordered by size, then by algorithm.
        """


def shared_out(most: int, there: Sequence[int]) -> list[int]:
    """Numbers to take from groups of sizes ``there``: as even as the sizes allow, and at most ``most`` in all.

    Raises:
        ValueError: if a group would be left out.
    """
    if most < len(there):
        raise ValueError(
            f"data.validation_size={most} is too small: there are {len(there)} algorithms and sizes to validate on"
        )
    taken = [0] * len(there)
    order = sorted(range(len(there)), key=lambda group: there[group])
    for place, group in enumerate(order):
        taken[group] = min(there[group], most // (len(order) - place))
        most -= taken[group]
    return taken
