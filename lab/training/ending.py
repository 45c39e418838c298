"""Ends a run that is told to go before it trains, and tells once of a full disk.

Once it trains, :class:`~lab.callbacks.preemption.Preemption` hears signals.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from lab.console import hears, signal_name
from lab.runs.files import is_full

# Who has set these to anything else, as submitit and the shell do that starts in the background, keeps them so.
_OWN = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Has Ctrl-C and SIGTERM end, within, the program in one line, with exit status 128 + signal."""
    before = {number: signal.getsignal(number) for number in _OWN}
    taken = [number for number, own in _OWN.items() if hears(number) and before[number] == own]
    for number in taken:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


@contextmanager
def full_disk_told_once() -> Iterator[None]:
    """Leaves it, within, to the main thread to tell of a full disk: TensorBoard's writer raises it again there."""
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
    # Written past Python's buffers, which the signal may have met half-way.
    os.write(2, f"\n{signal_name(number)}: ended\n".encode())
    raise SystemExit(128 + number)
