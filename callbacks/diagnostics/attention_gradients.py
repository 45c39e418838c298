"""Derivatives of attention: how much its output depends on q, k and v, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.datasets.seeding import generator_of
from lab.observation.attention_statistics import output_derivatives
from lab.observation.observe import Chunk, Findings, mean_over_scenes
from lab.plotting.figures import count_axis, legend_below, maps, name_left, panels, shade_before
from lab.plotting.style import QKV, styled


class AttentionGradients(Diagnostic):
    """Mean |dZ/dQ|, |dZ/dK|, |dZ/dV| per token, over scenes and heads.

    Table: layer, of ("q", "k" or "v"), region ("all", "indicator", "target", ...), derivative. Pictures: a map on the
    patch grid for each of q, k and v (Figures 5, 11, 12), and the regions over training (Figure 13). Derivatives are
    those of the sum of Z over tokens and channels (``direction=sum``), in which contributions of opposite signs cancel,
    or of a sum with random signs (``random``: drawn once, the same at every look), in which they do not.

    Source: Eureka-moments in Transformers, A.2.
    """

    reads = ("q", "k", "v", "mask", "bias")

    def __init__(
        self,
        folder: str,
        every_n_epochs: PositiveInt = 1,
        scenes: PositiveInt = 64,
        pictures_every_n_epochs: NonNegativeInt = 10,
        direction: Literal["sum", "random"] = "sum",
    ) -> None:
        super().__init__(folder, every_n_epochs, scenes, pictures_every_n_epochs)
        self.direction = direction

    def see(self, chunk: Chunk) -> dict[str, Any]:
        regions: dict[str, list[Tensor]] = {}
        tokens: list[dict[str, Tensor]] = []
        for index, (module, layer) in enumerate(zip(chunk.model.attention_layers(), chunk.layers, strict=True)):
            q, k, v = (layer[name] for name in "qkv")
            direction, mask, bias = self._direction(q, index), layer.get("mask"), layer.get("bias")
            found = output_derivatives(module.rule, q, k, v, direction, module.normaliser, mask, bias)
            means = {name: value_BHN.mean(1) for name, value_BHN in found.items()}
            tokens.append({name: mean_BN.cpu() for name, mean_BN in means.items()})
            # Regions mark keys. Queries of other tokens (cross-attention) lie in no region: all of them count.
            every = {"all": torch.ones_like(means["k"], dtype=torch.bool), **chunk.regions}
            for name, region_BM in every.items():
                values = [
                    _mean_where(mean, region_BM if mean.shape == region_BM.shape else torch.ones_like(mean).bool())
                    for mean in means.values()
                ]
                regions.setdefault(name, []).append(torch.stack(values, dim=1))
        return {
            "regions": {name: torch.stack(values, dim=1).cpu() for name, values in regions.items()},
            "tokens": tokens,
            "grid": chunk.model.token_grid,
        }

    def conclude(self, seen: list[Any]) -> Findings:
        found = Findings()
        for region in seen[0]["regions"]:
            means = mean_over_scenes([own["regions"][region] for own in seen]).tolist()
            for index, values in enumerate(means):
                for name, value in zip("qkv", values, strict=True):
                    found.rows.append({"layer": index, "of": name, "region": region, "derivative": value})
                    if region in ("all", "indicator", "target"):
                        found.scalars[f"{name}_{region}/layer_{index}"] = value
        layers = range(len(seen[0]["tokens"]))
        # Where inputs or layers differ in length, there is no mean per token.
        lengths = {tuple(mean_BN.shape[1] for mean_BN in layer.values()) for own in seen for layer in own["tokens"]}
        alike = len(lengths) == 1
        for name in "qkv" if alike else "":
            per_layer = [mean_over_scenes([own["tokens"][i][name] for own in seen]) for i in layers]
            found.arrays[name] = torch.stack(per_layer).float().numpy()
        if alike and (grid := seen[0]["grid"]) is not None:
            found.figures["maps"] = partial(_maps, found.arrays, grid)
        return found

    @styled()
    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        shown = [region for region in ("indicator", "target") if region in set(table["region"])] or ["all"]
        layers = sorted(table["layer"].unique())
        figure, axes = panels(len(layers), sharex=True, sharey=True)
        for panel, layer in zip(axes, layers, strict=True):
            derivatives_panel(panel, table[table["layer"] == layer], shown, moment)
            panel.set_title(f"layer {layer}")
        name_left(axes, "mean |derivative of Z|")
        legend_below(figure)
        return figure

    def _direction(self, q_BHND: Tensor, layer: int) -> Tensor | None:
        if self.direction == "sum":
            return None
        shape = q_BHND.shape[1:]
        signs = torch.randint(2, shape, generator=generator_of("attention gradients", layer)) * 2 - 1
        return signs.to(q_BHND.device, torch.float32)


def derivatives_panel(axes: Any, table: pd.DataFrame, regions: Sequence[str], moment: float | None) -> None:
    """Draws mean |derivative| of one or two regions against steps, from a layer's rows of the table."""
    for name, color in QKV.items():
        for style, region in zip(("-", "--"), regions, strict=False):
            own = table[(table["of"] == name) & (table["region"] == region)]
            axes.plot(own["step"], own["derivative"], style, color=color, label=f"{name.upper()} {region}")
    axes.set(yscale="log")
    count_axis(axes, "step")
    shade_before(axes, moment)


def _mean_where(values_BN: Tensor, region_BN: Tensor) -> Tensor:
    """Mean over a region of each scene, [B]; NaN in a scene without the region."""
    return values_BN.masked_fill(~region_BN, 0).sum(-1) / region_BN.sum(-1)


def _maps(arrays: dict[str, Any], grid: tuple[int, int]) -> Figure:
    patches = grid[0] * grid[1]
    layers = len(arrays["q"])
    pictures = [arrays[name][layer, -patches:].reshape(grid) for name in "qkv" for layer in range(layers)]
    titles = [f"{name.upper()}, layer {layer}" for name in "qkv" for layer in range(layers)]
    return maps(pictures, titles, "mean |derivative of Z|", columns=layers, log=True)
