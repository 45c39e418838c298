"""Handlers of signals: set for a while, and the earlier ones after, whatever comes meanwhile."""

from __future__ import annotations

import signal

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
