"""Work on many things, by several processes side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from lab.signals import hears

Thing = TypeVar("Thing")
Result = TypeVar("Result")

# More processes than this share the memory of many machines out too far.
_MOST = 8


def side_by_side(
    do: Callable[[Thing], Result], things: Sequence[Thing], processes: int | None, least: int
) -> list[Result]:
    """Calls a function for each thing, in processes of their own where that saves time; returns the results in order.

    Args:
        do: what each process calls, maybe once more for the same thing. It, the things and the results are pickled.
        things: what it is called with.
        processes: most processes; None for one per core, up to 8. Only a program whose main module can be imported anew
            may ask for more than one: where Python does not fork, each process imports it.
        least: number of things below which a process costs more time than it saves.
    """
    workers = min(processes or min(os.cpu_count() or 1, _MOST), len(things) // least)
    if workers < 2:
        return list(map(do, things))
    try:
        with ProcessPoolExecutor(workers, initializer=_end_at_once) as pool:
            return list(pool.map(do, things, chunksize=max(1, least // 2)))
    except (BrokenProcessPool, NotImplementedError, OSError):
        # No process may begin here, or one was killed, as for lack of memory; an error of the disk comes once more.
        return list(map(do, things))


def _end_at_once() -> None:
    """Lets Ctrl-C end this process without a word, and the end of the one that made it, which may be killed, too."""
    if hears(signal.SIGINT):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
