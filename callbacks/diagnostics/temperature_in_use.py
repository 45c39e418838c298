"""The temperature that attention really has, scene by scene: learned, normalised or adaptive."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lab.attention.masks import key_counts
from lab.callbacks.diagnostics.base import Diagnostic
from lab.observation.attention_statistics import temperature_of
from lab.observation.observe import Chunk, Findings, mean_over
from lab.plotting.figures import bars_by_layer, lines_by_layer


class TemperatureInUse(Diagnostic):
    """Mean and spread of 1 / beta over scenes and queries, per layer and head.

    Table: layer, head, temperature, spread (standard deviation). The callback ``temperatures`` logs what a rule has
    learned; this shows what it does, which for NormSoftmax and adaptive temperature depends on the scene. Queries that
    see a single key have no choice and are left out, as are infinite temperatures. Where a rule normalises keys, it is
    that of scores with normalised keys. Empty where logits are no scores (linear attention), which is told once.

    Source: "Introducing a learnable temperature" (mean and spread per layer); "softmax is not enough", section 3.
    """

    reads = ("q", "k", "mask")

    def see(self, chunk: Chunk) -> tuple[Tensor, int]:
        values = []
        for rule, normaliser, layer in zip(chunk.rules, chunk.normalisers, chunk.layers, strict=True):
            q, k, mask = layer["q"], layer["k"], layer.get("mask")
            tau = temperature_of(rule, q, k, mask).double()
            known = tau.isfinite() & (key_counts(mask, k) > 1) & normaliser.takes_temperature
            finite_BHX = torch.where(known, tau, torch.nan).expand(*q.shape[:2], -1, -1).flatten(2)
            values.append(torch.stack([finite_BHX.nanmean((0, 2)), finite_BHX.square().nanmean((0, 2))]))
        return torch.stack(values).cpu(), len(chunk)

    def conclude(self, seen: list[Any]) -> Findings:
        found = Findings()
        for index, (mean_H, square_H) in enumerate(mean_over(seen)):
            spread_H = (square_H - mean_H.square()).clamp_min(0).sqrt()
            found.rows += [
                {"layer": index, "head": head, "temperature": mean, "spread": spread}
                for head, (mean, spread) in enumerate(zip(mean_H.tolist(), spread_H.tolist(), strict=True))
            ]
            # Of all queries of all heads of the layer.
            whole = (square_H.mean() - mean_H.mean().square()).clamp_min(0).sqrt()
            if not mean_H.isnan().any():
                found.scalars |= {f"mean/layer_{index}": float(mean_H.mean()), f"spread/layer_{index}": float(whole)}
        if any(math.isnan(row["temperature"]) for row in found.rows):
            self.tell_once("temperature left empty: no query has one under this softmax")
            return found
        found.figures["layers"] = partial(bars_by_layer, found.rows, ["temperature"], "temperature", log=True)
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        return lines_by_layer(table, ["temperature"], "temperature", moment, by="head", log=True)
