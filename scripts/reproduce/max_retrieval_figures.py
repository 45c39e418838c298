"""The pictures of "softmax is not enough" that max retrieval and its formulas give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from lab.observation.dispersion import entropy
from lab.observation.recorder import Recorder
from lab.plotting.figures import legend_below, new_figure
from lab.plotting.style import GUIDE, MAP, line_style, styled
from lab.report.published import load
from scripts.reproduce.max_retrieval_evaluation import SIZES, Points, batches

# Coefficients of the published polynomial, highest power first.
_POWERS = [row.cells["coefficient"].mean for row in load("softmax_is_not_enough/figure_5").rows]
PUBLISHED = tuple(value for value in reversed(_POWERS) if value is not None)
# Up to which theta Figure 5 is drawn.
_HIGHEST_THETA = 1.5
# Items of a set whose attention is shown.
_SHOWN = 16


@styled()
def attention_figure(softmaxes: Mapping[str, nn.Module], sets: int = 32) -> Figure:
    """Figures 2 and 6: attention over the 16 largest items of 32 sets, as the number of items doubles."""
    figure, panels = new_figure(7, 1.9 * len(softmaxes), len(softmaxes), len(SIZES))
    for row, (name, model) in zip(panels, softmaxes.items(), strict=True):
        recorder = Recorder(model, what=("weights",))
        for axes, size in zip(row, SIZES, strict=True):
            largest = []
            for batch in batches(size, sets, seed=0):
                recorder.run(batch["x"])
                order = batch["x"][0][..., 0].argsort(1)[:, -_SHOWN:]
                largest.append(recorder[0]["weights"][:, 0, 0].gather(1, order))
            image = axes.imshow(
                torch.cat(largest).numpy(), vmin=0, vmax=1, aspect="auto", interpolation="nearest", cmap=MAP
            )
            axes.grid(visible=False)
            axes.set(xticks=[], yticks=[], title=f"{size:,}")
        row[0].set_ylabel(name.replace("_", "\n"))
    figure.supxlabel(f"the {_SHOWN} largest items of {sets} sets; above, items of a set")
    figure.colorbar(image, ax=panels, label="attention", shrink=0.8)
    return figure


@styled()
def entropy_figure() -> Figure:
    """Figure 4: entropy of softmax at temperature theta of ten logits lambda^0 ... lambda^9."""
    spread, theta = torch.linspace(0, 1, 201, dtype=torch.float64), torch.logspace(-2, 1, 201, dtype=torch.float64)
    logits = spread.unsqueeze(1) ** torch.arange(10)
    values = torch.stack([entropy(logits, torch.full((len(spread),), float(1 / t))) for t in theta])
    figure, axes = new_figure(4.2, 3)
    axes.grid(visible=False)
    mesh = axes.pcolormesh(spread.numpy(), theta.numpy(), values.numpy(), shading="auto", cmap=MAP, rasterized=True)
    axes.set(yscale="log", xlabel=r"$\lambda$ (logits are its powers)", ylabel=r"temperature $\theta$")
    figure.colorbar(mesh, label="entropy in nats")
    return figure


@styled()
def fit_figure(points: Points, own: Sequence[float]) -> Figure:
    """Figure 5: the best temperature against the entropy, with the published and the refitted polynomial."""
    figure, axes = new_figure(4.5, 3.2)
    entropies, betas = points.entropies, points.betas
    few = np.random.default_rng(0).permutation(len(betas))[:4000]
    beyond = int((1 / betas > _HIGHEST_THETA).sum())
    label = r"best $\theta$ of a set" + (f" ({beyond:,} above {_HIGHEST_THETA} are not drawn)" if beyond else "")
    axes.scatter(entropies[few], 1 / betas[few], s=2, alpha=0.2, color=GUIDE, label=label, rasterized=True)
    grid = np.linspace(0.5, float(entropies.max()), 300)
    for label, coefficients, line in (("published", PUBLISHED, "--"), ("refitted", own, "-")):
        beta = np.maximum(np.polyval(coefficients, grid), 1.0)
        axes.plot(grid, 1 / beta, line, color=line_style("adaptive_temperature").color, linewidth=1.8, label=label)
    axes.set(xlabel=r"entropy H at $\theta$ = 1, in nats", ylabel=r"$\theta$", ylim=(0, _HIGHEST_THETA))
    legend_below(figure)
    return figure
