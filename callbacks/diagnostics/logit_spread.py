"""Spread of the logits, which limits how sharp attention can be, beside the bounds of theory."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.observation.attention_statistics import dispersion_bound, keys_seen, logit_spread, shares, spread_bound
from lab.observation.observe import Chunk, Findings, mean_over
from lab.plotting.figures import bars_by_layer, lines_by_layer

_COLUMNS = ("spread", "spread_bound", "largest_weight", "largest_weight_bound", "uniform")


class LogitSpread(Diagnostic):
    """The spread of a row's logits beside its bound, and the largest weight beside the dispersion bound.

    Table: layer, head, spread (largest minus smallest logit, temperature included), spread_bound (Proposition 3.1),
    largest_weight, largest_weight_bound (Lemma 2.1: exp(spread) / n), uniform (1 / n); means over scenes and queries,
    n the keys that a query may see. Where weights add up to anything, the largest is that of |w| / sum |w|.

    A bound is left empty where it is not defined, and that is told once: the first where logits are no scores q k^T of
    queries and keys as projected (linear attention, normalised keys), the second where weights are no exponentials over
    their sum (all but softmax and those with a sink or a window).

    Source: "softmax is not enough", Proposition 3.1 and Lemma 2.1.
    """

    reads = ("queries", "tokens", "q", "k", "logits", "weights")

    def see(self, chunk: Chunk) -> tuple[Tensor, int]:
        values = []
        modules = chunk.model.attention_layers()
        for module, layer in zip(modules, chunk.layers, strict=True):
            keys_BHN = keys_seen(layer["logits"])
            spread_BHN = logit_spread(layer["logits"])
            beta = module.rule.inverse_temperature(layer["q"], layer["k"]).detach()
            bound_BHN = spread_bound(module, layer["queries"], layer["tokens"], beta).expand_as(spread_BHN)
            undefined = torch.full_like(spread_BHN, math.nan)
            columns = (
                spread_BHN,
                bound_BHN,
                shares(layer["weights"], module.normaliser.total).amax(-1),
                dispersion_bound(spread_BHN, keys_BHN) if module.normaliser.exponential else undefined,
                1 / keys_BHN,
            )
            values.append(torch.stack([column.mean((0, 2)) for column in columns]))
        return torch.stack(values).cpu(), len(chunk)

    def conclude(self, seen: list[Any]) -> Findings:
        found, means_L5H = Findings(), mean_over(seen)
        empty = [name for name, values in zip(_COLUMNS, means_L5H.unbind(1), strict=True) if values.isnan().any()]
        if empty:
            self.tell_once(f"{' and '.join(empty)} left empty: not defined under this softmax")
        for index, layer in enumerate(means_L5H):
            found.rows += [
                {"layer": index, "head": head, **dict(zip(_COLUMNS, column, strict=True))}
                for head, column in enumerate(layer.t().tolist())
            ]
            means = dict(zip(_COLUMNS, layer.mean(1).tolist(), strict=True))
            found.scalars |= {f"{name}/layer_{index}": means[name] for name in _COLUMNS[:-1] if name not in empty}
        columns = [name for name in _COLUMNS[:-1] if name not in empty]
        found.figures["layers"] = partial(bars_by_layer, found.rows, columns, "mean over queries", log=True)
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        columns = [name for name in ("spread", "spread_bound") if table[name].notna().any()]
        return lines_by_layer(table, columns, "logit spread", moment, log=True)
