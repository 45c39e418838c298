"""Pace of a run: seconds per step, seconds per validation, and time left, by the last minute of training."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable

# Seconds of training over which the pace is measured.
_WINDOW = 60.0
# Fast steps are recorded together, once they have taken this many seconds.
_TOGETHER = 0.5
# Stretches that take this many times as long as usual (recompiling, a suspended laptop) are left out.
_UNUSUAL = 5.0
# Time of a validation batch as a share of a training step, used until a validation has been measured. It is below 1,
# since validation has no backward pass.
_FORWARD = 0.4


class Pace:
    """Measures training steps over the last minute, and validations over the last five; the first step is left out.

    Args:
        clock: returns seconds, which never go back.
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
        """Notes that training has reached ``step``.

        After a validation began, the time beyond that of training steps counts as the validation's.
        """
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
            steps: training steps that are left.
            validations: validations that have not begun.
            batches: batches of a validation, to estimate its time before one has been measured.
        """
        per_step = self.seconds_per_step
        if per_step is None or self._since is None:
            return None
        guess = _FORWARD * batches * per_step
        seen = _usual((seconds, 1) for seconds in self._validations) if self._validations else guess
        # The first validation may have waited for a compiler, and then the estimate is better.
        each = guess if len(self._validations) == 1 and seen > _UNUSUAL * guess else seen
        left = steps * per_step + (validations + self._validating) * each
        return max(0.0, left - (self._clock() - self._since))


def _usual(stretches: Iterable[tuple[float, int]]) -> float:
    """Returns the mean seconds of one step or validation, over stretches (seconds, count) that are not unusually long.

    At least half of the stretches count.
    """
    known = list(stretches)
    usual = statistics.median_low(seconds / count for seconds, count in known)
    kept = [(seconds, count) for seconds, count in known if seconds <= _UNUSUAL * usual * count]
    return sum(seconds for seconds, _ in kept) / sum(count for _, count in kept)
