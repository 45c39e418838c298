"""Readers of a process's output that go, such as its terminal.

The process ends as by SIGTERM if it hears of it (SIGHUP), else it goes on; what it prints goes nowhere.
"""

from __future__ import annotations

import io
import os
import signal
import stat
import sys
from contextlib import suppress
from typing import Any

from lab.console import UNREAD, send_nowhere
from lab.signals import hears

_OUTPUT = {"stdout": 1, "stderr": 2}


def outlive_readers() -> None:
    """Makes SIGHUP end this process as SIGTERM does, and lets what it prints go nowhere once nobody reads it.

    SIGHUP says that a terminal or a connection by SSH has ended. A process in the background of a shell does not always
    hear of it (bash ends without a word to its jobs), and one that writes to ``tee`` loses it by the same Ctrl-C that
    tells it to save: each line that it printed from then on would be an error.
    """
    own = os.getpid()

    def hang_up(number: int, frame: Any) -> None:
        if os.getpid() == own:  # not a process that loads data, forked from this one, which is to live until it saves
            # A shell sends it once more, and Python takes its handlers back before it has ended.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.raise_signal(signal.SIGTERM)

    if hears(signal.SIGHUP) and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hang_up)
    for name, descriptor in _OUTPUT.items():
        stream = getattr(sys, name)
        # Only Python's own: another one is somebody's, such as a notebook's.
        if stream is not None and stream is getattr(sys, f"__{name}__") and _is_read(descriptor):
            stream.flush()
            output = io.BufferedWriter(_Output(descriptor, "w", closefd=False))
            options = {"line_buffering": True, "write_through": stream.write_through}
            setattr(sys, name, io.TextIOWrapper(output, stream.encoding, stream.errors, **options))


def say_at_once(text: str) -> None:
    """Writes a line on stderr from a signal's handler; it is no error if nobody reads it.

    Not through Python's buffers, since the signal may have interrupted a write to them.
    """
    with suppress(OSError):
        os.write(_OUTPUT["stderr"], f"\n{text}\n".encode())


class _Output(io.FileIO):
    """Output to a terminal or a pipe, and to nowhere once nobody reads it."""

    def write(self, data: Any) -> int:
        """Writes bytes; returns how many were written."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in UNREAD or not _is_read(self.fileno()):
                raise
            send_nowhere(self.fileno())
            return super().write(data)


def _is_read(descriptor: int) -> bool:
    """Tells whether somebody reads what is written there: at a terminal, even one that has gone, or from a pipe."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:  # it is closed
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
