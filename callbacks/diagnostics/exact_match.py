"""Share of problems that the model answers to the letter, by algorithm and size, in and out of distribution."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveInt
from scipy.stats import binomtest

from lab.callbacks.diagnostics.base import Diagnostic
from lab.console import LabError
from lab.models.answering import Answering
from lab.observation.observe import EVERY_SCENE, Chunk, Findings
from lab.plotting.figures import count_axis, legend_below, literal, name_left, panels, shade_before
from lab.plotting.style import GUIDE, styled


class ExactMatch(Diagnostic):
    """Decodes the answer to each problem greedily, and counts those that are right in every token and then end.

    Table: algorithm, size, trained (whether the algorithm is trained on this size), problems, right, exact_match, low
    and high (Wilson's 95 % interval).

    In a causal model ``val/accuracy_exact_match`` is the same number, from one pass over the right answers. Decoding is
    what a user of the model does, and the only right number where a softmax couples queries.

    Source: "softmax is not enough", Figure 7; Markeeva et al. 2024 (CLRS-Text).

    Args:
        folder, every_n_epochs, pictures_every_n_epochs: as in :class:`Diagnostic`.
        scenes: how many problems to look at; None takes the whole validation set. Small problems come first.
    """

    def __init__(
        self,
        folder: str,
        every_n_epochs: PositiveInt = 1,
        scenes: PositiveInt | None = None,
        pictures_every_n_epochs: NonNegativeInt = 10,
    ) -> None:
        super().__init__(folder, every_n_epochs, scenes or EVERY_SCENE, pictures_every_n_epochs)

    def see(self, chunk: Chunk) -> pd.DataFrame:
        if not isinstance(chunk.model, Answering) or "algorithm" not in chunk.latent_names:
            raise LabError(
                f"callbacks.{self.name} scores answers to problems of algorithms, and {type(chunk.model).__name__} "
                "does not answer any here: leave it out, or take experiment=clrs_text_small"
            )
        latents = {name: values.tolist() for name, values in chunk.batch["latents"].items()}
        names, places = chunk.latent_names["algorithm"], chunk.latent_names["target_location"]
        return pd.DataFrame(
            {
                "algorithm": [names[number] for number in latents["algorithm"]],
                "size": latents["size"],
                "trained": [places[number] == "in_distribution" for number in latents["target_location"]],
                "right": chunk.model.solves(chunk.batch["x"], chunk.batch["y"]).tolist(),
            }
        )

    def conclude(self, seen: list[Any]) -> Findings:
        right = pd.concat(seen).groupby(["algorithm", "size", "trained"])["right"].agg(["count", "sum"]).reset_index()
        table = right.rename(columns={"count": "problems", "sum": "right"})
        table["exact_match"] = table["right"] / table["problems"]
        spans = [
            binomtest(row.right, row.problems).proportion_ci(method="wilson") for row in table.itertuples(index=False)
        ]
        table["low"], table["high"] = [span.low for span in spans], [span.high for span in spans]
        found = Findings(rows=table.to_dict("records"))
        for (name, trained), own in table.groupby(["algorithm", "trained"]):
            where = "in_distribution" if trained else "out_of_distribution"
            found.scalars[f"{name}/{where}"] = float(own["right"].sum() / own["problems"].sum())
        found.figures["size"] = partial(by_size, table)
        return found

    @styled()
    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        """One panel per algorithm: exact match over training, for sizes in and out of distribution."""
        names = sorted(table["algorithm"].unique())
        figure, axes = panels(len(names), sharex=True, sharey=True)
        for panel, name in zip(axes, names, strict=True):
            for trained, label in ((True, "in distribution"), (False, "out of distribution")):
                own = table[(table["algorithm"] == name) & (table["trained"] == trained)]
                if not own.empty:
                    sums = own.groupby("step")[["right", "problems"]].sum()
                    panel.plot(sums.index, sums["right"] / sums["problems"], label=label)
            panel.set(title=literal(name), ylim=(-0.03, 1.03))
            count_axis(panel, "step")
            shade_before(panel, moment)
        name_left(axes, "exact match")
        legend_below(figure)
        return figure


@styled()
def by_size(table: pd.DataFrame) -> Figure:
    """One panel per algorithm: exact match over problem size, with its interval; dots below mark the sizes trained on.

    Source: "softmax is not enough", Figure 7.

    Args:
        table: table of one look of :class:`ExactMatch`.
    """
    names = sorted(table["algorithm"].unique())
    figure, axes = panels(len(names), columns=3 if len(names) < 10 else 6, sharey=True)
    for panel, name in zip(axes, names, strict=True):
        own = table[table["algorithm"] == name].sort_values("size")
        (line,) = panel.plot(own["size"], own["exact_match"], marker=".", label="exact match")
        panel.fill_between(own["size"], own["low"], own["high"], color=line.get_color(), alpha=0.15, linewidth=0)
        trained = own.loc[own["trained"], "size"]
        panel.plot(trained, [0.0] * len(trained), "o", color=GUIDE, markersize=3, label="trained on", clip_on=False)
        panel.set(title=literal(name), ylim=(-0.03, 1.03))
        count_axis(panel, "problem size")
    name_left(axes, "exact match")
    legend_below(figure)
    return figure
