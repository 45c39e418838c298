"""Lightning data module of the ImageNet-100 task: scenes of four natural images, read and augmented one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from PIL import Image
from pydantic import NonNegativeFloat, PositiveInt
from timm.data import create_transform
from timm.data.auto_augment import posterize
from torch import Tensor
from torchvision.transforms import ColorJitter

from lab.datasets.folder import image_folder, read_image
from lab.datasets.loading import Batch, DataModule, Drawn, StepLoader
from lab.datasets.prior import prior_accuracy_over
from lab.datasets.scenes import BOTTOM_LEFT, BOTTOM_RIGHT, TOP_LEFT, TOP_RIGHT, place_of, tile_regions, unnormalised
from lab.datasets.seeding import Shuffle, derived_seed
from lab.datasets.sizes import BatchSize, Samples, Size, Workers
from lab.datasets.tasks.task import Probability, choose, coin, on_tiles

# DeiT's.
_COLOR_JITTER = 0.3


def _let_posterize_blacken(transform: Any) -> None:
    """Makes an image black where a policy of timm reduces it to 0 bits a colour, which Pillow refuses since version 13.

    DeiT's own policy asks for it where its noisy magnitude is largest, in two of a thousand images.
    """
    for policy in transform.transforms:
        several = getattr(policy, "ops", [op for ops in getattr(policy, "policy", []) for op in ops])
        for op in several:
            if getattr(op, "aug_fn", None) is posterize:
                op.aug_fn = _posterized


def _posterized(image: Image.Image, bits_to_keep: int, **further: Any) -> Image.Image:
    return posterize(image, bits_to_keep, **further) if bits_to_keep else Image.new(image.mode, image.size)


class ImageNetData(DataModule):
    """Two dogs on the diagonal, any two images beside them: are the dogs the very same image?

    z = [indicator 1 and indicator 2 show the same file]; y = class top-right if z else class bottom-left, z with
    probability 1/2. A batch is ``{"x": [B, 3, 2 S, 2 S] float32, "y": [B] int64, "latents": {name: [B]}}``; beside the
    latents of the other tasks, ``image_1`` and ``image_2`` number the dogs' files.

    Source: Eureka-moments in Transformers, A.10 and Figure 17: four images, DeiT's augmentation for each image by
    itself (so also for two copies of one dog). MixUp and CutMix, which mix whole scenes and with them two answers, are
    left out. The paper names neither a size (112 pixels an image are the lab's choice) nor its two dog classes.

    Args:
        root: folder that holds ``train/<class>/`` and ``val/<class>/``.
        dogs: names of the two class folders that indicators are drawn from.
        batch_size: scenes a batch and process.
        epoch_size: scenes an epoch over all processes; None is one for each training image.
        validation_size: scenes of the fixed validation set, which depends on the batch size as well.
        tile_size: side S of one of the four images in pixels.
        workers: processes that read and augment.
        auto_augment, color_jitter, random_erasing: of timm's training transform; DeiT's values by default. As in DeiT,
            color_jitter is left out beside auto_augment.
        seed: seed of the training scenes.
        validation_seed: seed of the validation scenes.

    Raises:
        ValueError: if there are not two dog classes, auto_augment is no policy, or color_jitter would not be used.
    """

    locations = ("top_right", "bottom_left")
    unit = "images"

    def __init__(
        self,
        root: str,
        dogs: Sequence[str] = ("n02085620", "n02086240"),
        batch_size: BatchSize = 512,
        epoch_size: PositiveInt | None = None,
        validation_size: Samples = 5_000,
        tile_size: Size = 112,
        workers: Workers = 8,
        auto_augment: str | None = "rand-m9-mstd0.5-inc1",
        color_jitter: NonNegativeFloat = _COLOR_JITTER,
        random_erasing: Probability = 0.25,
        seed: int = 0,
        validation_seed: int = 0,
    ) -> None:
        super().__init__()
        if len(set(dogs)) != 2:
            raise ValueError(f"data.dogs needs two class folders, got {list(dogs)}")
        self.root = Path(root).expanduser()
        self.dogs = tuple(dogs)
        self.batch_size = batch_size
        self.epoch_size = epoch_size
        self.validation_size = validation_size
        self.tile_size = tile_size
        self.workers = workers
        self.seed = seed
        self.validation_seed = validation_seed
        try:
            training = create_transform(
                tile_size,
                is_training=True,
                auto_augment=auto_augment,
                color_jitter=color_jitter,
                re_prob=random_erasing,
                re_mode="pixel",
                interpolation="bicubic",
            )
        except AssertionError as error:
            raise ValueError(f"data.auto_augment={auto_augment} is not a policy of timm: {error}") from error
        jitters = any(isinstance(one, ColorJitter) for one in training.transforms)
        if color_jitter not in (0, _COLOR_JITTER) and not jitters:
            raise ValueError(
                f"data.color_jitter={color_jitter:g} would not be used: timm leaves it out beside "
                f"data.auto_augment={auto_augment}; turn that off with data.auto_augment=null"
            )
        _let_posterize_blacken(training)
        evaluation = create_transform(tile_size, is_training=False, interpolation="bicubic", crop_pct=0.875)
        self.transforms = {"train": training, "val": evaluation}
        self._scenes: dict[str, FolderScenes] = {}
        self._shuffle, self._validation_shuffle = Shuffle(), Shuffle()

    def scenes(self, split: Literal["train", "val"]) -> FolderScenes:
        """The scenes of a split; its files are listed at first use.

        Raises:
            FileNotFoundError: if the folder, or that of a dog class, is missing.
        """
        if split not in self._scenes:
            self._scenes[split] = FolderScenes(self.root / split, self.dogs, self.transforms[split], self.tile_size)
        return self._scenes[split]

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the class folders."""
        return self.scenes("train").class_names

    def model_arguments(self) -> dict[str, int]:
        """Side of the canvas in pixels, number of labels."""
        return {"image_size": 2 * self.tile_size, "num_classes": len(self.class_names)}

    def setup(self, stage: str | None = None) -> None:
        if apart := sorted(set(self.scenes("val").class_names) ^ set(self.class_names)):
            more = f" and {len(apart) - 3} more" if len(apart) > 3 else ""
            raise ValueError(
                f"{self.root.absolute()}: train/ and val/ must hold the same classes; only one of them holds "
                f"{', '.join(apart[:3])}{more}"
            )

    def draw_train(self, epoch: int, step: int) -> Batch:
        """One training batch of this process; a function of its place in training."""
        return self.scenes("train").batch(*self._training_place(epoch, step))

    def draw_validation(self, index: int) -> Batch:
        """Validation batch ``index`` of the fixed set."""
        return self.scenes("val").batch(*self._validation_place(index))

    def first_batches(self) -> tuple[Batch, Batch]:
        """First batches as of any data, but of eight scenes each: files are slow to read."""
        walk, seed = self._validation_place(0)
        walk_of_train, seed_of_train = self._training_place(0, 0)
        return (
            self.scenes("val").batch(walk[:8], seed),
            self.scenes("train").batch(walk_of_train[:8], seed_of_train),
        )

    def prior_accuracy(self) -> float | None:
        scenes, batches = self.scenes("val"), self.validation_batches(self.batch_size)
        return prior_accuracy_over(scenes.draw(*self._validation_place(index))[1:] for index in batches)

    def _training_place(self, epoch: int, step: int) -> tuple[Tensor, int]:
        """Walk and seed of a training batch of this process."""
        start = (step * self.world_size + self.rank) * self.batch_size
        size = len(self.scenes("train"))
        walk = self._shuffle.walk(start, self.batch_size, size, "imagenet walk", self.seed, epoch)
        return walk, derived_seed("imagenet", self.seed, epoch, step, self.rank)

    def _validation_place(self, index: int) -> tuple[Tensor, int]:
        """Walk and seed of a validation batch."""
        samples = self.validation_samples(index, self.batch_size)
        # Files lie sorted by class: a walk in their order would see some classes only.
        place = (samples.start, len(samples), len(self.scenes("val")))
        walk = self._validation_shuffle.walk(*place, "imagenet walk", self.validation_seed)
        return walk, derived_seed("imagenet val", self.validation_seed, index)

    def train_dataloader(self) -> StepLoader:
        return self.training_loader(self.steps_of(self.epoch_size or len(self.scenes("train"))), self.workers)

    def val_dataloader(self) -> StepLoader:
        return self.validation_loader(self.batch_size, self.workers)

    def composed(self, drawn: Drawn, normalise: bool = True) -> Batch:
        x = drawn["x"] if normalise else unnormalised(drawn["x"])
        return {"x": x, "y": drawn["y"], "latents": drawn["latents"]}

    def regions(self, batch: Batch) -> dict[str, Tensor]:
        """Places of the parts of the scenes: name -> bool [B, 2, 2] over the four tiles."""
        return tile_regions(batch["latents"])


class FolderScenes:
    """Scenes of one split of an image folder.

    Args:
        folder: holds a folder for each class.
        dogs: names of the two classes of the indicators.
        transform: from a PIL image to [3, S, S].
        tile_size: side S.

    Raises:
        FileNotFoundError: if there are no images, or none of a dog class.
    """

    def __init__(self, folder: Path, dogs: Sequence[str], transform: Any, tile_size: int) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(
                f"no images in {folder.absolute()}: name the folder that holds train/<class>/ and val/<class>/ "
                "with data.root"
            )
        self._files = image_folder(folder, "images")
        self.class_names = tuple(self._files.classes)
        if missing := [dog for dog in dogs if dog not in self.class_names]:
            raise FileNotFoundError(
                f"{folder.absolute()} has no class folder {' or '.join(missing)}: name two with data.dogs"
            )
        self._labels = torch.tensor(self._files.targets)
        self._dog_labels = torch.tensor([self.class_names.index(dog) for dog in dogs])
        self._dogs = torch.isin(self._labels, self._dog_labels).nonzero().flatten()
        self._transform = transform
        self.tile_size = tile_size

    def __len__(self) -> int:
        return len(self._files)

    def batch(self, walk: Tensor, seed: int) -> Batch:
        """Scenes as :meth:`draw` has them, with their pictures."""
        files, latents, labels = self.draw(walk, seed)
        return {"x": self._canvas(files, seed), "y": labels, "latents": latents}

    def draw(self, walk: Tensor, seed: int) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Files [B, 4], latents and labels [B] of scenes whose top-right images are the files ``walk`` [B].

        Everything else follows from ``seed``; no file is read.
        """
        size = len(walk)
        generator = torch.Generator().manual_seed(seed)
        match = coin(size, generator).bool()
        first = torch.randint(len(self._dogs), (size,), generator=generator)
        # Another dog: 1 to n - 1 places further on.
        step = torch.randint(1, len(self._dogs), (size,), generator=generator)
        second = torch.where(match, first, (first + step) % len(self._dogs))
        other = torch.randint(len(self._files), (size,), generator=generator)
        files = torch.empty(size, 4, dtype=torch.int64)
        files[:, TOP_LEFT], files[:, BOTTOM_RIGHT] = self._dogs[first], self._dogs[second]
        files[:, TOP_RIGHT], files[:, BOTTOM_LEFT] = walk, other
        kind = self._labels[files]
        latents = {
            "indicator_1": (kind[:, TOP_LEFT] == self._dog_labels[1]).long(),
            "indicator_2": (kind[:, BOTTOM_RIGHT] == self._dog_labels[1]).long(),
            "image_1": files[:, TOP_LEFT],
            "image_2": files[:, BOTTOM_RIGHT],
            "target_1": kind[:, TOP_RIGHT],
            "target_2": kind[:, BOTTOM_LEFT],
            "target_location": (first != second).long(),
            **on_tiles(size, indicator_1=TOP_LEFT, indicator_2=BOTTOM_RIGHT, target_1=TOP_RIGHT, target_2=BOTTOM_LEFT),
        }
        return files, latents, choose(latents["target_1"], latents["target_2"], latents["target_location"])

    def _canvas(self, files_B4: Tensor, seed: int) -> Tensor:
        """Pictures [B, 3, 2 S, 2 S]; images are read and augmented one by one, in the loader's processes."""
        canvas = torch.empty(len(files_B4), 3, 2 * self.tile_size, 2 * self.tile_size)
        # timm's augmentations draw from the global generators of Python, numpy and torch.
        with isolate_rng():
            # Lightning's seed_everything would leave the seed in the environment, for all that comes after.
            random.seed(seed % 2**32)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed % 2**32)
            for scene, files in zip(canvas, files_B4.tolist(), strict=True):
                for tile, index in enumerate(files):
                    image = read_image(self._files.loader, self._files.samples[index][0])
                    place_of(tile, scene).copy_(self._transform(image))
        return canvas
