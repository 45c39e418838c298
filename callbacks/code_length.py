"""How easily every layer's knowledge can be had: online code-length of linear probes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from callbacks.diagnostic import Diagnostic
from callbacks.linear_probes import bars, row_of, together
from lab.errors import LabError
from lab.observe import Chunk, Findings
from lab.pictures import panels, shade_before
from lab.probes import Targets, code_length
from lab.representations import OF_BLOCKS, Place, known, needed, probe_labels, representations

PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5)


class CodeLength(Diagnostic):
    """Bits that it takes to send each target's labels to who has a representation; lower is easier to have.

    Table: layer, head (-1 for a block), quantity, tokens, target, bits, uniform (bits without any features),
    compression (uniform / bits). Probes are fitted on growing portions of the scenes, each pays for the next block.

    Source: Voita and Titov 2020; Eureka-moments in Transformers, A.12 and Figure 18.

    Args:
        folder, every_n_epochs, scenes, pictures_every_n_epochs: as in :class:`Diagnostic`.
        quantities: of "z", "q", "k", "v", "attended", "residual".
        tokens: of "answer" and "mean".
        portions: shares of the scenes that the probes are fitted on.
        targets: latents to probe for; None takes all classes of parts of the scene.
        l2: penalty on the probes' weights.

    Raises:
        ValueError: if an option is out of its range.
    """

    def __init__(
        self,
        folder: str,
        every_n_epochs: int = 1,
        scenes: int = 2000,
        pictures_every_n_epochs: int = 10,
        quantities: Sequence[str] = OF_BLOCKS,
        tokens: Sequence[str] = ("answer", "mean"),
        portions: Sequence[float] = PORTIONS,
        targets: Sequence[str] | None = None,
        l2: float = 1.0,
    ) -> None:
        super().__init__(folder, every_n_epochs, scenes, pictures_every_n_epochs)
        # One scene for the first probe at least.
        if not portions or any(not a < b for a, b in zip([0, *portions], [*portions, 1], strict=True)):
            raise ValueError(f"callbacks.{self.name}.portions must rise between 0 and 1, got {list(portions)}")
        if l2 <= 0:
            raise ValueError(f"callbacks.{self.name}.l2 must be positive, got {l2}")
        if not tokens or set(tokens) - {"answer", "mean"}:
            raise ValueError(f"callbacks.{self.name}.tokens must be of answer and mean, got {list(tokens)}")
        self.quantities = known(self.name, quantities)
        self.tokens = tuple(tokens)
        self.portions = tuple(portions)
        self.targets = None if targets is None else list(targets)
        self.l2 = l2
        self.reads = needed(self.quantities)

    def see(self, chunk: Chunk) -> tuple[dict[Place, Tensor], dict[str, Tensor], torch.device]:
        found = representations(chunk, self.quantities, self.tokens)
        return found, probe_labels(chunk, self.targets), chunk.batch["y"].device

    def conclude(self, seen: list[Any]) -> Findings:
        labels = {name: torch.cat([own[1][name] for own in seen]) for name in seen[0][1]}
        targets = Targets.of(labels)
        size = targets.labels.shape[1]
        found = Findings()
        for places, features_PND in together(seen):
            bits_PT = code_length(features_PND.to(seen[0][2]), targets, self.portions, self.l2)
            for (place, head), row in zip(places, bits_PT.tolist(), strict=True):
                for target, classes, bits in zip(targets.names, targets.classes, row, strict=True):
                    uniform = size * math.log2(classes)
                    found.rows.append(
                        row_of(place, head, target)
                        | {"bits": bits, "uniform": uniform, "compression": uniform / bits, "scenes": size}
                    )
        if not found.rows:
            raise LabError(f"callbacks.{self.name}: the model has none of {', '.join(self.quantities)} to probe")
        table = pd.DataFrame(found.rows)
        shown = _last(table)
        for name, rows in shown.groupby(["target", "layer"], sort=False):
            probed, layer = cast(tuple[str, int], name)
            found.scalars[f"{probed}/layer_{layer}"] = float(rows["bits"].mean())
        for kind in table["tokens"].unique():
            found.figures[kind] = partial(bars, table[table["tokens"] == kind], "bits")
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        shown = _last(table)
        targets = list(shown["target"].unique())
        figure, axes = panels(len(targets))
        for panel, target in zip(axes, targets, strict=True):
            own = shown[shown["target"] == target]
            for layer, rows in own.groupby("layer"):
                mean = rows.groupby("step")["bits"].mean()
                panel.plot(mean.index, mean.to_numpy(), linewidth=1, label=f"layer {layer}")
            panel.axhline(own["uniform"].iloc[0], color="black", linestyle=":", linewidth=1)
            panel.set(title=target, xlabel="step")
            shade_before(panel, moment)
        axes[0].set_ylabel("code-length in bits")
        axes[0].legend(fontsize=7)
        return figure


def _last(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of one line a layer: the last quantity there is (the residual stream), at the first kind of tokens."""
    own = table[table["quantity"] == table["quantity"].iloc[-1]]
    return own[own["tokens"] == own["tokens"].iloc[0]]
