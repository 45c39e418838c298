"""Representations: the parts of a transformer that probes are given.

Shapes: B scenes, H heads, N tokens, D head dimension, W width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from lab.console import LabError
from lab.observation.observe import Chunk

# Of a head, and of the whole width: attention's part before and after it joins the residual stream.
Quantity = Literal["z", "q", "k", "v", "attended", "residual"]
OF_HEADS: tuple[Quantity, ...] = ("z", "q", "k", "v")
OF_BLOCKS: tuple[Quantity, ...] = ("attended", "residual")

Place = tuple[int, str, str]


def representations(chunk: Chunk, quantities: Sequence[str], tokens: Sequence[str]) -> dict[Place, Tensor]:
    """(layer, quantity, tokens) -> features [B, H, d]; a block's output has one head.

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
                    # Keys of their own, with no query among them.
                    apart = quantity in ("k", "v") and layer["k"].shape[2] != layer["q"].shape[2]
                    if not apart:
                        # A copy: a view would keep all tokens of all chunks in memory.
                        found[index, quantity, kind] = x_BHND[:, :, chunk.model.answer_token].clone().cpu()
                elif kind == "mean":
                    found[index, quantity, kind] = x_BHND.mean(2).cpu()
                elif kind == "full":
                    # Half the memory; what it rounds away is far below what a probe can use.
                    found[index, quantity, kind] = x_BHND.flatten(2).to(torch.float16).cpu()
    return found


def needed(quantities: Sequence[str]) -> tuple[str, ...]:
    """Lists what the recorder has to read for these: q and k tell whether keys stand apart from queries."""
    beside = ("q", "k") if {"k", "v"} & set(quantities) else ()
    return tuple(dict.fromkeys((*quantities, *beside)))


def probe_labels(chunk: Chunk, names: Sequence[str] | None) -> dict[str, Tensor]:
    """Labels [B] by name: those asked for, or the label and all latents that are classes of parts of the scene.

    Raises:
        LabError: if the data has no latent of a name, or a label for each token.
    """
    if chunk.batch["y"].ndim > 1:
        raise LabError("probes read one label of each sample, and this data asks for one of each token: leave them out")
    latents: Mapping[str, Tensor] = chunk.batch["latents"]
    every = {**latents, "label": chunk.batch["y"]}
    if names is None:
        kinds = ("indicator_", "target_", "color_", "largest", "second_largest", "smallest")
        names = [n for n in latents if n.startswith(kinds) and not n.endswith("_tile")] + ["label"]
    missing = [name for name in names if name not in every]
    if missing:
        raise LabError(f"the data has no {', '.join(missing)} to probe for; it has {', '.join(every)}")
    return {name: every[name].cpu() for name in names}
