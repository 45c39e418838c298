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
from lab.attention.precision import in_float64
from lab.callbacks.diagnostics.base import Diagnostic
from lab.observation.attention_statistics import temperature_of
from lab.observation.observe import Chunk, Findings, head_rows
from lab.plotting.figures import bars_by_layer, lines_by_layer


class TemperatureInUse(Diagnostic):
    """Mean and spread of 1 / beta over scenes and queries, per layer and head.

    Table: layer, head, temperature, spread (standard deviation). The callback ``temperatures`` logs what a rule has
    learned; this one shows the temperature that results, which for NormSoftmax and adaptive temperature depends on the
    scene. Queries that see a single key have no choice and are left out, as are infinite temperatures. Where a rule
    normalises keys, the temperature is that of scores with normalised keys. Columns are left empty, and a note says so
    once, where no query has a temperature, as under linear attention, whose logits are no scores.

    Source: "Introducing a learnable temperature" (mean and spread per layer); "softmax is not enough", section 3.
    """

    reads = ("q", "k", "mask")

    def see(self, chunk: Chunk) -> list[Tensor]:
        values = []
        for rule, normaliser, layer in zip(chunk.rules, chunk.normalisers, chunk.layers, strict=True):
            q, k, mask = layer["q"], layer["k"], layer.get("mask")
            tau = temperature_of(rule, q, k, mask)
            known = tau.isfinite() & (key_counts(mask, k) > 1) & normaliser.takes_temperature
            tau_BHX, known_BHX = (
                x.expand(*q.shape[:2], -1, -1).flatten(2) for x in torch.broadcast_tensors(tau, known)
            )
            tau_BHX = in_float64(tau_BHX.where(known_BHX, 0))
            sums = (in_float64(known_BHX), tau_BHX, tau_BHX.square())
            values.append(torch.stack([x.sum((0, 2)) for x in sums]).cpu())
        return values

    def conclude(self, seen: list[Any]) -> Findings:
        found = Findings()
        for index, chunks in enumerate(zip(*seen, strict=True)):
            count_H, sum_H, squares_H = torch.stack(chunks).sum(0)
            mean_H, square_H = sum_H / count_H, squares_H / count_H
            spread_H = (square_H - mean_H.square()).clamp_min(0).sqrt()
            found.rows += head_rows(index, temperature=mean_H.tolist(), spread=spread_H.tolist())
            # Spread over all queries of all heads of the layer.
            whole = (square_H.mean() - mean_H.mean().square()).clamp_min(0).sqrt()
            if not mean_H.isnan().any():
                found.scalars |= {f"mean/layer_{index}": float(mean_H.mean()), f"spread/layer_{index}": float(whole)}
        shown = [row for row in found.rows if not math.isnan(row["temperature"])]
        if empty := sorted({row["layer"] for row in found.rows} - {row["layer"] for row in shown}):
            where = "" if not shown else f" in layers {', '.join(map(str, empty))}"
            self.tell_once(f"temperature left empty{where}: no query there has one")
        if shown:
            found.figures["layers"] = partial(bars_by_layer, shown, ["temperature"], "temperature", log=True)
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        return lines_by_layer(table, ["temperature"], "temperature", moment, by="head", log=True)
