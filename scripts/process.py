"""A process of its own that starts at once: a fork of a Python that has imported the slow libraries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, ClassVar


class Process:
    """Process that runs ``python <words>`` in ``folder``, with the main methods of ``subprocess.Popen``.

    It is a fork of ``prefork.py``, which has imported torch and other slow libraries once for all processes.

    Args:
        words: as after ``python`` on a command line.
        folder: its working directory.
        environment: its environment, by default this process's.
        files: where stdout and stderr go, by default two files of its own; the same file twice takes both.
        interpreter: the Python, by default this one.
    """

    _makers: ClassVar[dict[str, subprocess.Popen[str]]] = {}
    _said: ClassVar[tempfile.TemporaryDirectory[str] | None] = None
    # Held from a request to its answer, because threads may ask at the same time.
    _asking: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        *words: str,
        folder: Path,
        environment: dict[str, str] | None = None,
        files: tuple[Path, Path] | None = None,
        interpreter: str = sys.executable,
    ) -> None:
        with self._asking:
            if Process._said is None:
                Process._said = tempfile.TemporaryDirectory(prefix="eureka-said-")
        own = Path(tempfile.mkdtemp(dir=Process._said.name))
        self.out, self.err = files or (own / "out", own / "err")
        self.words, self.returncode, self._interpreter = words, None, interpreter
        for path in (self.out, self.err):
            path.touch()  # the process may be killed before it opens them
        environment = {**(environment or os.environ), "OMP_NUM_THREADS": "1"}
        paths = {"folder": str(folder), "out": str(self.out), "err": str(self.err)}
        self.pid: int = self._ask({"words": words, "environment": environment, **paths})

    def _ask(self, request: dict) -> Any:
        with self._asking:
            return self._answer(request)

    def _answer(self, request: dict) -> Any:
        maker = self._makers.get(self._interpreter)
        if maker is None:
            alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            maker = self._makers[self._interpreter] = subprocess.Popen(
                [self._interpreter, str(Path(__file__).with_name("prefork.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**alone, "OMP_NUM_THREADS": "1"},
            )
        assert maker.stdin is not None and maker.stdout is not None
        maker.stdin.write(json.dumps(request) + "\n")
        maker.stdin.flush()
        return json.loads(maker.stdout.readline())

    @classmethod
    def end(cls) -> None:
        """Ends the Pythons that fork and waits for them: their CPU time then counts as this process's children's."""
        while cls._makers:
            cls._makers.popitem()[1].communicate()
        if cls._said is not None:
            cls._said.cleanup()
            cls._said = None

    def poll(self) -> int | None:
        """Exit status, -N where signal N has ended it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        """Exit status, once it has ended; after ``timeout`` seconds it is killed."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise subprocess.TimeoutExpired(self.words, timeout, self.out.read_text(), self.err.read_text())
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Text on stdout and on stderr, once it has ended."""
        self.wait(timeout)
        return self.out.read_text(), self.err.read_text()


def finding(folder: Path) -> dict[str, str]:
    """This process's environment, but that Python finds the modules in ``folder`` before all others."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
