"""The value of the token that gets most attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.observation.attention_statistics import sink_value_norms
from lab.observation.observe import Chunk, Findings, head_rows, layers_over_scenes
from lab.plotting.figures import bars_by_layer, lines_by_layer


class SinkValues(Diagnostic):
    """The norm of the sink token's value beside that of the others, per layer and head.

    Table: layer, head, sink (mean norm of the value of the key that gets most attention in a scene), others (mean over
    the other keys). A sink whose value is near 0 takes attention and adds nothing.

    Source: "Softmax attention is a fluke", attention sinks of a text encoder.
    """

    reads = ("weights", "v")

    def see(self, chunk: Chunk) -> list[Tensor]:
        layers = zip(chunk.shares, chunk.layers, strict=True)
        return [torch.stack(sink_value_norms(weights, layer["v"]), dim=1).cpu() for weights, layer in layers]

    def conclude(self, seen: list[Any]) -> Findings:
        found = Findings()
        for index, (sinks, others) in enumerate(one.tolist() for one in layers_over_scenes(seen)):
            found.rows += head_rows(index, sink=sinks, others=others)
            found.scalars |= {
                f"sink/layer_{index}": sum(sinks) / len(sinks),
                f"others/layer_{index}": sum(others) / len(others),
            }
        found.figures["layers"] = partial(bars_by_layer, found.rows, ["sink", "others"], "norm of values")
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        return lines_by_layer(table, ["sink", "others"], "norm of values", moment)
