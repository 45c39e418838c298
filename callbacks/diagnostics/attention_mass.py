"""Share of attention on indicators, targets, the answer's token, or one single token."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.observation.attention_statistics import mass_on, null_mass, received
from lab.observation.observe import Chunk, Findings, head_rows, mean_over_scenes
from lab.plotting.figures import bars_by_layer, lines_by_layer

_LABEL = "share of attention, mean over queries"


class AttentionMass(Diagnostic):
    """Share of attention on regions of the scene, per layer and head.

    Table: layer, head, region, mass (the mean over queries), answer_mass (of the query of the model's ``answer_token``
    alone), tokens. Regions come from the scene's latents (``indicator``, ``target``; ``largest`` in max retrieval), so
    that they follow tiles that move; ``answer`` is the token that the answer is read at (CLS), ``sink`` whichever token
    gets most in that scene and head (of all queries, or of that one). Where every query sees all n tokens, compare a
    mass with tokens / n, its share under uniform attention; under a causal mask first tokens get more. Where weights
    add up to at most one, ``nothing`` is the rest (null mass), which goes to no token; where they may have any sum,
    masses are those of |w| / sum |w|. If the data does not say where parts of a scene are, only ``answer`` and ``sink``
    are shown, and a note says so once.

    Source: Eureka-moments in Transformers, Figure 3 and section 5.1; attention sinks: Xiao et al. 2023.
    """

    reads = ("weights",)

    def see(self, chunk: Chunk) -> dict[str, dict[int, Tensor]]:
        if not chunk.regions:
            self.tell_once(
                "the data does not say where the parts of its scenes stand (its regions are empty), so only the "
                "answer's token and the sink are shown"
            )
        # By region and layer, since no key of cross-attention is the answer token.
        masses: dict[str, dict[int, Tensor]] = {}
        token = chunk.model.answer_token
        for index, (normaliser, weights) in enumerate(zip(chunk.normalisers, chunk.shares, strict=True)):
            got_BHM = received(weights)
            regions = dict(chunk.regions)
            if weights.shape[-2] == weights.shape[-1]:
                answer = torch.zeros_like(got_BHM[:, 0], dtype=torch.bool)
                answer[:, token] = True
                regions["answer"] = answer
            own_BHM = weights[:, :, token]
            # Region -> mass from all queries, mass from the answer's, number of tokens.
            columns = {
                name: (mass_on(got_BHM, region), mass_on(own_BHM, region), region.float().sum(-1, keepdim=True))
                for name, region in regions.items()
            }
            sink_BH = got_BHM.amax(-1)
            columns["sink"] = sink_BH, own_BHM.amax(-1), torch.ones_like(sink_BH)
            if normaliser.total == "at most one":
                null_BHN = null_mass(weights)
                # Not "null", which pandas reads from a table as a missing value.
                columns["nothing"] = null_BHN.mean(-1), null_BHN[:, :, token], torch.zeros_like(sink_BH)
            for name, own in columns.items():
                masses.setdefault(name, {})[index] = torch.stack(torch.broadcast_tensors(*own), dim=1).cpu()
        return masses

    def conclude(self, seen: list[Any]) -> Findings:
        found = Findings()
        for name, layers in seen[0].items():
            for index in layers:
                masses, of_answer, sizes = mean_over_scenes([own[name][index] for own in seen]).tolist()
                columns = {"mass": masses, "answer_mass": of_answer, "tokens": sizes}
                found.rows += head_rows(index, region=[name] * len(masses), **columns)
                found.scalars[f"{name}/layer_{index}"] = sum(masses) / len(masses)
                found.scalars[f"answer_mass/{name}/layer_{index}"] = sum(of_answer) / len(of_answer)
        found.figures["layers"] = partial(_bars, pd.DataFrame(found.rows))
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        kinds = _kinds(table)
        own = table[table["region"].isin(kinds)]
        place = [name for name in ("epoch", "step", "layer") if name in own]
        wide = own.pivot_table("mass", place, "region").reset_index()
        return lines_by_layer(wide, kinds, _LABEL, moment)


def _kinds(table: pd.DataFrame) -> list[str]:
    """Regions of a kind (``target``), not its members (``target_1``)."""
    return [name for name in table["region"].unique() if not name[-1].isdigit()]


def _bars(table: pd.DataFrame) -> Figure:
    wide: Any = table.pivot_table("mass", ["layer", "head"], "region").reset_index()
    return bars_by_layer(wide.to_dict("records"), _kinds(table), _LABEL)
