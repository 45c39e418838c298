"""Ctrl-C in a sweep whose runs are side by side on this machine: the runs save and end before the sweep does."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from lab.console import hears

_told = threading.Event()


class WaitForRuns(Callback):
    """Keeps the first Ctrl-C from raising an exception in a joblib sweep, at which joblib would kill all runs.

    The runs get the Ctrl-C, too, and save (:func:`lab.training.processes.ended_with_parent`). A second one raises.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        if config.hydra.runtime.choices.get("hydra/launcher") == "joblib" and hears(signal.SIGINT):
            signal.signal(signal.SIGINT, _note)


@contextmanager
def ends_as_told() -> Iterator[None]:
    """Ends the program after the block with the exit status of Ctrl-C, if a Ctrl-C was heard within it."""
    before = signal.getsignal(signal.SIGINT)
    _told.clear()
    try:
        yield
    finally:
        if hears(signal.SIGINT):
            signal.signal(signal.SIGINT, before)
        if _told.is_set():
            sys.exit(128 + signal.SIGINT)


def _note(number: int, frame: Any) -> None:
    _told.set()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.write(2, b"\nCtrl-C: the runs save before they go, and the sweep with them; Ctrl-C again ends all at once\n")
