"""Record of the steps that the GPU kit has run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from lab.console import LabError
from lab.files import DamagedFile, read_json, write_json


@dataclass
class Done:
    """Result of a step.

    Attributes:
        status: "done", "cut off" at its share of the time, "stopped" by Ctrl-C or SIGTERM, or "failed".
        seconds: how long it took, all tries together.
        command: as one would type it.
        device: what it ran on.
        date: when it ended.
        said: the last line that it printed.
    """

    status: str
    seconds: float
    command: str
    device: str
    date: str
    said: str


class Record:
    """Record of all steps, kept in ``steps.json``.

    Args:
        folder: of the pages.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "steps.json"
        self.done: dict[str, Done] = {}
        if not self.path.exists():
            return
        try:
            self.done = {name: Done(**fields) for name, fields in read_json(self.path).items()}
        except (DamagedFile, TypeError, AttributeError) as error:
            raise LabError(f"{self.path} is no record of steps: {error}; move it away to begin anew") from error

    def keep(self, name: str, done: Done) -> None:
        """Writes down how a step went."""
        self.done[name] = done
        write_json(self.path, {key: asdict(value) for key, value in self.done.items()})

    def is_done(self, name: str) -> bool:
        """Tells whether a step need not be run again."""
        return name in self.done and self.done[name].status == "done"
