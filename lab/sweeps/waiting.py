"""Ctrl-C in a sweep whose runs are side by side on this machine: they save and end before the sweep does."""

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
    """Has the process of a joblib sweep hear the first Ctrl-C without an exception, upon which joblib kills all runs.

    The runs hear it, too, and save (:func:`lab.training.processes.ended_with_parent`). A second one is as ever.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        if config.hydra.runtime.choices.get("hydra/launcher") == "joblib" and hears(signal.SIGINT):
            signal.signal(signal.SIGINT, _note)


@contextmanager
def ends_as_told() -> Iterator[None]:
    """Has the program end, after what is within, with the exit status of a Ctrl-C that was heard there."""
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
