"""Lightning data module of CLRS-Text: what an algorithm answers to a problem in text, at sizes trained on or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lab.datasets.loading import IGNORED, Batch, DataModule
from lab.datasets.prior import unigram_loss
from lab.datasets.seeding import generator_of
from lab.datasets.sizes import BatchSize, Samples
from lab.datasets.text.problems import Problem, Problems
from lab.datasets.text.tokenizers import Tokenizer

# Batches that are cut at once from problems sorted by length, so that less of a batch is padding.
_TOGETHER = 16
# Training problems whose answers give the token counts behind the plateau of the loss.
_COUNTED = 1000

# Name of the accuracy that counts answers that are right to the letter.
_MATCH = "exact_match"

Encoded = tuple[Problem, list[int], int]


class ClrsTextData(DataModule):
    """Problems of CLRS-Text as tokens; a model predicts those of the answer, and the end after it.

    A batch is ``{"x": (tokens [B, N], places [B, M]), "y": [B, M] int64, "latents": {name: [B]}}``: y is the token
    after each place. Problems are padded on the right, which no token of a causal model sees; y of a shorter answer is
    filled up with ``IGNORED``. Latents: ``algorithm`` and ``size``; ``target_location`` tells whether the algorithm is
    trained on this size.

    Source: "softmax is not enough", section 4.2 and Figure 7; Markeeva et al. 2024 (CLRS-Text).

    Args:
        problems: source of the problems.
        tokenizer: turns their text into tokens.
        longest: tokens of a problem with its answer, at most. A longer problem does not train; an algorithm and size
            with a longer one does not validate.
        batch_size: problems a batch and process.
        epoch_size: problems an epoch over all processes.
        validation_size: problems of the fixed validation set, at most, evenly by algorithm and size.
        seed: seed of the training problems.
        validation_seed: of the validation set; the same for all runs.

    Raises:
        ValueError: if an epoch is shorter than one batch of all processes; when problems are read, if one is
            invalid or all are too long.
    """

    unit = "problems"
    ragged = True

    def __init__(
        self,
        problems: Problems,
        tokenizer: Tokenizer,
        longest: Annotated[int, Field(ge=8, le=32_768)] = 2048,
        batch_size: BatchSize = 32,
        epoch_size: PositiveInt = 6400,
        validation_size: Samples = 1728,
        seed: int = 0,
        validation_seed: int = 0,
    ) -> None:
        super().__init__()
        self.problems = problems
        self.tokenizer = tokenizer
        self.longest = longest
        self.batch_size = batch_size
        self.epoch_size = epoch_size
        self.validation_size = self._most = validation_size
        self.seed = seed
        self.validation_seed = validation_seed
        self._together: tuple[tuple[int, int], list[list[Encoded]]] | None = None
        self.steps_of(epoch_size)

    def model_arguments(self) -> dict[str, int]:
        """Size of the vocabulary; tokens of the longest problem, by a name that only models of this task have."""
        return {"num_classes": self.tokenizer.size, "answer_context": self.longest}

    @cached_property
    def locations(self) -> tuple[str, ...]:  # type: ignore[override]
        """Sizes in distribution and out of it, as far as the validation set has them."""
        outside = {self._outside(group[0][0]) for group in self._validation[0]}
        names = ("in_distribution", "out_of_distribution")
        return tuple(name for name, out in zip(names, (False, True), strict=True) if out in outside)

    @property
    def accuracies(self) -> tuple[str, ...]:
        return tuple(_MATCH if not name else f"{_MATCH}_{name}" for name in ("", *self.locations))

    def scored(self, logits: Tensor, batch: Batch) -> Mapping[str, tuple[Tensor, Tensor, Tensor | None]]:
        """Scores single tokens, and whole answers: the label is 1, and the prediction is 1 if all tokens are right."""
        y_BM, where_B = batch["y"], batch["latents"]["target_location"]
        asked_BM = y_BM != IGNORED
        right_B = ((logits.argmax(-1) == y_BM) | ~asked_BM).all(1)
        whole = (F.one_hot(right_B.long(), 2), torch.ones_like(where_B))
        places = {f"{_MATCH}_{name}": (*whole, where_B == index) for index, name in enumerate(self.locations)}
        return {"": (logits, y_BM, None), _MATCH: (*whole, None)} | places

    @property
    def latent_names(self) -> Mapping[str, tuple[str, ...]]:
        return {"algorithm": self.problems.algorithms, "target_location": self.locations}

    def remarks(self) -> list[str]:
        left_out = self._validation[1]
        if not left_out:
            return []
        told = "; ".join(f"{name} {', '.join(map(str, sizes))}" for name, sizes in left_out.items())
        return [f"not validated, since longer than data.longest={self.longest} tokens: {told}"]

    def setup(self, stage: str | None = None) -> None:
        self.validation_size = sum(len(group) for group in self._validation[0])

    @cached_property
    def _validation(self) -> tuple[list[list[Encoded]], dict[str, list[int]]]:
        """Batches to validate on, each of one algorithm and size, and the sizes left out for their length.

        Raises:
            ValueError: if nothing is left.
        """
        batches: list[list[Encoded]] = []
        left_out: dict[str, list[int]] = {}
        for group in self.problems.validation(self.validation_seed, self._most):
            encoded = [self._encoded(problem) for problem in group]
            if max(len(tokens) for _, tokens, _ in encoded) > self.longest + 1:
                left_out.setdefault(group[0].algorithm, []).append(group[0].size)
                continue
            batches += [encoded[start : start + self.batch_size] for start in range(0, len(encoded), self.batch_size)]
        if not batches:
            raise ValueError(
                f"every size in the validation set has problems longer than data.longest={self.longest} tokens"
            )
        return batches, left_out

    @cached_property
    def _held_out(self) -> frozenset[str]:
        """Questions of the validation set. Training leaves them out: small problems are few, and would recur there."""
        return frozenset(problem.question for batch in self._validation[0] for problem, _, _ in batch)

    def _encoded(self, problem: Problem) -> Encoded:
        """The problem, its tokens with the answer, and how many of them stand before the answer."""
        question = [*self.tokenizer.start, *self.tokenizer.encode(problem.question)]
        return problem, [*question, *self.tokenizer.encode(problem.answer), self.tokenizer.end], len(question)

    def _outside(self, problem: Problem) -> bool:
        return problem.size not in self.problems.trained.get(problem.algorithm, ())

    def prior_loss(self) -> float | None:
        """Unigram entropy: the validation loss of one who knows only how often each token is in training answers."""
        counts = np.zeros(self.tokenizer.size)
        for problem in self.problems.training(self.validation_seed, range(_COUNTED)):
            _, tokens, question = self._encoded(problem)
            if len(tokens) > self.longest + 1 or problem.question in self._held_out:
                continue  # never trained on
            np.add.at(counts, tokens[question:], 1.0)
        asked = [token for batch in self._validation[0] for _, tokens, question in batch for token in tokens[question:]]
        # Counts one more of each token in answers only: over all of a large vocabulary it would outweigh the counts.
        counts[np.union1d(counts.nonzero()[0], asked)] += 1.0
        return unigram_loss(counts, asked)

    def draw_train(self, epoch: int, step: int) -> Batch:
        """One training batch of this process; a pure function of its place in training."""
        first = epoch * self.steps_of(self.epoch_size) + step
        return self._batch(self._cut(first // _TOGETHER)[first % _TOGETHER])

    def draw_validation(self, index: int) -> Batch:
        """Validation batch ``index`` of the fixed set: problems of one algorithm and size."""
        return self._batch(self._validation[0][index])

    def _cut(self, number: int) -> list[list[Encoded]]:
        """Batches of this process that are cut at once from problems sorted by length, in a random order.

        Raises:
            ValueError: if all of their problems are too long, or in the validation set.
        """
        key = (number, self.rank)
        if self._together is None or self._together[0] != key:
            size = _TOGETHER * self.batch_size
            first = (number * self.world_size + self.rank) * size
            drawn = self.problems.training(self.seed, range(first, first + size))
            encoded = [self._encoded(problem) for problem in drawn if problem.question not in self._held_out]
            encoded = [one for one in encoded if len(one[1]) <= self.longest + 1]
            if not encoded:
                raise ValueError(
                    f"{size:,} training problems are all longer than data.longest={self.longest} tokens, or in the "
                    "validation set"
                )
            generator = generator_of("clrs_text batches", self.seed, number, self.rank)
            # Each problem that is too long or in the validation set is replaced by another one, which recurs.
            again = torch.randint(len(encoded), (size - len(encoded),), generator=generator)
            encoded += [encoded[place] for place in again.tolist()]
            encoded.sort(key=lambda one: len(one[1]))
            order = torch.randperm(_TOGETHER, generator=generator).tolist()
            self._together = (key, [encoded[place * self.batch_size :][: self.batch_size] for place in order])
        return self._together[1]

    def _batch(self, encoded: Sequence[Encoded]) -> Batch:
        tokens = [torch.tensor(own[:-1]) for _, own, _ in encoded]
        places = [torch.arange(question - 1, len(own) - 1) for _, own, question in encoded]
        answers = [torch.tensor(own[question:]) for _, own, question in encoded]
        names = self.problems.algorithms
        latents = {
            "algorithm": [names.index(problem.algorithm) for problem, _, _ in encoded],
            "size": [problem.size for problem, _, _ in encoded],
            "target_location": [len(self.locations) - 1 if self._outside(one) else 0 for one, _, _ in encoded],
        }
        return {
            "x": (
                pad_sequence(tokens, batch_first=True, padding_value=self.tokenizer.end),
                pad_sequence(places, batch_first=True),
            ),
            "y": pad_sequence(answers, batch_first=True, padding_value=IGNORED),
            "latents": {name: torch.tensor(values) for name, values in latents.items()},
        }

    def validation_batches(self, batch_size: int) -> range:
        return range(len(self._validation[0]))
