"""Linear probes of every layer and head, all fitted in one batched solve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import pandas as pd
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from lab.callbacks.diagnostics.probe import Probe, Seen
from lab.console import LabError
from lab.observation.observe import Chunk, Findings
from lab.observation.probes import Targets, probe_accuracy
from lab.observation.representations import OF_BLOCKS, OF_HEADS, Place, Quantity, needed, representations

# Of whole representations, in half precision; their solve takes about as much again.
_MOST_GIB = 5.0


class LinearProbes(Probe):
    """Held-out accuracy of logistic probes on z, q, k, v of every head and on the block before and after the residual.

    Table: layer, head (-1 for a block), quantity, tokens (answer, mean, full), target, accuracy, chance (1 / classes),
    majority (always the most frequent class). Pictures: bars per layer with the spread over heads (Figures 2, 19 to
    23), and the answer token's z over training. ``lab.observation.probes`` tells how they are fitted.

    Source: Eureka-moments in Transformers, section 4 and A.13.

    Args:
        folder, every_n_epochs, scenes, pictures_every_n_epochs: as in :class:`Diagnostic`.
        quantities: of "z", "q", "k", "v", "attended", "residual", probed at the answer token and the mean over tokens.
        full: quantities whose whole representation is probed, all tokens side by side. For the compact ViT each takes
            200 MB and 2 s a head at 4,000 scenes: ``scenes`` of it are ``full_scenes``.
        full_scenes: how many of the scenes the whole representation is probed on; None takes all.
        targets: latents to probe for; None takes indicators, targets, target location, colours and the label.
        held_out_share: share of scenes that judge.
        l2: penalty on the probes' weights.

    Raises:
        ValueError: if ``full_scenes`` exceeds ``scenes``.
    """

    measured = "accuracy"
    label = "accuracy of z (answer token) in %"
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
        super().__init__(folder, every_n_epochs, scenes, pictures_every_n_epochs, quantities, tokens, targets, l2)
        self.full = tuple(full)
        if full_scenes is not None and full_scenes > scenes:
            raise ValueError(
                f"callbacks.{self.name}.full_scenes must be between 1 and scenes={scenes}, got {full_scenes}"
            )
        self.full_scenes = full_scenes or scenes
        self.held_out_share = held_out_share
        self.reads = needed((*self.quantities, *self.full))
        self._shown_full = 0

    def see(self, chunk: Chunk) -> Seen:
        found, labels, device = super().see(chunk)
        if self.full and self._shown_full < self.full_scenes:
            whole = representations(chunk, self.full, ("full",))
            _check_memory(whole, self.full_scenes)
            room = self.full_scenes - self._shown_full
            found |= {place: features[:room] for place, features in whole.items()}
            self._shown_full += min(room, len(chunk))
        return found, labels, device

    def conclude(self, seen: list[Seen]) -> Findings:
        self._shown_full = 0
        return super().conclude(seen)

    def measure(self, features_PND: Tensor, targets: Targets) -> Tensor:
        return probe_accuracy(features_PND, targets, self.held_out_share, self.l2)

    def baselines(self, targets: Targets) -> dict[str, list[float]]:
        size = targets.labels.shape[1]
        cut = size - round(self.held_out_share * size)
        return {
            "chance": [1 / classes for classes in targets.classes],
            "majority": targets.majority(slice(0, cut), slice(cut, size)),
        }

    def shown(self, table: pd.DataFrame) -> pd.DataFrame:
        """z at the answer's token."""
        return table[(table["quantity"] == "z") & (table["tokens"] == "answer")]


def _check_memory(whole: dict[Place, Tensor], scenes: int) -> None:
    size = sum(features[0].numel() for features in whole.values()) * scenes * 2 / 2**30
    if size > _MOST_GIB:
        raise LabError(
            f"callbacks.linear_probes.full would hold {size:.1f} GiB, more than {_MOST_GIB}: name fewer quantities at "
            "a time, or lower full_scenes"
        )
