"""What every layer and head knows: linear probes, all fitted in one batched solve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from callbacks.diagnostic import Diagnostic
from lab.errors import LabError
from lab.observe import Chunk, Findings
from lab.pictures import new_figure, panels, shade_before
from lab.probes import Targets, probe_accuracy
from lab.representations import (
    OF_BLOCKS,
    OF_HEADS,
    TOKENS,
    Place,
    known,
    needed,
    probe_labels,
    representations,
)

# Of whole representations, in half precision; their solve takes about as much again.
_MOST_GIB = 5.0


class LinearProbes(Diagnostic):
    """Held-out accuracy of logistic probes on z, q, k, v of every head and on the block before and after the residual.

    Table: layer, head (-1 for a block), quantity, tokens (answer, mean, full), target, accuracy, chance (1 / classes),
    majority (always the most frequent class). Pictures: bars per layer with the spread over heads (Figures 2, 19 to
    23), and the answer token's z over training. ``lab.probes`` tells how they are fitted.

    Source: Eureka-moments in Transformers, section 4 and A.13.

    Args:
        folder, every_n_epochs, scenes, pictures_every_n_epochs: as in :class:`Diagnostic`.
        quantities: of "z", "q", "k", "v", "attended", "residual", probed at the answer token and the mean over tokens.
        full: quantities whose whole representation is probed, all tokens side by side. For the compact ViT each takes
            200 MB and 2 s a head at 4,000 scenes: ``scenes`` of it are ``full_scenes``.
        full_scenes: how many of the scenes the whole representation is probed on; None takes all.
        targets: latents to probe for; None takes indicators, targets, target location, colours and the label.
        held_out_share: share of scenes that judge.
        l2: penalty on the probes' weights.

    Raises:
        ValueError: if an option is out of its range.
    """

    def __init__(
        self,
        folder: str,
        every_n_epochs: int = 1,
        scenes: int = 2000,
        pictures_every_n_epochs: int = 10,
        quantities: Sequence[str] = (*OF_HEADS, *OF_BLOCKS),
        full: Sequence[str] = (),
        full_scenes: int | None = None,
        targets: Sequence[str] | None = None,
        held_out_share: float = 0.25,
        l2: float = 1.0,
    ) -> None:
        super().__init__(folder, every_n_epochs, scenes, pictures_every_n_epochs)
        self.quantities, self.full = known(self.name, quantities), known(self.name, full)
        if not 0 < held_out_share < 1:
            raise ValueError(f"callbacks.{self.name}.held_out_share must be between 0 and 1, got {held_out_share}")
        if l2 <= 0:
            raise ValueError(f"callbacks.{self.name}.l2 must be positive, got {l2}")
        if full_scenes is not None and not 1 <= full_scenes <= scenes:
            raise ValueError(
                f"callbacks.{self.name}.full_scenes must be between 1 and scenes={scenes}, got {full_scenes}"
            )
        self.full_scenes = full_scenes or scenes
        self.targets = None if targets is None else list(targets)
        self.held_out_share = held_out_share
        self.l2 = l2
        self.reads = needed((*self.quantities, *self.full))
        self._shown_full = 0

    def see(self, chunk: Chunk) -> tuple[dict[Place, Tensor], dict[str, Tensor], torch.device]:
        found = representations(chunk, self.quantities, ("answer", "mean"))
        if self.full and self._shown_full < self.full_scenes:
            whole = representations(chunk, self.full, ("full",))
            _check_memory(whole, self.full_scenes)
            room = self.full_scenes - self._shown_full
            found |= {place: features[:room] for place, features in whole.items()}
            self._shown_full += min(room, len(chunk))
        return found, probe_labels(chunk, self.targets), chunk.batch["y"].device

    def conclude(self, seen: list[Any]) -> Findings:
        self._shown_full = 0
        labels = {name: torch.cat([own[1][name] for own in seen]) for name in seen[0][1]}
        found = Findings()
        for places, features_PND in together(seen):
            size = features_PND.shape[1]
            targets = Targets.of({name: values[:size] for name, values in labels.items()})
            cut = size - round(self.held_out_share * size)
            majority = targets.majority(slice(0, cut), slice(cut, size))
            accuracy_PT = probe_accuracy(features_PND.to(seen[0][2]), targets, self.held_out_share, self.l2)
            for (place, head), row in zip(places, accuracy_PT.tolist(), strict=True):
                for target, classes, usual, value in zip(targets.names, targets.classes, majority, row, strict=True):
                    found.rows.append(
                        row_of(place, head, target)
                        | {"accuracy": value, "chance": 1 / classes, "majority": usual, "scenes": size}
                    )
        if not found.rows:
            raise LabError(f"callbacks.{self.name}: the model has none of {', '.join(self.reads)} to probe")
        table = pd.DataFrame(found.rows)
        shown = table[(table["quantity"] == "z") & (table["tokens"] == "answer")]
        for name, rows in shown.groupby(["target", "layer"], sort=False):
            probed, layer = cast(tuple[str, int], name)
            found.scalars[f"{probed}/layer_{layer}"] = float(rows["accuracy"].mean())
        for kind in TOKENS:
            if (table["tokens"] == kind).any():
                found.figures[kind] = partial(bars, table[table["tokens"] == kind], "accuracy")
        return found

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        shown = table[(table["quantity"] == "z") & (table["tokens"] == "answer")]
        shown = table if shown.empty else shown
        targets = list(shown["target"].unique())
        figure, axes = panels(len(targets))
        for panel, target in zip(axes, targets, strict=True):
            own = shown[shown["target"] == target]
            for layer, rows in own.groupby("layer"):
                mean = rows.groupby("step")["accuracy"].mean()
                panel.plot(mean.index, 100 * mean.to_numpy(), linewidth=1, label=f"layer {layer}")
            _baselines(panel, own)
            panel.set(title=target, xlabel="step", ylim=(0, 102))
            shade_before(panel, moment)
        axes[0].set_ylabel("accuracy of probes on z (answer token) in %")
        axes[0].legend(fontsize=7)
        return figure


def _check_memory(whole: dict[Place, Tensor], scenes: int) -> None:
    size = sum(features[0].numel() for features in whole.values()) * scenes * 2 / 2**30
    if size > _MOST_GIB:
        raise LabError(
            f"callbacks.linear_probes.full would hold {size:.1f} GiB, more than {_MOST_GIB}: name fewer quantities at "
            "a time, or lower full_scenes"
        )


def row_of(place: Place, head: int, target: str) -> dict[str, Any]:
    """The columns that say which probe it is."""
    layer, quantity, tokens = place
    own = head if quantity in OF_HEADS else -1
    return {"layer": layer, "head": own, "quantity": quantity, "tokens": tokens, "target": target}


def together(seen: Sequence[tuple[dict[Place, Tensor], Any, Any]]) -> Iterable[tuple[list[tuple[Place, int]], Tensor]]:
    """Representations of one shape side by side, with whose they are: [((layer, quantity, tokens), head)], [P, n, d].

    What was seen is taken apart on the way, so that features are held once.
    """
    shapes: dict[tuple[str, int], list[Place]] = {}
    for place, features in seen[0][0].items():
        # A whole representation is so wide that it is solved alone.
        key = (f"{place}" if place[2] == "full" else "", features.shape[2])
        shapes.setdefault(key, []).append(place)
    for places in shapes.values():
        own = [torch.cat([parts[0].pop(place) for parts in seen if place in parts[0]]) for place in places]
        names = [(place, head) for place, whole in zip(places, own, strict=True) for head in range(whole.shape[1])]
        yield names, torch.cat(own, dim=1).transpose(0, 1)


def bars(table: pd.DataFrame, column: str) -> Figure:
    """A panel a target: bars per layer and quantity, error bars over heads, chance and majority as lines.

    Source: Eureka-moments in Transformers, Figures 2 and 18 to 23.
    """
    targets = list(table["target"].unique())
    quantities = list(table["quantity"].unique())
    layers = sorted(table["layer"].unique())
    factor = 100 if column == "accuracy" else 1
    figure, axes = new_figure(7, 2.1 * len(targets) + 0.4, len(targets), 1)
    for panel, target in zip(axes[:, 0], targets, strict=True):
        own = table[table["target"] == target]
        for place, quantity in enumerate(quantities):
            per_layer = own[own["quantity"] == quantity].groupby("layer")[column]
            mean = per_layer.mean().reindex(layers).to_numpy(float)
            spread = per_layer.std(ddof=0).reindex(layers).fillna(0).to_numpy(float)
            where = np.arange(len(layers)) + (place - (len(quantities) - 1) / 2) * 0.8 / len(quantities)
            panel.bar(where, factor * mean, 0.8 / len(quantities), yerr=factor * spread, capsize=2, label=quantity)
        _baselines(panel, own, factor)
        panel.set_xticks(range(len(layers)), [f"layer {layer}" for layer in layers])
        panel.set_ylabel(f"{column}{' in %' if factor == 100 else ''}", fontsize=8)
        panel.set_title(target, fontsize=9)
    axes[0, 0].legend(fontsize=7, ncols=len(quantities), loc="lower right")
    return figure


def _baselines(panel: Any, rows: pd.DataFrame, factor: float = 100) -> None:
    for name, style in (("chance", "-"), ("majority", ":")):
        if name in rows:
            panel.axhline(factor * rows[name].iloc[0], color="black", linestyle=style, linewidth=1)
