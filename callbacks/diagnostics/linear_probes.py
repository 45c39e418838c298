"""Linear probes of every layer and head, all fitted in one batched solve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from lab.callbacks.diagnostics.probe import Probe
from lab.observation.probes import Targets, held_out_split, probe_accuracy
from lab.observation.representations import OF_BLOCKS, OF_HEADS, Quantity


class LinearProbes(Probe):
    """Held-out accuracy of logistic probes on z, q, k, v of every head and on the block before and after the residual.

    Table: layer, head (-1 for a block), quantity, tokens (answer, mean, full), target, accuracy, chance (1 / classes),
    majority (always the most frequent class). Pictures: bars per layer with the spread over heads (Figures 2, 19 to
    23), and the answer token's z over training (without z, the last of ``quantities``). ``lab.observation.probes``
    describes the fit.

    Source: Eureka-moments in Transformers, section 5.1 and A.13.

    Args:
        folder, every_n_epochs, scenes, pictures_every_n_epochs: as in :class:`Diagnostic`.
        quantities: of "z", "q", "k", "v", "attended", "residual", probed at the answer token and the mean over tokens.
        full, full_scenes: as in :class:`Probe`.
        targets: latents to probe for; None takes indicators, targets, target location, colours and the label.
        held_out_share: share of scenes that are held out to measure the accuracy.
        l2: penalty on the probes' weights.

    Raises:
        ValueError: if ``full_scenes`` exceeds ``scenes``.
    """

    measured = "accuracy"
    drawn = "z"
    label = "accuracy of {quantity} in %"
    factor = 100
    limits = (0, 102)

    def __init__(
        self,
        folder: str,
        every_n_epochs: PositiveInt = 1,
        scenes: PositiveInt = 2000,
        pictures_every_n_epochs: NonNegativeInt = 10,
        quantities: Sequence[Quantity] = (*OF_HEADS, *OF_BLOCKS),
        full: Sequence[Quantity] = (),
        full_scenes: PositiveInt | None = None,
        targets: Sequence[str] | None = None,
        held_out_share: Annotated[float, Field(gt=0, lt=1)] = 0.25,
        l2: PositiveFloat = 1.0,
    ) -> None:
        tokens = ("answer", "mean")
        super().__init__(
            folder, every_n_epochs, scenes, pictures_every_n_epochs, quantities, tokens, full, full_scenes, targets, l2
        )
        self.held_out_share = held_out_share

    def measure(self, features_PND: Tensor, targets: Targets) -> Tensor:
        return probe_accuracy(features_PND, targets, self.held_out_share, self.l2)

    def baselines(self, targets: Targets) -> dict[str, list[float]]:
        split = held_out_split(targets.labels.shape[1], self.held_out_share)
        return {"chance": [1 / classes for classes in targets.classes], "majority": targets.majority(*split)}
