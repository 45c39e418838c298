"""Spread of the logits, which limits how sharp attention can be, beside the bounds of theory."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from lab.attention.normaliser import Normaliser
from lab.callbacks.diagnostics.base import Diagnostic
from lab.observation.attention_statistics import (
    dispersion_bound,
    entropy_slope,
    keys_seen,
    log_critical_items,
    logit_spread,
    lower_dispersion_bound,
    query_means,
    smallest_weight,
    spread_bound,
)
from lab.observation.observe import Chunk, Findings, head_rows, layers_over_scenes
from lab.plotting.figures import bars_by_layer, lines_by_layer

_BARS = ("spread", "spread_bound", "largest_weight", "largest_weight_bound")
_COLUMNS = (
    *_BARS,
    "uniform",
    "smallest_weight",
    "smallest_weight_bound",
    "critical_items",
    "entropy_slope",
)
# Kept as its logarithm until the mean is taken.
_CRITICAL = _COLUMNS.index("critical_items")


class LogitSpread(Diagnostic):
    """The spread of a row's logits beside its bound, and the largest weight beside the dispersion bound.

    Table: layer, head, spread (largest minus smallest logit, temperature included), spread_bound (Proposition 3.1),
    largest_weight, largest_weight_bound (Lemma 2.1: exp(spread) / n), uniform (1 / n), smallest_weight,
    smallest_weight_bound (Lemma 2.1: exp(-spread) / n), critical_items (Theorem 2.2: exp(spread) / epsilon, the number
    of keys above which no weight can reach epsilon), entropy_slope (Proposition 3.2: dH / d beta = -Var_p of the
    logits, where beta multiplies them and is 1). Values are means over scenes and queries (geometric for
    critical_items); n is the number of keys that a query may see. Where weights may have any sum, largest_weight and
    smallest_weight are those of |w| / sum |w|.

    A column is left empty where it is not defined, and a note says so once. spread_bound is not defined where logits
    are no scores q k^T of the projected queries and keys (linear attention, normalised keys) and in models of other
    libraries. largest_weight_bound, smallest_weight_bound, critical_items and entropy_slope are not defined where
    weights are no exponentials over their sum (all normalisers but softmax and those with a sink or a window);
    critical_items not where more keys may sharpen a row (``reads_keys`` of its rule) or do not come into it (a window);
    smallest_weight_bound and entropy_slope not under a sink either, and entropy_slope not where a model adds a bias to
    its scores, which beta does not multiply.

    Source: "softmax is not enough", Propositions 3.1 and 3.2, Lemma 2.1, Theorem 2.2.

    Args:
        folder, every_n_epochs, scenes, pictures_every_n_epochs: as in :class:`Diagnostic`.
        epsilon: weight of critical_items, in (0, 1).
    """

    reads = ("queries", "tokens", "q", "k", "mask", "bias", "logits", "weights")

    def __init__(
        self,
        folder: str,
        every_n_epochs: PositiveInt = 1,
        scenes: PositiveInt = 256,
        pictures_every_n_epochs: NonNegativeInt = 10,
        epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.01,
    ) -> None:
        super().__init__(folder, every_n_epochs, scenes, pictures_every_n_epochs)
        self.epsilon = epsilon

    def see(self, chunk: Chunk) -> list[Tensor]:
        values = []
        modules = chunk.model.attention_layers()
        for module, layer, weights in zip(modules, chunk.layers, chunk.shares, strict=True):
            logits = layer["logits"]
            keys_BHN = keys_seen(logits)
            spread_BHN = logit_spread(logits)
            undefined = bound_BHN = torch.full_like(spread_BHN, math.nan)
            # For a model of another library, the inputs of its projections are not known.
            if "queries" in layer:
                beta = module.rule.inverse_temperature(layer["q"], layer["k"], layer.get("mask")).detach()
                bound_BHN = spread_bound(module, layer["queries"], layer["tokens"], beta).expand_as(spread_BHN)
            disperses = module.normaliser.exponential
            is_softmax = disperses and module.normaliser.total == "one"
            # Theorem 2.2 adds keys to a row, which must see them, and be no sharper for it.
            grows = disperses and type(module.normaliser).allowed is Normaliser.allowed and not module.rule.reads_keys
            columns = (
                spread_BHN,
                bound_BHN,
                weights.amax(-1),
                dispersion_bound(spread_BHN, keys_BHN) if disperses else undefined,
                1 / keys_BHN,
                smallest_weight(weights, logits),
                lower_dispersion_bound(spread_BHN, keys_BHN) if is_softmax else undefined,
                log_critical_items(spread_BHN, self.epsilon) if grows else undefined,
                entropy_slope(weights, logits) if is_softmax and "bias" not in layer else undefined,
            )
            values.append(torch.stack(query_means(columns, logits), dim=1).cpu().double())
        return values

    def conclude(self, seen: list[Any]) -> Findings:
        found, means = Findings(), layers_over_scenes(seen)
        for mean_CH in means:
            mean_CH[_CRITICAL] = mean_CH[_CRITICAL].exp()
        empty = [name for column, name in enumerate(_COLUMNS) if any(one_CH[column].isnan().any() for one_CH in means)]
        if empty:
            self.tell_once(f"{' and '.join(empty)} left empty: not defined under this softmax")
        for index, layer in enumerate(means):
            found.rows += head_rows(index, **dict(zip(_COLUMNS, layer.tolist(), strict=True)))
            whole = dict(zip(_COLUMNS, layer.mean(1).tolist(), strict=True))
            found.scalars |= {
                f"{name}/layer_{index}": whole[name] for name in _COLUMNS if name not in (*empty, "uniform")
            }
        columns = [name for name in _BARS if name not in empty]
        found.figures["layers"] = partial(bars_by_layer, found.rows, columns, "mean over queries", log=True)
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        columns = [name for name in ("spread", "spread_bound") if table[name].notna().any()]
        return lines_by_layer(table, columns, "logit spread", moment, log=True)
