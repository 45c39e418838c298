"""Problems from JSON Lines files, as CLRS-Text is published."""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from lab.datasets.seeding import Shuffle, generator_of
from lab.datasets.text.corpus import Pattern, Split, check_patterns, files_of
from lab.datasets.text.problems import Names, Problem, Problems, shared_out

_LONGEST_LINE = 2**22
_LARGEST = 100_000


class FolderProblems(Problems):
    """Problems from JSON Lines files as CLRS-Text is published: ``question``, ``answer``, ``algo_name`` and ``length``.

    ``scripts/export_clrs_text.py`` writes such files. They are read through once, to check each line and to note its
    position; then problems are read as they are needed.

    Args:
        folder: folder of the files.
        train, validation: patterns of file names; a file that fits both is for validation only.
        algorithms: algorithms to take from the files; None takes all.

    Raises:
        ValueError: if a pattern names other folders; when problems are asked for, if a line is no problem (it is named
            by file and number), or an algorithm has none.
        FileNotFoundError: when problems are asked for, if a pattern fits no file.
    """

    def __init__(
        self,
        folder: Annotated[str, Field(min_length=1)],
        train: Pattern = "train*.jsonl",
        validation: Pattern = "validation*.jsonl",
        algorithms: Names | None = None,
    ) -> None:
        self.folder = Path(folder).expanduser()
        self.patterns: dict[Split, str] = {"train": train, "validation": validation}
        self.wanted = None if algorithms is None else tuple(dict.fromkeys(algorithms))
        check_patterns("data.problems", self.patterns, "train*.jsonl")
        self._shuffle = Shuffle()

    @property
    def algorithms(self) -> tuple[str, ...]:
        return self.wanted or tuple(sorted(self._train.rows.keys() | self._validation.rows.keys()))

    @property
    def trained(self) -> Mapping[str, frozenset[int]]:
        return {name: frozenset(self._train.rows.get(name, ())) for name in self.algorithms}

    def training(self, seed: int, numbers: Sequence[int]) -> list[Problem]:
        index = self._train
        places = self._shuffle.endless(torch.tensor(numbers), len(index), "problems order", seed)
        return [index.read(place) for place in places.tolist()]

    def validation(self, seed: int, most: int) -> list[list[Problem]]:
        index = self._validation
        groups = sorted((size, name, rows) for name, sizes in index.rows.items() for size, rows in sizes.items())
        made = []
        for count, (size, name, rows) in zip(shared_out(most, [len(rows) for *_, rows in groups]), groups, strict=True):
            order = torch.randperm(len(rows), generator=generator_of("problems validation", seed, name, size))
            made.append([index.read(rows[place]) for place in order[:count].tolist()])
        return [group for group in made if group]

    @cached_property
    def _train(self) -> _Index:
        return self._index("train")

    @cached_property
    def _validation(self) -> _Index:
        return self._index("validation")

    def _index(self, split: Split) -> _Index:
        found = files_of(self.folder, self.patterns, split)
        if not found:
            raise FileNotFoundError(
                f"no problems in {self.folder.absolute()}: data.problems.{split}={self.patterns[split]} fits no file "
                "in it; export some there (docs/clrs_text.md), name another folder with data.problems.folder, or draw "
                "problems with data/problems=drawn"
            )
        index = _Index(found, self.wanted)
        if missing := sorted(set(self.wanted or ()) - index.rows.keys()):
            raise ValueError(
                f"data.problems.algorithms: the {split} files of {self.folder} have no {', '.join(missing)}; beside "
                f"those named, they have {', '.join(sorted(index.others)) or 'nothing'}"
            )
        if not len(index):
            raise ValueError(f"the {split} files of {self.folder} hold no problem")
        return index


class _Index:
    """Positions of the problems in some files.

    Args:
        files: files of JSON Lines.
        wanted: algorithms to keep; None keeps all.

    Attributes:
        places: of each problem, its file and the byte that its line begins at.
        rows: algorithm -> size -> numbers of its problems.
        others: algorithms that were not kept.

    Raises:
        ValueError: if a line is no problem.
    """

    def __init__(self, files: Sequence[Path], wanted: Collection[str] | None) -> None:
        self.files = files
        self.places = (array("q"), array("q"))
        self.rows: dict[str, dict[int, array[int]]] = {}
        self.others: set[str] = set()
        for number, path in enumerate(files):
            for byte, problem in _problems(path):
                if wanted is not None and problem.algorithm not in wanted:
                    self.others.add(problem.algorithm)
                    continue
                sizes = self.rows.setdefault(problem.algorithm, {})
                sizes.setdefault(problem.size, array("q")).append(len(self))
                self.places[0].append(number)
                self.places[1].append(byte)

    def __len__(self) -> int:
        return len(self.places[0])

    def read(self, row: int) -> Problem:
        """Reads a problem by its number."""
        path = self.files[self.places[0][row]]
        with path.open("rb") as file:
            file.seek(self.places[1][row])
            return _problem(file.readline(_LONGEST_LINE), str(path))


def _problems(path: Path) -> Iterator[tuple[int, Problem]]:
    """Yields the problems of a file, each with the byte that its line begins at."""
    byte = 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), start=1):
            if len(line) > _LONGEST_LINE:
                raise ValueError(
                    f"{path}, line {number} is longer than {_LONGEST_LINE:,} bytes, the most that a problem may have"
                )
            if line.strip():
                yield byte, _problem(line, f"{path}, line {number}")
            byte += len(line)


def _problem(line: bytes, where: str) -> Problem:
    """The problem in a line.

    Raises:
        ValueError: if the line is no problem.
    """
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{where} is not a JSON object with question, answer, algo_name and length")
    for name in ("question", "answer", "algo_name"):
        value = found.get(name)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{where}: {name} must be text, and is {_shown(found, name)}")
    size = found.get("length")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= _LARGEST:
        raise ValueError(f"{where}: length must be 1 to {_LARGEST:,}, and is {_shown(found, 'length')}")
    return Problem(found["question"], found["answer"], found["algo_name"], size)


def _shown(found: dict[str, Any], name: str) -> str:
    return json.dumps(found[name])[:60] if name in found else "missing"
