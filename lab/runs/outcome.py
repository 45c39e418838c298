"""Outcome of a run: how it ended, whatever ended it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import InstantiationException
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lab.console import LabError
from lab.runs.summary import Status

# What a user can mend, and says how by itself.
MENDED = (LabError, FileNotFoundError, ValueError, MisconfigurationException)
# What ends a run from outside, and is no failure of it.
STOPPED = (KeyboardInterrupt, SystemExit, SIGTERMException)


class Ending:
    """Status and reason for the summary; ``failed`` until the block says better."""

    def __init__(self) -> None:
        self.status: Status = "failed"
        self.reason: str | None = None

    @contextmanager
    def told(self) -> Iterator[None]:
        """Notes what ends the block.

        Raises:
            LabError: in place of what a user can mend: a missing file, a wrong value.
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
            stopped = isinstance(error, STOPPED)
            self.status = "stopped" if stopped else "failed"
            self.reason = None if stopped else f"{type(error).__name__}: {error}"
            raise
