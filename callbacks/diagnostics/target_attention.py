"""Attention of the answer's token on the target that is the answer, beside the other targets."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.console import LabError
from lab.observation.attention_statistics import mass_on
from lab.observation.observe import Chunk, Findings, head_rows
from lab.plotting.figures import bars_by_layer, lines_by_layer

_LABEL = "attention on targets"


class TargetAttention(Diagnostic):
    """Share of the answer token's attention on the right target and on each other one, per layer and head.

    Table: layer, head, location (the right one, from 0), right, wrong (mean over the other targets), scenes. Scalars
    and pictures show means over the locations, each counting alike: a head that does not know z has right = wrong
    there, however often a location is right and however many tokens a target has. Where the two part, p(z|x) is
    learned. The answer's token is the one that the answer is read at (CLS of a ViT). Where weights may have any sum,
    shares are those of |w| / sum |w|.

    Source: Eureka-moments in Transformers, Figure 3 and section 5.1 (attention before and after the moment).

    Raises:
        LabError: if the data does not say where its targets stand, or which of them is right.
    """

    needs = "scenes"
    reads = ("weights",)

    def see(self, chunk: Chunk) -> tuple[list[Tensor], Tensor, Tensor]:
        latents = chunk.batch["latents"]
        count = max(2, sum(name.removeprefix("target_").isdigit() for name in latents))
        names = [f"target_{number}" for number in range(1, count + 1)]
        missing = [f"latent {name}" for name in ("target_location", *names) if name not in latents]
        missing += [f"place of {name}" for name in names if name not in chunk.regions]
        if missing:
            raise LabError(
                f"callbacks.{self.name} compares attention on the right target with that on the others, and this data "
                f"has no {', no '.join(missing)}: leave it out"
            )
        places = [chunk.regions[name] for name in names]
        # Z locations, T = Z targets; the other letters as in lab.observation.observe.
        right_BZ = F.one_hot(latents["target_location"], count).float()
        sums_ZTH = []
        for weights in chunk.shares:
            answer_BHM = weights[:, :, chunk.model.answer_token]
            mass_BTH = torch.stack([mass_on(answer_BHM, place_BM) for place_BM in places], 1)
            sums_ZTH.append(torch.einsum("bz,bth->zth", right_BZ, mass_BTH).cpu())
        together = torch.stack([place_BM == places[0] for place_BM in places]).all()
        return sums_ZTH, right_BZ.sum(0).cpu(), together.cpu()

    def conclude(self, seen: list[Any]) -> Findings:
        if all(together for *_, together in seen):
            raise LabError(
                f"callbacks.{self.name} compares attention on the right target with that on the others, and the "
                "targets of this data are at the same place: leave it out"
            )
        scenes_Z = torch.stack([scenes for _, scenes, _ in seen]).sum(0)
        found = Findings()
        for index in range(len(seen[0][0])):
            mass_ZTH = torch.stack([sums[index] for sums, *_ in seen]).sum(0) / scenes_Z.view(-1, 1, 1)
            for place in scenes_Z.nonzero().flatten().tolist():
                right_H = mass_ZTH[place, place]
                wrong_H = (mass_ZTH[place].sum(0) - right_H) / (len(scenes_Z) - 1)
                heads = len(right_H)
                found.rows += head_rows(
                    index,
                    location=[place] * heads,
                    right=right_H.tolist(),
                    wrong=wrong_H.tolist(),
                    scenes=[int(scenes_Z[place])] * heads,
                )
        table = pd.DataFrame(found.rows)
        for layer, rows in table.groupby("layer"):
            found.scalars |= {f"{name}/layer_{layer}": float(rows[name].mean()) for name in ("right", "wrong")}
        found.figures["layers"] = partial(bars_by_layer, _by_head(table), ["right", "wrong"], _LABEL)
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        return lines_by_layer(table, ["right", "wrong"], _LABEL, moment)


def _by_head(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Means over locations, so that bars show the spread over heads alone."""
    return table.groupby(["layer", "head"], as_index=False)[["right", "wrong"]].mean().to_dict("records")
