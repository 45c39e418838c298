"""Entropy of attention weights: a measure of how spread attention is."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.observation.attention_statistics import share_of_log, weight_entropy
from lab.observation.observe import Chunk, Findings, mean_over
from lab.plotting.figures import bars_by_layer, lines_by_layer


class AttentionEntropy(Diagnostic):
    """Entropy of the attention weights per layer and head, in nats and as a share of log n.

    Table: layer, head, entropy, share. A share of 1 is uniform attention, which starves W_Q and W_K of gradient.

    Source: Eureka-moments in Transformers, section 3; "softmax is not enough", Proposition 3.2.
    """

    reads = ("weights",)

    def see(self, chunk: Chunk) -> tuple[Tensor, int]:
        values = []
        for layer in chunk.layers:
            entropy_BHN = weight_entropy(layer["weights"])
            share_BHN = share_of_log(entropy_BHN, layer["weights"].shape[-1])
            values.append(torch.stack([entropy_BHN, share_BHN]).mean((1, 3)))
        return torch.stack(values).cpu(), len(chunk)

    def conclude(self, seen: list[Any]) -> Findings:
        found = Findings()
        for index, (entropy, share) in enumerate(mean_over(seen).tolist()):
            found.rows += [
                {"layer": index, "head": head, "entropy": e, "share": s}
                for head, (e, s) in enumerate(zip(entropy, share, strict=True))
            ]
            found.scalars[f"nats/layer_{index}"] = sum(entropy) / len(entropy)
            found.scalars[f"share/layer_{index}"] = sum(share) / len(share)
        found.figures["layers"] = partial(bars_by_layer, found.rows, ["share"], "entropy / log n")
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        return lines_by_layer(table, ["share"], "entropy / log n", moment, by="head")
