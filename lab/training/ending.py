"""Ends a run that gets a signal before it trains, and reports a full disk only once.

During training, :class:`~lab.callbacks.preemption.Preemption` handles signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from lab.files import is_full
from lab.signals import Ended, ended_surely, handling
from lab.terminal import say_at_once

# Python's own handlers. Others stay: a launcher's, or that of a shell that starts a process in the background.
_OWN = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Makes Ctrl-C and SIGTERM end the program, within the block, with one line and exit status 128 + signal."""
    own = (number for number, handler in _OWN.items() if signal.getsignal(number) == handler)
    with handling(_end, *own), ended_surely():
        yield


@contextmanager
def full_disk_told_once() -> Iterator[None]:
    """Lets only the main thread report a full disk, within the block: TensorBoard's writer raises its error there."""
    before = threading.excepthook

    def tell_others(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or not is_full(args.exc_value):
            before(args)

    threading.excepthook = tell_others
    try:
        yield
    finally:
        threading.excepthook = before


def _end(number: int, frame: Any) -> NoReturn:
    # Of several signals the first counts, and the others must not break off what it ends: scancel reaches a job twice,
    # through srun as well, and a script that gets Ctrl-C sends SIGTERM to the training that has had it, too.
    for one in _OWN:
        if signal.getsignal(one) is _end:
            signal.signal(one, signal.SIG_IGN)
    ended = Ended(number)
    say_at_once(ended.told)
    raise ended
