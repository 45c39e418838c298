"""Loaders whose batches are a pure function of (seed, epoch, step, rank), also when resumed mid-epoch."""

from __future__ import annotations

import copy
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, ClassVar, Self, TypedDict

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lab.console import LabError, blamed
from lab.signals import obey_only_the_parent

# Label where nothing is asked: some samples of a batch may ask for fewer answers than others.
IGNORED = -100


class Batch(TypedDict):
    """B samples as a model is trained on them.

    Keys:
        x: the model's input, a tensor [B, ...] or a tuple of tensors.
        y: labels, [B] int64; with several answers a sample [B, M], ``IGNORED`` where there is none.
        latents: hidden variables that each sample was made from, name -> [B] int64.
    """

    x: Any
    y: Tensor
    latents: dict[str, Tensor]


# What a loader hands over; DataModule.on_after_batch_transfer makes a Batch of it, on the training device.
Drawn = Mapping[str, Any]


class StepSampler(Sampler[tuple[int, int]]):
    """Yields (epoch, step) for one epoch, from the step that training has reached.

    Lightning calls ``set_epoch``. The first step is asked for at the first ``next`` (see :class:`StepLoader`).
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
        with blamed(f"drawing a batch fails (step {index[1]} of epoch {index[0]}, both from 0)"):
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
            worker_init_fn=_lives_until_saved,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Opens the epoch at the first ``next``, when its number and the step that it had come to are known.

        Once open, worker processes draw ahead; Lightning opens the epoch of a resumed run before it knows either.
        """

        def opened() -> Iterator[Any]:
            yield from super(StepLoader, self).__iter__()

        return opened()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


