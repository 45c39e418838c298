"""Outcome of a run: how it ended, whatever ended it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

import torch.distributed as dist
from hydra.errors import InstantiationException
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lab.console import (
    LabError,
    Unfinished,
    cause_of,
    first_line,
    lacks_memory,
    raised_on_purpose,
    unexpected,
    users_line_of,
)
from lab.files import is_full
from lab.runs.summary import Status

# Errors that a user can fix, and whose messages say how.
MENDED = (
    LabError,
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    MisconfigurationException,
)
# Exceptions that end a run from outside: the run itself has not failed.
STOPPED = (KeyboardInterrupt, SystemExit, SIGTERMException)


class Ending:
    """Status and reason for the summary of a run; the status is "failed" until training sets another.

    Args:
        folders: of the runs that are trained.
    """

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        self.status: Status = "failed"
        self.reason: str | None = None

    @contextmanager
    def told(self) -> Iterator[None]:
        """Notes which exception ends the block.

        Raises:
            LabError: in place of an error that a user can fix: a missing file, a wrong value, a full disk, a fault in
                code of the user's own.
        """
        try:
            yield
        except STOPPED:
            self.status, self.reason = "stopped", None
            raise
        except BaseException as error:
            self.status = "failed"
            if (sentence := self._sentence(error)) is not None:
                self.reason = sentence
                unfinished = isinstance(error, Unfinished) or is_full(error) or _of_the_system(error)
                raise (Unfinished if unfinished else LabError)(sentence) from cause_of(error)
            self.reason = f"{type(error).__name__}: {error}"
            raise

    def _sentence(self, error: BaseException) -> str | None:
        """Says in one sentence what is wrong; None for an error that a user cannot fix."""
        if isinstance(error, OSError) and is_full(error):
            return (
                f"the disk has no room for {error.filename or 'what is logged'}: make room and give the same "
                f"command again{self._last_state()}"
            )
        if _of_the_system(error):
            return (
                f"{error.filename} cannot be read or written ({error.strerror or first_line(error)}): mend this and "
                f"give the same command again{self._last_state()}"
            )
        if lacks_memory(error) or (error.__cause__ is not None and lacks_memory(error.__cause__)):
            # Of torch's long message: "Tried to allocate 2.00 GiB", "you tried to allocate 81201725440 bytes".
            asked = re.search(r"tried to (allocate [\d.]+ \w+)", str(error), re.IGNORECASE)
            return (
                f"there is too little memory{f' to {asked[1]}' if asked else ''}: free some, lower data.batch_size, or "
                "make the model or its inputs smaller"
            )
        if isinstance(error, (*MENDED, InstantiationException)):
            return _in_words(error)
        if _lost_another_process(error):
            return (
                "another process of this run has ended: the reason stands above, unless it was killed, as for lack of "
                "memory"
            )
        if lost := re.search(r"DataLoader worker .*(killed by signal: [\w ]+|exited unexpectedly)", str(error)):
            return (
                f"a process that loads data was lost ({lost[1]}), as for lack of memory or of room in /dev/shm: lower "
                f"data.workers or data.batch_size, and give the same command again{self._last_state()}"
            )
        if damaged := re.search(r"(\S+\.so): file too short", str(error)):
            # The compiler was killed while it wrote it, and torch takes it for whole.
            return f"{damaged[1]} in torch.compile's cache is damaged: delete it, and it is compiled again"
        return unexpected(error) if isinstance(error, Exception) and users_line_of(error) else None

    def _last_state(self) -> str:
        """Says which checkpoint the runs will go on from: seeds that train together, from the newest that all have."""
        if not self.folders:
            return ""
        found = [{path.name for path in folder.glob("checkpoints/last-*.ckpt")} for folder in self.folders]
        return f", which goes on from {max(set.intersection(*found), default='the start')}"


def _of_the_system(error: BaseException) -> TypeGuard[OSError]:
    """Tells whether the operating system refused a file; errors that the lab or a user raises have no number."""
    return isinstance(error, OSError) and bool(error.errno and error.filename) and not users_line_of(error)


def _lost_another_process(error: BaseException) -> bool:
    """Tells whether the connection between the processes that train one run broke."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    # NCCL has an error of its own; that of gloo is a RuntimeError which begins with a place in its sources.
    return isinstance(error, dist.DistBackendError | dist.DistNetworkError) or (
        isinstance(error, RuntimeError) and "gloo" in first_line(error)
    )


def _in_words(error: Exception) -> str:
    """Says in one sentence what is wrong, and where, if that is in code of the user's own."""
    made = isinstance(error, InstantiationException)
    # The constructor's own error, not Hydra's error around it.
    cause = error.__cause__ if made else error
    if not isinstance(cause, MENDED):
        return _not_made(error)
    message, line = _of_worker(str(cause)), users_line_of(cause)
    # An error of a worker comes through lines of this process that have no part in it.
    if isinstance(cause, LabError) or line is None or message != str(cause):
        return message
    if raised_on_purpose(cause):
        return f"{message} ({line})"
    return _not_made(error) if made else unexpected(cause)


def _of_worker(message: str) -> str:
    """The message of an error in a process that loads data, around which PyTorch writes its whole traceback."""
    caught = re.match(r"Caught (\w+) in DataLoader worker", message)
    if caught is None:
        return message
    *_, own = re.split(rf"^(?:[\w.]+\.)?{caught[1]}: ", message, flags=re.MULTILINE)
    return own.strip()


def _not_made(error: BaseException) -> str:
    """Says which target of a config Hydra could not make, and why."""
    target = re.search(r"'([\w.]+)'", str(error))
    made, cause = target.group(1) if target else "what the config names", error.__cause__
    if cause is None:
        return first_line(error)
    return f"{made} cannot be made: {unexpected(cause)}"
