"""Record of a storm, a line for each case that ended: a stopped storm goes on, and cases that failed are tried again.

A case that held is carried out again once the lab has changed: at another commit, or with other uncommitted changes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.console import LabError, tell
from lab.runs.provenance import git_state
from scripts.storm.case import Case, Outcome
from scripts.storm.command import ROOT


@dataclass(frozen=True)
class Line:
    """End of a case.

    Attributes:
        seed: of the storm.
        storm: by name: "kills".
        number: of the case.
        what: that was done.
        problem: what was wrong; None where the lab held.
        commit: first eight digits of the lab's commit; with uncommitted changes, ``+`` and four digits of their hash.
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
        seed: of the storm; lines of another seed are left alone.
    """

    def __init__(self, path: Path | None, seed: int) -> None:
        self._path, self._seed = path, seed
        self._lock = threading.Lock()
        self._commit = state_of_the_lab()
        self._ends: dict[tuple[str, int, str], list[Line]] = defaultdict(list)
        for line in _read(path) if path is not None and path.exists() else ():
            if line.seed == seed:
                self._ends[line.storm, line.number, line.what].append(line)

    def of(self, storm: str, number: int, case: Case) -> Sequence[Line]:
        """Every end of a case so far, the newest last; a case that is drawn differently by now has none."""
        return self._ends.get((storm, number, case.what), ())

    def held(self, storm: str, number: int, case: Case) -> bool:
        """True where the lab, as it is now, held when the case was last carried out."""
        ends = self.of(storm, number, case)
        return bool(ends) and ends[-1].problem is None and ends[-1].commit == self._commit

    def note(self, storm: str, outcome: Outcome) -> None:
        """Writes how a case ended."""
        line = Line(self._seed, storm, outcome.number, outcome.case.what, outcome.problem, self._commit)
        with self._lock:
            self._ends[storm, line.number, line.what].append(line)
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(line)) + "\n")


def state_of_the_lab() -> str:
    """The commit, with a short hash of the changes that are not committed."""
    git = git_state()
    commit = (git["commit"] or "unknown")[:8]
    if not git["modified"]:
        return commit
    changes = subprocess.run(["git", "diff", "HEAD"], cwd=ROOT, capture_output=True, check=False).stdout
    return f"{commit}+{hashlib.sha256(changes).hexdigest()[:4]}"


def _read(path: Path) -> list[Line]:
    """Lines of a record; a last line that was cut off while it was written is removed, and reported.

    Raises:
        LabError: if any other line is no end of a case.
    """
    texts = path.read_text(encoding="utf-8").splitlines()
    found = []
    for number, text in enumerate(texts, 1):
        try:
            found.append(Line(**json.loads(text)))
        except (ValueError, TypeError) as error:
            if number < len(texts):
                raise LabError(f"{path}: line {number} is no end of a case: name another folder by --out") from error
            tell(f"{path}: its last line was cut off as it was written: that case is carried out again")
            path.write_text("".join(f"{one}\n" for one in texts[:-1]), encoding="utf-8")
    return found
