"""The base of diagnostics that fit linear probes: what they probe, their table and their pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from lab.callbacks.diagnostics.base import Diagnostic
from lab.console import LabError
from lab.observation.observe import Chunk, Findings
from lab.observation.probes import Targets
from lab.observation.representations import OF_HEADS, Place, Quantity, needed, probe_labels, representations
from lab.plotting.curves import guide
from lab.plotting.figures import count_axis, grouped_bars, legend_below, name_left, new_figure, panels, shade_before
from lab.plotting.style import layer_colors, styled

Seen = tuple[dict[Place, Tensor], dict[str, Tensor], torch.device]

# Limit for whole representations, held in half precision; the solve for their probes takes about as much again.
_MOST_GIB = 5.0
# Baselines drawn as lines, where the table has them: that of chance, and that of knowing only the class frequencies.
_BASELINES = {"chance": "--", "majority": ":", "uniform": "--", "marginal": ":"}


class Probe(Diagnostic):
    """Fits probes to representations of every layer and head; a subclass says what is measured.

    Table: layer, head (-1 for a block), quantity, tokens, target, then the measure, its baselines, scenes.

    Args:
        folder, every_n_epochs, scenes, pictures_every_n_epochs: as in :class:`Diagnostic`.
        quantities: of "z", "q", "k", "v", "attended", "residual".
        tokens: of "answer" and "mean".
        full: quantities whose whole representation is probed, all tokens side by side. For the compact ViT each takes
            200 MB and 2 s per head at 4,000 scenes, so ``full_scenes`` limits their number of scenes.
        full_scenes: how many of the scenes the whole representation is probed on; None takes all.
        targets: latents to probe for; None takes all classes of parts of the scene.
        l2: penalty on the probes' weights.

    Raises:
        ValueError: if ``full_scenes`` exceeds ``scenes``.
    """

    needs = "scenes"

    # Column of the measure, and the quantity that is logged and drawn over training where it is probed; for pictures
    # the axis label (over training, of a "{quantity}"), factor and axis limits.
    measured: ClassVar[str]
    drawn: ClassVar[Quantity]
    label: ClassVar[str]
    factor: ClassVar[float] = 1
    limits: ClassVar[tuple[float, float] | None] = None

    def __init__(
        self,
        folder: str,
        every_n_epochs: PositiveInt,
        scenes: PositiveInt,
        pictures_every_n_epochs: NonNegativeInt,
        quantities: Sequence[Quantity],
        tokens: Sequence[str],
        full: Sequence[Quantity],
        full_scenes: PositiveInt | None,
        targets: Sequence[str] | None,
        l2: PositiveFloat,
    ) -> None:
        super().__init__(folder, every_n_epochs, scenes, pictures_every_n_epochs)
        if full_scenes is not None and full_scenes > scenes:
            raise ValueError(
                f"callbacks.{self.name}.full_scenes must be between 1 and scenes={scenes}, got {full_scenes}"
            )
        self.quantities = tuple(quantities)
        self.tokens = tuple(tokens)
        self.targets = None if targets is None else list(targets)
        self.full = tuple(full)
        self.full_scenes = full_scenes or scenes
        self.l2 = l2
        self.reads = needed((*self.quantities, *self.full))
        self._shown_full = 0

    def measure(self, features_PND: Tensor, targets: Targets) -> Tensor:
        """The measure of every representation and target, [P, T]."""
        raise NotImplementedError

    def baselines(self, targets: Targets) -> dict[str, list[float]]:
        """Baselines to compare the measure with: column -> one number per target."""
        raise NotImplementedError

    def columns(self, value: float, baselines: dict[str, float]) -> dict[str, float]:
        """The columns of one probe: the measure and its baselines."""
        return {self.measured: value, **baselines}

    def shown(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table that are logged and drawn over training, as one line per layer.

        They are of one quantity, :attr:`drawn` or else the last one, at its first kind of tokens. Whole
        representations, which may be of fewer scenes, are shown only where there is nothing else.
        """
        parts = table[table["tokens"] != "full"]
        own = parts if len(parts) else table
        there = set(own["quantity"])
        order = (self.drawn, *reversed(self.quantities), *reversed(self.full))
        own = own[own["quantity"] == next(quantity for quantity in order if quantity in there)]
        return own[own["tokens"] == own["tokens"].iloc[0]]

    def see(self, chunk: Chunk) -> Seen:
        found = representations(chunk, self.quantities, self.tokens)
        if self.full and self._shown_full < self.full_scenes:
            whole = representations(chunk, self.full, ("full",))
            self._check_memory(whole)
            room = self.full_scenes - self._shown_full
            found |= {place: features[:room] for place, features in whole.items()}
            self._shown_full += min(room, len(chunk))
        return found, probe_labels(chunk, self.targets), chunk.batch["y"].device

    def conclude(self, seen: list[Any]) -> Findings:
        self._shown_full = 0
        labels = {name: torch.cat([own[1][name] for own in seen]) for name in seen[0][1]}
        device = seen[0][2]
        found = Findings()
        for places, features_PND in _together(seen):
            size = features_PND.shape[1]
            try:
                targets = Targets.of({name: values[:size] for name, values in labels.items()})
                values_PT = self.measure(features_PND.to(device), targets)
            except ValueError as error:
                raise LabError(f"callbacks.{self.name}: {error}") from error
            baselines = self.baselines(targets)
            # Freed now: the next features are joined before this name gets them.
            del features_PND
            for (place, head), row in zip(places, values_PT.tolist(), strict=True):
                for index, (target, value) in enumerate(zip(targets.names, row, strict=True)):
                    own = self.columns(value, {name: values[index] for name, values in baselines.items()})
                    found.rows.append(_whose(place, head, target) | own | {"scenes": size})
        if not found.rows:
            raise LabError(f"callbacks.{self.name}: the model has none of {', '.join(self.reads)} to probe")
        table = pd.DataFrame(found.rows)
        for name, rows in self.shown(table).groupby(["target", "layer"], sort=False):
            probed, layer = cast(tuple[str, int], name)
            found.scalars[f"{probed}/layer_{layer}"] = float(rows[self.measured].mean())
        for kind in table["tokens"].unique():
            found.figures[kind] = partial(self.bars, table[table["tokens"] == kind])
        return found

    @styled()
    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        shown = self.shown(table)
        targets = list(shown["target"].unique())
        figure, axes = panels(len(targets), sharex=True, sharey=self.limits is not None)
        layers = sorted(shown["layer"].unique())
        colors = dict(zip(layers, layer_colors(len(layers)), strict=True))
        for panel, target in zip(axes, targets, strict=True):
            own = shown[shown["target"] == target]
            for layer, rows in own.groupby("layer"):
                mean = rows.groupby("step")[self.measured].mean()
                values = self.factor * mean.to_numpy()
                panel.plot(mean.index, values, color=colors[layer], label=f"layer {layer}")
            self._draw_baselines(panel, own)
            panel.set(title=_words(target), **({"ylim": self.limits} if self.limits else {}))
            count_axis(panel, "step")
            shade_before(panel, moment)
        name_left(axes, self.label.format(quantity=shown["quantity"].iloc[0]))
        legend_below(figure)
        return figure

    @styled()
    def bars(self, table: pd.DataFrame) -> Figure:
        """One panel per target: bars per layer and quantity, error bars over heads, baselines as lines.

        Source: Eureka-moments in Transformers, Figures 2 and 18 to 23.
        """
        targets = list(table["target"].unique())
        quantities = list(table["quantity"].unique())
        layers = sorted(table["layer"].unique())
        unit = " in %" if self.factor == 100 else ""
        figure, axes = new_figure(7, 1.4 * len(targets) + 0.2, len(targets), 1, True, self.limits is not None)
        for panel, target in zip(axes[:, 0], targets, strict=True):
            own = table[table["target"] == target]
            bars = {
                quantity: self.factor * own[own["quantity"] == quantity].set_index("layer")[self.measured]
                for quantity in quantities
            }
            grouped_bars(panel, layers, bars)
            self._draw_baselines(panel, own)
            panel.set_xticks(range(len(layers)), [f"layer {layer}" for layer in layers])
            panel.set(title=_words(target), **({"ylim": self.limits} if self.limits else {}))
        name_left(axes[:, 0], f"{self.measured}{unit}")
        legend_below(figure)
        return figure

    def _check_memory(self, whole: dict[Place, Tensor]) -> None:
        size = sum(features[0].numel() for features in whole.values()) * self.full_scenes * 2 / 2**30
        if size > _MOST_GIB:
            raise LabError(
                f"callbacks.{self.name}.full would hold {size:.1f} GiB, more than {_MOST_GIB}: name fewer quantities "
                "at a time, or lower full_scenes"
            )

    def _draw_baselines(self, panel: Any, rows: pd.DataFrame) -> None:
        for name, style in _BASELINES.items():
            if name in rows:
                guide(panel, self.factor * rows[name].iloc[-1], style, name)


