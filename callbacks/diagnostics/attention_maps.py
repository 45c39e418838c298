"""Pictures of attention: per layer and head, averaged, from the answer's token, and rolled out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.console import LabError, counted
from lab.observation.attention_statistics import received, rollout
from lab.observation.observe import Chunk, Findings
from lab.plotting.figures import literal, maps, panels
from lab.plotting.style import styled
from lab.plotting.weight_map import weight_map

GOT = "attention that a patch gets, mean over queries"
# Largest sides of a map whose tokens can be labelled, and of one whose weights can be written into it.
_TOKENS, _NUMBERS = 32, 8


class AttentionMaps(Diagnostic):
    """Attention of the first scenes, as pictures and arrays whenever pictures are due; no table.

    For images: ``heads`` (one map per layer and head beside the first scene: what each patch gets, averaged over
    queries), ``layers`` (averaged over heads too, as in Figure 3), ``answer`` (what the answer's token attends to: the
    CLS token; the first one in models of other libraries) and ``rollout``. For sequences: ``heads``, the weights
    themselves, averaged over scenes; for texts the weights of the first one, with its first 32 tokens as words. If
    inputs differ in length, only those as long as the first are shown.

    The arrays hold ``received`` [L, B, H, M] and, in self-attention, ``answer`` [L, B, H, M] and ``rollout`` [B, N, N].
    Weights that may have any sum are shown as |w| / sum |w|; of weights that add up to at most one, the part that goes
    to no key is on no map.

    Source: Eureka-moments in Transformers, Figure 3; rollout: Abnar and Zuidema 2020.
    """

    reads = ("weights",)
    has_numbers = False

    def __init__(
        self,
        folder: str,
        every_n_epochs: PositiveInt = 1,
        scenes: PositiveInt = 4,
        pictures_every_n_epochs: NonNegativeInt = 10,
    ) -> None:
        super().__init__(folder, every_n_epochs, scenes, pictures_every_n_epochs)

    def see(self, chunk: Chunk) -> dict[str, Any]:
        weights = chunk.shares
        if len({w.shape for w in weights}) > 1:
            raise LabError(
                "attention_maps draws layers side by side, and these differ in heads or tokens: leave it out"
            )
        square = weights[0].shape[-2] == weights[0].shape[-1]
        answer = chunk.model.answer_token
        grid = chunk.model.token_grid
        return {
            "received": torch.stack([received(w) for w in weights]).cpu(),
            "answer": torch.stack([w[:, :, answer] for w in weights]).cpu() if square else None,
            "rollout": rollout(weights).cpu() if square else None,
            "mean": torch.stack([w.sum(0) for w in weights]).cpu() if grid is None else None,
            "first": torch.stack([w[0] for w in weights]).cpu() if grid is None else None,
            "names": [chunk.token_names(sample) for sample in range(min(2, len(chunk)))] if grid is None else [],
            "scenes": _pictures_of(chunk.model.colours(chunk.batch["x"].float())) if grid is not None else None,
            "grid": grid,
            "token": answer,
            "name": chunk.model.answer_name,
        }

    def conclude(self, seen: list[Any]) -> Findings:
        seen = [own for own in seen if own["received"].shape[-1] == seen[0]["received"].shape[-1]]

        def joined(name: str, dim: int) -> Tensor | None:
            return None if seen[0][name] is None else torch.cat([own[name] for own in seen], dim)

        got, answer, rolled = joined("received", 1), joined("answer", 1), joined("rollout", 0)
        assert got is not None
        found = Findings(arrays={"received": got.half().numpy()})
        if answer is not None and rolled is not None:
            found.arrays |= {"answer": answer.half().numpy(), "rollout": rolled.half().numpy()}
        grid = seen[0]["grid"]
        if grid is None:
            names = [name for own in seen for name in own["names"]]
            # Texts have different words, so a mean over texts has no labels: the first text is shown.
            weights_LHNM, of = seen[0]["first"], "first input"
            if all(own == names[0] for own in names):
                weights_LHNM = torch.stack([own["mean"] for own in seen]).sum(0) / got.shape[1]
                of = f"mean over {counted(got.shape[1], 'input')}"
            found.figures["heads"] = partial(_matrices, weights_LHNM, names[0], f"attention weight,\n{of}")
            return found
        assert answer is not None and rolled is not None
        scenes = np.concatenate([own["scenes"] for own in seen])
        of_answer = f"attention of {seen[0]['name']}"
        found.figures = {
            "heads": partial(_heads, scenes[0], _on_grid(got[:, 0], grid)),
            "layers": partial(_rows, scenes, _on_grid(got.mean(2), grid), "layer", GOT),
            "answer": partial(_rows, scenes, _on_grid(answer.mean(2), grid), "layer", of_answer),
            "rollout": partial(
                _rows, scenes, _on_grid(rolled[:, seen[0]["token"]], grid)[None], "rollout", f"{of_answer}, rolled out"
            ),
        }
        return found


def _pictures_of(colours_BCHW: Tensor) -> np.ndarray:
    return colours_BCHW.clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()


def _on_grid(values: Tensor, grid: tuple[int, int]) -> np.ndarray:
    """[..., N] -> [..., rows, columns]; tokens before the patches are left out."""
    return values[..., -grid[0] * grid[1] :].unflatten(-1, grid).numpy()


def _heads(scene: np.ndarray, maps_LHRC: np.ndarray) -> Figure:
    layers, heads = maps_LHRC.shape[:2]
    pictures, titles = [scene], ["scene"]
    for layer in range(layers):
        pictures += [*([] if layer == 0 else [np.ones_like(scene)]), *maps_LHRC[layer]]
        titles += [*([] if layer == 0 else [""]), *(f"layer {layer}, head {head}" for head in range(heads))]
    return maps(pictures, titles, GOT, columns=heads + 1)


def _rows(scenes: np.ndarray, maps_LBRC: np.ndarray, name: str, label: str) -> Figure:
    pictures, titles = [], []
    for index, scene in enumerate(scenes):
        pictures += [scene, *maps_LBRC[:, index]]
        titles += ["scene", *(f"{name} {layer}" if len(maps_LBRC) > 1 else name for layer in range(len(maps_LBRC)))]
    return maps(pictures, titles, label, columns=len(maps_LBRC) + 1)


@styled()
def _matrices(weights_LHNM: Tensor, names: Sequence[str], label: str) -> Figure:
    """One map per layer and head, queries down and keys across, labelled with their tokens where these are known."""
    layers, heads, queries, keys = weights_LHNM.shape
    square = queries == keys
    if names and max(queries, keys) > _TOKENS:
        weights_LHNM, names = weights_LHNM[:, :, :_TOKENS, :_TOKENS], names[:_TOKENS]
    shown = weights_LHNM.float().numpy()
    queries, keys = shown.shape[2:]
    side = 1.7 if max(queries, keys) <= _NUMBERS else 3.6 if names else 2.2
    figure, axes = panels(layers * heads, width=side, height=side + 0.2, columns=min(heads, max(1, int(7.2 / side))))
    for panel, (layer, head) in zip(axes, np.ndindex(layers, heads), strict=True):
        map_NM = shown[layer, head]
        picture = weight_map(panel, map_NM, numbers=max(queries, keys) <= _NUMBERS)
        panel.set_title(f"layer {layer}, head {head}")
        panel.set(xlabel="key", ylabel="query")
        if len(names) == keys:
            small = {"fontsize": 5.5, "rotation": 90} if keys > _NUMBERS else {}
            panel.set_xticks(range(keys), map(literal, names), **small)
            if square:
                panel.set_yticks(range(queries), map(literal, names), **(small | {"rotation": 0}))
    figure.colorbar(picture, ax=axes, label=label, fraction=0.03, aspect=30, pad=0.02)
    return figure
