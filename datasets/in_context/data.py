"""Lightning data module of in-context learning: what is the label of the last image, given those before it?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import psutil
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from lab.datasets.in_context.alphabets import Alphabets, Drawings
from lab.datasets.in_context.sequences import drawings_of, few_shot, training_classes, without_support, zipf
from lab.datasets.loading import Batch, DataModule, Drawn, StepLoader
from lab.datasets.prior import prior_accuracy_over
from lab.datasets.seeding import generator_of
from lab.datasets.sizes import BatchSize, Samples, Size
from lab.datasets.tasks.task import Probability

# At least two, so that a sequence can show classes other than the one that is asked for.
Rare = Annotated[int, Field(ge=2, le=1_000_000)]
# Colour of the query's paper in pictures for people.
QUERY_TINT = (1.0, 0.85, 0.6)
# As drawn and by quarter turns to the left; then the mirror image likewise.
TURNS = ("", " 90°", " 180°", " 270°", " ↔", " ↔ 90°", " ↔ 180°", " ↔ 270°")


class InContextData(DataModule):
    """Sequences of handwritten characters with their labels; the label of the last is asked for.

    A batch is ``{"x": (images [B, P + 1, 1, S, S] float32 in [0, 1], labels [B, P] int64), "y": [B] int64, "latents":
    ...}``. The loader draws indices of images on the CPU, from (seed, epoch, step, rank); the images themselves live
    on the training device as uint8, and are gathered there.

    Trains on sequences of the training classes, whose labels are fixed. Validates on few-shot sequences of the holdout
    classes, whose labels 0 ... ways - 1 are given anew in each sequence: accuracy is over all labels, and over these
    labels alone (``closed``). Further validation sequences are without support: they ask for a training class that the
    sequence does not show (``in_weights_common``, ``in_weights_rare``).

    Source: Eureka-moments in Transformers, section 5.3 and A.19; Chan et al. 2022.

    Args:
        alphabets: where drawings come from.
        image_size: side S of an image in pixels.
        symmetries: classes that a character gives: 1 as it is drawn, 4 with its quarter turns, 8 with those of its
            mirror image as well. The images are kept that many times.
        rare: characters to train on; None takes all that are left.
        common: further ones to train on, the most frequent where ``zipf_exponent`` is not 0.
        holdout: characters of the few-shot sequences, none of whose classes is trained on.
        class_seed: seed of the order of characters: the first are rare, the next common, the last held out.
        pairs: images with a label before the query, P.
        burstiness: share of training sequences that are bursty.
        ways, shots: classes that a bursty sequence shows several times, and how many times.
        few_shot_ways: classes of a few-shot sequence; it shows each of them P / ways times.
        zipf_exponent: of the frequencies of the training classes; 0 is uniform.
        batch_size: sequences a batch and process.
        epoch_steps: steps an epoch.
        validation_size: few-shot sequences of the fixed validation set.
        in_weights_size: validation sequences without support, half of which ask for common classes.
        validation_batch_size: sequences of a validation batch.
        seed: seed of the training sequences.
        validation_seed: seed of the validation sequences, which are the same for all runs with the same validation
            batch size.

    Raises:
        ValueError: if the ways do not fit into a sequence.
    """

    def __init__(
        self,
        alphabets: Alphabets,
        image_size: Size = 105,
        symmetries: Literal[1, 4, 8] = 1,
        rare: Rare | None = 1603,
        common: NonNegativeInt = 10,
        holdout: PositiveInt = 10,
        class_seed: int = 1337,
        pairs: Annotated[int, Field(gt=0, le=1000)] = 8,
        burstiness: Probability = 0.5,
        ways: PositiveInt = 2,
        shots: PositiveInt = 3,
        few_shot_ways: PositiveInt = 2,
        zipf_exponent: Annotated[float, Field(ge=0, le=10)] = 0.0,
        batch_size: BatchSize = 32,
        epoch_steps: PositiveInt = 5000,
        validation_size: Samples = 10_000,
        in_weights_size: NonNegativeInt = 2000,
        validation_batch_size: BatchSize = 250,
        seed: int = 0,
        validation_seed: int = 0,
    ) -> None:
        super().__init__()
        if ways * shots > pairs:
            raise ValueError(
                f"data.ways={ways} classes, shown data.shots={shots} times each, take more than data.pairs={pairs}"
            )
        if few_shot_ways < 2 or pairs % few_shot_ways:
            raise ValueError(f"data.few_shot_ways={few_shot_ways} must be 2 or more, and divide data.pairs={pairs}")
        if holdout * symmetries < few_shot_ways:
            # Classes are drawn with replacement: of fewer, too many sequences show one class under all labels.
            raise ValueError(
                f"data.holdout={holdout} characters make {holdout * symmetries} classes under data.symmetries="
                f"{symmetries}, fewer than data.few_shot_ways={few_shot_ways}: raise data.holdout"
            )
        self.alphabets = alphabets
        self.image_size = image_size
        self.symmetries = symmetries
        self.sizes = (rare, common, holdout)
        self.class_seed = class_seed
        self.pairs = pairs
        self.ways = ways
        self.shots = shots
        self.burstiness = burstiness
        self.few_shot_ways = few_shot_ways
        self.zipf_exponent = zipf_exponent
        self.batch_size = batch_size
        self.epoch_steps = epoch_steps
        self.validation_size = validation_size
        self.in_weights_size = in_weights_size
        self.validation_batch_size = validation_batch_size
        self.seed = seed
        self.validation_seed = validation_seed
        self.locations = tuple(f"class_{way + 1}" for way in range(few_shot_ways))
        self._on_device: dict[torch.device, Tensor] = {}

    def share(self, other: DataModule) -> None:
        """Takes over the drawings of ``other``."""
        assert isinstance(other, type(self))
        self.drawings, self._on_device = other.drawings, other._on_device

    @cached_property
    def drawings(self) -> Drawings:
        """Drawings of all classes by label, loaded at first use: rare ones, then common ones, then those held out.

        Raises:
            FileNotFoundError: if there are no drawings.
            ValueError: if there are too few for the sequences that are asked for, or too many for the memory.
        """
        found = self.alphabets.load(self.image_size, self._check_memory)
        rare, common, holdout = self.sizes
        left = len(found.names) - common - holdout
        if rare is None and left < 2:
            raise ValueError(
                f"data.common={common} and data.holdout={holdout} leave too few of the {len(found.names):,} characters "
                "to train on, where 2 at least are needed: lower them, or add characters"
            )
        if rare is not None and rare > left:
            raise ValueError(
                f"data.rare={rare}, data.common={common} and data.holdout={holdout} ask for "
                f"{rare + common + holdout:,} characters, and there are {len(found.names):,}: lower them "
                "(data.rare=null takes all that are left)"
            )
        order = torch.randperm(len(found.names), generator=generator_of("in_context classes", self.class_seed))
        chosen = torch.cat([order[: (rare or left) + common], order[-holdout:]])
        poorest = int(chosen[found.counts[chosen].argmin()])
        least = int(found.counts[poorest])
        if least <= self.pairs:
            few = int((found.counts <= self.pairs).sum())
            ways_out = ["add drawings"]
            if len(found.names) - few >= (rare or 2) + common + holdout:
                ways_out.append("take such characters out of the folder")
            if lower := (least - 1) // self.few_shot_ways * self.few_shot_ways:
                ways_out.append(f"lower data.pairs to {lower}")
            raise ValueError(
                f"a sequence of data.pairs={self.pairs} and a query may show {self.pairs + 1} drawings of one "
                f"character, and {few:,} of {len(found.names):,} characters {'has' if few == 1 else 'have'} fewer "
                f"({found.names[poorest]} has {least}): {', or '.join(ways_out)}"
            )
        pixels = symmetric(found.pixels, chosen, self.symmetries)
        names = tuple(f"{found.names[index]}{turn}" for index in chosen.tolist() for turn in TURNS[: self.symmetries])
        return Drawings(pixels, found.counts[chosen].repeat_interleave(self.symmetries), names)

    def _check_memory(self, characters: int, most: int) -> None:
        """Raises ValueError if images as read and, beside them, those of the classes do not fit into memory.

        It is the machine's free memory that counts: a lower limit of a container or a SLURM job is not known here.
        """
        rare, common, holdout = self.sizes
        chosen = characters if rare is None else min(rare + common + holdout, characters)
        needed = (characters + chosen * self.symmetries) * most * self.image_size**2
        if needed > (available := psutil.virtual_memory().available):
            raise ValueError(
                f"the images of {characters:,} characters take {needed / 2**30:,.1f} GiB of memory at data.image_size="
                f"{self.image_size} and data.symmetries={self.symmetries}, and {available / 2**30:,.1f} GiB are free: "
                f"lower data.image_size{' or data.symmetries' if self.symmetries > 1 else ''}"
            )

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Alphabet, character and symmetry of each class."""
        return self.drawings.names

    @property
    def rare(self) -> range:
        """Rare training classes."""
        return range(len(self.class_names) - (self.sizes[1] + self.sizes[2]) * self.symmetries)

    @property
    def common(self) -> range:
        """Common training classes."""
        return range(self.rare.stop, self.rare.stop + self.sizes[1] * self.symmetries)

    @property
    def holdout(self) -> range:
        """Classes that are not trained on."""
        return range(self.common.stop, len(self.class_names))

    @property
    def accuracies(self) -> tuple[str, ...]:
        return (*self.locations, "closed", *(f"in_weights_{kind}" for kind in self._asked_in_weights))

    def model_arguments(self) -> dict[str, int]:
        """Pairs before the query, number of labels."""
        return {"pairs": self.pairs, "num_classes": len(self.class_names)}

    def draw_train(self, epoch: int, step: int) -> Drawn:
        """The draws of one training batch of this process; a pure function of its place in training."""
        generator = generator_of("in_context", self.seed, epoch, step, self.rank)
        classes, bursty = training_classes(
            self.batch_size, self._weights, self.pairs, self.ways, self.shots, self.burstiness, generator
        )
        return self._drawn(classes, classes, {"bursty": bursty.long()}, generator)

    def draw_validation(self, index: int) -> Drawn:
        """The draws of validation batch ``index``: first come all few-shot batches, then those without support."""
        generator = generator_of("in_context validation", self.validation_seed, index)
        if size := len(self.validation_samples(index, self.validation_batch_size)):
            shots = few_shot(size, self.holdout, self.pairs, self.few_shot_ways, generator)
            targets = {f"target_{way + 1}": label for way, label in enumerate(shots.shown.unbind(1))}
            return self._drawn(shots.classes, shots.labels, {**targets, "target_location": shots.asked}, generator)
        start = (index - self._few_shot_batches) * self.validation_batch_size
        kinds = list(self._asked_in_weights.values())
        kind = torch.arange(start, min(start + self.validation_batch_size, self.in_weights_size)) % len(kinds)
        asked = torch.stack([torch.randint(own.start, own.stop, kind.shape, generator=generator) for own in kinds])
        query = asked.gather(0, kind.unsqueeze(0)).squeeze(0)
        classes = without_support(query, self._weights, self.pairs, generator)
        return self._drawn(classes, classes, {"kind": kind}, generator)

    def validation_batches(self, batch_size: int) -> range:
        """Numbers of the few-shot batches, then of those without support."""
        return range(self._few_shot_batches - (-self.in_weights_size // batch_size))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Batch:
        images, labels = batch["images"], batch["labels"]
        x = self._pixels_on(images.device).index_select(0, images.flatten()).unflatten(0, images.shape)
        return {
            "x": (x.unsqueeze(2).float().div_(255.0), labels[:, :-1]),
            "y": labels[:, -1],
            "latents": batch["latents"],
        }

    def scored(self, logits: Tensor, batch: Batch) -> Mapping[str, tuple[Tensor, Tensor, Tensor | None]]:
        kind, y = batch["latents"].get("kind"), batch["y"]
        if kind is None:
            closed = logits[:, : self.few_shot_ways]
            return {**super().scored(logits, batch), "closed": (closed, y, None)}
        names = [f"in_weights_{name}" for name in self._asked_in_weights]
        return {name: (logits, y, kind == index) for index, name in enumerate(names)}

    def regions(self, batch: Batch) -> dict[str, Tensor]:
        """Tokens of the pairs that have the answer's label, and of the others: name -> bool [B, 2 P + 1]."""
        support = batch["x"][1] == batch["y"].unsqueeze(1)
        none = torch.zeros_like(support)
        pairs = {
            "support_images": (support, none),
            "support_labels": (none, support),
            "other_images": (~support, none),
            "other_labels": (none, ~support),
        }
        return {name: F.pad(torch.stack(both, 2).flatten(1), (0, 1)) for name, both in pairs.items()}

    def composed(self, drawn: Drawn, normalise: bool = True) -> Batch:
        """The batch of draws; unless ``normalise``, ``x`` is a picture: all images in rows, the query tinted."""
        batch = self.on_after_batch_transfer(drawn, 0)
        if normalise:
            return batch
        images = F.pad(batch["x"][0], (1, 1, 1, 1), value=0.7).repeat(1, 1, 3, 1, 1)
        images[:, -1] *= torch.tensor(QUERY_TINT, device=images.device).view(3, 1, 1)
        columns = math.ceil(math.sqrt(images.shape[1]))
        blank = images.new_ones(len(images), -images.shape[1] % columns, *images.shape[2:])
        rows = torch.cat([images, blank], 1).unflatten(1, (-1, columns))
        return {**batch, "x": rows.permute(0, 3, 1, 4, 2, 5).flatten(2, 3).flatten(3, 4)}

    def prior_accuracy(self) -> float | None:
        drawn = map(self.draw_validation, range(self._few_shot_batches))
        return prior_accuracy_over((part["latents"], part["labels"][:, -1]) for part in drawn)

    def train_dataloader(self) -> StepLoader:
        return self.training_loader(self.epoch_steps)

    def val_dataloader(self) -> StepLoader:
        return self.validation_loader(self.validation_batch_size)

    @property
    def _few_shot_batches(self) -> int:
        return -(-self.validation_size // self.validation_batch_size)

    @property
    def _asked_in_weights(self) -> dict[str, range]:
        """Kinds of classes that sequences without support ask for."""
        kinds = {"rare": self.rare, "common": self.common}
        return {name: classes for name, classes in kinds.items() if classes and self.in_weights_size}

    @cached_property
    def _weights(self) -> Tensor:
        return zipf(self.holdout.start, self.zipf_exponent)

    def _drawn(self, classes: Tensor, labels: Tensor, latents: dict[str, Tensor], generator: torch.Generator) -> Drawn:
        most = self.drawings.pixels.shape[1]
        images = classes * most + drawings_of(classes, self.drawings.counts, generator)
        return {"images": images, "labels": labels, "latents": latents}

    def _pixels_on(self, device: torch.device) -> Tensor:
        """All drawings, [C D, S, S] uint8."""
        if device not in self._on_device:
            self._on_device[device] = self.drawings.pixels.flatten(0, 1).to(device)
        return self._on_device[device]


def symmetric(pixels_CDSS: Tensor, chosen: Tensor, count: int) -> Tensor:
    """Classes of the ``chosen`` characters: each as it is, turned by quarters, and then its mirror image likewise.

    One by one, which takes hardly more memory than the result, [chosen x count, D, S, S].
    """
    classes = pixels_CDSS.new_empty(len(chosen), count, *pixels_CDSS.shape[1:])
    for own, upright in zip(classes, (pixels_CDSS[index] for index in chosen.tolist()), strict=True):
        for turn in range(count):
            own[turn] = (upright if turn < 4 else upright.flip(-1)).rot90(turn, (-2, -1))
    return classes.flatten(0, 1)
