"""A Python that has imported the slow libraries and forks: each fork is a ``python <words>`` that starts at once.

Importing torch, Lightning and timm takes a new Python seconds, and many tests are about a process of its own: its
signals, its exit status, what it says, what it leaves when it is killed. A fork is such a process. Nothing of the lab
is imported before it, so each fork imports the lab as a new Python does: from its folder and its ``PYTHONPATH``.

Run as a script, it reads requests from stdin, each a line of JSON, and answers each with a line:
``{"words": ..., "folder": ..., "environment": ..., "out": ..., "err": ...}`` with the process id,
``{"poll": pid}`` with the exit status as ``subprocess`` gives it, or null while the process runs.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import sys
from typing import Any

LIBRARIES = (
    "torch._dynamo",
    "torch.utils.tensorboard",
    "torchvision",
    "lightning.pytorch.loggers",
    "timm.optim",
    "timm.models.vision_transformer",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "pandas",
    "hydra.utils",
    "pydantic",
    "tabulate",
)


_status = 0


def leave() -> None:
    """Ends the process at once: taking apart what the libraries hold takes a second, and some complain of it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_status)


def next_fork() -> dict[str, Any] | None:
    """Serves requests; in a fork, the request that it is to carry out; None once stdin has ended."""
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            ended, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            answer = os.fork()
            if not answer:
                return request
        print(json.dumps(answer), flush=True)
    return None


def become(words: list[str], folder: str, environment: dict[str, str], out: str, err: str) -> None:
    """Makes of this fork what ``python <words>`` begins as, and runs it."""
    for number, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    first, *rest = words
    own = folder if first == "-m" else "" if first == "-c" else os.path.dirname(os.path.join(folder, first))
    more = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [own, *more]
    if first == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv[:] = words
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    atexit.register(leave)  # the first to register is the last to run
    del sys.path[0]  # this script's folder: what lies in it is no library
    for library in LIBRARIES:
        importlib.import_module(library)
    # What is there by now is never collected: looking through it would copy it into every fork.
    gc.collect()
    gc.freeze()
    if asked := next_fork():
        try:
            become(**asked)
        except SystemExit as left:
            _status = left.code if isinstance(left.code, int) else int(left.code is not None)
            raise
        except BaseException:
            _status = 1
            raise
