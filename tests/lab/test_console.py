"""Commands whose reader goes away, as under ``| head``."""

import subprocess
import sys

import pytest

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
