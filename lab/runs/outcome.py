"""Outcome of a run: how it ended, whatever ended it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import CompactHydraException, InstantiationException
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lab.console import LabError, Unfinished
from lab.runs.files import is_full
from lab.runs.summary import Status

# What a user can mend, and says how by itself.
MENDED = (
    LabError,
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    MisconfigurationException,
)
# What ends a run from outside, and is no failure of it.
STOPPED = (KeyboardInterrupt, SystemExit, SIGTERMException)


class Failed(CompactHydraException, LabError):
    """Error of a run of a sweep, which Hydra tells in one sentence once the others are done."""


class BrokenOff(CompactHydraException, Unfinished):
    """The same of a run that has not ended, which a search takes up again."""


class Ending:
    """Status and reason for the summary; ``failed`` until the block says better.

    Args:
        folders: of the runs that are trained.
    """

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        self.status: Status = "failed"
        self.reason: str | None = None

    @contextmanager
    def told(self) -> Iterator[None]:
        """Notes what ends the block.

        Raises:
            LabError: in place of what a user can mend: a missing file, a wrong value, a full disk.
        """
        try:
            yield
        except (*MENDED, InstantiationException) as error:
            # What a constructor said, not that Hydra called it.
            cause = error.__cause__ if isinstance(error, InstantiationException) else error
            if not isinstance(cause, MENDED):
                self.reason = f"{type(cause).__name__}: {cause}"
                raise
            self.reason = str(cause)
            raise LabError(self.reason) from error
        except BaseException as error:
            if isinstance(error, OSError) and is_full(error):
                self.reason = (
                    f"the disk has no room for {error.filename or 'what is logged'}: make room and give the same "
                    f"command again{self._last_state()}"
                )
                raise LabError(self.reason) from error
            stopped = isinstance(error, STOPPED)
            self.status = "stopped" if stopped else "failed"
            self.reason = None if stopped else f"{type(error).__name__}: {error}"
            raise

    def _last_state(self) -> str:
        """Says what the runs go on from."""
        if not self.folders:
            return ""
        found = [max(folder.glob("checkpoints/last-*.ckpt"), default=None) for folder in self.folders]
        names = sorted({path.name if path else "the start" for path in found})
        return f", which goes on from {' and '.join(names)}"
