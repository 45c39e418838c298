"""The end of a terminal under a process: it saves where the terminal says so, and what it prints goes nowhere."""

from __future__ import annotations

import errno
import io
import os
import signal
import stat
import sys
from contextlib import suppress
from typing import Any

from lab.signals import hears

_OUTPUT = {"stdout": 1, "stderr": 2}


def prepare_for_end_of_terminal() -> None:
    """Makes SIGHUP end this process as SIGTERM does, and lets what it prints to a terminal that has gone go nowhere.

    SIGHUP says that a terminal or a connection by SSH has ended. A process in the background of a shell does not always
    hear of it (bash ends without a word to its jobs), but each line that it prints from then on would be an error.
    """
    own = os.getpid()

    def hang_up(number: int, frame: Any) -> None:
        if os.getpid() == own:  # not a process that loads data, forked from this one, which is to live until it saves
            # A shell sends it once more, and Python takes its handlers back before it has ended.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            for descriptor in _OUTPUT.values():
                _leave(descriptor)
            signal.raise_signal(signal.SIGTERM)

    if hears(signal.SIGHUP) and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hang_up)
    for name, descriptor in _OUTPUT.items():
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.fileno() == descriptor and _of_terminal(descriptor):
            stream.flush()
            setattr(sys, name, _to_terminal(descriptor, stream))


class _Terminal(io.FileIO):
    """Output that goes to a terminal, and nowhere once that has gone."""

    def write(self, data: Any) -> int:
        """Writes bytes; returns how many were written."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            _leave(self.fileno())
            return super().write(data)


def _to_terminal(descriptor: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = _Terminal(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), like.encoding, like.errors, line_buffering=True)


def _leave(descriptor: int) -> None:
    """Sends nowhere what this process prints from now on, where it went to a terminal."""
    with suppress(OSError):
        if _of_terminal(descriptor):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def _of_terminal(descriptor: int) -> bool:
    """Tells whether what is written goes to a terminal (or to another character device), even one that has gone."""
    return stat.S_ISCHR(os.fstat(descriptor).st_mode)
