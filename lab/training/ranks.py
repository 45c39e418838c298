"""Processes of other ranks, which Lightning starts as children of rank 0: they end with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import lightning as L

from lab.signals import surely
from lab.training.lightning_internals import end_other_ranks
from lab.training.processes import RANK_0


@contextmanager
def named_rank_0() -> Iterator[None]:
    """Tells the processes that Lightning starts within the block which process is rank 0."""
    try:
        os.environ[RANK_0] = str(os.getpid())
        yield
    finally:
        surely(lambda: os.environ.pop(RANK_0, None))


class OtherRanks(L.Callback):
    """Ends the processes that Lightning has started, once this one fails or is told to end.

    They would wait for it, and report as an error of their own that it is gone.
    """

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        end_other_ranks(trainer)
