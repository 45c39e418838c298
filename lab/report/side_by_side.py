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

from lab.console import LabError, first_line, tell
from lab.runs import slurm
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
    workers = min(processes or min(slurm.cpus() or os.cpu_count() or 1, _MOST), len(things) // least)
    if workers < 2 or multiprocessing.current_process().daemon:  # which may start none
        return list(map(do, things))
    try:
        pool = ProcessPoolExecutor(workers, initializer=_end_at_once)
    except (NotImplementedError, OSError):  # a machine without semaphores
        return list(map(do, things))
    try:
        with pool:
            return list(pool.map(do, things, chunksize=max(1, least // 2)))
    except (BrokenProcessPool, BlockingIOError) as error:
        tell(f"one process does the work of {workers}, as one of them was lost or could not begin: {first_line(error)}")
        return list(map(do, things))


def check_processes(processes: object) -> None:
    """Raises LabError for what is no number of processes."""
    if processes is not None and (type(processes) is not int or processes < 1):
        raise LabError(f"processes={processes!r} is wrong: give a whole number, at least 1, or None for one per core")


def _end_at_once() -> None:
    """Lets Ctrl-C end this process without a word, and the end of the one that made it, which may be killed, too."""
    if hears(signal.SIGINT):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
