"""Sequences of (image, label) pairs with a query at the end: which class stands at which place.

Source: Chan et al. 2022, "Data distributional properties drive emergent in-context learning in transformers", and their
published settings; Eureka-moments in Transformers, A.19.

Shapes: B sequences, P context pairs, L = P + 1 images with the query, K ways (classes of a few-shot sequence).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def zipf(classes: int, exponent: float) -> Tensor:
    """Weights of the training classes [n] float64: class n - r has rank r and weight r^-exponent; 0 is uniform.

    Common classes, the last ones, have the first ranks.
    """
    return torch.arange(classes, 0, -1, dtype=torch.float64).pow(-exponent)


def training_classes(
    size: int,
    weights: Tensor,
    pairs: int,
    ways: int,
    shots: int,
    burstiness: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Classes of training sequences.

    A bursty sequence has ``shots`` images each of ``ways`` classes (drawn with replacement), and pairs of any class as
    the remainder, all shuffled; its query is of one of the ways. In any other, all classes are drawn independently.

    Args:
        size: number of sequences B.
        weights: of the classes, [n]; they are drawn in proportion.
        pairs: context pairs P, at least ways x shots.
        ways, shots: of a bursty sequence.
        burstiness: probability that a sequence is bursty.
        generator: of all random numbers.

    Returns:
        classes [B, L] int64, the query's at the end, and which sequences are bursty, bool [B].
    """
    independent_BL = _drawn(weights, (size, pairs + 1), generator)
    chosen_BK = _drawn(weights, (size, ways), generator)
    asked_B1 = torch.randint(ways, (size, 1), generator=generator)
    bursty_B = torch.rand(size, generator=generator) < burstiness
    remainder = independent_BL[:, : pairs - ways * shots]
    context_BP = _shuffled(torch.cat([chosen_BK.repeat_interleave(shots, 1), remainder], 1), generator)
    bursty_BL = torch.cat([context_BP, chosen_BK.gather(1, asked_B1)], 1)
    return torch.where(bursty_B.unsqueeze(1), bursty_BL, independent_BL), bursty_B


class FewShot(NamedTuple):
    """Few-shot sequences.

    Attributes:
        classes: [B, L] int64, the query's at the end.
        labels: [B, L] int64 in 0 ... K - 1, given anew in each sequence.
        shown: label of the class that is shown first, second, ..., [B, K] int64.
        asked: which of these is the query's, [B] int64.
    """

    classes: Tensor
    labels: Tensor
    shown: Tensor
    asked: Tensor


def few_shot(size: int, classes: range, pairs: int, ways: int, generator: torch.Generator) -> FewShot:
    """Few-shot sequences: equally many images of ``ways`` classes (drawn with replacement), shuffled, random labels."""
    chosen_BK = torch.randint(classes.start, classes.stop, (size, ways), generator=generator)
    label_BK = torch.rand(size, ways, generator=generator).argsort(1)
    ways_BP = _shuffled(torch.arange(ways).repeat(size, pairs // ways), generator)
    asked_B1 = torch.randint(ways, (size, 1), generator=generator)
    ways_BL = torch.cat([ways_BP, asked_B1], 1)
    first_place_BK = (ways_BP.unsqueeze(1) == torch.arange(ways).view(1, -1, 1)).int().argmax(2)
    order_BK = first_place_BK.argsort(1)
    return FewShot(
        chosen_BK.gather(1, ways_BL),
        label_BK.gather(1, ways_BL),
        label_BK.gather(1, order_BK),
        (order_BK == asked_B1).int().argmax(1),
    )


def without_support(asked_B: Tensor, weights: Tensor, pairs: int, generator: torch.Generator) -> Tensor:
    """Classes [B, L] of sequences that ask for given classes [B], without an image of this class in the context.

    Source: Chan et al. 2022 ("no support"). The context is drawn as in sequences that are not bursty, but from all
    other classes; there has to be at least one.
    """
    others_Bn = weights.repeat(len(asked_B), 1).scatter_(1, asked_B.unsqueeze(1), 0.0)
    context_BP = torch.multinomial(others_Bn, pairs, replacement=True, generator=generator)
    return torch.cat([context_BP, asked_B.unsqueeze(1)], 1)


def drawings_of(classes_BL: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """A drawing for each place, [B, L] int64; within a sequence, those of a class are drawn without replacement.

    Args:
        counts: drawings of each class, L or more.
    """
    B, L = classes_BL.shape
    same_BLL = classes_BL.unsqueeze(2) == classes_BL.unsqueeze(1)
    first_BL = same_BLL.int().argmax(2)
    earlier_BL = same_BLL.tril(-1).sum(2)
    # At each place a random order of all drawings of its class; places of one class use the order at the first.
    most = int(counts.max())
    score = torch.rand(B, L, most, generator=generator)
    order = score.masked_fill_(torch.arange(most) >= counts[classes_BL].unsqueeze(2), 2.0).argsort(2)
    return order[torch.arange(B).unsqueeze(1), first_BL, earlier_BL]


def _drawn(weights: Tensor, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Independent classes, int64."""
    return torch.multinomial(weights, shape[0] * shape[1], replacement=True, generator=generator).view(shape)


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Each row in an order of its own."""
    return rows.gather(1, torch.rand(rows.shape, generator=generator).argsort(1))
