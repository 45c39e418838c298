"""A process whose terminal goes: it ends as by SIGTERM where it hears of it, and prints nowhere where it does not."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

SAVES = """
import os, signal, sys, time
from pathlib import Path
from lab.terminal import outlive_readers
def save(number, frame):
    print("saved", file=sys.stderr, flush=True)
    Path(sys.argv[1]).write_text(signal.Signals(number).name)
    sys.exit(128 + number)
class Again:
    def __del__(self, kill=os.kill, own=os.getpid(), number=signal.SIGHUP):
        kill(own, number)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup, which ignores it
again = Again()  # goes when Python has taken its handlers back: a shell, too, hangs up what its terminal has hung up
signal.signal(signal.SIGTERM, save)
outlive_readers()
if os.fork() == 0:
    time.sleep(1)
    Path(sys.argv[1]).with_name("forked").touch()
    os._exit(0)
print("ready", flush=True)
while True: time.sleep(0.01)
"""


def test_the_end_of_the_terminal_ends_a_process_as_sigterm_does(tmp_path: Path) -> None:
    """As when a connection by SSH breaks: lines that are told while it saves must not raise an error.

    A process forked from it, as one that loads data, has the same signal and stays.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SAVES, str(tmp_path / "saved")]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    assert _line(ours) == b"ready\r\n"
    os.close(ours)
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(60) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 60
    while not (tmp_path / "forked").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "forked").exists()
    assert (tmp_path / "saved").read_text() == "SIGTERM"


PRINTS = """
import logging, os, sys
from lab.terminal import outlive_readers, say_at_once
logging.basicConfig()
outlive_readers()
print("ready", flush=True)
sys.stdin.readline()
say_at_once("a signal came")
for stream in (sys.stdout, sys.stderr):
    print("\N{GREEK SMALL LETTER TAU}", stream.isatty(), file=stream)
logging.warning("logged")
"""


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "gone"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_a_process_prints_nowhere_once_nobody_reads_it(terminal: bool, stays: bool) -> None:
    """As one in the background of a shell that has ended, or in front of a ``tee`` that has had Ctrl-C, too."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    end = "\r\n" if terminal else "\n"
    command = [sys.executable, "-X", "utf8", "-c", PRINTS]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert _line(ours) == f"ready{end}".encode()
    if not stays:
        os.close(ours)
    process.communicate(b"go on\n", timeout=60)
    assert process.returncode == 0
    if stays:
        told = ["", "a signal came", f"τ {terminal}", f"τ {terminal}", "WARNING:root:logged"]
        assert [_line(ours).decode() for _ in told] == [line + end for line in told]
        os.close(ours)


def test_output_to_a_file_is_written_as_it_was() -> None:
    """A full disk is told, and a pipe that is no output of this process breaks as ever."""
    script = """
import os, sys
from lab.terminal import outlive_readers
before = sys.stdout
outlive_readers()
assert sys.stdout is before and sys.stderr is not before
ours, theirs = os.pipe()
os.close(ours)
try:
    os.write(theirs, b"to somebody else")
except BrokenPipeError:
    print("broken")
"""
    with tempfile.TemporaryFile() as file:
        subprocess.run([sys.executable, "-c", script], stdout=file, stderr=subprocess.PIPE, check=True)
        file.seek(0)
        assert file.read() == b"broken\n"


def _line(descriptor: int) -> bytes:
    """Reads a whole line: a process whose terminal goes in the midst of one is refused the rest."""
    read = b""
    while not read.endswith(b"\n"):
        read += os.read(descriptor, 1)
    return read
