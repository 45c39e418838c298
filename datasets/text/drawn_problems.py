"""Problems of six algorithms of CLRS-Text, drawn by the lab itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated

from pydantic import Field

from lab.datasets.seeding import derived_seed
from lab.datasets.text.algorithms import ALGORITHMS
from lab.datasets.text.problems import Names, Problem, Problems, ProblemSize, shared_out

Sizes = Annotated[Sequence[ProblemSize], Field(min_length=1)]


class DrawnProblems(Problems):
    """Problems of six algorithms, drawn anew for every batch (:mod:`lab.datasets.text.algorithms`).

    Args:
        algorithms: names of the algorithms to train and validate on.
        smallest, largest: sizes of the training problems, both included; all sizes are equally likely.
        validation_sizes: sizes to validate on.

    Raises:
        ValueError: if there is no such algorithm, or ``smallest`` exceeds ``largest``.
    """

    def __init__(
        self,
        algorithms: Names = tuple(ALGORITHMS),
        smallest: ProblemSize = 4,
        largest: ProblemSize = 16,
        validation_sizes: Sizes = (4, 8, 12, 16, 20, 24, 32, 48, 64),
    ) -> None:
        if unknown := sorted(set(algorithms) - set(ALGORITHMS)):
            raise ValueError(
                f"data.problems.algorithms: there is no {', '.join(unknown)}; valid: {', '.join(sorted(ALGORITHMS))}"
            )
        if smallest > largest:
            raise ValueError(f"data.problems.smallest={smallest} exceeds data.problems.largest={largest}")
        self._algorithms = tuple(dict.fromkeys(algorithms))
        self._range = (smallest, largest)
        self._sizes = tuple(sorted(set(validation_sizes)))

    @property
    def algorithms(self) -> tuple[str, ...]:
        return self._algorithms

    @property
    def trained(self) -> Mapping[str, frozenset[int]]:
        smallest, largest = self._range
        return {name: frozenset(range(smallest, largest + 1)) for name in self._algorithms}

    def training(self, seed: int, numbers: Sequence[int]) -> list[Problem]:
        made = []
        for number in numbers:
            random = Random(derived_seed("clrs_text", seed, number))
            made.append(_drawn(random, random.choice(self._algorithms), random.randint(*self._range)))
        return made

    def validation(self, seed: int, most: int) -> list[list[Problem]]:
        groups = [(size, name) for size in self._sizes for name in self._algorithms]
        made = []
        for count, (size, name) in zip(shared_out(most, [most] * len(groups)), groups, strict=True):
            random = Random(derived_seed("clrs_text validation", seed, name, size))
            made.append([_drawn(random, name, size) for _ in range(count)])
        return [group for group in made if group]


def _drawn(random: Random, name: str, size: int) -> Problem:
    algorithm = ALGORITHMS[name]
    text = algorithm.write(*algorithm.draw(random, size))
    return Problem(f"{name}:\n{text.inputs}\n{text.asked}:\n", f"{text.answer}\n\n", name, size)
