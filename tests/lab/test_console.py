"""Lack of memory, and output that goes nowhere: its reader goes away (``| head``), it is closed, its disk is full."""

import subprocess
import sys

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


def test_lack_of_memory_is_not_blamed_on_the_code() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory"), blamed("it fails"):
        torch.empty(2**60, dtype=torch.uint8)
