"""A Python that has imported the slow libraries and forks: each fork is a ``python <words>`` that starts at once.

A new Python takes seconds to import torch, Lightning and timm, and many tests need a process of their own, to test
its signals, its exit status, what it prints, or what it leaves when it is killed. A fork is such a process. Nothing of
the lab is imported before the fork, so that each fork imports the lab as a new Python does: from its working folder
and its ``PYTHONPATH``.

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
    """Ends the process without the clean-up of the libraries, which takes a second and makes some of them complain."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_status)


def next_fork() -> dict[str, Any] | None:
    """Serves requests; returns the request to carry out in each fork, and None in the parent once stdin has ended."""
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
    """Gives this fork the files, folder, environment and paths of a new ``python <words>``, and runs the words."""
    for number, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # Lightning reads its rank where it is imported: for a fork, here.
    rank_zero = sys.modules["lightning.pytorch.utilities.rank_zero"]
    rank_zero.rank_zero_only.rank = int(environment.get("RANK", 0))
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
    # Objects made so far are never garbage-collected: the collector writes to each object that it visits, and so would
    # copy their memory into every fork.
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