def _lives_until_saved(worker: int) -> None:
    """Makes a process that loads data live until the training, told to end, has saved."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, which tells the training, too
    obey_only_the_parent()


class DataModule(L.LightningDataModule, ABC):
    """Data of an experiment: draws fresh training batches and one fixed validation set, shared out over processes.

    A subclass draws them. What it does not tell about its samples (locations, class names, regions, the plateau,
    pictures) is left out of metrics and pictures.

    Attributes:
        batch_size: samples of a training batch of one process.
        validation_size: samples of the fixed validation set, which diagnostics see; further batches may follow, which
            count for accuracies of other names only (:meth:`scored`).
        epoch_size: samples of an epoch over all processes; not needed if :meth:`train_dataloader` is overridden.
        locations: names of what the latent ``target_location`` chooses between.
        unit: what samples are called where they are counted.
        ragged: True where samples differ in length: two seeds' batches differ in shape, and labels may be ``IGNORED``.
            Where labels may be so in batches of one shape, :attr:`ignores` alone is True.
    """

    unit: str = "samples"
    batch_size: int
    validation_size: int
    epoch_size: Any
    locations: tuple[str, ...] = ()
    ragged: ClassVar[bool] = False

    # Number of processes that train, and of this one, where no trainer tells them.
    _place = (1, 0)

    def __getstate__(self) -> dict[str, Any]:
        """The data without their trainer, for a process that loads them and is not forked: it gets a pickle of them."""
        return {**vars(self), "trainer": None, "_place": (self.world_size, self.rank)}

    def __repr__(self) -> str:
        """The class and its sizes, as far as they are known before the data are loaded."""
        known = {name: vars(self).get(name) for name in ("batch_size", "validation_size", "epoch_size", "epoch_steps")}
        told = ", ".join(f"{name}={value}" for name, value in known.items() if value is not None)
        return f"{type(self).__name__}({told})"

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels; those of images may be known only once the images are loaded."""
        return ()

    @property
    def latent_names(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the values of latents: latent -> one name per value, from 0 on; no latent without names."""
        return {}

    def alone(self) -> Self:
        """The same data, as a process that trains alone draws them: each process the whole set."""
        alone = copy.copy(self)
        alone.trainer, alone._place = None, (1, 0)
        return alone

    def share(self, other: DataModule) -> None:
        """Takes over what ``other``, the same data with another seed, has loaded or will load, such as images."""

    @property
    def ignores(self) -> bool:
        """True if labels may be ``IGNORED``."""
        return self.ragged

    def kept(self) -> Mapping[str, str]:
        """Files for the run folder that are made of the data and needed to read them again: name -> text."""
        return {}

    def remarks(self) -> list[str]:
        """Sentences to tell when training begins: what of the data is left out, and why."""
        return []

    @abstractmethod
    def model_arguments(self) -> dict[str, int]:
        """Facts that the model has to know, by the names of its arguments; ``num_classes`` among them."""

    @abstractmethod
    def draw_train(self, epoch: int, step: int) -> Drawn:
        """One training batch of this process; a pure function of its place in training."""

    @abstractmethod
    def draw_validation(self, index: int) -> Drawn:
        """Validation batch ``index`` of the fixed set."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Batch:
        """The batch of what was drawn, on the device that it is on."""
        return batch

    @cached_property
    def fingerprint(self) -> Tensor:
        """Means of the samples of both :meth:`first_batches` and of their labels, [samples, parts] float64.

        The same data have the same fingerprint wherever they lie, and other data another, whatever their files are
        called. Compare it up to rounding, which differs between kinds of processors.
        """
        # Without a trainer: as a process that trains alone draws them, so that all processes have one fingerprint.
        trainer, self.trainer = self.trainer, None
        try:
            return torch.cat([means_of(batch) for batch in self.first_batches()])
        finally:
            self.trainer = trainer

    def first_batches(self) -> tuple[Batch, Batch]:
        """The first batches of validation and of training, by which data are known again and checked.

        A subclass whose samples are slow to make gives fewer.
        """
        drawn = self.draw_validation(0), self.draw_train(0, 0)
        validation, training = (self.on_after_batch_transfer(one, 0) for one in drawn)
        return validation, training

    @property
    def accuracies(self) -> tuple[str, ...]:
        """Names of the accuracies that validation logs as ``val/accuracy_<name>``, beside that of all samples."""
        return self.locations

    def scored(self, logits: Tensor, batch: Batch) -> Mapping[str, tuple[Tensor, Tensor, Tensor | None]]:
        """Name of an accuracy -> (logits [b, classes], labels [b], which of them count (bool [b]; None: all)).

        The name "" is for ``val/accuracy`` and ``val/loss``. By default these are of all samples, and each location has
        an accuracy of its own. A mask tells which samples count: to select them, the processor would wait for a GPU.
        """
        y, where = batch["y"], batch["latents"].get("target_location")
        places = {} if where is None else {name: where == index for index, name in enumerate(self.locations)}
        return {"": (logits, y, None)} | {name: (logits, y, counted) for name, counted in places.items()}

    def regions(self, batch: Batch) -> dict[str, Tensor]:
        """Places of the parts of each sample: name -> bool, [B, tokens] or [B, rows, columns] of a grid."""
        return {}

    def token_names(self, batch: Batch, sample: int) -> list[str]:
        """Names of the tokens of one sample of a batch, for pictures: words of a text; [] where they have none."""
        return []

    def composed(self, drawn: Drawn, normalise: bool = True) -> Batch | None:
        """The batch with pictures as ``x``, colours in [0, 1] unless normalised; None of data without pictures."""
        return None

    @property
    def samples_per_batch(self) -> int:
        """Training samples of one batch over all processes."""
        return self.batch_size * self.world_size

    @property
    def world_size(self) -> int:
        """Number of processes that train."""
        return self.trainer.world_size if self.trainer else self._place[0]

    @property
    def rank(self) -> int:
        """Number of this process, from 0 on."""
        return self.trainer.global_rank if self.trainer else self._place[1]

    def prior_accuracy(self) -> float | None:
        """The plateau of the validation set (:func:`lab.datasets.prior.prior_accuracy`); None without two steps."""
        return None

    def prior_loss(self) -> float | None:
        """The plateau of the validation loss: of one who knows only how often each answer is; None if unknown."""
        return None

    def steps_of(self, epoch_size: int) -> int:
        """Whole steps of an epoch of ``epoch_size`` samples over all processes.

        Raises:
            ValueError: if there is no whole step.
        """
        steps = epoch_size // self.samples_per_batch
        if steps < 1:
            raise ValueError(
                f"data.epoch_size ({epoch_size}) is smaller than one batch of all processes "
                f"({self.samples_per_batch}): lower data.batch_size or raise data.epoch_size"
            )
        return steps

    def validation_batches(self, batch_size: int) -> range:
        """Numbers of all batches of the fixed set, cut into batches of ``batch_size``."""
        return range(-(-self.validation_size // batch_size))

    def validation_samples(self, index: int, batch_size: int) -> range:
        """Numbers of the samples of validation batch ``index``; the last batch may be smaller."""
        return range(self.validation_size)[index * batch_size : (index + 1) * batch_size]

    def train_dataloader(self) -> StepLoader:
        return self.training_loader(self.steps_of(self.epoch_size))

    def val_dataloader(self) -> StepLoader:
        return self.validation_loader(self.batch_size)

    def training_loader(self, steps: int, workers: int = 0) -> StepLoader:
        """An epoch of ``steps`` batches, from the step that training has reached."""
        return StepLoader(self.draw_train, steps, lambda: step_reached(self.trainer), workers)

    def validation_loader(self, batch_size: int, workers: int = 0) -> StepLoader:
        """This process's batches of the fixed set, which is cut into batches of ``batch_size``."""
        batches = self.validation_batches(batch_size)
        if len(batches) < self.world_size:
            raise LabError(
                f"{self.world_size} processes cannot share a validation set of {len(batches)} "
                f"batch{'es' if len(batches) > 1 else ''} of {batch_size}: give a larger data.validation_size, or a "
                "smaller data.batch_size"
            )
        mine = batches[self.rank :: self.world_size]
        # No lambda: worker processes need a function that can be pickled.
        return StepLoader(partial(self._draw_one_of, mine), len(mine), workers=workers)

    def _draw_one_of(self, batches: range, epoch: int, step: int) -> Drawn:
        return self.draw_validation(batches[step])


def parts_of(x: Any) -> list[Any]:
    """All that a model's input consists of, in mappings and sequences of any depth: tensors, if it is right."""
    if isinstance(x, Mapping | tuple | list):
        return [part for one in (x.values() if isinstance(x, Mapping) else x) for part in parts_of(one)]
    return [x]


def means_of(batch: Batch) -> Tensor:
    """Mean of each sample over each tensor of the model's input, and over its labels, [B, parts] float64."""
    parts = [*parts_of(batch["x"]), batch["y"]]
    return torch.stack([part.flatten(1).double().mean(1) if part.ndim > 1 else part.double() for part in parts], dim=1)


def data_of(trainer: Any) -> DataModule:
    """The data module that a trainer fits. Lightning attaches it when fitting begins; its types do not know it."""
    return trainer.datamodule


def step_reached(trainer: Any) -> int:
    """Batches of the current epoch that ``trainer`` has already trained on; 0 without a trainer."""
    if trainer is None:
        return 0
    return int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)
