"""Saves a run that a signal tells to end: Ctrl-C, a near time limit, a cancelled job, or one that is requeued."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import CalledProcessError
from typing import Any, NoReturn

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from lab.callbacks.access import ends_with_this_epoch, goes_on_after
from lab.console import first_line, tell
from lab.runs import slurm
from lab.signals import Ended, hears, put_back, signal_name
from lab.terminal import say_at_once

# Ctrl-C is SIGINT. SLURM sends SIGTERM to a job that it ends and, before the time limit, the signal that
# sbatch --signal names: SIGUSR2 under submitit.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Preemption(Checkpoint):
    """Notes ``SIGNALS``; the run ends once :class:`~lab.callbacks.checkpoints.Checkpoints` has saved.

    Lightning and submitit act within the signal handler, in the middle of a step or a validation. Here a signal waits
    until a resumed run would equal an uninterrupted one: between two batches, or after a validation. Then submitit's
    handler of SIGUSR2 is called, which requeues the job. A second Ctrl-C does not wait.

    As a ``Checkpoint`` it is called after all other callbacks; in their list it belongs after ``Checkpoints``.

    Args:
        force: the run was begun by ``force=true``, which would begin it anew.

    Attributes:
        told: the signal that this process got; None before one.
        leaving: the signal that rank 0 got, by which all processes end; None before one.
    """

    def __init__(self, force: bool = False) -> None:
        self._same = "the same command without force=true" if force else "the same command"
        self.told: int | None = None
        self.leaving: int | None = None
        # Handlers from before Lightning's own, which would save in the middle of a step and into another folder.
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._process = os.getpid()
        for number in filter(hears, SIGNALS):
            signal.signal(number, self._note)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.leaving and goes_on_after(trainer, batch_idx):
            self._leave(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A run that ends with this epoch ends by itself, and is finished.
        if self.leaving and not ends_with_this_epoch(trainer):
            self._leave(trainer)

    def put_back(self) -> None:
        """Sets the handlers from before the run again: Lightning does not where a logger fails at the end."""
        put_back({number: handler for number, handler in self._before.items() if hears(number) and handler is not None})

    def end_if_told(self) -> None:
        """Ends the program if a run finished although a signal told it to end: no other run may begin.

        Raises:
            SystemExit: after Ctrl-C or SIGTERM; the other signals requeue a job, which a finished run does not need.
        """
        if self.told in (signal.SIGINT, signal.SIGTERM):
            raise _ended_by(self.told, "the run had already finished")

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """Ends the program as it was told to where torch.compile fails in the block: its compiler got the signal, too.

        Raises:
            SystemExit: in place of the compiler's error, if Ctrl-C or SIGTERM came before it.
        """
        try:
            yield
        except Exception as error:
            if self.told not in (signal.SIGINT, signal.SIGTERM) or not type(error).__module__.startswith("torch._"):
                raise
            raise _ended_by(self.told, "ended while it compiled; the same command trains what is left") from error

    def _note(self, number: int, frame: Any) -> None:
        # SIGTERM follows at the time limit itself; the signal before it still counts, since it requeues the job.
        self.told = self.told or number
        if number == signal.SIGINT:
            signal.signal(number, _end_at_once)
            if os.getpid() != self._process:
                return  # a process that loads data, forked from this one, which the terminal tells, too
            say_at_once("Ctrl-C: the run saves before it goes; Ctrl-C again ends it at once")

    def _leave(self, trainer: L.Trainer) -> NoReturn:
        assert self.leaving is not None
        ended = _ended_by(self.leaving, f"saved at step {trainer.global_step}, from where {self._same} goes on")
        if not trainer.is_global_zero:
            raise SystemExit(0)  # a failure status would have rank 0 killed before it is done
        before = self._before[signal.Signals(self.leaving)]
        if self.leaving not in (signal.SIGINT, signal.SIGTERM) and callable(before):
            try:
                before(self.leaving, None)
            except CalledProcessError as error:
                # SLURM ends all processes of a job that it queues again, often before scontrol, which asked, is done.
                if error.returncode >= 0:
                    raise
            except RuntimeError as error:  # submitit's: hydra.launcher.max_num_timeout is reached
                if slurm.NOT_QUEUED_AGAIN not in str(error):
                    raise
                tell(first_line(error))
        raise ended


def _ended_by(number: int, what: str) -> Ended:
    """Tells what a signal has done; returns the end of the program by it."""
    ended = Ended(number, f"{signal_name(number)}: {what}")
    tell(ended.told)
    return ended


def _end_at_once(number: int, frame: Any) -> NoReturn:
    # Not KeyboardInterrupt, which Lightning turns into exit status 1, as of an error.
    raise Ended(number)
