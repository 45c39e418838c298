"""Record of a storm, a line for each case that ended: what was stopped goes on, and what failed is tried again."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.runs.provenance import provenance
from scripts.storm.case import Case, Outcome


@dataclass(frozen=True)
class Line:
    """End of a case.

    Attributes:
        seed: of the storm.
        storm: by name: "kills".
        number: of the case.
        what: that was done.
        problem: what was wrong; None where the lab held.
        commit: of the lab, at its first eight digits.
    """

    seed: int
    storm: str
    number: int
    what: str
    problem: str | None
    commit: str


class Record:
    """Holds how the cases of a storm ended.

    Args:
        path: of the file; None keeps nothing.
        seed: of the storm; lines of another are left alone.
    """

    def __init__(self, path: Path | None, seed: int) -> None:
        self._path, self._seed = path, seed
        self._lock = threading.Lock()
        self._commit = (provenance()["git"].get("commit") or "unknown")[:8]
        written = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        self._ends: dict[tuple[str, int, str], list[Line]] = defaultdict(list)
        for line in (Line(**json.loads(text)) for text in written):
            if line.seed == seed:
                self._ends[line.storm, line.number, line.what].append(line)

    def of(self, storm: str, number: int, case: Case) -> Sequence[Line]:
        """Every end of a case so far, the last one last; a case that is drawn otherwise by now has none."""
        return self._ends.get((storm, number, case.what), ())

    def held(self, storm: str, number: int, case: Case) -> bool:
        """True where the lab held when the case was last carried out."""
        ends = self.of(storm, number, case)
        return bool(ends) and ends[-1].problem is None

    def note(self, storm: str, outcome: Outcome) -> None:
        """Writes how a case ended."""
        line = Line(self._seed, storm, outcome.number, outcome.case.what, outcome.problem, self._commit)
        with self._lock:
            self._ends[storm, line.number, line.what].append(line)
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(line)) + "\n")
