"""Lack of memory, and output that goes nowhere: its reader goes away (``| head``), it is closed, its disk is full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab.console import blamed

COMMAND = """
import os
from lab.console import refusals
with refusals():
    input()
    {what}
"""


@pytest.mark.parametrize(
    ("what", "status", "told"),
    [
        ("print('a line')", 141, ""),  # written at the end alone
        ("print('a line', flush=True)", 141, ""),
        ("from lab.console import tables; tables().print('a line')", 141, ""),
        ("os.write(3, b'to somebody else')", 1, "BrokenPipeError"),
    ],
)
def test_a_command_whose_reader_has_gone_ends_silently(what: str, status: int, told: str) -> None:
    # A pipe nobody reads: descriptor 3 of the last case alone, stdout of the others.
    other = "3>&1 >&2 " if "os.write" in what else ""
    script = [sys.executable, "-c", COMMAND.format(what=what)]
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {other}', "sh", *script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate("begin\n")
    assert process.returncode == status
    assert told in errors if told else not errors


def test_an_error_of_another_file_is_not_blamed_on_the_output() -> None:
    script = [sys.executable, "-c", COMMAND.format(what="open('/nowhere/at/all')")]
    shell = ["sh", "-c", 'exec "$@" >/dev/full', "sh", *script]
    done = subprocess.run(shell, input="begin\n", capture_output=True, text=True, check=False)
    assert "No such file or directory: '/nowhere/at/all'" in done.stderr and "output" not in done.stderr


@pytest.mark.parametrize(
    ("to", "status", "told"),
    [
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
        (">/dev/full", 1, "error: the output cannot be written: No space left on device\n"),
    ],
)
def test_output_that_is_closed_or_full_is_no_traceback(to: str, status: int, told: str) -> None:
    script = [sys.executable, "-c", COMMAND.format(what="print('a line'); from lab.console import tables; tables()")]
    shell = ["sh", "-c", f'exec "$@" {to}', "sh", *script]
    done = subprocess.run(shell, input="begin\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", told)


@pytest.mark.parametrize("to", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_lines_for_a_closed_output_are_not_written_into_the_next_file(to: str, tmp_path: Path) -> None:
    """It would have the descriptor that was closed; so would that of a process that a sweep starts."""
    script = f"""
import os, sys
from lab.console import refusals, tell
from lab.terminal import outlive_readers
with refusals():
    outlive_readers()
    with open({str(tmp_path / "file")!r}, "w") as file:
        tell("a line")
        print("a line", flush=True)
        assert os.get_inheritable(1) and os.get_inheritable(2)
        file.write("its own")
"""
    shell = ["sh", "-c", f'exec "$@" {to}', "sh", sys.executable, "-c", script]
    assert subprocess.run(shell, check=False, capture_output=True).returncode == 0
    assert (tmp_path / "file").read_text() == "its own"


def test_signs_that_the_output_cannot_encode_are_no_traceback() -> None:
    script = [sys.executable, "-c", COMMAND.format(what="print('\N{GREEK SMALL LETTER TAU}')")]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(script, input=b"begin\n", capture_output=True, check=True, env=environment)
    assert done.stdout == rb"\u03c4" + b"\n"


def test_lack_of_memory_is_not_blamed_on_the_code() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory"), blamed("it fails"):
        torch.empty(2**60, dtype=torch.uint8)
