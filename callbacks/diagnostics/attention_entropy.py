"""Entropy of attention weights: a measure of how spread attention is."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.observation.attention_statistics import items_seen, query_means, share_of_log, weight_entropy
from lab.observation.observe import Chunk, Findings, head_rows, layers_over_scenes
from lab.plotting.figures import bars_by_layer, lines_by_layer

_COLUMNS = ("entropy", "share", "answer_entropy", "answer_share", "sum")
_LABEL = "entropy / log n, mean over queries"


class AttentionEntropy(Diagnostic):
    """Entropy of the attention weights per layer and head, in nats and as a share of log n.

    Table: layer, head, entropy, share (means over queries), answer_entropy, answer_share (of the query of the model's
    ``answer_token`` alone). A share of 1 is uniform attention, which over many keys starves W_Q and W_K of gradient. n
    is the number of keys that a query may see. Queries that see a single key have no choice, and no share; those that
    see none are left out.

    Where weights need not add up to one, a column ``sum`` has their sum, as the mean over rows. If they add up to at
    most one (a sink), the weight that goes to no key counts as one more item, in the entropy and in n. If they may have
    any sum, the entropy is that of |w| / sum |w|.

    Source: Eureka-moments in Transformers, section 3; "softmax is not enough", Proposition 3.2.
    """

    reads = ("logits", "weights")

    def see(self, chunk: Chunk) -> list[Tensor]:
        values, token = [], chunk.model.answer_token
        for normaliser, layer in zip(chunk.normalisers, chunk.layers, strict=True):
            weights, total = layer["weights"], normaliser.total
            entropy_BHN = weight_entropy(weights, total)
            items_BHN = items_seen(layer["logits"], total)
            # With a single item, as for the first token of a causal model, attention cannot spread.
            share_BHN = torch.where(items_BHN > 1, share_of_log(entropy_BHN, items_BHN), torch.nan)
            # A sum that is always 1, as under softmax, is left out of the table.
            sums = [] if total == "one" else [weights.float().sum(-1)]
            entropy_BH, share_BH, *sums = query_means([entropy_BHN, share_BHN, *sums], layer["logits"])
            answer = [column[:, :, token, None] for column in (entropy_BHN, share_BHN)]
            of_answer = query_means(answer, layer["logits"][:, :, token, None])
            values.append(torch.stack([entropy_BH, share_BH, *of_answer, *sums], dim=1).cpu())
        return values

    def conclude(self, seen: list[Any]) -> Findings:
        found = Findings()
        for index, columns in enumerate(layers_over_scenes(seen)):
            named = dict(zip(_COLUMNS, columns.tolist(), strict=False))
            found.rows += head_rows(index, **named)
            for name, values in named.items():
                key = name.replace("entropy", "nats")
                found.scalars[f"{key}/layer_{index}"] = sum(values) / len(values)
        found.figures["layers"] = partial(bars_by_layer, found.rows, ["share"], _LABEL)
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        return lines_by_layer(table, ["share"], _LABEL, moment, by="head")
