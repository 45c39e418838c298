"""The plateau: accuracy or loss of a model that has not learnt the first step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
        latents: name -> [B] int64; ``target_1``, ``target_2`` (and so on) and ``target_location`` (from 0) are read.
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
