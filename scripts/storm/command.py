"""Commands of the lab, run in processes of their own, and the check that they refuse in one sentence."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from scripts.process import Process

ROOT = Path(__file__).resolve().parent.parent.parent
# Seconds after which a command counts as hanging.
TIMEOUT = 120.0
# Beginning of the last line of a traceback.
_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt|Exit)\b")


class Said(NamedTuple):
    """Exit status of a command, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The reason that it gave: the error line of a traceback, else its last line."""
        lines = self.err.strip().splitlines() or ["nothing was said"]
        return next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1])[:300]


def said_by(process: Process | subprocess.Popen[str]) -> Said:
    """Waits for a process to end.

    Raises:
        subprocess.TimeoutExpired: if it hangs.
    """
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode is not None
    return Said(process.returncode, out, err)


def run(*words: str, folder: Path = ROOT) -> Said:
    """Runs ``python <words>``."""
    return said_by(Process(*words, folder=folder))


def problem_with(said: Said, refusals: tuple[int, ...] = (1,), sentences: int = 1) -> str | None:
    """Returns what is wrong with how a command ended; None after success, or a refusal in one sentence.

    Args:
        said: its exit status and output.
        refusals: exit statuses that a refusal may have.
        sentences: number of error sentences that a refusal prints.
    """
    if "Traceback" in said.out + said.err:
        return f"a traceback: {said.last_line}"
    if said.status == 0:
        return None
    if said.status not in refusals:
        return f"exit status {said.status}: {said.last_line}"
    errors = [line for line in said.err.splitlines() if "error: " in line]
    if len(errors) != sentences:
        return f"{len(errors)} sentences of error, and not {sentences}: {' | '.join(errors)[:300] or said.last_line}"
    return None
