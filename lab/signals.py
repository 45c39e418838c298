"""Signals: their names, which of them this process hears, and handlers for a while."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn


def signal_name(number: int) -> str:
    """Name of a signal as a person knows it: "Ctrl-C", "SIGTERM"."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def hears(number: int) -> bool:
    """Tells whether a signal handler may be set here: in the main thread of a process that does not ignore the signal.

    A process in the background of a shell ignores Ctrl-C, which is meant for the one in the foreground. A handler that
    another library has set in C (None to Python) stays, too: Python could not set it again.
    """
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(number) not in (signal.SIG_IGN, None)


@contextmanager
def handling(handler: Callable[[int, Any], object], *signals: int) -> Iterator[None]:
    """Sets a handler within the block for those of the signals that this process hears, and the earlier ones after."""
    before = {number: signal.getsignal(number) for number in signals if hears(number)}
    try:
        _set(dict.fromkeys(before, handler))
        yield
    finally:
        put_back(before)


def obey_only_the_parent() -> None:
    """Lets SIGTERM end this process, forked by Python on Linux, only where the process that made it sends it.

    A SIGTERM to all processes of a job, as SLURM sends it, is the training's to obey: it saves, for which the processes
    that load its data have to live. Where a process is not forked but started anew, threads that are there already may
    still end it. Programs that it starts do not hear SIGTERM.
    """
    parent = multiprocessing.parent_process()
    if parent is None or not hasattr(signal, "sigwaitinfo"):
        return

    def obey() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
            pass
        os._exit(0)  # as PyTorch's own handler does: its parent has ended the process, and is not to call it lost

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=obey, daemon=True).start()


class Ended(SystemExit):
    """The end of the program by a signal, with exit status 128 + signal.

    Attributes:
        number: of the signal.
        told: what the user was told of it; "Ctrl-C: ended" by default.
    """

    def __init__(self, number: int, told: str | None = None) -> None:
        super().__init__(128 + number)
        self.number = number
        self.told = told or f"{signal_name(number)}: ended"

    def __reduce__(self) -> tuple[type[Ended], tuple[int, str]]:
        return Ended, (self.number, self.told)


@contextmanager
def ended_surely() -> Iterator[None]:
    """Raises an :class:`Ended` again, within the block or at its end, where Python has swallowed it.

    An error that a signal's handler raises is lost where the signal comes within a finaliser, such as that of a
    process that has run git, or within another function that only the interpreter calls.
    """
    before = sys.unraisablehook
    # Signal -> what was swallowed, the handler in whose place ``end`` stands, and the thread that will call it.
    waiting: dict[int, tuple[Ended, Any, threading.Timer]] = {}

    def end(number: int, frame: Any) -> NoReturn:
        ended, handler, _ = waiting.pop(number)
        signal.signal(number, handler)
        raise ended

    def again(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(ended := lost.exc_value, Ended):
            return before(lost)
        # By a thread, a moment later: raised in this function, it would be lost as well.
        later = threading.Timer(0.01, signal.pthread_kill, [threading.main_thread().ident, ended.number])
        waiting[ended.number] = ended, signal.signal(ended.number, end), later
        later.start()

    sys.unraisablehook = again
    try:
        yield
        for ended, *_ in waiting.values():
            raise ended
    finally:
        for number, (_, handler, later) in list(waiting.items()):
            later.cancel()
            later.join()
            signal.signal(number, handler)
        if sys.unraisablehook is again:
            sys.unraisablehook = before


def put_back(handlers: Mapping[int, Any]) -> None:
    """Sets earlier handlers again, by signal: all of them, even if a signal comes meanwhile and one of them raises."""
    surely(lambda: _set(handlers))


def surely(puts_back: Callable[[], object]) -> None:
    """Calls what puts a state back, and calls it again if a signal has broken it off by an error, which is raised then.

    Args:
        puts_back: that may be called twice.
    """
    try:
        puts_back()
    except BaseException:
        puts_back()
        raise


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delays Ctrl-C and SIGTERM to the end of the block: raised within, they would leave half of what it does."""
    came: list[int] = []
    try:
        with handling(lambda number, _: came.append(number), signal.SIGINT, signal.SIGTERM):
            yield
    finally:
        for one in came:
            signal.raise_signal(one)


def _set(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
