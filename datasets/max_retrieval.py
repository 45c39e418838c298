"""Lightning data module of max retrieval: which class has the item of the highest priority?"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from lab.datasets.loading import Batch, DataModule, StepLoader
from lab.datasets.seeding import generator_of
from lab.datasets.sizes import BatchSize, Samples, Size

# Rank of the item that is asked for -> its name as a latent and a region.
RANKS = {1: "largest", 2: "second_largest", -1: "smallest"}


class MaxRetrievalData(DataModule):
    """Sets of n items, each a priority ~ U(0, 1) and a class ~ U{1 .. C}; y is the class of the largest priority.

    A batch is ``{"x": (items [B, n, 1 + C], query [B, 1]), "y": [B] int64, "latents": {"largest": [B]}}``; an item is
    its priority beside its class as a one-hot vector, the query ~ U(0, 1) carries no information.

    Source: "softmax is not enough", Appendix A.2 and A.4. All sets of a batch are of one size, n ~ U{5 .. 16},
    drawn from (epoch, step) alone: each seed sees other sets, but the same sizes in the same order, so that
    seeds can be trained together (``seeds=10``).

    Args:
        classes: number of classes C.
        smallest, largest: sizes of the training sets, both included.
        batch_size: sets a step and process.
        epoch_steps: steps an epoch.
        validation_items: size of the validation sets.
        validation_size: number of validation sets.
        seed: seed of the training sets.
        validation_seed: seed of the validation sets, which are the same for all runs with the same batch size.
        rank: item whose class is asked for: 1 the largest, 2 the second largest, -1 the smallest; the latent is named
            after it. The paper trains on the largest and names the others as the same kind of task (section 1).

    Raises:
        ValueError: if ``smallest`` exceeds ``largest``, or sets have one item where the second largest is asked for.
    """

    def __init__(
        self,
        classes: Size = 10,
        smallest: Size = 5,
        largest: Size = 16,
        batch_size: BatchSize = 128,
        epoch_steps: PositiveInt = 1000,
        validation_items: Size = 16,
        validation_size: Samples = 2048,
        seed: int = 0,
        validation_seed: int = 0,
        rank: Literal[1, 2, -1] = 1,
    ) -> None:
        super().__init__()
        for name, items in (("smallest", smallest), ("validation_items", validation_items)):
            if items < abs(rank):
                raise ValueError(f"data.{name}={items} items have no {RANKS[rank].replace('_', ' ')} one")
        if smallest > largest:
            raise ValueError(f"data.smallest={smallest} exceeds data.largest={largest}")
        self.classes = classes
        self.smallest = smallest
        self.largest = largest
        self.batch_size = batch_size
        self.epoch_steps = epoch_steps
        self.validation_items = validation_items
        self.validation_size = validation_size
        self.seed = seed
        self.validation_seed = validation_seed
        self.asked = rank
        self.class_names = tuple(str(number + 1) for number in range(classes))

    def model_arguments(self) -> dict[str, int]:
        """Features of an item, number of labels, items of the largest training set."""
        return {"features": 1 + self.classes, "num_classes": self.classes, "context": self.largest}

    def draw_train(self, epoch: int, step: int) -> Batch:
        """One training batch of this process; a pure function of its place in training."""
        sizes = generator_of("max_retrieval sizes", epoch, step)
        items = int(torch.randint(self.smallest, self.largest + 1, (), generator=sizes))
        return self.draw(items, self.batch_size, generator_of("max_retrieval", self.seed, epoch, step, self.rank))

    def draw_validation(self, index: int) -> Batch:
        """Validation batch ``index`` of the fixed set."""
        sets = len(self.validation_samples(index, self.batch_size))
        generator = generator_of("max_retrieval validation", self.validation_seed, index)
        return self.draw(self.validation_items, sets, generator)

    def draw(self, items: int, sets: int, generator: torch.Generator) -> Batch:
        """``sets`` sets of ``items`` items each."""
        priority = torch.rand(sets, items, generator=generator)
        kind = torch.randint(self.classes, (sets, items), generator=generator)
        query = torch.rand(sets, 1, generator=generator)
        features = torch.cat([priority.unsqueeze(-1), F.one_hot(kind, self.classes).to(priority.dtype)], dim=-1)
        # Of equal priorities the first counts, as with argmax.
        by_rank = priority.argsort(dim=1, descending=True, stable=True)
        asked = by_rank[:, self.asked - 1 if self.asked > 0 else self.asked]
        label: Tensor = kind.gather(1, asked.unsqueeze(1)).squeeze(1)
        return {"x": (features, query), "y": label, "latents": {RANKS[self.asked]: asked}}

    def regions(self, batch: Batch) -> dict[str, Tensor]:
        """Place of the item that is asked for: {"largest": bool [B, n]}."""
        name = RANKS[self.asked]
        return {name: F.one_hot(batch["latents"][name], batch["x"][0].shape[1]).bool()}

    def train_dataloader(self) -> StepLoader:
        return self.training_loader(self.epoch_steps)
