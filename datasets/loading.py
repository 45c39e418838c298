"""Loaders whose batches are a pure function of (seed, epoch, step, rank), also when resumed mid-epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler


class StepSampler(Sampler[tuple[int, int]]):
    """Yields (epoch, step) for one epoch, from the step that training has reached.

    Lightning calls ``set_epoch``. The first step is asked for lazily, at the first ``next``: when a run is
    resumed, Lightning opens the iterator before it knows how far the epoch had come.
    """

    def __init__(self, steps: int, first_step: Callable[[], int] = lambda: 0) -> None:
        self.steps = steps
        self.epoch = 0
        self._first_step = first_step

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in range(self._first_step(), self.steps):
            yield self.epoch, step

    def __len__(self) -> int:
        return self.steps


class DrawnBatches(Dataset[Any]):
    """Batches by (epoch, step), made by a function."""

    def __init__(self, draw: Callable[[int, int], Any]) -> None:
        self._draw = draw

    def __getitem__(self, index: tuple[int, int]) -> Any:
        return self._draw(*index)


class StepLoader(DataLoader):
    """A loader of whole batches by (epoch, step).

    It is stateful in Lightning's sense, with nothing to keep: its place follows from the trainer's progress.
    With ``workers`` each process draws whole batches ahead; ``draw`` has to be picklable then.
    """

    def __init__(
        self,
        draw: Callable[[int, int], Any],
        steps: int,
        first_step: Callable[[], int] = lambda: 0,
        workers: int = 0,
    ) -> None:
        super().__init__(
            DrawnBatches(draw),
            batch_size=None,
            sampler=StepSampler(steps, first_step),
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


def step_reached(trainer: Any) -> int:
    """Batches of the current epoch that ``trainer`` has already trained on; 0 without a trainer."""
    if trainer is None:
        return 0
    return int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)
