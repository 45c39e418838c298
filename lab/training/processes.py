"""Training runs as separate commands, for programs that start several."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from lab.console import Unfinished
from lab.signals import Ended, ended_surely, handling, hears
from lab.terminal import outlive_readers

# Variable that names the process of rank 0 to those that Lightning starts for the other ranks.
RANK_0 = "EUREKA_RANK_0"
# Of Linux's prctl: the signal that this process gets when its parent has ended.
_PR_SET_PDEATHSIG = 1
# Seconds between two checks that the parent process is still there.
_LOOK = 1.0
# Whether this worker of a launcher has been told to end. A worker that waits for its next run only notes signals. No
# threading.Event, whose lock a second signal within its set() would wait for.
_told = False


def train_apart(overrides: Sequence[str], log: IO[str] | None = None) -> int:
    """Runs ``python -m lab.train`` and waits; returns its exit status, 128 + signal if a signal has ended it.

    Ctrl-C and SIGTERM to this process end the training instead, which saves before it ends.

    Args:
        overrides: overrides of the command line.
        log: where the training prints; None is this process's output.
    """
    command = [sys.executable, "-m", "lab.train", *overrides]
    # subprocess.run would kill the training a quarter of a second after Ctrl-C.
    with (
        subprocess.Popen(command, stdout=log, stderr=log) as process,
        handling(lambda *_: process.terminate(), signal.SIGTERM),
    ):
        try:
            status = process.wait()
        except KeyboardInterrupt:
            # From a terminal, Ctrl-C has reached the training as well; of several signals it obeys the first.
            process.terminate()
            process.wait()
            return 128 + signal.SIGINT
    return status if status >= 0 else 128 - status


@contextmanager
def ended_with_parent() -> Iterator[None]:
    """Makes a worker of a launcher end its run by SIGTERM, so that it saves, once the parent process is gone.

    Nothing else would end it: when the sweep is killed, a worker of joblib trains on and then waits for ever. A worker
    that was told to end (Ctrl-C, SIGTERM) stays, but begins no other run: if it exited, joblib would kill the other
    workers while they save.

    Raises:
        Unfinished: for a run that was told to end, and for each run that this worker would begin later.
    """
    global _told
    if multiprocessing.parent_process() is None:
        yield
        return
    outlive_readers()
    if _told:
        raise Unfinished("not begun, since the sweep was told to end: the same command runs it")
    parent, done = os.getppid(), threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                done.wait()
                os._exit(128 + signal.SIGTERM)

    try:
        # Where a run begins and ends, too, a signal must not end this worker.
        try:
            _set_handlers(_end_run)
            threading.Thread(target=watch, daemon=True).start()
            with ended_surely():
                yield
        finally:
            done.set()
            _set_handlers(_note)
    except SystemExit as end:
        if not (isinstance(end.code, int) and stopped(end.code)):
            raise
        _told = True
        raise Unfinished("told to end: the same command goes on with it") from None


def _set_handlers(handler: Callable[[int, Any], object]) -> None:
    """Sets a handler of Ctrl-C and SIGTERM where there is Python's own or one that was set here before."""
    for number in filter(hears, (signal.SIGINT, signal.SIGTERM)):
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL, _end_run, _note):
            signal.signal(number, handler)


def _end_run(number: int, frame: Any) -> None:
    # A terminal's Ctrl-C comes with the SIGTERM of the sweep, which must not break off what the first began.
    global _told
    if not _told:
        _told = True
        raise Ended(number)


def _note(number: int, frame: Any) -> None:
    global _told
    _told = True


def end_with_rank_0() -> None:
    """Ends this process, on Linux, as soon as rank 0 has ended, if Lightning started it for another rank.

    Only rank 0 saves. Without it, the others would wait in vain, or report that their connection is broken. Signals
    that reach this process, too, are rank 0's to obey.
    """
    rank_0, rank = os.environ.get(RANK_0), os.environ.get("LOCAL_RANK", "0")
    if rank_0 is None or rank == "0":
        return
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(rank_0):
        os._exit(128 + signal.SIGKILL)  # it ended before
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def stopped(status: int) -> bool:
    """Tells by its exit status whether a signal ended the training: it has not failed, and no other may begin."""
    return status > 128
