"""The plateau: accuracy or loss of a model that has not learnt the first step, and of one that has learnt little more.

Shapes: P pairs of a token and the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

# Tokens counted at once.
_COUNTED = 2**22
# Pairs that the weight of a bigram model is fitted on, at most.
_HELD_OUT = 2**20


def prior_accuracy_over(batches: Iterable[tuple[Mapping[str, Tensor], Tensor]]) -> float | None:
    """:func:`prior_accuracy` over several batches, each given as its latents and labels."""
    latents, labels = zip(*batches, strict=True)
    return prior_accuracy({name: torch.cat([own[name] for own in latents]) for name in latents[0]}, torch.cat(labels))


def prior_accuracy(latents: Mapping[str, Tensor], labels: Tensor) -> float | None:
    """Accuracy of a model that has learnt p(y | x, z) but of z only the prior p(z): the plateau before the moment.

    A model that cannot tell which of the targets counts does best by always reading the same one. With 1 the
    indicator function and l the target location,

        max_k mean_B 1[y_B = label_k(target_k)],  where label_k(c) is the label of scenes with l = k and target_k = c.

    It lies above max p(z), because targets are of the same class now and then: in the main task
    1/2 + 1/2 * 1/10 = 55 %, in the reasoning task 54.9 %.

    Source: Eureka-moments in Transformers, section 4 and A.7 (a prior of 0.65 raises the plateau).

    Args:
        latents: name -> [B] int64; ``target_1``, ``target_2`` (and so on) and ``target_location`` are read, all
            from 0.
        labels: [B] int64.

    Returns:
        The accuracy in [0, 1] over these scenes; None where the task has no two targets, or where the label is not
        decided by the target that counts: then these latents do not say what can be read off the others.
    """
    if not {"target_1", "target_2", "target_location"} <= latents.keys():
        return None
    reached: list[float] = []
    while (target := latents.get(f"target_{len(reached) + 1}")) is not None:
        told = latents["target_location"] == len(reached)
        label_of = torch.full((int(target.max()) + 1,), -1, dtype=labels.dtype)
        label_of[target[told]] = labels[told]
        if not torch.equal(label_of[target[told]], labels[told]):
            return None
        reached.append((label_of[target] == labels).double().mean().item())
    return max(reached)


def unigram_loss(counts: NDArray[np.float64], answers: Sequence[int] | NDArray[np.int64]) -> float:
    """Mean -log p(answer) in nats of a model that knows only how often each token is an answer.

    Args:
        counts: how often each token of the vocabulary is an answer in training.
        answers: tokens of the answers that are judged, [n].
    """
    surprise = -np.log(np.maximum(counts, 1.0) / counts.sum())
    return float(surprise[answers].mean())


def token_counts(stream: NDArray[Any], vocabulary: int) -> NDArray[np.float64]:
    """Counts of each token in a text [n], [vocabulary]."""
    counts = np.zeros(vocabulary)
    for start in range(0, len(stream), _COUNTED):  # in parts, since bincount takes eight bytes a token
        counts += np.bincount(stream[start : start + _COUNTED], minlength=vocabulary)
    return counts


def bigram_loss(stream: NDArray[Any], before: NDArray[np.int64], answers: NDArray[np.int64], vocabulary: int) -> float:
    """Mean -log p(answer | token before it) in nats of an interpolated bigram model of a training text:

        p(b | a) = w c(a b) / c(a) + (1 - w) u(b),  u(b) = (c(b) + 1) / sum_t (c(t) + 1)

    with c the counts in the text; u is the model of :func:`unigram_loss`, and stands alone where a never comes. The
    weight w is the one by which counts in the first nine tenths of the text predict the last tenth best.

    Source: Jelinek and Mercer 1980, with one weight for all contexts.

    Args:
        stream: tokens of the training text, [n].
        before, answers: the pairs that are judged, [P] each.
        vocabulary: number of tokens that there are.
    """
    held = stream[-max(2, min(len(stream) // 10, _HELD_OUT)) :].astype(np.int64)
    fitted = _bigrams(stream[: -len(held)], held[:-1], held[1:], vocabulary)
    weight = minimize_scalar(_interpolated, bounds=(0.0, 1.0), args=fitted, method="bounded").x
    return _interpolated(weight, *_bigrams(stream, before, answers, vocabulary))


def _interpolated(weight: float, bigram_P: NDArray[np.float64], unigram_P: NDArray[np.float64]) -> float:
    """Mean -log in nats of two models' probabilities, [P] each, mixed."""
    return float(-np.log(weight * bigram_P + (1 - weight) * unigram_P).mean())


def _bigrams(
    stream: NDArray[Any], before: NDArray[np.int64], answers: NDArray[np.int64], vocabulary: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """c(a b) / c(a) and u(b) of each pair, [P] each, as :func:`bigram_loss` names them."""
    # Of all pairs in the text only those that are asked for are kept, so that a large vocabulary fits into memory.
    wanted, place_P = np.unique(before * vocabulary + answers, return_inverse=True)
    pairs, counts = np.zeros(len(wanted)), token_counts(stream, vocabulary)
    for start in range(0, len(stream), _COUNTED):
        part = stream[start : start + _COUNTED + 1].astype(np.int64)  # with the first token of the next part
        there = part[:-1] * vocabulary + part[1:]
        at = np.searchsorted(wanted, there).clip(max=len(wanted) - 1)
        pairs += np.bincount(at[wanted[at] == there], minlength=len(wanted))
    unigram_P = (counts[answers] + 1) / (counts.sum() + vocabulary)
    counts[stream[-1:]] -= 1  # the last token comes before no other
    counted_P = counts[before]
    return np.where(counted_P > 0, pairs[place_P] / np.maximum(counted_P, 1.0), unigram_P), unigram_P
