"""A training as a command of its own, for programs that start several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from lab.console import Unfinished, hears

# Seconds between two looks whether the parent process is still there.
_LOOK = 1.0
# Set once this worker of a launcher was told to end.
_told = threading.Event()


def train_apart(overrides: Sequence[str], log: IO[str] | None = None) -> int:
    """Runs ``python -m lab.train`` and waits; its exit status, 128 + signal where a signal has ended it.

    Who ends this process (Ctrl-C, SIGTERM) ends the training in its place, which saves before it goes.

    Args:
        overrides: of the command line.
        log: what it prints goes there and not to this process's output.
    """
    command = [sys.executable, "-m", "lab.train", *overrides]
    # subprocess.run would kill it a quarter of a second after Ctrl-C.
    with subprocess.Popen(command, stdout=log, stderr=log) as process, _passing_on(process):
        try:
            status = process.wait()
        except KeyboardInterrupt:
            # From a terminal it has heard it as well; of several signals it heeds the first.
            process.terminate()
            process.wait()
            return 128 + signal.SIGINT
    return status if status >= 0 else 128 - status


@contextmanager
def ended_with_parent() -> Iterator[None]:
    """Has a worker of a launcher end what runs within by SIGTERM, which saves, once its parent process is gone.

    Nobody else would end it: a worker of joblib trains on when the sweep is killed, and then waits for ever. A worker
    that was told to end (Ctrl-C, SIGTERM) stays, and begins no other run: if it ended, joblib would kill the others
    while they save.

    Raises:
        Unfinished: of a run that was told to end, and of each that this worker would begin later.
    """
    if multiprocessing.parent_process() is None:
        yield
        return
    if _told.is_set():
        raise Unfinished("not begun, since the sweep was told to end: the same command runs it")
    parent, done = os.getppid(), threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                done.wait()
                os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except SystemExit as end:
        if not (isinstance(end.code, int) and stopped(end.code)):
            raise
        _told.set()
        raise Unfinished("told to end: the same command goes on with it") from None
    finally:
        done.set()
        if hears(signal.SIGINT):
            signal.signal(signal.SIGINT, lambda *_: None)  # it waits for work, and others save


def stopped(status: int) -> bool:
    """Tells whether somebody ended the training, by its exit status: it has not failed, and no other is to begin."""
    return status > 128


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    if not hears(signal.SIGTERM):
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
