"""Ends a run that is told to go before it trains; from then on :class:`~lab.callbacks.preemption.Preemption` does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

# Who has set these to anything else, as submitit and the shell do that starts in the background, keeps them so.
_OWN = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Has Ctrl-C and SIGTERM end, within, the program in one line, with exit status 128 + signal."""
    before = {number: signal.getsignal(number) for number in _OWN}
    taken = [number for number, own in _OWN.items() if before[number] == own]
    if threading.current_thread() is not threading.main_thread():
        taken = []
    for number in taken:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _end(number: int, frame: Any) -> NoReturn:
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    # Written past Python's buffers, which the signal may have met half-way.
    os.write(2, f"\n{name}: ended\n".encode())
    raise SystemExit(128 + number)
