"""Six algorithms of CLRS-Text: how their inputs are drawn, and the text of a problem in the published format.

Source: Markeeva et al. 2024 (CLRS-Text). Given the same inputs, text and answer are those of `dm-clrs` 2.0.3, ties
included: both add up and round the same floats. That package writes -0.0 where this one draws 0.0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

Numbers = Sequence[float]


class Text(NamedTuple):
    """Text of a problem: its inputs by name, the names of the outputs that are asked for, and the answer."""

    inputs: str
    asked: str
    answer: str


class Algorithm(NamedTuple):
    """An algorithm: draws inputs of a given size, and writes the problem with its answer."""

    draw: Callable[[Random, int], tuple[Any, ...]]
    write: Callable[..., Text]


def minimum(key: Numbers) -> Text:
    """Index of the smallest number; of equal ones, of the first."""
    return Text(f"key: {bracketed(key)}", "min", str(key.index(min(key))))


def insertion_sort(key: Numbers) -> Text:
    """The numbers in ascending order."""
    return Text(f"key: {bracketed(key)}", "pred", bracketed(sorted(key)))


def binary_search(key: Numbers, target: float) -> Text:
    """Index of the first of sorted numbers that is not below the target; the last index if all are."""
    found = min(bisect_left(key, target), len(key) - 1)
    return Text(f"key: {bracketed(key)}, target: {target}", "return", str(found))


def quickselect(key: Numbers) -> Text:
    """Index of the number of rank n // 2, by Lomuto's partitions (around the last number)."""
    order, rank = list(range(len(key))), len(key) // 2
    low, high = 0, len(key) - 1
    while True:
        pivot, i = key[order[high]], low
        for j in range(low, high):
            if key[order[j]] <= pivot:
                order[i], order[j] = order[j], order[i]
                i += 1
        order[i], order[high] = order[high], order[i]
        if i == rank:
            return Text(f"key: {bracketed(key)}", "median", str(order[i]))
        low, high = (low, i - 1) if rank < i else (i + 1, high)


def find_maximum_subarray_kadane(key: Numbers) -> Text:
    """First and last index of the contiguous subarray with the largest sum."""
    best, first, last = key[0], 0, 0
    total, start = key[0], 0
    for end, number in enumerate(key[1:], start=1):
        if total + number >= number:
            total += number
        else:
            total, start = number, end
        if total > best:
            best, first, last = total, start, end
    return Text(f"key: {bracketed(key)}", "start, end", f"{first}, {last}")


def bfs(source: int, graph: Sequence[Sequence[int]]) -> Text:
    """Parent of each node in breadth-first search, the lowest of its level; itself if source or unreached."""
    parents = list(range(len(graph)))
    reached, level = {source}, [source]
    while level:
        new: dict[int, int] = {}
        for node in level:
            for other, edge in enumerate(graph[node]):
                if edge and other not in reached:
                    new.setdefault(other, node)
        for node, parent in new.items():
            parents[node] = parent
        reached |= new.keys()
        level = sorted(new)
    rows = ", ".join(map(bracketed, graph))
    return Text(f"s: {source}, A: [{rows}]", "pi", bracketed(parents))


def uniform(random: Random, size: int, low: float = 0.0) -> list[float]:
    """Numbers ~ U(low, 1), cut to three decimals."""
    return [int(random.uniform(low, 1.0) * 1000) / 1000 for _ in range(size)]


def undirected(random: Random, size: int) -> list[list[int]]:
    """An adjacency matrix of independent edges: of a pair with probability 1/4, a loop at a node with 1/2."""
    drawn = [[random.getrandbits(1) for _ in range(size)] for _ in range(size)]
    return [[drawn[i][j] & drawn[j][i] for j in range(size)] for i in range(size)]


def bracketed(values: Sequence[float]) -> str:
    """Values as text: ``[0.548 0.715]``."""
    return f"[{' '.join(map(str, values))}]"


def _numbers(random: Random, size: int) -> tuple[Numbers]:
    return (uniform(random, size),)


def _signed(random: Random, size: int) -> tuple[Numbers]:
    return (uniform(random, size, low=-1.0),)


def _sorted_and_target(random: Random, size: int) -> tuple[Numbers, float]:
    return sorted(uniform(random, size)), uniform(random, 1)[0]


def _source_and_graph(random: Random, size: int) -> tuple[int, list[list[int]]]:
    return random.randrange(size), undirected(random, size)


ALGORITHMS: dict[str, Algorithm] = {
    "minimum": Algorithm(_numbers, minimum),
    "insertion_sort": Algorithm(_numbers, insertion_sort),
    "binary_search": Algorithm(_sorted_and_target, binary_search),
    "quickselect": Algorithm(_numbers, quickselect),
    "find_maximum_subarray_kadane": Algorithm(_signed, find_maximum_subarray_kadane),
    "bfs": Algorithm(_source_and_graph, bfs),
}
