"""Lightning data modules of language: packed blocks of a corpus, to predict masked tokens or the next ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor

from lab.console import tell
from lab.datasets.loading import IGNORED, Batch, DataModule, Drawn
from lab.datasets.prior import token_counts, unigram_loss
from lab.datasets.seeding import Shuffle, generator_of
from lab.datasets.sizes import BatchSize, Samples
from lab.datasets.text.corpus import Corpus, Split
from lab.datasets.text.given import TOKENIZER, given_tokenizer
from lab.datasets.text.tokens import END, SPECIAL, START, Tokens, tokenised

# A vocabulary has to hold at least all bytes and the special tokens.
Vocabulary = Annotated[int, Field(ge=256 + len(SPECIAL), le=500_000)]
Block = Annotated[int, Field(ge=8, le=32_768)]
Named = Annotated[str, Field(min_length=1)]

# Tokens looked at at once.
_COUNTED = 2**24


class TextData(DataModule):
    """Blocks of a corpus whose documents are packed one after another; each pass has the blocks in a new order.

    Args:
        corpus: where documents come from.
        vocabulary: size of the byte-level BPE that is trained on the corpus; a small corpus may give fewer tokens.
        block: tokens of a block.
        batch_size: blocks a batch and process.
        epoch_size: blocks an epoch over all processes.
        validation_size: blocks of the fixed validation set, at most; the corpus may have fewer.
        seed: seed of the order of the training blocks.
        validation_seed: seed of what is random in the validation set, which is the same for all runs with the same
            batch size.
        tokenizer: a ``tokenizer.json`` of Hugging Face ``tokenizers``, or a folder that holds one; None trains a
            tokeniser on the corpus. With one that is given, ``vocabulary`` is not used.

    Raises:
        ValueError: if an epoch is shorter than one batch of all processes.
    """

    # Kind of prediction, and how many tokens of the corpus a sample takes beyond its block.
    task: Literal["masked", "causal"]
    ahead = 0
    unit = "blocks"

    def __init__(
        self,
        corpus: Corpus,
        vocabulary: Vocabulary = 8192,
        block: Block = 128,
        batch_size: BatchSize = 84,
        epoch_size: PositiveInt = 8400,
        validation_size: Samples = 512,
        seed: int = 0,
        validation_seed: int = 0,
        tokenizer: Named | None = None,
    ) -> None:
        super().__init__()
        self.corpus = corpus
        self.vocabulary = vocabulary
        self.block = block
        self.batch_size = batch_size
        self.epoch_size = epoch_size
        self.validation_size = validation_size
        self.seed = seed
        self.validation_seed = validation_seed
        self.tokenizer = tokenizer
        self._shuffle = Shuffle()
        self.steps_of(epoch_size)

    @cached_property
    def tokens(self) -> Tokens:
        """The tokenised corpus, loaded (or made) at first use.

        Raises:
            ValueError: if a given tokeniser cannot be used, or a split holds less than one block.
        """
        given = None if self.tokenizer is None else given_tokenizer(self.tokenizer, masks=self.task == "masked")
        found = tokenised(self.corpus, self.vocabulary, given)
        for split, stream in found.streams.items():
            if len(stream) < self.block + self.ahead:
                raise ValueError(
                    f"the {split} text of the corpus has {len(stream)} tokens, less than one block "
                    f"(data.block={self.block}): take a larger corpus, or a smaller block"
                )
        return found

    def model_arguments(self) -> dict[str, int]:
        """Size of the vocabulary; length of a block, by a name that only models of this task have.

        Also the number of the token that ends a document, where it is not that of the lab's own tokenisers.
        """
        facts = {"num_classes": self.tokens.vocabulary, f"{self.task}_context": self.block}
        special = self.tokens.special
        as_the_labs = special.names.get(START) == SPECIAL[START] and special.end == END
        return facts if as_the_labs or special.end is None else {**facts, "end_token": special.end}

    def remarks(self) -> list[str]:
        if self.tokenizer is None:
            return []
        return [f"data.tokenizer has {self.tokens.vocabulary:,} tokens: data.vocabulary={self.vocabulary} is not used"]

    def kept(self) -> Mapping[str, str]:
        """The tokeniser, so that the run can read other texts, and on other machines."""
        return {TOKENIZER: self.tokens.file.read_bytes().decode()}

    @property
    def never_asked(self) -> Collection[int]:
        """Tokens that are never an answer."""
        return ()

    def setup(self, stage: str | None = None) -> None:
        self.validation_size = min(self.validation_size, self.blocks("validation"))

    def blocks(self, split: Split) -> int:
        """Number of whole blocks of a split."""
        return (len(self.tokens.streams[split]) - self.ahead) // self.block

    def block_at(self, split: Split, places: Tensor) -> Tensor:
        """Blocks by their numbers: tokens [B, block + ahead] int64."""
        stream: NDArray[Any] = self.tokens.streams[split]
        rows = places.numpy()[:, None] * self.block + np.arange(self.block + self.ahead)
        return torch.from_numpy(stream[rows].astype(np.int64))

    def prior_loss(self) -> float | None:
        """Validation loss of one who knows only how often each answer is in training, or guesses if that is better.

        Where the validation text is unlike the training text, frequencies do worse than uniform guessing: ln of the
        number of tokens that may be answers.
        """
        counts = token_counts(self.tokens.streams["train"], self.tokens.vocabulary) + 1
        counts[list(self.never_asked)] = 0.0
        batches = map(self.draw_validation, self.validation_batches(self.batch_size))
        asked = torch.cat([self.on_after_batch_transfer(batch, 0)["y"].flatten() for batch in batches])
        unigram = unigram_loss(counts, asked[asked != IGNORED].numpy())
        answers = self.tokens.vocabulary - len(self.never_asked)
        if (uniform := math.log(answers)) < unigram:
            tell(
                f"the plateau of the loss is that of guessing among {answers:,} tokens, {uniform:.4g}: the validation "
                f"text is so unlike the training text that one who knows only its frequencies does worse, {unigram:.4g}"
            )
        return min(unigram, uniform)

    @abstractmethod
    def drawn(self, tokens: Tensor, generator: torch.Generator) -> Drawn:
        """The draws of a batch of blocks: all that is random about it."""

    def token_names(self, batch: Batch, sample: int) -> list[str]:
        """The words of one sample, as the model reads them."""
        x = batch["x"]
        return self.tokens.words((x[0] if isinstance(x, tuple | list) else x)[sample].tolist())

    def draw_train(self, epoch: int, step: int) -> Drawn:
        """The draws of one training batch of this process; a pure function of its place in training."""
        first = epoch * self.steps_of(self.epoch_size) + step
        walk = (first * self.world_size + self.rank) * self.batch_size + torch.arange(self.batch_size)
        places = self._shuffle.endless(walk, self.blocks("train"), "text order", self.seed)
        return self.drawn(self.block_at("train", places), generator_of("text", self.seed, epoch, step, self.rank))

    def draw_validation(self, index: int) -> Drawn:
        """The draws of validation batch ``index`` of the fixed set, whatever the number of processes."""
        places = torch.tensor(self.validation_samples(index, self.batch_size))
        generator = generator_of("text validation", self.validation_seed, index)
        return self.drawn(self.block_at("validation", places), generator)


class CausalLanguageData(TextData):
    """Asks at each token for the next: ``{"x": [B, N] int64, "y": [B, N] int64, "latents": {}}``."""

    task = "causal"
    ahead = 1

    def drawn(self, tokens: Tensor, generator: torch.Generator) -> Batch:
        return {"x": tokens[:, :-1], "y": tokens[:, 1:], "latents": {}}


class MaskedLanguageData(TextData):
    """Asks for 15 % of the tokens of a block, which are masked anew each time it comes (dynamic masking).

    Of those, 80 % are replaced by ``<mask>``, 10 % by a random token, and 10 % are left as they are. Each block has the
    same number M of them, so that shapes are fixed and a model need not answer elsewhere. Special tokens are never
    asked for: of a block with fewer ordinary ones, these are asked for, and y is ``IGNORED`` at the places left. A
    batch is ``{"x": (tokens [B, N], places [B, M]), "y": [B, M] int64, "latents": {}}``.

    Source: Devlin et al. 2019, section 3.1; Liu et al. 2019 (RoBERTa), section 4.1.

    Args:
        share: share of tokens that are asked for, of a block all but one at most.
        corpus, vocabulary, block, batch_size, epoch_size, validation_size, seed, validation_seed, tokenizer: as in
            :class:`TextData`.
    """

    task = "masked"

    def __init__(
        self,
        corpus: Corpus,
        vocabulary: Vocabulary = 8192,
        block: Block = 128,
        batch_size: BatchSize = 84,
        epoch_size: PositiveInt = 8400,
        validation_size: Samples = 512,
        share: Annotated[float, Field(gt=0, lt=1)] = 0.15,
        seed: int = 0,
        validation_seed: int = 0,
        tokenizer: Named | None = None,
    ) -> None:
        super().__init__(
            corpus, vocabulary, block, batch_size, epoch_size, validation_size, seed, validation_seed, tokenizer
        )
        self.masked = min(max(1, round(share * block)), block - 1)

    @property
    def never_asked(self) -> Collection[int]:
        return self.tokens.special.names

    @cached_property
    def ignores(self) -> bool:
        """True if a block of the corpus has fewer ordinary tokens than are asked for."""
        return any(self._fewest(split) < self.masked for split in self.tokens.streams)

    def _fewest(self, split: Split) -> int:
        """Fewest ordinary tokens of a block of a split."""
        ordinary, count, at_once = ~self.tokens.is_special.numpy(), self.blocks(split), max(1, _COUNTED // self.block)
        fewest = self.block
        for first in range(0, count, at_once):  # in parts, since a corpus may be larger than memory
            part = self.tokens.streams[split][first * self.block : min(first + at_once, count) * self.block]
            fewest = min(fewest, int(ordinary[part].reshape(-1, self.block).sum(1).min()))
        return fewest

    def drawn(self, tokens: Tensor, generator: torch.Generator) -> Mapping[str, Tensor]:
        shape = (len(tokens), self.masked)
        return {
            "tokens": tokens,
            "score": torch.rand(tokens.shape, generator=generator).masked_fill(self.tokens.is_special[tokens], -1.0),
            "fate": torch.rand(shape, generator=generator),
            "random": self.tokens.ordinary[torch.randint(len(self.tokens.ordinary), shape, generator=generator)],
        }

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Batch:
        mask = self.tokens.special.mask
        assert mask is not None, "given_tokenizer() has looked for it"
        return masked(**batch, mask=mask)


def masked(tokens: Tensor, score: Tensor, fate: Tensor, random: Tensor, mask: int) -> Batch:
    """The batch of draws, on the device that they are on.

    Args:
        tokens: [B, N] int64.
        score: [B, N]; the M largest of a block are asked for, but none below 0, which special tokens have.
        fate: [B, M] in [0, 1): below 0.8 masked, below 0.9 replaced by ``random``, else left.
        random: [B, M] int64.
        mask: number of the token that hides others.
    """
    places = score.topk(fate.shape[1], dim=1).indices.sort(dim=1).values
    there, left = tokens.gather(1, places), score.gather(1, places) < 0
    shown = torch.where(fate < 0.8, torch.full_like(there, mask), torch.where(fate < 0.9, random, there))
    shown = torch.where(left, there, shown)
    return {"x": (tokens.scatter(1, places, shown), places), "y": there.masked_fill(left, IGNORED), "latents": {}}
