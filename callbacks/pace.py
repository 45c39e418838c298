"""Pace of a run: seconds a step, seconds a validation, and what is left, by the last minute of training."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable

# Seconds of training that a pace is taken from.
_WINDOW = 60.0
# Fast steps are noted together, once they have taken so long.
_TOGETHER = 0.5
# What takes so many times as long as usual (compiling anew, a suspended laptop) is no pace.
_UNUSUAL = 5.0
# Before a validation has been seen: one of its batches as a share of a training step, for it has no backward pass.
_FORWARD = 0.4


class Pace:
    """Measures steps of training by the last minute, and validations by the last five; the first step counts for none.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Seconds and steps of stretches of training, the newest last.
        self._stretches: deque[tuple[float, int]] = deque()
        self._validations: deque[float] = deque(maxlen=5)
        self._validating = False
        self._since: float | None = None
        self._from_step = 0

    def stepped(self, step: int) -> None:
        """Notes that training has come to ``step``; what came since a validation began is the validation's."""
        now = self._clock()
        if self._since is not None:
            steps, seconds = step - self._from_step, now - self._since
            if steps < 1 or (seconds < _TOGETHER and not self._validating):
                return
            if self._validating:
                self._validations.append(max(0.0, seconds - steps * (self.seconds_per_step or 0.0)))
                self._validating = False
            else:
                self._note(seconds, steps)
        self._since, self._from_step = now, step

    def validates(self, step: int) -> None:
        """Notes that a validation begins after ``step``."""
        if self._since is None:
            return
        now = self._clock()
        if step > self._from_step and not self._validating:
            self._note(now - self._since, step - self._from_step)
        self._since, self._from_step, self._validating = now, step, True

    def _note(self, seconds: float, steps: int) -> None:
        self._stretches.append((seconds, steps))
        while len(self._stretches) > 1 and sum(seconds for seconds, _ in self._stretches) > _WINDOW:
            self._stretches.popleft()

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds of a training step, validations left out; None before the second step."""
        return _usual(self._stretches) if self._stretches else None

    def seconds_left(self, steps: int, validations: int = 0, batches: int = 0) -> float | None:
        """Seconds that are left; None before the second step.

        Args:
            steps: to be trained still.
            validations: to begin still.
            batches: of a validation, by which it is estimated before one has been seen.
        """
        per_step = self.seconds_per_step
        if per_step is None or self._since is None:
            return None
        guess = _FORWARD * batches * per_step
        seen = _usual((seconds, 1) for seconds in self._validations) if self._validations else guess
        # The first one may have waited for a compiler.
        each = guess if len(self._validations) == 1 and seen > _UNUSUAL * guess else seen
        left = steps * per_step + (validations + self._validating) * each
        return max(0.0, left - (self._clock() - self._since))


def _usual(stretches: Iterable[tuple[float, int]]) -> float:
    """Returns the mean seconds of one of what is counted, over stretches (seconds, count) that are not unusually long.

    At least half of the stretches are.
    """
    known = list(stretches)
    usual = statistics.median_low(seconds / count for seconds, count in known)
    kept = [(seconds, count) for seconds, count in known if seconds <= _UNUSUAL * usual * count]
    return sum(seconds for seconds, _ in kept) / sum(count for _, count in kept)
