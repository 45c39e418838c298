"""The softmax Jacobian: how much gradient gets through to the logits."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.observation.attention_statistics import query_means, softmax_jacobian
from lab.observation.observe import Chunk, Findings, head_rows, layers_over_scenes
from lab.plotting.figures import bars_by_layer, lines_by_layer


class SoftmaxJacobian(Diagnostic):
    """The norm of the softmax Jacobian per layer and head: how much gradient gets through to the logits.

    Table: layer, head, jacobian (Frobenius norm of diag(w) - w w^T, mean over scenes and the queries that see a key).
    It is 0 where attention is one-hot, and sqrt(1/n - 1/n^2) where it is uniform over n keys: little over many (0.07
    over 197), but 0.40 over five; it is at most 0.5. The column is left empty, and a note says so once, under
    normalisers whose weights are no exponentials over their sum.

    Source: Eureka-moments in Transformers, section 3 (uniform) and A.11 (one-hot).
    """

    reads = ("logits", "weights")

    def see(self, chunk: Chunk) -> list[Tensor]:
        values = []
        for normaliser, layer in zip(chunk.normalisers, chunk.layers, strict=True):
            (norm_BH,) = query_means([softmax_jacobian(layer["weights"])], layer["logits"])
            values.append((norm_BH if normaliser.exponential else torch.full_like(norm_BH, math.nan)).cpu())
        return values

    def conclude(self, seen: list[Any]) -> Findings:
        found = Findings()
        means = [mean_H.tolist() for mean_H in layers_over_scenes(seen)]
        if any(math.isnan(value) for values in means for value in values):
            self.tell_once("left empty where the weights are not exponentials divided by their sum")
        for index, values in enumerate(means):
            found.rows += head_rows(index, jacobian=values)
            if not math.isnan(values[0]):
                found.scalars[f"layer_{index}"] = sum(values) / len(values)
        found.figures["layers"] = partial(bars_by_layer, found.rows, ["jacobian"], "softmax Jacobian")
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        return lines_by_layer(table, ["jacobian"], "softmax Jacobian", moment, by="head")
