"""Handlers of signals: set for a while, and the earlier ones after, whatever comes meanwhile."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import signals
from lab.signals import handling

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("at", [1, 2, 3, 4], ids=["set", "all set", "one back", "all back"])
def test_a_signal_while_handlers_change_leaves_no_process_deaf(at: int, monkeypatch) -> None:
    """Ctrl-C raises as soon as its own handler is back: that of SIGTERM is still to be set then."""
    sound, heard, changes = signal.signal, [], []

    def disturbed(number: int, handler: object) -> object:
        earlier = sound(number, handler)
        changes.append(number)
        if len(changes) == at:
            signal.raise_signal(signal.SIGINT)
        return earlier

    earlier = [signal.getsignal(number) for number in BOTH]
    monkeypatch.setattr(signals.signal, "signal", disturbed)
    if at < 3:
        with handling(lambda number, _: heard.append(number), *BOTH):
            pass
    else:
        with pytest.raises(KeyboardInterrupt), handling(lambda number, _: heard.append(number), *BOTH):
            pass
    assert heard == [signal.SIGINT] * (at < 3)
    assert [signal.getsignal(number) for number in BOTH] == earlier


def test_a_signal_that_this_process_ignores_stays_ignored() -> None:
    """As in the background of a shell, where Ctrl-C is meant for the command in the foreground."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with handling(lambda *_: None, *BOTH):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


SAVES = """
import os, signal, sys, time
from pathlib import Path
from lab.signals import ends_with_its_terminal
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
ends_with_its_terminal()
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
    assert os.read(ours, 5) == b"ready"
    os.close(ours)
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(60) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 60
    while not (tmp_path / "forked").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "forked").exists()
    assert (tmp_path / "saved").read_text() == "SIGTERM"
