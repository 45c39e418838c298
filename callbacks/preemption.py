"""Saves a run that is told to go: by Ctrl-C, near its time limit, cancelled, or queued again for another job's sake."""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from lab.console import hears, signal_name, tell

# Ctrl-C is SIGINT. SLURM sends SIGTERM to what it ends, and what sbatch --signal names before the time limit: SIGUSR2
# by submitit.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Preemption(Checkpoint):
    """Notes these signals; the run leaves once :class:`~lab.callbacks.checkpoints.Checkpoints` has saved.

    Lightning and submitit act within the signal handler, in the middle of a step or a validation. Here a signal waits
    for a moment from which a resumed run is equal to an undisturbed one: between two batches, or after a validation.
    What submitit has put in the place of SIGUSR2 is called then; it queues the job again. A second Ctrl-C does not
    wait.

    As a ``Checkpoint`` it comes after all other callbacks; it belongs behind ``Checkpoints`` in their list.

    Attributes:
        told: the signal, in this process.
        leaving: what rank 0 was told, for all processes.
    """

    def __init__(self) -> None:
        self.told: int | None = None
        self.leaving: int | None = None
        # Before Lightning's own, which would save in the middle of a step and into another folder.
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Lightning puts back what was there before it when the run ends.
        for number in filter(hears, SIGNALS):
            signal.signal(number, self._note)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        accumulating = (batch_idx + 1) % trainer.accumulate_grad_batches
        if self.leaving and not trainer.is_last_batch and not accumulating:
            self._leave(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A run that ends with this epoch ends by itself, and is finished.
        ends = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        if self.leaving and not ends:
            self._leave(trainer)

    def end_if_told(self) -> None:
        """Ends the program where a run came to its end after it was told to go: no other run begins.

        Raises:
            SystemExit: of Ctrl-C or SIGTERM; a run that has ended need not be queued again.
        """
        if self.told in (signal.SIGINT, signal.SIGTERM):
            tell(f"{signal_name(self.told)}: the run had come to its end")
            raise SystemExit(128 + self.told)

    def _note(self, number: int, frame: Any) -> None:
        # SIGTERM follows at the limit itself: what came before it still says to queue again.
        self.told = self.told or number
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
            # Written past Python's buffers, which the signal may have met half-way.
            os.write(2, b"\nCtrl-C: the run saves before it goes; Ctrl-C again ends it at once\n")

    def _leave(self, trainer: L.Trainer) -> NoReturn:
        assert self.leaving is not None
        tell(f"{signal_name(self.leaving)}: saved at step {trainer.global_step}, from where the same command goes on")
        if not trainer.is_global_zero:
            raise SystemExit(0)  # as a failure it would have rank 0 killed before that is done
        before = self._before[signal.Signals(self.leaving)]
        if self.leaving not in (signal.SIGINT, signal.SIGTERM) and callable(before):
            before(self.leaving, None)
        raise SystemExit(128 + self.leaving)
