"""Lightning data module of the indicator-target vision tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor

from lab.datasets.loading import Batch, DataModule, Drawn, StepLoader
from lab.datasets.prior import prior_accuracy_over
from lab.datasets.scenes import ImageBank, compose, tile_regions
from lab.datasets.seeding import Shuffle, generator_of
from lab.datasets.sizes import BatchSize, Samples, Size
from lab.datasets.sources import Source, Split
from lab.datasets.tasks.check import check_definition, check_scenes
from lab.datasets.tasks.task import Task, sources_of


class VisionData(DataModule):
    """Fresh training scenes without end and one fixed set of validation scenes, composed on the training device.

    A batch is ``{"x": [B, 3, H, W] float32, "y": [B] int64, "latents": {name: [B] int64}}``. The loader only
    draws random numbers on the CPU, from (seed, epoch, step, rank); pixels are gathered and coloured in
    :meth:`on_after_batch_transfer`, where the source images live as uint8.

    Args:
        task: sampler and rule.
        source: name -> source of images, as the task names them.
        batch_size: scenes a batch and process.
        epoch_size: scenes an epoch over all processes (60,000 in the paper; the last partial batch is left out).
        validation_size: scenes of the fixed validation set (10,000 in the paper), from the test split.
        tile_size: side of one of the four tiles in pixels; the canvas is twice as wide.
        seed: seed of the training scenes.
        validation_seed: seed of the validation scenes, which are the same for all runs with the same validation batch
            size, so that seeds are comparable.
        validation_batch_size: scenes a validation batch; None is twice ``batch_size`` (no gradients).
        repeats: training scenes in a row that show the same image of the walk through ``task.label_source``, with
            everything else drawn anew; 3 is the repeated augmentation of DeiT (Touvron et al. 2021; Hoffer et al.
            2020), None is 1. An epoch has as many scenes as without, of fewer images.

    Raises:
        ValueError: if an epoch is shorter than one batch of all processes, or the task is wrong
            (:mod:`lab.datasets.tasks.check`); :meth:`setup` tells what only scenes can show.
    """

    unit = "images"

    def __init__(
        self,
        task: Task,
        source: Mapping[str, Source],
        batch_size: BatchSize = 512,
        epoch_size: PositiveInt = 60_000,
        validation_size: Samples = 10_000,
        tile_size: Size = 28,
        seed: int = 0,
        validation_seed: int = 0,
        validation_batch_size: BatchSize | None = None,
        repeats: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        check_definition(task, source)
        self.task = task
        self.locations = tuple(task.locations)
        # Images that the task never shows need not be there.
        self.source = sources_of(task, source)
        self.batch_size = batch_size
        self.epoch_size = epoch_size
        self.validation_size = validation_size
        self.validation_batch_size = validation_batch_size or 2 * batch_size
        self.tile_size = tile_size
        self.seed = seed
        self.validation_seed = validation_seed
        self.repeats = repeats or 1
        self.banks: dict[Split, ImageBank] = {}
        self._pixels: dict[tuple[Split, torch.device], Tensor] = {}
        self._shuffle, self._validation_shuffle = Shuffle(), Shuffle()
        self.steps_of(epoch_size)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels; known after :meth:`setup`."""
        return self.task.label_names(self.bank("train").class_names)

    def model_arguments(self) -> dict[str, int]:
        """Side of the canvas in pixels, number of labels."""
        return {"image_size": 2 * self.tile_size, "num_classes": len(self.class_names)}

    def share(self, other: DataModule) -> None:
        """Takes over the images of ``other``, also those it is yet to load."""
        assert isinstance(other, VisionData)
        self.banks, self._pixels = other.banks, other._pixels

    def setup(self, stage: str | None = None) -> None:
        names, others = self.bank("train").class_names, self.bank("test").class_names
        if unlike := [source for source, classes in names.items() if others[source] != classes]:
            raise ValueError(f"train and test images of the source {unlike[0]!r} are of different classes")
        for split in ("train", "test"):
            check_scenes(self.task, self.bank(split))

    def bank(self, split: Split) -> ImageBank:
        """The images of a split, loaded at first use."""
        if split not in self.banks:
            images = {name: source.load(split) for name, source in self.source.items()}
            self.banks[split] = ImageBank(images, self.tile_size)
        return self.banks[split]

    def val_dataloader(self) -> StepLoader:
        return self.validation_loader(self.validation_batch_size)

    def draw_train(self, epoch: int, step: int) -> Drawn:
        """The draws of one training batch of this process; a pure function of its place in training."""
        size = self.bank("train").size(self.task.label_source)
        start = (step * self.world_size + self.rank) * self.batch_size
        first, skipped = divmod(start, self.repeats)
        images = -(-(skipped + self.batch_size) // self.repeats)
        walk = self._shuffle.walk(first, images, size, "walk", self.seed, epoch).repeat_interleave(self.repeats)
        walk = walk[skipped : skipped + self.batch_size]
        return self._draw("train", walk, generator_of("train", self.seed, epoch, step, self.rank))

    def draw_validation(self, index: int) -> Drawn:
        """The draws of validation batch ``index`` of the fixed set, whatever the number of processes."""
        samples = self.validation_samples(index, self.validation_batch_size)
        walk = torch.tensor(samples)
        bank, source = self.bank("test"), self.task.label_source
        if bank.is_sorted(source):
            # As files in class folders are: a walk in their order would show some classes only.
            place = (samples.start, len(samples), bank.size(source))
            walk = self._validation_shuffle.walk(*place, "validation walk", self.validation_seed)
        return self._draw("test", walk, generator_of("validation", self.validation_seed, index))

    def prior_accuracy(self) -> float | None:
        drawn = map(self.draw_validation, self.validation_batches(self.validation_batch_size))
        return prior_accuracy_over((draws["latents"], self.task.label(draws["latents"])) for draws in drawn)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Batch:
        return self.composed(batch)

    def composed(self, drawn: Drawn, normalise: bool = True) -> Batch:
        """The batch of draws, on the device that the draws are on."""
        images, colors, latents = drawn["images"], drawn["colors"], drawn["latents"]
        x = compose(self._pixels_on(drawn["split"], images.device), images, colors, normalise)
        return {"x": x, "y": self.task.label(latents), "latents": latents}

    def regions(self, batch: Batch) -> dict[str, Tensor]:
        """Places of the parts of the scenes: name -> bool [B, 2, 2] over the four tiles."""
        return tile_regions(batch["latents"])

    def _draw(self, split: Split, walk: Tensor, generator: torch.Generator) -> Drawn:
        """The split, and what describes the scenes (:class:`~lab.datasets.scenes.Scenes`): small to transfer."""
        scenes = self.task.sample(self.bank(split), walk, generator)
        return {"split": split, **vars(scenes)}

    def _pixels_on(self, split: Split, device: torch.device) -> Tensor:
        key = (split, device)
        if key not in self._pixels:
            self._pixels[key] = self.bank(split).pixels.to(device)
        return self._pixels[key]
