"""Lightning data module of the reasoning task: all inputs "a b c d =", full-batch training."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lab.console import LabError
from lab.datasets.loading import Batch, DataModule, StepLoader
from lab.datasets.prior import prior_accuracy
from lab.datasets.seeding import generator_of

# Accuracy of always answering d, the likelier number: 54.9 %. It is the answer for 61 of 121 pairs (a, b), and equals c
# in 1 of 11 of the other cases. Were c and d the answer equally often, it would be 6/11, 54.5 %. Chance is 1/11.
PLATEAU = (61 + 60 / 11) / 121


def reasoning_table(numbers: int = 11) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """All numbers^4 inputs of f(a, b, c, d) = c if exactly one of a and b is even, else d.

    Source: Eureka-moments in Transformers, section 4 ("Reasoning task") and A.16.

    Returns:
        tokens [n, 5] int64 (the last one, ``numbers``, stands for "="), labels [n], latents name -> [n].
    """
    digits = torch.cartesian_prod(*[torch.arange(numbers)] * 4)
    a, b, c, d = digits.unbind(1)
    location = ((a + b) % 2 == 0).long()
    tokens = torch.cat([digits, torch.full((len(digits), 1), numbers)], dim=1)
    latents = {
        "indicator_1": a % 2,
        "indicator_2": b % 2,
        "target_location": location,
        "target_1": c,
        "target_2": d,
    }
    return tokens, torch.where(location == 0, c, d), latents


class ReasoningData(DataModule):
    """One batch an epoch: a share of all inputs, the rest validates.

    A batch is ``{"x": [B, 5] int64, "y": [B] int64, "latents": {name: [B] int64}}``, as in the vision tasks.

    Args:
        numbers: a, b, c and d are drawn from 0 ... numbers - 1 (11 in the paper).
        train_share: share of all inputs trained on (0.3 in the paper: 4,392 of 14,641).
        seed: seed of the split.

    Raises:
        ValueError: if a split would be empty.
    """

    locations = ("c", "d")

    def __init__(
        self,
        numbers: Annotated[int, Field(ge=2, le=50)] = 11,
        train_share: Annotated[float, Field(gt=0, lt=1)] = 0.3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        size = numbers**4
        # A.16 trains on 4,392 of 14,641: the share rounded down, as it is written (0.57 of 10,000 is 5,700).
        self.batch_size = int(Fraction(str(train_share)) * size)
        if not 0 < self.batch_size < size:
            raise ValueError(f"data.train_share must leave inputs for training and validation, got {train_share}")
        self.validation_size = size - self.batch_size
        self.numbers = numbers
        self.seed = seed
        self.class_names = tuple(str(number) for number in range(numbers))
        tokens, labels, latents = reasoning_table(numbers)
        order = torch.randperm(size, generator=generator_of("reasoning", seed))
        self._batches: dict[str, Batch] = {}
        parts = {"train": order[: self.batch_size], "validation": order[self.batch_size :]}
        for name, rows in parts.items():
            part = {key: value[rows] for key, value in latents.items()}
            self._batches[name] = {"x": tokens[rows], "y": labels[rows], "latents": part}

    def model_arguments(self) -> dict[str, int]:
        """Number of tokens ("=" included), length of an input, number of labels."""
        return {"tokens": self.numbers + 1, "context": 5, "num_classes": self.numbers}

    @property
    def samples_per_batch(self) -> int:
        """Training samples of one step: the full batch."""
        return self.batch_size

    def batch(self, split: Literal["train", "validation"]) -> Batch:
        """The whole of a split as one batch.

        Raises:
            ValueError: if there is no such split.
        """
        if split not in self._batches:
            raise ValueError(f"splits are {' and '.join(self._batches)}, got {split!r}")
        return self._batches[split]

    def prior_accuracy(self) -> float | None:
        batch = self.batch("validation")
        return prior_accuracy(batch["latents"], batch["y"])

    def draw_train(self, epoch: int, step: int) -> Batch:
        """This process's share of the training batch, the same in every epoch."""
        return self._shard("train")

    def draw_validation(self, index: int) -> Batch:
        """The validation batch, whatever the number of processes."""
        return self.batch("validation")

    def token_names(self, batch: Batch, sample: int) -> list[str]:
        """Names a, b, c, d and = of the tokens, the same for all samples."""
        return [*"abcd", "="]

    def regions(self, batch: Batch) -> dict[str, Tensor]:
        """Places of a, b (the indicators) and c, d (the targets): name -> bool [B, 5]."""
        size, context = batch["x"].shape
        parts = ("indicator_1", "indicator_2", "target_1", "target_2")
        rows = torch.eye(context, dtype=torch.bool, device=batch["x"].device)
        return {name: rows[place].expand(size, -1) for place, name in enumerate(parts)}

    def train_dataloader(self) -> StepLoader:
        """One step an epoch.

        Raises:
            LabError: if several processes cannot have equal shares of the batch, whose mean would be another.
        """
        if self.batch_size % self.world_size:
            raise LabError(
                f"{self.world_size} processes cannot share {self.batch_size} training inputs evenly: give another "
                "trainer.devices or data.train_share"
            )
        return self.training_loader(steps=1)

    def val_dataloader(self) -> StepLoader:
        return StepLoader(lambda *_: self._shard("validation"), 1)

    def _shard(self, split: str) -> Batch:
        """This process's share of the full batch."""
        batch = self._batches[split]
        if self.world_size == 1:
            return batch
        mine = slice(self.rank, None, self.world_size)
        return {
            "x": batch["x"][mine],
            "y": batch["y"][mine],
            "latents": {name: value[mine] for name, value in batch["latents"].items()},
        }
