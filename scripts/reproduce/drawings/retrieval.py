"""Layouts of "softmax is not enough": a head of max retrieval on ever larger sets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from lab.models.composed_softmax import softmax_config
from lab.observation.dispersion import entropy, fit_beta
from lab.plotting.figures import legend_below, new_figure
from lab.plotting.style import GUIDE, line_style, styled
from lab.training.load import read_trained
from scripts.reproduce import max_retrieval_evaluation
from scripts.reproduce.drawings.runs import Shown
from scripts.reproduce.max_retrieval_evaluation import Evaluation, Points, batches, logits_and_largest
from scripts.reproduce.max_retrieval_figures import attention_figure, entropy_figure, fit_figure


def attention(runs: Sequence[Shown], rules: Sequence[str]) -> Figure:
    """Attention over the 16 largest items of 32 sets, a row per softmax, swapped in at inference (Figures 2, 6)."""
    trained = read_trained(runs[0].folder)
    return attention_figure({rule: trained.model(softmax_config(rule)) for rule in rules})


@torch.no_grad()
@styled()
def entropies(runs: Sequence[Shown], sets: int = 64) -> Figure:
    """Entropy of the head's attention by the number of items, mean and deviation over sets, beside log n (Figure 3)."""
    model = read_trained(runs[0].folder).model()
    sizes = max_retrieval_evaluation.SIZES
    found = [entropy(logits_and_largest(model, next(batches(n, min(sets, 2**18 // n), seed=0)))[0]) for n in sizes]
    figure, axes = new_figure(5.5, 3.6)
    means, deviations = ([float(number(one)) for one in found] for number in (torch.mean, torch.std))
    axes.errorbar(sizes, means, deviations, color=line_style("softmax").color, label="the head")
    axes.plot(sizes, [math.log(n) for n in sizes], color=GUIDE, linewidth=1, label="uniform attention, log n")
    axes.axvspan(5, 16, color="0.9", label="trained sizes")
    axes.set(xscale="log", xlabel="items", ylabel="entropy in nats", ylim=(0, None))
    legend_below(figure)
    return figure


def entropy_by_temperature(runs: Sequence[Shown]) -> Figure:
    """Entropy of softmax at temperature theta of ten logits lambda^0 ... lambda^9 (Figure 4); needs no run."""
    return entropy_figure()


def fit(runs: Sequence[Shown], sets: int = 60) -> Figure:
    """The best temperature against the entropy of sets that the head gets wrong, with both polynomials (Figure 5)."""
    parts = [Evaluation(folder, read_trained(folder), seed).points(sets) for seed, folder in enumerate(runs[0].folders)]
    points = Points.of_all(parts)
    return fit_figure(points, fit_beta(points.entropies, points.betas))
