"""Trains as ``python -m lab.train`` does, and sends itself a signal at one of its calls that change the disk.

    python scripts/storm/hook.py <runs> <events> <number> <when> <signal> <overrides of lab.train ...>

Calls that replace, remove or flush a file below ``<runs>`` are noted in the file ``<events>``, a line each.
At call ``<number>`` (from 0; -1: at none) the signal comes ``before`` or ``after`` it, or, at a flush, in the middle of
the write: ``torn:0.3`` leaves three tenths of the file. The lab itself knows nothing of this hook.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

_WATCHED = ("replace", "unlink", "fsync")


def watch(runs: str, events: str, number: int, when: str, signal: int) -> None:
    """Notes the calls of this process, and sends the signal at one of them."""
    seen = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count = 0

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(first: Any, *rest: Any, **options: Any) -> Any:
            nonlocal count
            path = os.path.realpath(f"/proc/self/fd/{first}") if isinstance(first, int) else os.fspath(first)
            if not str(path).startswith(runs):
                return call(first, *rest, **options)
            mine, count = count, count + 1
            os.write(seen, f"{name} {os.path.basename(rest[0] if name == 'replace' else path)}\n".encode())
            if mine == number and when != "after":
                # Calls may come in another order than in the undisturbed run: where no file is open, none is torn.
                if when.startswith("torn:") and isinstance(first, int):
                    os.ftruncate(first, int(os.fstat(first).st_size * float(when.removeprefix("torn:"))))
                os.kill(os.getpid(), signal)
            value = call(first, *rest, **options)
            if mine == number and when == "after":
                os.kill(os.getpid(), signal)
            return value

        return instead

    for name in _WATCHED:
        setattr(os, name, watched(name, getattr(os, name)))


if __name__ == "__main__":
    runs, events, number, when, signal, *overrides = sys.argv[1:]
    watch(runs, events, int(number), when, int(signal))
    # The working folder in place of this script's, as under `python -m`.
    sys.path[0] = os.getcwd()
    sys.argv[1:] = overrides
    runpy.run_module("lab.train", run_name="__main__", alter_sys=True)
