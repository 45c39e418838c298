"""Lightning data module of induction: random tokens that repeat; what followed this one the time before?"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from lab.datasets.loading import IGNORED, Batch, DataModule, StepLoader
from lab.datasets.seeding import generator_of
from lab.datasets.sizes import BatchSize, Samples

Period = Annotated[int, Field(ge=2)]


class InductionData(DataModule):
    """Sequences of N tokens that repeat with a period P; asks at each token, from the second repeat on, for the next.

    A period is P different tokens out of V, drawn evenly, and P ~ U{shortest .. longest} for each sequence: no fixed
    distance back leads to the answer. The steps meant are to find the last occurrence of a token, and to copy what
    followed it, by a previous-token head and an induction head. There are others: the token of the sequence that was
    seen longest ago is always the answer, and one of those that have come the least often is it in 20 % of cases. A
    batch is ``{"x": [B, N] int64, "y": [B, N] int64, "latents": {}}``; y is ``IGNORED`` within the first repeat, where
    the next token cannot be known.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads": random tokens that repeat, to score heads by.

    Args:
        tokens: number of different tokens V.
        length: tokens of a sequence N.
        shortest, longest: periods, both included.
        batch_size: sequences a step and process.
        epoch_steps: steps an epoch.
        validation_size: sequences of the fixed validation set.
        seed: seed of the training sequences.
        validation_seed: seed of the validation set, which is the same for all runs with the same batch size.

    Raises:
        ValueError: if ``shortest`` exceeds ``longest``, there are too few tokens for a period, or a sequence may end
            before it repeats.
    """

    unit = "sequences"

    def __init__(
        self,
        tokens: Period = 64,
        length: Period = 64,
        shortest: Period = 8,
        longest: Period = 32,
        batch_size: BatchSize = 32,
        epoch_steps: PositiveInt = 20,
        validation_size: Samples = 512,
        seed: int = 0,
        validation_seed: int = 0,
    ) -> None:
        super().__init__()
        if shortest > longest:
            raise ValueError(f"data.shortest={shortest} exceeds data.longest={longest}")
        if longest > tokens:
            raise ValueError(f"data.longest={longest} different tokens are more than there are: data.tokens={tokens}")
        if longest >= length:
            raise ValueError(
                f"data.length={length} tokens do not repeat after data.longest={longest}: raise the length"
            )
        self.tokens = tokens
        self.length = length
        self.shortest = shortest
        self.longest = longest
        self.batch_size = batch_size
        self.epoch_steps = epoch_steps
        self.validation_size = validation_size
        self.seed = seed
        self.validation_seed = validation_seed
        self.class_names = tuple(str(number) for number in range(tokens))

    @property
    def ignores(self) -> bool:
        """True: nothing is asked within the first repeat."""
        return True

    def model_arguments(self) -> dict[str, int]:
        """Number of tokens; length of a sequence, by the name that models of causal language have for it."""
        return {"num_classes": self.tokens, "causal_context": self.length}

    def draw_train(self, epoch: int, step: int) -> Batch:
        """One training batch of this process; a pure function of its place in training."""
        return self.draw(self.batch_size, generator_of("induction", self.seed, epoch, step, self.rank))

    def draw_validation(self, index: int) -> Batch:
        """Validation batch ``index`` of the fixed set."""
        sequences = len(self.validation_samples(index, self.batch_size))
        return self.draw(sequences, generator_of("induction validation", self.validation_seed, index))

    def draw(self, sequences: int, generator: torch.Generator) -> Batch:
        """A batch of so many sequences."""
        order_BV = torch.rand(sequences, self.tokens, generator=generator).argsort(dim=1)
        period_B1 = torch.randint(self.shortest, self.longest + 1, (sequences, 1), generator=generator)
        places = torch.arange(self.length + 1)
        tokens = order_BV.gather(1, places % period_B1)
        # The first token of the second repeat is no answer: the token before it has not occurred yet.
        answers = tokens[:, 1:].masked_fill(places[1:] <= period_B1, IGNORED)
        return {"x": tokens[:, :-1], "y": answers, "latents": {}}

    def prior_accuracy(self) -> float | None:
        """Accuracy of one who copies any of the P tokens of a sequence: the mean of 1 / P over answers."""
        return float((1 / self._periods).mean())

    def prior_loss(self) -> float | None:
        """Loss of one who knows the P tokens of a sequence, and not which is next: the mean of ln P over answers."""
        return float(self._periods.log().mean())

    @cached_property
    def _periods(self) -> Tensor:
        """Period of the sequence of each answer of the validation set, [n] float64."""
        batches = map(self.draw_validation, self.validation_batches(self.batch_size))
        asked_BN = torch.cat([batch["y"] != IGNORED for batch in batches])
        # Of the N answers of a sequence, its first P are not asked for.
        return (self.length - asked_BN.sum(1)).double().repeat_interleave(asked_BN.sum(1))

    def token_names(self, batch: Batch, sample: int) -> list[str]:
        return [str(token) for token in batch["x"][sample].tolist()]

    def train_dataloader(self) -> StepLoader:
        return self.training_loader(self.epoch_steps)
