"""Online code-length of linear probes: how easily a layer's knowledge can be read out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from lab.callbacks.diagnostics.probe import Probe
from lab.observation.probes import Targets, code_length
from lab.observation.representations import OF_BLOCKS, Quantity

PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5)


class CodeLength(Probe):
    """Bits needed to send a target's labels to a receiver that has a representation; fewer bits: easier to read out.

    Table: layer, head (-1 for a block), quantity, tokens (answer, mean, full), target, bits, uniform (n log2 K: bits
    if the receiver knows nothing), marginal (n H: if it knows how frequent each class is), compression (uniform /
    bits). Probes are fitted on growing portions of the scenes, and each encodes the block after its portion. Pictures:
    bars per layer, and the residual stream over training, both with lines for ``uniform`` and ``marginal``.

    Source: Voita and Titov 2020; Eureka-moments in Transformers, A.12 and Figure 18.

    Args:
        folder, every_n_epochs, scenes, pictures_every_n_epochs: as in :class:`Diagnostic`.
        quantities: of "z", "q", "k", "v", "attended", "residual".
        tokens: of "answer" and "mean".
        full, full_scenes: as in :class:`Probe`.
        portions: shares of the scenes that the probes are fitted on.
        targets: latents to probe for; None takes all classes of parts of the scene.
        l2: penalty on the probes' weights.

    Raises:
        ValueError: if ``portions`` do not rise, or ``full_scenes`` exceeds ``scenes``.
    """

    measured = "bits"
    drawn = "residual"
    label = "code-length in bits"

    def __init__(
        self,
        folder: str,
        every_n_epochs: PositiveInt = 1,
        scenes: PositiveInt = 2000,
        pictures_every_n_epochs: NonNegativeInt = 10,
        quantities: Sequence[Quantity] = OF_BLOCKS,
        tokens: Annotated[Sequence[Literal["answer", "mean"]], Field(min_length=1)] = ("answer", "mean"),
        full: Sequence[Quantity] = (),
        full_scenes: PositiveInt | None = None,
        portions: Sequence[float] = PORTIONS,
        targets: Sequence[str] | None = None,
        l2: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(
            folder, every_n_epochs, scenes, pictures_every_n_epochs, quantities, tokens, full, full_scenes, targets, l2
        )
        # The first portion is above 0, since the first probe needs scenes.
        if not portions or any(not a < b for a, b in zip([0, *portions], [*portions, 1], strict=True)):
            raise ValueError(f"callbacks.{self.name}.portions must rise between 0 and 1, got {list(portions)}")
        self.portions = tuple(portions)

    def measure(self, features_PND: Tensor, targets: Targets) -> Tensor:
        return code_length(features_PND, targets, self.portions, self.l2)

    def baselines(self, targets: Targets) -> dict[str, list[float]]:
        size = targets.labels.shape[1]
        return {
            "uniform": [size * math.log2(classes) for classes in targets.classes],
            "marginal": [size * bits for bits in targets.entropies()],
        }

    def columns(self, value: float, baselines: dict[str, float]) -> dict[str, float]:
        return {**super().columns(value, baselines), "compression": baselines["uniform"] / value}
