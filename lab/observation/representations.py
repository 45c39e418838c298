"""Representations: the parts of a transformer that probes are given.

Shapes: B scenes, H heads, N tokens, D head dimension, W width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from lab.attention.precision import at_least_float32
from lab.console import LabError
from lab.datasets.contract import CLASSES
from lab.observation.observe import Chunk

# z, q, k and v belong to a head. The others have the whole width: what attention adds to the residual stream
# (attended), and the stream after that (residual).
Quantity = Literal["z", "q", "k", "v", "attended", "residual"]
OF_HEADS: tuple[Quantity, ...] = ("z", "q", "k", "v")
OF_BLOCKS: tuple[Quantity, ...] = ("attended", "residual")

Place = tuple[int, str, str]


def representations(chunk: Chunk, quantities: Sequence[str], tokens: Sequence[str]) -> dict[Place, Tensor]:
    """(layer, quantity, tokens) -> features [B, H, d]; H is 1 for the quantities of a block.

    ``answer`` is the token that the answer is read at (CLS), ``mean`` the mean over tokens, ``full`` all tokens side
    by side, d = N D. A layer whose queries are not its tokens has no answer token among its keys and values.
    """
    found: dict[Place, Tensor] = {}
    for index, layer in enumerate(chunk.layers):
        for quantity in quantities:
            if quantity not in layer:
                continue
            x_BHND = layer[quantity] if quantity in OF_HEADS else layer[quantity].unsqueeze(1)
            for kind in tokens:
                if kind == "answer":
                    # Keys are other tokens than the queries, with no answer token among them.
                    apart = quantity in ("k", "v") and layer["k"].shape[2] != layer["q"].shape[2]
                    if not apart:
                        # A copy: a view would keep all tokens of all chunks in memory.
                        found[index, quantity, kind] = x_BHND[:, :, chunk.model.answer_token].clone().cpu()
                elif kind == "mean":
                    found[index, quantity, kind] = at_least_float32(x_BHND)[0].mean(2).cpu()
                elif kind == "full":
                    found[index, quantity, kind] = x_BHND.flatten(2).clone().cpu()
    return found


def needed(quantities: Sequence[str]) -> tuple[str, ...]:
    """Lists what the recorder has to read: for k or v also q and k, to see if keys are other tokens than queries."""
    beside = ("q", "k") if {"k", "v"} & set(quantities) else ()
    return tuple(dict.fromkeys((*quantities, *beside)))


def probe_labels(chunk: Chunk, names: Sequence[str] | None) -> dict[str, Tensor]:
    """Labels [B] by name: those in ``names``, or the label and all latents that are classes of parts of the scene.

    Raises:
        LabError: if the data has no latent of a given name, or has one label for each token.
    """
    if chunk.batch["y"].ndim > 1:
        raise LabError("probes need one label per sample, but this data has one per token: leave the probes out")
    latents: Mapping[str, Tensor] = chunk.batch["latents"]
    every = {**latents, "label": chunk.batch["y"]}
    if names is None:
        names = [n for n in latents if n.startswith(CLASSES) and not n.endswith("_tile")] + ["label"]
    missing = [name for name in names if name not in every]
    if missing:
        raise LabError(f"the data has no {', '.join(missing)} to probe for; it has {', '.join(every)}")
    return {name: every[name].cpu() for name in names}