def _words(target: str) -> str:
    return target.replace("_", " ")


def _whose(place: Place, head: int, target: str) -> dict[str, Any]:
    """The columns that say which probe it is."""
    layer, quantity, tokens = place
    own = head if quantity in OF_HEADS else -1
    return {"layer": layer, "head": own, "quantity": quantity, "tokens": tokens, "target": target}


def _together(seen: Sequence[Seen]) -> Iterable[tuple[list[tuple[Place, int]], Tensor]]:
    """Joins representations of one shape; yields their origins [((layer, quantity, tokens), head)] and all, [P, n, d].

    Features are removed from ``seen`` on the way, so that they are in memory only once.
    """
    shapes: dict[tuple[str, int], list[Place]] = {}
    for place in seen[0][0]:
        # A whole representation is so wide that it is solved alone.
        key = (f"{place}" if place[2] == "full" else "", seen[0][0][place].shape[2])
        shapes.setdefault(key, []).append(place)
    for places in shapes.values():
        own = [torch.cat([parts[0].pop(place) for parts in seen if place in parts[0]]) for place in places]
        names = [(place, head) for place, whole in zip(places, own, strict=True) for head in range(whole.shape[1])]
        joined = torch.cat(own, dim=1).transpose(0, 1)
        own.clear()
        yield names, joined
        del joined
