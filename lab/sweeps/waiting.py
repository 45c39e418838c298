"""Ctrl-C and SIGTERM in a sweep whose runs are side by side on this machine: they save and end before it does."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig

from lab.signals import handling, signal_name
from lab.terminal import say_at_once

# The signal that told this sweep to end; None before one.
_told: int | None = None


@contextmanager
def ends_as_told(config: DictConfig) -> Iterator[None]:
    """Ends the program after the block, a sweep, with the exit status of Ctrl-C or SIGTERM, if one was heard within it.

    Under joblib the first signal raises nothing: joblib would kill all runs at an exception. They get the signal, too,
    and save (:func:`lab.training.processes.ended_with_parent`). A second one ends all at once.
    """
    global _told
    _told = None
    if config.hydra.runtime.choices.get("hydra/launcher") != "joblib":
        yield
        return
    with handling(_note, signal.SIGINT, signal.SIGTERM):
        try:
            yield
        finally:
            end_if_told()


def end_if_told() -> None:
    """Ends the program, within :func:`ends_as_told`, if a signal was heard: nothing else may begin or be told of.

    Raises:
        SystemExit: with the exit status of that signal.
    """
    if _told is not None:
        sys.exit(128 + _told)


def _note(number: int, frame: Any) -> None:
    global _told
    workers = multiprocessing.active_children()
    again, _told = _told is not None, number
    name = signal_name(number)
    if again or not workers:
        say_at_once(f"{name}: ended")
        end_if_told()
    say_at_once(f"{name}: the runs save before they go, and the sweep with them; {name} again ends all at once")
    # A terminal's Ctrl-C has reached the workers, too, but SIGTERM and kill -INT this process alone.
    for worker in workers:
        worker.terminate()
